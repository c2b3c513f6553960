"""Nothing that a loss does makes a GPU wait, so a CUDA graph can hold it: checked where there is no GPU.

A fake tensor has a shape, a dtype and a device, and no values: whatever asks for a value, or for a shape that values
decide, raises. `Watch` refuses what a GPU would wait for besides. The device is "lazy", a GPU's stand-in: the library
tells the CPU from all others, and torch runs a backward on no CUDA device that is not there.

What is done without looking is done on the CPU, too, and held to what is done by looking.
"""

import contextlib
import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_checks import BACKENDS, DOUBLE
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import likewise as lw
from likewise import memory, pairs
from likewise.pairs import keys as keys_module
from likewise.pairs import label_sets
from likewise.pairs.keys import Keys
from loss_table import LOSSES, SETS, SIMILARITY, draw

DEVICE = torch.device("lazy", 0)
LOOKS = {"RASCAL": "ranks are made in blocks of classes of one size, and the sizes are looked at"}
"""Losses that have to look at values, by the first word of their names, and why."""

TRANSFERS = {"aten::_to_copy", "aten::copy_"}
PUTS = {"aten::index_put", "aten::index_put_"}


class TransferError(Exception):
    """A copy between the host and the device, or what amounts to a look."""


WAITS = DataDependentOutputException, DynamicOutputShapeException, TransferError


class Watch(TorchDispatchMode):
    """Refuse copies between the host and the device, in either direction, and what else a GPU would wait for."""

    def __init__(self):
        super().__init__()
        self.launched = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        given, made = (
            [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
            for values in ((args, kwargs), result)
        )
        name = operation.name().partition(".")[0]
        if DEVICE in (devices := {value.device for value in (*given, *made)}):
            # A number on the host is an argument of a kernel; more than that, and a copy of it, is a transfer.
            host = [value for value in given if value.device != DEVICE]
            if (len(devices) > 1 and name in TRANSFERS) or any(value.ndim for value in host):
                raise TransferError(operation)
            if name in PUTS and any(index is not None and index.dtype == torch.bool for index in args[1]):
                raise TransferError(operation)  # the places are counted first
            if made and not operation.is_view and "aten::empty" not in name:
                self.launched.append(name)
        return result


def fake(value):
    """Return a tensor like another on the device, without values; of floating ones in float32."""
    dtype = torch.float32 if value.is_floating_point() else value.dtype
    return torch.empty(value.shape, dtype=dtype, device=DEVICE)


def moved(loss):
    """Return a loss whose buffers are fakes on the device."""
    for module in loss.modules():
        module._buffers = {name: fake(value) for name, value in module._buffers.items()}  # noqa: SLF001 - no other way
    return loss


@pytest.fixture(autouse=True)
def _autocast_knows_no_such_device(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())


def step(name, backend, learned):
    """Take a step of a loss on tensors without values, forward and backward, and return what was launched."""
    row = LOSSES[name]
    made, batch = row.make(backend=backend), row.batch(40, draw(0))
    with FakeTensorMode(), Watch() as watch:
        loss = moved(made)
        batch = {part: fake(value) for part, value in batch.items()}
        wanted = [batch[part].requires_grad_() for part in row.learned]
        if learned and row.temperature:
            owner = loss.loss if isinstance(loss, lw.Matryoshka) else loss
            owner.temperature = torch.empty((), device=DEVICE, requires_grad=True)
            wanted.append(owner.temperature)
        first, *others = batch
        value = loss(batch[first], **{part: batch[part] for part in others})
        torch.autograd.grad(value, wanted)
    return watch.launched


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype, device=DEVICE)


def numbers():
    return ones(8, 4)


def indices():
    return ones(8, dtype=torch.int64)


@pytest.mark.parametrize(
    "look",
    [
        lambda: numbers().sum().item(),
        lambda: bool((numbers() > 0).any()),
        lambda: indices().tolist(),
        lambda: torch.unique(indices()),
        lambda: numbers().nonzero(),
        lambda: numbers()[numbers() > 0],
        lambda: numbers().repeat_interleave(indices(), dim=0),
        lambda: numbers().__setitem__(indices() > 0, ones(4)),
        lambda: torch.as_tensor(0.5, device=DEVICE),
        lambda: torch.arange(3).to(DEVICE),
        lambda: numbers()[[0, 2]],
        lambda: numbers()[0].copy_(torch.zeros(4)),
        lambda: numbers().cpu(),
    ],
)
def test_what_waits_is_noticed(look):
    """Every kind of wait for a GPU that the library has had raises here."""
    with FakeTensorMode(), Watch(), pytest.raises(WAITS):
        look()


def test_what_does_not_wait_is_let_through():
    """Numbers as arguments, and tensors that are made on the device."""
    with FakeTensorMode(), Watch() as watch:
        x, i = ones(8, 4), ones(8, dtype=torch.int64)
        assert (x[i] * 2.0 + torch.full((), 0.5, device=DEVICE)).where(x > 0, 0).device == DEVICE
        x[i] = x
    assert watch.launched.count("aten::index") == 1
    assert watch.launched.count("aten::mul") == 1


@pytest.mark.parametrize(
    ("name", "backend", "learned"),
    [(name, BACKENDS[(turn + learned) % 3], learned) for turn, name in enumerate(LOSSES) for learned in (False, True)],
)
def test_no_step_waits(name, backend, learned):
    """Forward and backward of every loss, with a temperature that is a number or is learned."""
    if name.split(",")[0] in LOOKS:
        with pytest.raises(WAITS):
            step(name, backend, learned)
    else:
        assert step(name, backend, learned)


@pytest.mark.parametrize(
    ("loss", "beside"),
    [
        (lw.BYOLLoss(), lambda: ones(8, 2, 4)),
        (lw.CrossEntropyLoss(label_smoothing=0.1), indices),
        (lw.BCELoss(positive_weight=2.0), lambda: ones(8, 4, dtype=torch.bool)),
        (lw.AsymmetricLoss(), lambda: ones(8, 4, dtype=torch.bool)),
    ],
    ids=lambda of: type(of).__name__,
)
def test_no_loss_that_is_no_contrast_waits(loss, beside):
    """Neither forward nor backward, nor what it says of the step."""
    with FakeTensorMode(), Watch():
        loss(ones(8, 2, 4).requires_grad_(), beside()).backward()


@pytest.mark.parametrize("labelled", [False, True])
def test_a_queue_and_a_cache_do_not_wait(labelled):
    """Enqueueing, and reading a queue that is known to be full and labelled; writing and reading a cache."""
    queue, cache = memory.Queue(16, 4), memory.FeatureCache(20, 4)
    with FakeTensorMode(), Watch():
        moved(queue), moved(cache)
        keys, index = ones(8, 4), ones(8, dtype=torch.int64)
        queue._know("full", *["labelled"] * labelled)  # noqa: SLF001 - as after a first look, which fakes do not allow
        queue.enqueue(keys, index if labelled else None, index)
        assert queue.keys.shape == (16, 4)
        assert queue.ids.shape == (16,)
        if labelled:
            assert queue.labels.shape == (16,)
        cache.write(index, keys)
        assert cache.read(index)[0].shape == (8, 4)
        assert cache.hit_rate(index).ndim == 0


def test_a_momentum_encoder_does_not_wait():
    """The average moves on the device, where the momentum does not rise with the steps."""
    encoder = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    average = memory.MomentumEncoder(encoder)
    with FakeTensorMode(), Watch() as watch:
        for module in encoder.modules():
            module._parameters = {name: fake(value) for name, value in module._parameters.items()}  # noqa: SLF001
        moved(average).update(moved(encoder))
    assert watch.launched


def test_what_is_known_of_a_queue_is_true():
    """That it is full, or has all labels, is forgotten when it is reset, loaded, copied over, or left unlabelled."""
    queue = memory.Queue(4, 2)
    early = copy.deepcopy(queue.state_dict())
    for _ in range(3):
        queue.enqueue(torch.ones(3, 2), torch.arange(3))
        assert len(queue.labels) == len(queue) == min(4, int(queue.enqueued))
    twin = copy.deepcopy(queue)
    queue.load_state_dict(early)
    assert len(queue) == len(queue.labels) == 0
    assert len(twin) == len(twin.labels) == 4
    twin.reset()
    assert len(twin) == 0
    twin.enqueue(torch.ones(1, 2))
    with pytest.raises(ValueError, match="got 0 for 1 keys"):
        _ = twin.labels


def all_weights():
    """Return weights on the device, of 6 anchors and 8 references."""
    labels, others = ones(6, dtype=torch.int64), ones(8, dtype=torch.int64)
    sets, other_sets, similarity = ones(6, 4, dtype=torch.bool), ones(8, 4, dtype=torch.bool), ones(4, 4)
    same, not_self = pairs.SameClass(labels, others), pairs.NotSelf(6, 8, offset=1)
    return {
        "class": same,
        "class, not self": same & not_self,
        "not self": not_self,
        "not class": ~same & not_self,
        "other samples": (same & ~pairs.SameSample(others[:6], others)).mean_over_row(),
        "scaled": same.scale(ones(6), ones(8)) * 0.5 + not_self,
        "labels": pairs.SharesLabel(sets, other_sets) & not_self,
        "overlap": pairs.Overlap(sets, other_sets, worth=ones(6, 4)),
        "jaccard": 1 - pairs.Jaccard(sets, other_sets),
        "mean": pairs.MeanSimilarity(sets, similarity, other_sets).mean_over_row(),
        "max": 1 - pairs.MaxSimilarity(sets, similarity, other_sets),
        "explicit": pairs.Explicit(ones(3, 8, dtype=torch.bool), rows=labels) & not_self,
        "concat": pairs.concat([pairs.NotSelf(6), pairs.NoPairs(6, 2)]),
    }


def test_no_weight_waits():
    """Tiles, sums, support and products with every kind of weight, in the backward too."""
    with FakeTensorMode(), Watch():
        for weight in all_weights().values():
            x = ones(8, 3).requires_grad_()
            product = weight @ x
            (gradient,) = torch.autograd.grad(product.sum(), x)
            assert (product.shape, gradient.shape) == ((6, 3), (8, 3))
            assert weight.T.dense(device=DEVICE).shape == (8, 6)
            assert weight.row_sum(device=DEVICE).shape == weight.support(DEVICE).shape == (6,)


@st.composite
def key_pairs(draw):
    """Draw keys of anchors and references: negative, huge, all one, all distinct, or none, and the same or others."""
    ends = torch.iinfo(torch.int64)
    pool = draw(st.sampled_from([[0], list(range(99)), [-7, 5, 10**12], [ends.min, ends.min + 1, 0, ends.max], [1, 2]]))
    anchors, references = (
        torch.tensor(draw(st.lists(st.sampled_from(pool), max_size=most)), dtype=torch.int64) for most in (9, 80)
    )
    references = draw(st.sampled_from([references, references.repeat(20)]))  # segments are cut into pieces
    return draw(st.sampled_from([(anchors, references), (references, references), (references, anchors)]))


def summed(anchors, references, x, g, seen):
    """Return sums and counts over equal keys, forth and back, and those of keys joined with others, on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys_module, "INSPECTED_DEVICES", ("cpu",) if seen else ())
        one, shifted = Keys(anchors, references), pairs.NotSelf(len(anchors), len(references), offset=1).terms
        halved = Keys(anchors // 2, anchors // 2 if references is anchors else references // 2)
        (own,) = (keys for keys in shifted if keys)
        both = one, one.joined(halved), one.joined(own), own
        sums = [keys.sum(x) for keys in both] + [keys.transposed.sum(g) for keys in both]
        return sums, [
            torch.as_tensor(of.counts(torch.device("cpu"))) for keys in both for of in (keys, keys.transposed)
        ]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(key_pairs(), st.integers(0, 10**6))
def test_keys_that_are_not_looked_at_sum_to_the_same(both, seed):
    """Counts are exact, and sums are those of the keys that are looked at but for the order in which they are taken."""
    generator = torch.Generator().manual_seed(seed)
    g, x = (torch.randn(len(of), 3, dtype=DOUBLE, generator=generator) for of in both)
    (sums, counts), (looked, exact) = (summed(*both, x, g, seen) for seen in (False, True))
    torch.testing.assert_close(sums, looked, rtol=1e-13, atol=1e-12)
    torch.testing.assert_close(counts, exact, rtol=0, atol=0)


@pytest.mark.parametrize("classes", [1, 3, 100, 3000])
@pytest.mark.parametrize("stretch", [1, 1e6])
def test_class_sums_without_a_look_are_as_exact(classes, stretch, monkeypatch):
    """Of clustered rows, some of which are longer by far: error at most twice that of the plain sum in float32."""
    monkeypatch.setattr(keys_module, "INSPECTED_DEVICES", ())
    monkeypatch.setattr(pairs.KeySet, "_cancels", lambda *_: True)  # as where rows are not looked at
    labels = torch.arange(3000) % classes
    x = torch.nn.functional.normalize(torch.randn(classes, 8)[labels] + 0.1 * torch.randn(3000, 8), dim=1)
    x[::7] *= stretch
    weight = (pairs.SameClass(labels) & pairs.NotSelf(3000)).mean_over_row()
    exact = weight.dense(DOUBLE) @ x.double()
    plain = (weight.dense() @ x - exact).norm(dim=1)
    assert (
        (weight @ x - exact).norm(dim=1) <= 2 * plain + 2 * torch.finfo(torch.float32).eps * exact.norm(dim=1)
    ).all()
    first, second = weight @ x, (pairs.SameClass(labels) & pairs.NotSelf(3000)).mean_over_row() @ x
    assert torch.equal(first, second)


@pytest.mark.parametrize("values", [1, 2**24])
def test_the_highest_of_all_labels_is_that_of_the_lists(values, monkeypatch):
    """The max similarity taken from every label is the one gathered from each set's own."""
    monkeypatch.setattr(label_sets, "MAX_COMPARED", values)
    sets, similarity = torch.tensor(SETS, dtype=torch.bool), torch.tensor(SIMILARITY)
    expected = pairs.MaxSimilarity(sets, similarity, sets.flip(0)).dense()
    monkeypatch.setattr(label_sets, "_lists", lambda sets: sets.rows)
    assert torch.equal(pairs.MaxSimilarity(sets, similarity, sets.flip(0)).dense(), expected)
