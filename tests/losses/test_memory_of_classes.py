"""Losses of classes with a queue, or with keys instead of the batch: plain loops, and what a memory of rows equals."""

import pytest
import torch

import likewise as lw
from likewise.memory import Queue

DOUBLE = torch.float64
N, Q, D, C = 9, 14, 6, 4
LABELS, QUEUED = torch.arange(N) * 5 % 3, torch.arange(Q) * 3 % C  # no anchor has class 3, some of the queue do


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def clusters(labels, noise, seed):
    return draw(C, D)[labels] + noise * draw(len(labels), D, seed=seed)


OF_CLASSES = {
    "BatchTriplet": lw.BatchTripletLoss,
    "ContrastiveMargin": lw.ContrastiveMarginLoss,
    "LiftedStructure": lw.LiftedStructureLoss,
    "MultiSimilarity": lw.MultiSimilarityLoss,
    "SupCon": lw.SupConLoss,
}


@pytest.mark.parametrize("name", ["ContrastiveMargin", "SupCon"])
def test_labels_of_a_memory_come_with_it(name):
    loss, z, m = OF_CLASSES[name](), draw(N, D), draw(Q, D)
    for given in ({"queue": m}, {"queue_labels": QUEUED}, {"references": m}, {"reference_labels": QUEUED}):
        with pytest.raises(ValueError, match=r"together, got .* without"):
            loss(z, LABELS, **given)
    with pytest.raises(ValueError, match="queue"):
        loss(z, LABELS, queue=m, queue_labels=QUEUED[:3])
    with pytest.raises(ValueError, match="finite"):
        loss(z, LABELS, queue=m * torch.nan, queue_labels=QUEUED)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_an_empty_queue_is_none(name):
    loss, z = OF_CLASSES[name](), draw(N, D)
    torch.testing.assert_close(loss(z, LABELS, queue=draw(0, D), queue_labels=QUEUED[:0]), loss(z, LABELS))


def test_cross_batch_memory_of_another_library_is_a_queue_shorter_by_a_batch():
    """Theirs holds the batch, too: S rows with it are S − B of ours beside the batch, also while it fills."""
    losses = pytest.importorskip("pytorch_metric_learning.losses", reason="needs pip install 'likewise[bench]'")
    size, queue, ours = 3 * N, Queue(2 * N, D).double(), lw.MultiSimilarityLoss()
    theirs = losses.CrossBatchMemory(losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5), D, memory_size=size)
    for step in range(6):
        z = clusters(LABELS, 0.5, 10 + step).float()
        found = ours(z, LABELS, queue=queue.keys.float(), queue_labels=queue.labels) if len(queue) else ours(z, LABELS)
        torch.testing.assert_close(found, theirs(z, LABELS), rtol=1e-5, atol=1e-6)
        queue.enqueue(z.double(), LABELS)
