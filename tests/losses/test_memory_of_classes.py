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


def total(terms):
    return sum(terms, start=torch.zeros((), dtype=DOUBLE))


def unit(rows):
    return rows / rows.norm(dim=1, keepdim=True)


class Met:
    """Anchors, and the rows that each meets: (similarity, whether of its class, which row)."""

    def __init__(self, z, labels, others, other_labels, *, batch):
        self.z, self.labels = unit(z), labels.tolist()
        self.rows = torch.cat([self.z, unit(others)]) if batch else unit(others)
        self.classes = self.labels + other_labels.tolist() if batch else other_labels.tolist()
        self.batch = batch

    def of(self, i):
        seen = [r for r in range(len(self.rows)) if not (self.batch and r == i)]
        return [(self.z[i] @ self.rows[r], self.classes[r] == self.labels[i], r) for r in seen]

    @property
    def anchors(self):
        return [self.of(i) for i in range(len(self.z))]


def multi_similarity(met, alpha=2.0, beta=50.0, threshold=0.5, epsilon=None):
    losses = []
    for pairs in met.anchors:
        near, far = ([s for s, same, _ in pairs if same is of] for of in (True, False))
        if epsilon is not None:
            hardest, farthest = max(far, default=-9.0), min(near, default=9.0)
            near, far = [s for s in near if s <= hardest + epsilon], [s for s in far if s > farthest - epsilon]
        pulled = torch.log(1 + total([torch.exp(-alpha * (s - threshold)) for s in near])) / alpha
        losses.append(pulled + torch.log(1 + total([torch.exp(beta * (s - threshold)) for s in far])) / beta)
    return total(losses) / len(losses)


def contrastive_margin(met):
    pairs = [pair for of in met.anchors for pair in of]
    near = [1.0 - s for s, same, _ in pairs if same and s < 1.0]
    far = [s - 0.5 for s, same, _ in pairs if not same and s > 0.5]
    return total(near) / max(len(near), 1) + total(far) / max(len(far), 1)


def every_triplet(met, margin=0.3):
    losses = [n - p + margin for of in met.anchors for p, one, _ in of if one for n, other, _ in of if not other]
    losses = [loss for loss in losses if loss > 0]
    return total(losses) / max(len(losses), 1)


def semi_hard_triplets(met, margin=0.3):
    """Every positive with the hardest negative that is farther than it, by the Euclidean distance; FaceNet's."""
    losses = []
    for of in met.anchors:
        near, far = ([-((2 - 2 * s) ** 0.5) for s, same, _ in of if same is kind] for kind in (True, False))
        for p in near if far else []:
            n = max((n for n in far if n < p), default=min(far))
            losses.append((n - p + margin).clamp(min=0))
    return total(losses) / len(losses)


def hard_triplets(met, margin=0.3):
    losses = []
    for of in met.anchors:
        near, far = ([s for s, same, _ in of if same is kind] for kind in (True, False))
        losses += [(max(far) - min(near) + margin).clamp(min=0)] if near and far else []
    return total(losses) / len(losses)


def lifted_structure(met):
    def negatives(row, of):
        others = [r for r, name in enumerate(met.classes) if name != of]
        return total([torch.exp(1 - (2 - 2 * row @ met.rows[r])) for r in others])

    losses = []
    for i, of in enumerate(met.anchors):
        for s, same, p in of:
            if same:
                apart = negatives(met.z[i], met.labels[i]) + negatives(met.rows[p], met.classes[p])
                losses.append((torch.log(apart) + 2 - 2 * s).clamp(min=0) ** 2 / 2)
    return total(losses) / len(losses)


LOOPS = {
    "multi-similarity": (lw.MultiSimilarityLoss, multi_similarity),
    "multi-similarity, mined": (
        lambda **of: lw.MultiSimilarityLoss(epsilon=0.1, **of),
        lambda met: multi_similarity(met, epsilon=0.1),
    ),
    "contrastive with margins": (lw.ContrastiveMarginLoss, contrastive_margin),
    "every triplet": (lambda **of: lw.BatchTripletLoss(margin=0.3, mining="all", **of), every_triplet),
    "semi-hard triplets, by distance": (
        lambda **of: lw.BatchTripletLoss(margin=0.3, distance="euclidean", **of),
        semi_hard_triplets,
    ),
    "the hardest triplets": (lambda **of: lw.BatchTripletLoss(margin=0.3, mining="hard", **of), hard_triplets),
    "lifted structure": (lw.LiftedStructureLoss, lifted_structure),
}


def compared(ours, theirs, *leaves):
    found, expected = ours(*leaves), theirs(*leaves) + 0 * total([leaf.sum() for leaf in leaves])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    for mine, other in zip(torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


@pytest.mark.parametrize("backend", ["dense", "tiled"])
@pytest.mark.parametrize("noise", [1.0, 0.05])
@pytest.mark.parametrize("name", LOOPS)
def test_a_loss_with_a_memory_is_its_loop(name, noise, backend):
    """Without, beside the batch, or instead of it; gradients reach the memory's rows, too, where they are learned."""
    make, loop = LOOPS[name]
    loss = make(backend=backend)
    z, m = clusters(LABELS, noise, 1).requires_grad_(), clusters(QUEUED, noise, 2).requires_grad_()
    compared(lambda z: loss(z, LABELS), lambda z: loop(Met(z, LABELS, m[:0], QUEUED[:0], batch=True)), z)
    compared(
        lambda z, m: loss(z, LABELS, queue=m, queue_labels=QUEUED),
        lambda z, m: loop(Met(z, LABELS, m, QUEUED, batch=True)),
        z,
        m,
    )
    compared(
        lambda z, m: loss(z, LABELS, references=m, reference_labels=QUEUED),
        lambda z, m: loop(Met(z, LABELS, m, QUEUED, batch=False)),
        z,
        m,
    )
    compared(
        lambda z, m: loss(
            z, LABELS, references=m[:5], reference_labels=QUEUED[:5], queue=m[5:], queue_labels=QUEUED[5:]
        ),
        lambda z, m: loop(Met(z, LABELS, m, QUEUED, batch=False)),
        z,
        m,
    )


def bcl(z, labels, w, m, queued, temperature=0.1):
    rows, classes = torch.cat([unit(z), unit(w), unit(m)]), labels.tolist() + list(range(len(w))) + queued.tolist()
    losses = []
    for i in range(len(z)):
        s = {r: rows[i] @ rows[r] / temperature for r in range(len(rows)) if r != i}
        of = {c: [s[r] for r in s if classes[r] == c] for c in range(len(w))}
        everything = torch.log(total([total([torch.exp(x) for x in each]) / len(each) for each in of.values()]))
        losses.append(everything - total(of[classes[i]]) / len(of[classes[i]]))
    return total(losses) / len(losses)


def paco(z, labels, logits, m, queued, temperature=0.2, alpha=0.05):
    rows, classes = torch.cat([unit(z), unit(m)]), labels.tolist() + queued.tolist()
    losses = []
    for i in range(len(z)):
        s = {r: rows[i] @ rows[r] / temperature for r in range(len(rows)) if r != i}
        own = [s[r] for r in s if classes[r] == classes[i]]
        everything = torch.log(total([torch.exp(x) for x in (*s.values(), *logits[i])]))
        losses.append(everything - (logits[i, classes[i]] + alpha * total(own)) / (1 + alpha * len(own)))
    return total(losses) / len(losses)


def proxy_anchor(z, labels, w, m, queued, alpha=32.0, delta=0.1):
    rows, classes = torch.cat([unit(z), unit(m)]), torch.cat([labels, queued]).tolist()
    near, far = [], []
    for c, v in enumerate(unit(w)):
        s = [row @ v for row in rows]
        own = [of for of, name in zip(s, classes, strict=True) if name == c]
        near += [torch.log(1 + total([torch.exp(-alpha * (of - delta)) for of in own]))] if own else []
        others = [of for of, name in zip(s, classes, strict=True) if name != c]
        far.append(torch.log(1 + total([torch.exp(alpha * (of + delta)) for of in others])))
    return total(near) / len(near) + total(far) / len(far)


WITH_CENTRES = {
    "BCL": (lw.BCLLoss, bcl, (C, D)),
    "PaCo": (lw.PaCoLoss, paco, (N, C)),
    "PaCo of centres alone": (
        lambda **of: lw.PaCoLoss(alpha=0, **of),
        lambda *inputs: paco(*inputs, alpha=0),
        (N, C),
    ),
    "proxy-anchor": (lw.ProxyAnchorLoss, proxy_anchor, (C, D)),
}


@pytest.mark.parametrize("backend", ["dense", "tiled"])
@pytest.mark.parametrize("name", WITH_CENTRES)
def test_a_loss_of_centres_with_and_without_a_queue_is_its_loop(name, backend):
    make, loop, shape = WITH_CENTRES[name]
    loss, w = make(backend=backend), draw(*shape, seed=5).requires_grad_()
    z, m = clusters(LABELS, 0.3, 1).requires_grad_(), clusters(QUEUED, 0.3, 2).requires_grad_()
    compared(lambda z, w: loss(z, LABELS, w), lambda z, w: loop(z, LABELS, w, m[:0], QUEUED[:0]), z, w)
    compared(
        lambda z, w, m: loss(z, LABELS, w, queue=m, queue_labels=QUEUED),
        lambda z, w, m: loop(z, LABELS, w, m, QUEUED),
        z,
        w,
        m,
    )


OF_CLASSES = {
    "BatchTriplet": lw.BatchTripletLoss,
    "ContrastiveMargin": lw.ContrastiveMarginLoss,
    "LiftedStructure": lw.LiftedStructureLoss,
    "MultiSimilarity": lw.MultiSimilarityLoss,
    "SupCon": lw.SupConLoss,
}


@pytest.mark.parametrize("name", OF_CLASSES)
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
