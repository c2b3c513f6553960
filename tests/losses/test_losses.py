"""SupCon: double loops, gradients, views, label sets, masks; and how a loss declares and checks its inputs."""

import warnings
from typing import Annotated

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_checks import check_same

import likewise as lw
from cases import in_pairs
from likewise.losses import ContrastiveLoss
from likewise.losses.base import warn_if_inactive
from likewise.losses.inputs import Classes, Embeddings, References, Views

DOUBLE = torch.float64


def embeddings(*shape, dtype=DOUBLE):
    return torch.randn(*shape, dtype=dtype)


def loop(z, positive, temperature, form="out", references=None, queue=None):
    """Return SupCon's row losses as the paper writes them, one pair at a time; None on anchors without positives."""
    others = [z if references is None else references, *([] if queue is None else [queue])]
    z, others = (torch.nn.functional.normalize(rows, dim=1) for rows in (z, torch.cat(others)))
    losses = []
    for i in range(len(z)):
        rest = [u for u in range(len(others)) if references is not None or u != i]
        chosen = [p for p in rest if positive(i, p)]
        if not chosen:
            losses.append(None)
            continue
        denominator = sum(torch.exp(z[i] @ others[u] / temperature) for u in rest)
        ratios = [torch.exp(z[i] @ others[p] / temperature) / denominator for p in chosen]
        if form == "out":
            losses.append(-sum(torch.log(ratio) for ratio in ratios) / len(chosen))
        else:
            losses.append(-torch.log(sum(ratios) / len(chosen)))
    return losses


def mean(losses):
    active = [loss for loss in losses if loss is not None]
    return sum(active) / len(active)


LABELS = torch.tensor([0, 1, 0, 2, 1])
SETS = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 0], [0, 0, 1]])
MASK = torch.tensor([[1.0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 0, 0, 1, 0]])
ALIKE = {
    "classes": ({"labels": LABELS}, lambda i, p: LABELS[i] == LABELS[p]),
    "label sets": ({"labels": SETS}, lambda i, p: (SETS[i] * SETS[p]).any()),
    "mask": ({"mask": MASK}, lambda i, p: MASK[i, p] > 0),
}
"""What defines the positives; a sample without labels has none, and a mask's diagonal is for the other views."""


@in_pairs(case=ALIKE, views=[1, 2, 3], form=["out", "in"], backend=["dense", "tiled"])
def test_sup_con_is_the_double_loop(case, views, form, backend):
    """One, two and three views: loss and gradient of the paper's sums; row v·B + b is sample b's view v."""
    given, alike = ALIKE[case]
    batch = embeddings(5, views, 4).requires_grad_()
    losses = loop(torch.cat(batch.unbind(dim=1)), lambda i, p: alike(i % 5, p % 5), 0.2, form)
    criterion = lw.SupConLoss(temperature=0.2, form=form, backend=backend)
    check_same(criterion(batch, **given), mean(losses), batch)
    assert criterion.last["active_anchors"] == sum(loss is not None for loss in losses)


LABELS_OF = {"references": torch.tensor([1, 0, 1, 3]), "queue": torch.tensor([2, 0, 5, 1, 1])}


@pytest.mark.parametrize("form", ["out", "in", "pairs"])
def test_sets_of_one_label_and_a_mask_are_classes(form):
    """Of the batch, of references and of a queue beside either; a queue is more references."""
    labels, batch, criterion = torch.tensor([0, 1, 2]), embeddings(3, 2, 4), lw.SupConLoss(form=form)
    vectors = {name: embeddings(len(classes), 4) for name, classes in LABELS_OF.items()}
    for names in ((), ("references",), ("queue",), ("references", "queue")):
        given = {name: vectors[name] for name in names}
        classes = {"labels": labels} | {f"{name.removesuffix('s')}_labels": LABELS_OF[name] for name in names}
        expected = criterion(batch, **given, **classes)
        sets = {name: torch.nn.functional.one_hot(of, 6) for name, of in classes.items()}
        torch.testing.assert_close(criterion(batch, **given, **sets), expected)
        if "queue" not in names:
            mask = labels[:, None] == (LABELS_OF["references"] if names else labels)
            torch.testing.assert_close(criterion(batch, **given, mask=mask), expected)
    everyone, of_everyone = (torch.cat([of["references"], of["queue"]]) for of in (vectors, LABELS_OF))
    torch.testing.assert_close(criterion(batch, labels, references=everyone, reference_labels=of_everyone), expected)


def test_labels_and_references_of_other_dtypes():
    """Small integers with large, and float64 with float32: nothing wraps around, dtypes are promoted."""
    batch, references = embeddings(3, 4, dtype=torch.float32), embeddings(4, 4)
    labels, others = torch.tensor([0, 1, 44], dtype=torch.uint8), torch.tensor([0, 300, 300, 1])
    loss = lw.SupConLoss(temperature=0.2)(batch, labels, references=references, reference_labels=others)
    expected = mean(loop(batch.double(), lambda i, p: int(labels[i]) == others[p], 0.2, "out", references))
    assert loss.dtype == DOUBLE
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)


def test_sup_con_without_labels_is_nt_xent():
    """Neither labels nor mask: the positives are the views of the sample."""
    batch = embeddings(6, 2, 5)
    assert torch.equal(lw.SupConLoss(temperature=0.5)(batch), lw.NTXentLoss(temperature=0.5)(batch))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.003, 0.02, 0.1, 1.0]), st.sampled_from(["out", "in"]))
def test_order_names_and_views_do_not_matter(seed, temperature, form):
    """Permuting samples, renaming labels and swapping views permute the rows' losses, and change nothing else."""
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(7, 2, 4, dtype=DOUBLE, generator=generator)
    labels = torch.randint(0, 3, (7,), generator=generator)
    criterion = lw.SupConLoss(temperature=temperature, form=form, reduction="none")
    rows = criterion(batch, labels).view(2, 7)
    close = {"rtol": 1e-10, "atol": 1e-10 / temperature}
    order = torch.randperm(7, generator=generator)
    torch.testing.assert_close(criterion(batch[order], labels[order]).view(2, 7), rows[:, order], **close)
    names = torch.tensor([10**15, -3, 7])
    torch.testing.assert_close(criterion(batch, names[labels]).view(2, 7), rows, **close)
    torch.testing.assert_close(criterion(batch.flip(1), labels).view(2, 7), rows.flip(0), **close)


@pytest.mark.parametrize("labels", [torch.arange(80) % 3, torch.eye(3).bool()[torch.arange(80) % 3]])
def test_labels_may_change_before_the_backward(labels):
    """Changing classes or label sets after the forward does not change the gradient."""
    batch, labels = embeddings(80, 2, 4).requires_grad_(), labels.clone()
    loss = lw.SupConLoss(temperature=0.2)(batch, labels)
    expected = torch.autograd.grad(loss, batch, retain_graph=True)[0]
    labels.zero_()
    torch.testing.assert_close(torch.autograd.grad(loss, batch)[0], expected)


def test_a_mask_that_tiles_read_again_may_not_change_before_the_backward():
    """It raises; one matrix is kept instead."""
    batch, labels, criterion = embeddings(150, 2, 4).requires_grad_(), torch.arange(150) % 3, lw.SupConLoss()
    mask = labels == labels[:, None]
    loss, few = criterion(batch, mask=mask), criterion(batch[:80], mask=mask[:80, :80])
    expected = torch.autograd.grad(few, batch, retain_graph=True)[0]
    mask.zero_()
    torch.testing.assert_close(torch.autograd.grad(few, batch)[0], expected)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_a_gradient_of_the_gradient_is_exact_or_refused():
    """With create_graph the dense backend is twice differentiable, normalisation included; the tiled one refuses."""
    batch, labels = embeddings(5, 3).requires_grad_(), torch.arange(5) % 2
    assert torch.autograd.gradgradcheck(lambda z: lw.SupConLoss(backend="dense", temperature=0.5)(z, labels), (batch,))
    loss = lw.SupConLoss(backend="tiled", temperature=0.5)(batch, labels)
    with pytest.raises(RuntimeError, match='backend="dense"'):
        torch.autograd.grad(loss, batch, create_graph=True)


ALL_DIFFERENT = {
    "SupCon": lambda: lw.SupConLoss(),
    "SupCon, pairs": lambda: lw.SupConLoss(form="pairs"),
    "triplets": lambda: lw.BatchTripletLoss(),
}


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", ALL_DIFFERENT)
def test_labels_that_are_all_different_are_told_once(name, reduction):
    loss, rows = ALL_DIFFERENT[name](), torch.randn(5, 4, requires_grad=True)
    loss.reduction = reduction
    with pytest.warns(UserWarning, match=f"^{type(loss).__name__}: no anchor among 5 rows is active, so the loss is 0"):
        value = loss(rows, torch.arange(5))
    value.sum().backward()
    assert not value.any()
    assert not rows.grad.any()
    assert loss.last["active_anchors"] == 0
    with warnings.catch_warnings(action="error"):
        loss(rows, torch.arange(5))


def test_what_has_an_anchor_or_has_met_its_margin_or_lies_on_a_gpu_is_not_told():
    rows, labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1, 1])
    with warnings.catch_warnings(action="error"):
        lw.SupConLoss()(rows, labels)
        assert lw.BatchTripletLoss(margin=0.1, mining="all")(rows, labels) == 0
        assert not warn_if_inactive("SupConLoss", torch.zeros((), device="meta"), torch.zeros(4), met=False)
        lw.SupConLoss()(rows[:0], labels[:0])


DRAFTS = {
    "SupConLoss has no option base_temperature; it has temperature, form, reduction": (
        lambda: lw.SupConLoss(base_temperature=0.07)
    ),
    "NWSLoss has no option temp, agg, sim; it has label_similarity, alpha, beta, temperature, aggregation": (
        lambda: lw.NWSLoss(alpha=1, beta=0.1, temp=0.1, agg="mean", sim=torch.eye(3))
    ),
    "InfoPatchLoss has no option scale_cls; it has scale, local_weight": lambda: lw.InfoPatchLoss(scale_cls=7),
    "RASCALLoss takes no sample_idx; it takes embeddings, labels, sample_index": (
        lambda: lw.RASCALLoss(9, 4)(torch.randn(2, 2, 4), torch.arange(2), sample_idx=torch.arange(2))
    ),
    r"ArcFaceLoss takes its options by name, got 10, 64: .* temperature, margin, .*; prototypes and queues are given": (
        lambda: lw.ArcFaceLoss(10, 64)
    ),
    "Own has no option warm; it has temperature, reduction, .*, backend$": lambda: Own(heat=1, warm=2),
}


class Own(ContrastiveLoss):
    def __init__(self, heat, **options):
        super().__init__(heat, **options)

    def forward(self): ...


@pytest.mark.parametrize("told", DRAFTS)
def test_an_unknown_option_is_refused_by_the_names_that_there_are(told):
    """An unknown option is a TypeError that names it, before others that are missing."""
    with pytest.raises(TypeError, match=told):
        DRAFTS[told]()


class Declared(ContrastiveLoss):
    """A loss of one's own whose inputs are checked by their annotations; labels come before what they go with."""

    def __init__(self):
        super().__init__(0.1)

    def forward(
        self,
        labels: Annotated[torch.Tensor, Classes("embeddings", below="prototypes")],
        embeddings: Annotated[torch.Tensor, Embeddings()],
        prototypes: Annotated[torch.Tensor | None, References("embeddings")] = None,
    ):
        """Return the number of labels."""
        del embeddings, prototypes
        return torch.tensor(len(labels))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.arange(3), torch.eye(4), torch.eye(4)), "expected labels to have one entry for each of 4 embeddings"),
        ((torch.arange(4), torch.eye(4), torch.eye(4)[:2]), "expected labels to be within the 2 classes"),
        ((torch.arange(4), torch.full((4, 4), torch.nan), torch.eye(4)), "expected embeddings to be finite"),
        ((torch.arange(4), torch.eye(4), torch.eye(3)), "expected prototypes to be rows, .* 4 features of the embed"),
    ],
)
def test_annotations_declare_inputs(arguments, message):
    """Each input is checked after those that it has to agree with, whatever their order, by position and by name."""
    labels, embeddings, prototypes = arguments
    for call in (
        lambda: Declared()(*arguments),
        lambda: Declared()(prototypes=prototypes, embeddings=embeddings, labels=labels),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert Declared()(torch.arange(4), torch.eye(4), torch.eye(4)) == 4
    with pytest.raises(TypeError, match="expected labels, embeddings for Declared, got no embeddings: pass all"):
        Declared()(labels)
    with pytest.raises(TypeError, match="Declared takes no mask; it takes labels, embeddings"):
        Declared()(labels, embeddings, prototypes, mask=labels)


def test_an_argument_that_a_loss_does_not_have_is_refused():
    """A misspelt or foreign name is a TypeError that names it, for losses of views and of inputs by name alike."""
    views, labels = torch.randn(4, 2, 3), torch.arange(4)
    for loss in (lw.NTXentLoss(), lw.DCLLoss(), lw.HardNegativeLoss()):
        with pytest.raises(TypeError, match="unexpected keyword argument 'labels'"):
            loss(views, labels=labels)
        with pytest.raises(TypeError, match="unexpected keyword argument 'embeddings'"):
            loss(embeddings=views)
    for loss, missing in ((lw.ArcFaceLoss(), "prototypes"), (lw.ClipLoss(), "logit_scale")):
        with pytest.raises(TypeError, match=f"for {type(loss).__name__}, got no {missing}: pass all of them"):
            loss(torch.eye(4), labels if missing == "prototypes" else torch.eye(4))


def test_a_required_input_that_is_none_is_refused():
    """None for label sets that must be given is no tensor; only optional ones may be left out with their rows."""
    with pytest.raises(ValueError, match="expected labels to be a tensor, got NoneType"):
        lw.MSCLoss()(torch.eye(2), None, torch.eye(2))


def test_annotations_are_read_however_they_are_written():
    """In a union with None, as strings, beside parameters of any kind; a default reaches `check`."""

    class Own(ContrastiveLoss):
        def forward(
            self,
            first: Annotated[torch.Tensor, Embeddings()],
            second: "Annotated[torch.Tensor, References('first')] | None" = None,
            *rest: torch.Tensor,
            margin: float = 0.5,
            **others: torch.Tensor,
        ):
            del second, rest, others
            return first.sum() * margin

        def check(self, inputs):
            assert inputs["margin"] == 0.5

    assert Own(0.1)(torch.ones(2, 3)) == 3
    with pytest.raises(ValueError, match="expected first to be finite"):
        Own(0.1)(torch.full((2, 3), torch.nan))
    with pytest.raises(ValueError, match="expected second to be rows"):
        Own(0.1)(torch.ones(2, 3), torch.ones(2, 4))


@pytest.mark.parametrize(
    ("loss", "kind"),
    [(lw.NTXentLoss(), list), (lw.DCLLoss(), tuple), (lw.SupConLoss(), tuple), (lw.BCLLoss(), list)],
    ids=lambda loss: type(loss).__name__,
)
def test_a_list_of_views_is_their_tensor(loss, kind):
    """A loader's list of views, each (B, D), gives the loss and the gradients of (B, V, D), labels or none beside."""
    views = torch.randn(4, 2, 5, dtype=torch.float64, requires_grad=True)
    prototypes = {"prototypes": torch.randn(2, 5, dtype=torch.float64)} if isinstance(loss, lw.BCLLoss) else {}
    labels = [] if isinstance(loss, lw.NTXentLoss | lw.DCLLoss) else [torch.tensor([0, 0, 1, 1])]
    listed, stacked = (loss(given, *labels, **prototypes) for given in (kind(views.unbind(dim=1)), views))
    assert torch.equal(listed, stacked)
    assert torch.equal(*(torch.autograd.grad(of, views)[0] for of in (listed, stacked)))


def test_a_loss_of_views_keeps_its_own_options():
    """What a loss takes beside its views reaches its forward."""

    class Scaled(ContrastiveLoss):
        def forward(self, *views: Annotated[torch.Tensor, Views()], scale: float = 1.0):
            (embeddings,) = views
            return embeddings.sum() * scale

    assert Scaled(0.1)(torch.ones(2, 3), torch.ones(2, 3), scale=0.5) == 6


def test_inputs_that_wait_for_each_other_are_refused():
    """A class whose inputs cannot be put into an order is refused when it is made."""
    with pytest.raises(TypeError, match=r"one after another, got one, two, one, which wait for each other"):

        class _Circle(ContrastiveLoss):
            def forward(
                self, one: Annotated[torch.Tensor, References("two")], two: Annotated[torch.Tensor, References("one")]
            ):
                raise NotImplementedError


def test_an_annotation_names_inputs_that_exist():
    """A misspelt name is told when the class is made: of which input, in which loss, and what it may be."""
    told = r"the annotation of labels in .*Misspelt.forward to name inputs .*got 'embedings': name one of embeddings"
    with pytest.raises(TypeError, match=told):

        class Misspelt(lw.losses.ContrastiveLoss):
            def forward(
                self,
                embeddings: Annotated[torch.Tensor, Embeddings()],
                labels: Annotated[torch.Tensor, Classes("embedings")],
            ):
                return embeddings.sum() * len(labels)
