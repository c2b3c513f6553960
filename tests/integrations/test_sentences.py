"""Our losses as sentence-transformers calls them: values and gradients beside its own, and what is told at the door."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import likewise as lw
from likewise import pairs
from likewise.integrations import ForSentences

PAGE = Path(__file__).parents[2] / "docs" / "coming-from" / "sentence-transformers.md"
NEAR, ROWS = 2e-6, 24

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of libraries


@pytest.fixture(scope="module")
def models(save_bert, tmp_path_factory):
    """Return two SentenceTransformers with random weights."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - where it is installed

    folders = [tmp_path_factory.mktemp("model") for _ in range(2)]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        save_bert(folder, hidden_size=32)
    return [SentenceTransformer(str(folder), device="cpu").eval() for folder in folders]


def columns(model, count):
    """Return the features of columns of texts, as the trainer's collator makes them."""
    generator = torch.Generator().manual_seed(0)
    texts = [[torch.randint(1, 60, (4,), generator=generator).tolist() for _ in range(ROWS)] for _ in range(count)]
    tokens = [[" ".join(map(str, text)) for text in column] for column in texts]
    return [dict(model.tokenizer(column, padding=True, return_tensors="pt")) for column in tokens]


def step(loss, model, count, labels=None):
    """Return the loss and the gradients of all parameters in one vector."""
    model.zero_grad()
    value = loss(columns(model, count), labels)
    value.backward()
    return value.detach(), torch.cat([of.grad.flatten() for of in model.parameters() if of.grad is not None])


def assert_equal(ours, theirs, model, count):
    (mine, gradient), (value, expected) = step(ours, model, count), step(theirs, model, count)
    torch.testing.assert_close(mine.reshape(()), value.reshape(()), rtol=NEAR, atol=0)
    assert (gradient - expected).norm() <= NEAR * expected.norm()


@pytest.fixture(scope="module")
def losses():
    return pytest.importorskip("sentence_transformers.losses", reason="not installed")


@pytest.mark.parametrize("chunk_size", [None, 7])
@pytest.mark.parametrize("negatives", [0, 1, 5])
def test_hard_negatives_are_those_of_multiple_negatives_ranking(negatives, chunk_size, models, losses):
    """At once, and in chunks as the cached form of theirs."""
    model, info_nce = models[0], lw.InfoNCELoss(temperature=0.05)
    theirs = losses.MultipleNegativesRankingLoss(model)
    if chunk_size:
        theirs = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=chunk_size)
    assert_equal(ForSentences(model, info_nce, chunk_size=chunk_size), theirs, model, 2 + negatives)


@pytest.mark.parametrize("chunk_size", [None, 7])
def test_widths_are_matryoshkas(chunk_size, models, losses):
    """Theirs is a weighted sum, ours the mean."""
    model, widths = models[0], (32, 16, 8)
    theirs = losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model), list(widths), [1 / 3] * 3)
    ours = ForSentences(model, lw.Matryoshka(lw.InfoNCELoss(temperature=0.05), widths), chunk_size=chunk_size)
    assert_equal(ours, theirs, model, 3)


@pytest.mark.parametrize("wrapper", ["MatryoshkaLoss", "AdaptiveLayerLoss", "Matryoshka2dLoss"])
def test_wrappers_that_replace_the_models_forward_work_without_chunks_and_are_told_with_them(wrapper, models, losses):
    """They put it back before the backward, where chunks would call it again, but older versions not after an error."""
    model, sizes = deepcopy(models[0]), [[32, 16]] * wrapper.startswith("Matryoshka")
    info_nce, ranking = lw.InfoNCELoss(temperature=0.05), losses.MultipleNegativesRankingLoss(model)
    if wrapper == "MatryoshkaLoss":
        ours, theirs = (getattr(losses, wrapper)(model, of, *sizes) for of in (ForSentences(model, info_nce), ranking))
        assert_equal(ours, theirs, model, 3)
    with pytest.raises(ValueError, match=r"expected no chunk_size in .* got 7: leave it out, or take likewise.Matr"):
        step(getattr(losses, wrapper)(model, ForSentences(model, info_nce, chunk_size=7), *sizes), model, 2)


def test_the_guide_of_the_page_is_gist_embeds(models, losses):
    (code,) = re.findall(r"```python\n(class Guided.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {"nn": nn, "torch": torch, "normalize": normalize, "pairs": pairs, "lw": lw}
    exec(code, names)  # noqa: S102 - our own
    model, guide = models
    assert_equal(names["Guided"](model, guide, 0.05), losses.GISTEmbedLoss(model, guide, temperature=0.05), model, 2)


class Identity(nn.Module):
    """As a SentenceTransformer, of vectors."""

    def forward(self, features):
        return {"sentence_embedding": features["vectors"]}


class Swapped(Identity):
    """As the model where the loss belongs."""

    def encode(self):
        pass


def vectors(count, rows=6):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, 4, generator=generator) for _ in range(count)]


def call(loss, columns, labels=None, **options):
    return ForSentences(Identity(), loss, **options)([{"vectors": column} for column in columns], labels)


def test_columns_are_the_arguments_of_the_loss():
    """Classes of one column, or of views; views alone; a triple; documents as ids."""
    a, b, c = vectors(3)
    labels, ids = torch.arange(6) % 2, torch.tensor([[0, 9], [1, 2], [0, 1], [3, 4], [4, 5], [5, 6]])
    sup_con, info_nce, triplet = lw.SupConLoss(), lw.InfoNCELoss(), lw.TripletLoss()
    assert torch.equal(call(sup_con, [a], labels), sup_con(a, labels))
    assert torch.equal(call(sup_con, [a, b], labels), sup_con(torch.stack([a, b], dim=1), labels))
    assert torch.equal(call(lw.NTXentLoss(), [a, b]), lw.NTXentLoss()(a, b))
    assert torch.equal(call(triplet, [a, b, c]), triplet(a, b, c))
    one = info_nce(a, b, ids=ids[:, 0])
    assert torch.equal(call(info_nce, [a, b], ids[:, 0], ids_in_labels=True), one)
    two = info_nce(a, b, negatives=c[:, None], ids=ids[:, 0], negative_ids=ids[:, 1:])
    assert torch.equal(call(info_nce, [a, b, c], ids, ids_in_labels=True), two)
    assert one != info_nce(a, b)


@pytest.mark.parametrize(
    ("loss", "count", "labels", "options", "told"),
    [
        (lw.InfoNCELoss(), 1, None, {}, r"what InfoNCELoss takes, queries, keys, .* got 1 column\(s\) of texts:"),
        (lw.TripletLoss(), 4, None, {}, "expected what TripletLoss takes, anchors, positives, negatives, got 4"),
        (lw.ProxyNCALoss(), 1, torch.arange(6), {}, "wrap the loss in a module of your own .* such as prototypes"),
        (lw.InfoNCELoss(), 2, torch.arange(6), {}, "expected no column of labels, as InfoNCELoss takes none"),
        (lw.InfoNCELoss(), 2, None, {"chunk_size": "8"}, "chunk_size of at least 1, got '8'"),
        (Swapped(), 2, None, {}, "expected a model, and then a loss .* got Swapped as loss"),
        (lw.InfoNCELoss(), 2, None, {"ids_in_labels": True}, "a column label, got InfoNCELoss and no column: leave"),
        (lw.SupConLoss(), 1, torch.arange(6), {"ids_in_labels": True}, "InfoNCELoss .* got SupConLoss and a column"),
    ],
)
def test_what_does_not_fit_is_told(loss, count, labels, options, told):
    with pytest.raises(ValueError, match=told):
        call(loss, vectors(count), labels, **options)


def test_a_learned_temperature_adds_up_where_the_model_does():
    """Trainers before 6.2 clear the model's gradients alone: a step must not add the temperature's of earlier ones."""
    model, loss = Identity(), lw.InfoNCELoss(temperature="learned")
    model.weight = nn.Parameter(torch.eye(4))
    model.register_forward_hook(lambda own, _, found: {name: of @ own.weight for name, of in found.items()})
    loss_of, batch = ForSentences(model, loss), [{"vectors": column} for column in vectors(2)]
    found = []
    for accumulated in (1, 1, 2):
        model.zero_grad()
        for _ in range(accumulated):
            loss_of(batch).backward()
        with torch.no_grad():
            loss_of(batch)  # an evaluation clears nothing
        found.append(float(loss.log_temperature.grad))
    assert found[0] != 0
    assert found == pytest.approx([found[0], found[0], 2 * found[0]])


def test_what_a_loss_has_that_does_not_learn_is_taken():
    loss = lw.InfoNCELoss(temperature="learned").requires_grad_(requires_grad=False)
    assert torch.equal(call(loss, vectors(2)), loss(*vectors(2)))
