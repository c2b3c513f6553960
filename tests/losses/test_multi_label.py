"""Losses of label sets: naive loops over labels, exact shares, unlabelled queries."""

import math
import sys
from itertools import combinations
from pathlib import Path
from typing import Literal, get_type_hints

import numpy as np
import pytest
import torch
from operator_checks import check_same
from torch.nn.functional import normalize

import likewise as lw
from cases import in_pairs

BACKENDS = ["dense", "tiled"]
DOUBLE = torch.float64
GOLDEN = Path(__file__).parents[1] / "golden"


@in_pairs(draw="ab", edge=["", "_edge"], method=["npmi", "jaccard"], dtype=[DOUBLE, torch.bool, torch.uint8])
def test_label_similarity_is_the_reference(method, edge, draw, dtype):
    """Both methods, labels that always or never occur, any dtype: float32, symmetric, diagonal 1."""
    reference = np.load(GOLDEN / f"label_similarity_{method}{edge}_{draw}.npz")
    found = lw.label_pair_similarity(torch.tensor(reference["input.labels"]).to(dtype), method)
    assert found.dtype == torch.float32
    assert np.abs(found.double().numpy() - reference["value"]).max() <= 1e-7
    assert torch.equal(found, found.T)
    assert (found.diagonal() == 1).all()


def test_label_similarity_of_many_samples_does_not_wrap_around():
    """300 samples with both labels: a uint8 product would be 300 − 256, a boolean one 1; arrays are accepted."""
    labels = np.ones((300, 2), dtype=np.uint8)
    labels[:100, 1] = 0
    assert lw.label_pair_similarity(labels, "jaccard")[0, 1] == pytest.approx(2 / 3)


def plain_similarity(labels, method):
    """Return the similarity of labels by a loop over pairs, in Python's own numbers."""
    total, found = len(labels), np.eye(labels.shape[1])
    members = [set(np.flatnonzero(column)) for column in labels.T]
    for one, other in combinations(range(len(members)), 2):
        both = len(members[one] & members[other])
        if method == "jaccard":
            value = both / max(1, len(members[one] | members[other]))
        elif method == "identity" or both == 0:
            value = 0.0
        elif both == total:
            value = 1.0
        else:
            information = math.log(both * total / (len(members[one]) * len(members[other])))
            value = (information / -math.log(both / total) + 1) / 2
        found[one, other] = found[other, one] = value
    return found


@pytest.mark.parametrize("method", ["npmi", "jaccard", "identity"])
@pytest.mark.parametrize("dense", [0, 10**9], ids=["pairs", "product"])
def test_label_similarity_is_that_of_a_loop_in_any_tiles(method, dense, monkeypatch):
    """Long tails, labels of no sample and of every one, samples without labels."""
    for name, size in {"PAIR_COST": dense, "PAIRS": 7, "ROWS": 5}.items():
        monkeypatch.setattr(sys.modules["likewise.losses.label_pair_similarity"], name, size)
    labels = np.random.default_rng(0).random((60, 12)) < 1 / np.arange(1, 13)
    labels[:, 5], labels[:, 7] = False, True
    labels[20:30] = False
    found = lw.label_pair_similarity(torch.tensor(labels), method)
    assert np.abs(found.double().numpy() - plain_similarity(labels, method)).max() <= 1e-7
    assert torch.equal(found, found.T)
    assert torch.equal(lw.label_pair_similarity(torch.zeros(3, 4), method), torch.eye(4))


def batch(queries=6, labels=4, queue=5):
    """Return a small batch in float64, one query without labels, with leaves that require gradients."""
    sets = torch.rand(queries, labels) < 0.5
    sets[1] = False
    similarity = torch.rand(labels, labels, dtype=DOUBLE)
    return {
        "queries": torch.randn(queries, 3, dtype=DOUBLE, requires_grad=True),
        "labels": sets,
        "prototypes": torch.randn(labels, 3, dtype=DOUBLE, requires_grad=True),
        "keys": torch.randn(queries, 3, dtype=DOUBLE),
        "queue": torch.randn(queue, 3, dtype=DOUBLE),
        "queue_labels": torch.rand(queue, labels) < 0.4,
    }, (similarity + similarity.T) / 2


def shares(own, everyone, alpha, correction):
    """Return w_ir of instances and w_ic of prototypes by loops over labels."""
    instance = torch.zeros(len(own), len(everyone), dtype=DOUBLE)
    prototype = torch.zeros(own.shape, dtype=DOUBLE)
    for i, y in enumerate(own):
        for c in y.nonzero().flatten():
            parts = [alpha * float(v[c]) / float((y | v).sum()) for v in everyone]
            total = sum(parts) + 1 - (alpha / float(y.sum()) if correction == "key" else 0)
            instance[i] += torch.tensor(parts, dtype=DOUBLE) / total
            prototype[i, c] = 1 / total
    return instance, prototype


@in_pairs(
    sections=["keys", "queue", "keys queue", ""], aggregation=["mean", "max"], inclusive=[False, True], backend=BACKENDS
)
def test_nws_is_the_loop_over_pairs_of_labels(inclusive, aggregation, sections, backend):
    """B x R x L x L pairs of labels, one at a time: keys, queue, both or only prototypes; positives may also push."""
    parts, similarity = batch()
    own = parts["labels"]
    labels = [own] * ("keys" in sections) + [parts["queue_labels"]] * ("queue" in sections)
    everyone = torch.cat([*labels, torch.zeros(0, 4, dtype=torch.bool)])
    correction = "key" if "keys" in sections else "none"
    instance, prototype = shares(own, everyone, 0.7, correction)
    push = torch.zeros(6, len(everyone) + 4, dtype=DOUBLE)
    for i, y in enumerate(own):
        for r, v in enumerate(everyone):
            alike = [similarity[c, d] for c in y.nonzero().flatten() for d in v.nonzero().flatten()] or [0.0]
            sim = max(alike) if aggregation == "max" else sum(alike) / len(alike)
            push[i, r] = float(inclusive) if (y & v).any() else 0.2 * (1 - sim)
        push[i, len(everyone) :] = 1 if inclusive else (~y).double()
    w = torch.cat([instance, prototype], dim=1)
    z = normalize(parts["queries"])
    v = [normalize(parts[k]) for k in sections.split()]
    s = z @ torch.cat([*v, normalize(parts["prototypes"])]).T / 0.3
    rows = []
    for i, size in enumerate(own.sum(dim=1)):
        if size > 0 and push[i].sum() > 0:
            rows.append((w[i].sum() * (push[i] * s[i].exp()).sum().log() - (w[i] * s[i]).sum()) / size)
    extra = {name: parts[name] for name in sections.split()}
    extra |= {"key_labels": own} if "keys" in sections else {}
    extra |= {"queue_labels": parts["queue_labels"]} if "queue" in sections else {}
    criterion = lw.NWSLoss(
        similarity,
        alpha=0.7,
        beta=0.2,
        temperature=0.3,
        aggregation=aggregation,
        positives_in_denominator=inclusive,
        backend=backend,
    )
    loss = criterion(parts["queries"], own, parts["prototypes"], **extra)
    assert criterion.last["active_anchors"] == len(rows)
    check_same(loss, sum(rows) / len(rows), [parts["queries"], parts["prototypes"]])


@in_pairs(dtype=[torch.float32, DOUBLE], aggregation=["mean", "max"], backend=BACKENDS)
def test_an_unlabelled_query_changes_nothing(dtype, aggregation, backend):
    """One query without labels among a thousand: the gradients of the others stay bit for bit, and its own is 0."""
    labels = torch.rand(1001, 6) < 0.3
    labels[:-1, 0] |= ~labels[:-1].any(dim=1)
    labels[-1] = False
    queries = torch.randn(1001, 8, dtype=dtype)
    queue, queue_labels, prototypes = torch.randn(64, 8, dtype=dtype), torch.rand(64, 6) < 0.3, torch.randn(6, 8)
    criterion = lw.NWSLoss(torch.eye(6), aggregation=aggregation, backend=backend)
    gradients = []
    for count in (1000, 1001):
        leaf = queries[:count].clone().requires_grad_()
        criterion(leaf, labels[:count], prototypes, queue=queue, queue_labels=queue_labels).backward()
        gradients.append(leaf.grad)
    assert torch.equal(gradients[0], gradients[1][:1000])
    assert (gradients[1][1000] == 0).all()
    assert torch.isfinite(gradients[1]).all()


def test_an_unlabelled_reference_is_a_full_negative():
    """A key without labels pushes with β, whatever S says."""
    similarity = torch.ones(2, 2)
    parts = {"queue": torch.eye(3)[2:], "queue_labels": torch.zeros(1, 2)}
    criterion = lw.NWSLoss(similarity, beta=0.5, temperature=1.0)
    loss = criterion(torch.eye(3)[:1], torch.tensor([[1, 0]]), torch.eye(2, 3), **parts)
    assert loss.item() == pytest.approx(np.log(0.5 + 1) - 1)


def test_the_similarity_keeps_its_dtype_and_moves_with_the_loss():
    """S is a buffer in its own dtype; float64 stays float64."""
    criterion = lw.NWSLoss(np.eye(3))
    assert criterion.label_similarity.dtype == DOUBLE
    assert set(criterion.state_dict()) == {"label_similarity"}


@pytest.mark.parametrize("method", ["npmi", "jaccard"])
def test_a_similarity_by_name_is_told_how_to_make_it(method):
    """A loss has no training labels: the error says what to pass; what torch.as_tensor takes is a matrix, as ever."""
    with pytest.raises(
        ValueError, match=rf"got '{method}': pass likewise.label_pair_similarity\(labels, \"{method}\"\)"
    ):
        lw.NWSLoss(method)
    with pytest.raises(ValueError, match=r"got 'cosine': pass likewise.label_pair_similarity\(labels, \"npmi\"\)"):
        lw.NWSLoss("cosine")
    assert (
        get_type_hints(lw.NWSLoss.__init__)["label_similarity"] == torch.Tensor | Literal["npmi", "jaccard", "identity"]
    )
    matrix = lw.label_pair_similarity(torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 1]]), method)
    for of in (matrix, matrix.tolist(), matrix.numpy()):
        assert torch.equal(lw.NWSLoss(of).label_similarity, matrix)


def test_no_labels_at_all_is_zero_with_zero_gradient():
    """A batch of unlabelled queries: loss 0, connected, gradient 0."""
    for criterion in (lw.NWSLoss(torch.eye(2)), lw.MSCLoss(), lw.MulSupConLoss()):
        leaf = torch.randn(4, 3, requires_grad=True)
        extra = () if isinstance(criterion, lw.MulSupConLoss) else (torch.randn(2, 3),)
        loss = criterion(leaf, torch.zeros(4, 2), *extra)
        loss.backward()
        assert loss == 0
        assert (leaf.grad == 0).all()


@pytest.mark.parametrize("name", ["MSCLoss", "NWSLoss", "MulSupConLoss"])
def test_a_long_queue_of_label_sets_is_never_widened(name):
    """No tensor of a step is larger than twice the queue's label sets, a byte for each label."""
    labels, rows, length = 900, 64, 8_192
    own, older = torch.rand(rows, labels) < 0.02, torch.rand(length, labels) < 0.02
    queries, queue = torch.randn(rows, 16, requires_grad=True), torch.randn(length, 16)
    prototypes = () if name == "MulSupConLoss" else (torch.randn(labels, 16),)
    criterion = lw.NWSLoss(torch.eye(labels)) if name == "NWSLoss" else getattr(lw, name)()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        criterion(queries, own, *prototypes, queue=queue, queue_labels=older).backward()
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert older.nbytes / 2 < largest < 2 * older.nbytes
