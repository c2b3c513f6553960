"""Losses of deep metric learning: pytorch-metric-learning's values and gradients, edges."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch

import likewise as lw
from likewise.memory import Prototypes, Queue

DOUBLE = torch.float64
N, D, C = 13, 6, 4
LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 2, 2, 1, 1, 0, 3, 2])  # class 3 has one row
QUEUED = torch.arange(14) * 3 % C


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def rows_of(noise, count=N, labels=LABELS, seed=0):
    """Return rows around a centre of each class; noise 0.01 makes tight clusters."""
    return draw(C, D, seed=seed)[labels] + noise * draw(count, D, seed=seed + 1)


def compared(ours, theirs, *leaves):
    """Assert that two losses and their gradients are equal to 1e-9."""
    found, expected = ours(*leaves), theirs(*leaves)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    gradients = zip(torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True)
    for mine, other in gradients:
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))
    return found


ROWS, MANY = 48, torch.arange(48) * 7 % C


def pml(name, *arguments, **options):
    """Return a loss of pytorch-metric-learning as a function of rows and, where it has them, of its vectors."""
    losses = pytest.importorskip("pytorch_metric_learning.losses", reason="needs pip install 'likewise[bench]'")
    loss = getattr(losses, name)(*arguments, **options)

    def call(z, *w, mined=None):
        weight = {"W": w[0].T} if w and hasattr(loss, "W") else {"proxies": w[0]} if w else {}
        return torch.func.functional_call(loss, weight, (z, MANY, mined))

    return call


def distance(name="LpDistance", **options):
    return getattr(pytest.importorskip("pytorch_metric_learning.distances"), name)(**options)


def mined(by, margin):
    """Return pytorch-metric-learning's loss of its semi-hard triplets."""
    loss = pml("TripletMarginLoss", margin=margin, distance=by)
    miners = pytest.importorskip("pytorch_metric_learning.miners")
    miner = miners.TripletMarginMiner(margin=margin, type_of_triplets="semihard", distance=by)
    return lambda z: loss(z, mined=miner(z, MANY))


def cosines():
    return distance("CosineSimilarity")


def triplets(mining, **options):
    return partial(lw.BatchTripletLoss, mining=mining, **options)


FAR = {"margin": 1.6, "distance": "euclidean"}
THEIRS = {
    "all triplets": (triplets("all", margin=0.3), lambda: pml("TripletMarginLoss", margin=0.3, distance=cosines())),
    "all triplets, by distance": (triplets("all", **FAR), lambda: pml("TripletMarginLoss", margin=1.6)),
    "semi-hard triplets": (triplets("all semi-hard", margin=0.3), lambda: mined(cosines(), margin=0.3)),
    "semi-hard triplets, by distance": (triplets("all semi-hard", **FAR), lambda: mined(distance(), margin=1.6)),
    "contrastive, with margins": (
        partial(lw.ContrastiveMarginLoss, positive_margin=0.9, negative_margin=0.2),
        lambda: pml("ContrastiveLoss", pos_margin=0.9, neg_margin=0.2, distance=cosines()),
    ),
    "multi-similarity": (lw.MultiSimilarityLoss, lambda: pml("MultiSimilarityLoss")),
    "lifted, squared": (lw.LiftedStructureLoss, lambda: pml("LiftedStructureLoss", distance=distance(power=2))),
    "lifted, cosine": (
        partial(lw.LiftedStructureLoss, temperature=1.0, margin=-0.7),
        lambda: pml("LiftedStructureLoss", neg_margin=0.5, pos_margin=-0.2, distance=cosines()),
    ),
    "ArcFace": (partial(lw.ArcFaceLoss, margin=math.radians(28.6)), lambda: pml("ArcFaceLoss", C + 1, D)),
    "CosFace": (lw.CosFaceLoss, lambda: pml("CosFaceLoss", C + 1, D)),
    "proxy-anchor": (lw.ProxyAnchorLoss, lambda: pml("ProxyAnchorLoss", C + 1, D)),
    "NT-Xent of classes": (partial(lw.SupConLoss, form="pairs"), lambda: pml("NTXentLoss", temperature=0.1)),
}
WITH_PROTOTYPES = "ArcFace", "CosFace", "proxy-anchor"


@pytest.mark.parametrize(("noise", "backend"), [(1.0, "dense"), (0.01, "tiled")])
@pytest.mark.parametrize("name", THEIRS)
def test_a_loss_is_that_of_pytorch_metric_learning(name, noise, backend):
    """Value and gradients in float64 to 1e-9, of separate and of tight clusters, with a class that is not there."""
    make, theirs = THEIRS[name]
    other = theirs()
    leaves = [rows_of(noise, ROWS, MANY).requires_grad_()]
    leaves += [draw(C + 1, D, seed=5).requires_grad_()] if name in WITH_PROTOTYPES else []
    loss = make(backend=backend)
    assert compared(lambda z, *w: loss(z, MANY, *w), other, *leaves) > 0


def test_prototypes_start_as_long_as_the_page_on_pytorch_metric_learning_says():
    losses = pytest.importorskip("pytorch_metric_learning.losses", reason="needs pip install 'likewise[bench]'")
    classes, width = 10, 4096
    longer = {"ArcFaceLoss": width, "CosFaceLoss": width, "ProxyNCALoss": width, "ProxyAnchorLoss": 2 * width / classes}
    for name, square in longer.items():
        (rows,) = getattr(losses, name)(classes, width).parameters()
        rows = rows if len(rows) == classes else rows.T
        assert rows.detach().norm(dim=1).mean() == pytest.approx(square**0.5, rel=0.05)
    ours = Prototypes(classes, width)().detach().norm(dim=1).mean()
    assert ours == pytest.approx((2 * width / (classes + width)) ** 0.5, rel=0.05)


@pytest.mark.parametrize("epsilon", [0.1, 0.5])
def test_multi_similarity_keeps_the_pairs_of_its_miner(epsilon):
    """The paper's selection, as pytorch-metric-learning's miner does it; rows without pairs count."""
    other = pml("MultiSimilarityLoss")
    mine = pytest.importorskip("pytorch_metric_learning.miners").MultiSimilarityMiner(epsilon)
    z = rows_of(0.8, ROWS, MANY).requires_grad_()
    everything = compared(lambda z: lw.MultiSimilarityLoss()(z, MANY), other, z)
    kept = lw.MultiSimilarityLoss(epsilon=epsilon)
    assert compared(lambda z: kept(z, MANY), lambda z: other(z, mined=mine(z, MANY)), z) != everything


def test_circle_loss_is_two_log_sum_exps_of_squared_features():
    """What the page of the equation says of it: exact, with the square of the features."""
    labels, scale, margin = torch.arange(60) % 12, 80.0, 0.4

    def circle(x):
        z = torch.nn.functional.normalize(x)
        held, same = z.detach(), lw.pairs.SameClass(labels)
        ones, square = torch.ones(60, 1, dtype=z.dtype), (z[:, :, None] * z[:, None, :]).flatten(1) / 2**0.5
        opposite = lw.pairs.Below(held, limits=torch.full((60,), -margin))

        def log_sum(push, shift, slope):
            """Of scale·((s − shift)² − m²), where half of the square and the slope are all that has a gradient."""
            left = [
                square,
                square.detach(),
                -2 * shift * held,
                slope * (z - held),
                slope * held,
                (shift - margin**2) * ones,
            ]
            right = [square, square.detach(), held, held, z - held, ones]
            return lw.log_sum_exp(torch.cat(left, 1), torch.cat(right, 1), push=push, temperature=1 / scale)

        settled = (~same & opposite).row_sum(z.dtype).log()  # exponents of 0
        far = torch.logaddexp(log_sum(~same & ~opposite, 0, margin), settled)
        near = log_sum(same & lw.pairs.NotSelf(60), 1, -1 - margin)
        return torch.nn.functional.softplus(near + far).mean()

    losses = pytest.importorskip("pytorch_metric_learning.losses", reason="needs pip install 'likewise[bench]'")
    other = losses.CircleLoss(m=margin, gamma=scale)
    compared(circle, lambda x: other(x, labels), draw(60, D).requires_grad_())


@pytest.mark.parametrize(
    "criterion", [lw.MultiSimilarityLoss(), lw.LiftedStructureLoss(), lw.SupConLoss(form="pairs")], ids=type
)
def test_without_negatives_or_positives(criterion):
    """One class alone, or only classes of one row: finite; no pair has a loss where either kind is needed."""
    for labels in (torch.zeros(5, dtype=torch.int64), torch.arange(5)):
        z = draw(5, D).requires_grad_()
        loss = criterion(z, labels)
        (gradient,) = torch.autograd.grad(loss, z)
        assert torch.isfinite(gradient).all()
        assert bool(loss > 0) == bool(gradient.any()) == isinstance(criterion, lw.MultiSimilarityLoss)


def test_lifted_structure_is_the_same_in_many_tiles(monkeypatch):
    """Whatever the tiles, and where classes are large and small."""
    z, labels = draw(70, D).requires_grad_(), torch.arange(70).sqrt().long()
    expected = lw.LiftedStructureLoss()(z, labels)
    monkeypatch.setattr("likewise.losses.class_pairs.TILE", 7)
    compared(lambda z: lw.LiftedStructureLoss()(z, labels), lambda _: expected, z)


def test_arc_face_has_a_finite_gradient_at_its_prototype():
    """At an angle of 0 or π the arc cosine has none."""
    w = torch.eye(3, D, dtype=DOUBLE)
    z = torch.stack([w[0], -w[0], w[1]]).requires_grad_()
    loss = lw.ArcFaceLoss()(z, torch.tensor([0, 0, 1]), w)
    assert torch.isfinite(torch.autograd.grad(loss, z)[0]).all()


def test_arc_face_beyond_the_margin():
    """Beyond π − m the target goes on falling: it is cos θ − m sin m."""
    losses = []
    for angle in torch.linspace(0, math.pi, 50, dtype=DOUBLE):
        z = torch.stack([angle.cos(), angle.sin(), torch.zeros((), dtype=DOUBLE)])[None]
        losses.append(lw.ArcFaceLoss(temperature=1.0)(z, torch.tensor([0]), torch.eye(3, dtype=DOUBLE)[[0, 2]]))
    assert all(one < other for one, other in pairwise(losses))


def test_proxy_anchor_returns_a_loss_of_each_class():
    z, w = draw(N, D), draw(C + 2, D, seed=2)
    of_classes = lw.ProxyAnchorLoss(reduction="none")(z, LABELS, w)
    loss = lw.ProxyAnchorLoss()
    torch.testing.assert_close(of_classes.mean(), loss(z, LABELS, w))
    assert of_classes.shape == (C + 2,)
    assert loss.last["positives_per_anchor"].tolist() == [4, 4, 4, 1, 0, 0]


OF_CLASSES = {
    "BatchTriplet": lw.BatchTripletLoss,
    "ContrastiveMargin": lw.ContrastiveMarginLoss,
    "LiftedStructure": lw.LiftedStructureLoss,
    "MultiSimilarity": lw.MultiSimilarityLoss,
    "SupCon": lw.SupConLoss,
}


@pytest.mark.parametrize("name", ["ContrastiveMargin", "SupCon"])
def test_labels_of_a_memory_come_with_it(name):
    loss, z, m = OF_CLASSES[name](), draw(N, D), draw(len(QUEUED), D)
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
        z = rows_of(0.5, seed=step).float()
        found = ours(z, LABELS, queue=queue.keys.float(), queue_labels=queue.labels) if len(queue) else ours(z, LABELS)
        torch.testing.assert_close(found, theirs(z, LABELS), rtol=1e-5, atol=1e-6)
        queue.enqueue(z.double(), LABELS)
