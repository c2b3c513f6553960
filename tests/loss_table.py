"""The table of every loss: how it is made, a batch for it, what of it has a gradient, and what every process holds.

A property that is tested over the table holds for every loss; a new loss is a new row.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

import likewise as lw

FEATURES, LABELS = 6, 4
CLASS = [0, 1, 0, 2, 1, 0, 3]
SETS = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 0]]
SIMILARITY = [[1.0, 0.5, 0.2, 0.1], [0.5, 1.0, 0.0, 0.3], [0.2, 0.0, 1.0, 0.4], [0.1, 0.3, 0.4, 1.0]]


class Row(NamedTuple):
    """A loss, and a batch of its arguments in their order."""

    make: Callable[..., nn.Module]
    """Makes the loss from options such as temperature and backend."""
    batch: Callable[[int, "Draw"], dict[str, Tensor]]
    """Makes a batch of so many samples."""
    learned: tuple[str, ...]
    """Which arguments have a gradient."""
    whole: tuple[str, ...] = ()
    """Which arguments are the same on every process; the others are cut by samples."""
    temperature: bool = True
    """Whether the loss has a temperature."""
    normalizes: bool = True
    """Whether the length of embeddings does not matter."""
    counts_rows: bool = True
    """Whether an active anchor is a row with a loss."""


Draw = Callable[..., Tensor]
"""Draws float64 values of a shape."""


def classes(samples: int) -> Tensor:
    return torch.tensor(CLASS).repeat(samples // 7 + 1)[:samples]


def sets(samples: int) -> Tensor:
    return torch.tensor(SETS).repeat(samples // 7 + 1, 1)[:samples]


def view_batch(views):
    return lambda b, draw: {"embeddings": draw(b, views, FEATURES)}


def class_batch(views, prototypes=False):
    def batch(b, draw):
        parts = {"embeddings": draw(b, views, FEATURES) if views else draw(b, FEATURES), "labels": classes(b)}
        return parts | ({"prototypes": draw(max(CLASS) + 1, FEATURES)} if prototypes else {})

    return batch


def class_queue(draw):
    return {"queue": draw(9, FEATURES), "queue_labels": classes(9)}


def queue_batch(views=2, *, prototypes=False, keys=False):
    """Return classes with a queue of them, and with keys instead of the batch."""

    def batch(b, draw):
        parts = class_batch(views, prototypes)(b, draw)
        parts |= {"references": draw(b, FEATURES), "reference_labels": classes(b).flip(0)} if keys else {}
        return parts | class_queue(draw)

    return batch


def pair_batch(*names, queue=0):
    def batch(b, draw):
        parts = {name: draw(b, FEATURES) for name in names}
        return parts | ({"queue": draw(queue, FEATURES)} if queue else {})

    return batch


def negatives_batch(each, *, ids=False, queue=0, guide=False):
    """Return queries, keys and hard negatives, each so many or one; with ids that several share, and a guide."""

    def batch(b, draw):
        parts = pair_batch("queries", "keys", queue=queue)(b, draw)
        parts["negatives"] = draw(b, each, FEATURES) if each else draw(b, FEATURES)
        if ids:
            of_each = parts["negatives"].shape[:-1]
            parts |= {"ids": torch.arange(b) % 5, "negative_ids": torch.arange(of_each.numel()).view(of_each) % 8}
        if guide:
            parts |= {f"guide_{of}": draw(*parts[of].shape[:-1], 3) for of in ("queries", "keys", "negatives")}
        return parts | ({"queue_ids": torch.arange(queue)} if ids and queue else {})

    return batch


def label_batch(*, keys=False, queue=False, views=0):
    def batch(b, draw):
        parts = {"queries": draw(b, views, FEATURES) if views else draw(b, FEATURES), "labels": sets(b)}
        parts["prototypes"] = draw(LABELS, FEATURES)
        if keys:
            parts |= {"keys": draw(b, FEATURES), "key_labels": sets(b)}
        if queue:
            parts |= {"queue": draw(9, FEATURES), "queue_labels": sets(9)}
        return parts

    return batch


def rascal(**own):
    def make(**options):
        loss = lw.RASCALLoss(40, FEATURES, **own, **options)
        draw = torch.Generator().manual_seed(5)
        loss.cache.write(
            torch.arange(36),
            torch.nn.functional.normalize(torch.randn(36, FEATURES, dtype=torch.float32, generator=draw)),
        )
        return loss.eval()

    def batch(b, draw):
        return {"embeddings": draw(b, 2, FEATURES), "labels": classes(b), "sample_index": torch.arange(b) * 5 % 37}

    return Row(make, batch, ("embeddings",))


def nws(**own):
    return lambda **options: lw.NWSLoss(torch.tensor(SIMILARITY, dtype=torch.float64), **own, **options)


def with_options(make, **own):
    return lambda **options: make(**own, **options)


def of_widths(make, *widths):
    return lambda **options: lw.Matryoshka(make(**options), widths)


def patch_batch(b, draw):
    cells = torch.arange(b * 3 * 2 * 2).view(b, 3, 2, 2) % 4
    return {"query_maps": draw(b, 3, FEATURES, 2, 2), "support_maps": draw(b, 4, FEATURES, 2, 3), "cell_labels": cells}


def episode_batch(b, draw):
    labels = torch.arange(b * 6).view(b, 6) % 4
    return {"query_features": draw(b, 6, FEATURES), "class_means": draw(b, 4, FEATURES), "query_labels": labels}


EMBEDDINGS, QUERIES = ("embeddings",), ("queries", "prototypes")
of_pairs = partial(Row, temperature=False, counts_rows=False)
WHOLE = ("prototypes", "queue", "queue_labels")
LOSSES = {
    "NTXent": Row(lw.NTXentLoss, view_batch(2), EMBEDDINGS),
    "NTXent, widths": Row(of_widths(lw.NTXentLoss, 5, 2), view_batch(2), EMBEDDINGS),
    "NTXent, three views": Row(lw.NTXentLoss, view_batch(3), EMBEDDINGS),
    "InfoNCE": Row(lw.InfoNCELoss, pair_batch("queries", "keys"), ("queries", "keys")),
    "InfoNCE, symmetric": Row(
        with_options(lw.InfoNCELoss, symmetric=True), pair_batch("queries", "keys"), ("queries", "keys")
    ),
    "InfoNCE, queue": Row(lw.InfoNCELoss, pair_batch("queries", "keys", queue=9), ("queries",), ("queue",)),
    "InfoNCE, negatives": Row(lw.InfoNCELoss, negatives_batch(2), ("queries", "keys", "negatives")),
    "InfoNCE, ids": Row(
        lw.InfoNCELoss, negatives_batch(0, ids=True, queue=9), ("queries", "keys", "negatives"), ("queue", "queue_ids")
    ),
    "InfoNCE, symmetric, negatives": Row(
        with_options(lw.InfoNCELoss, symmetric=True), negatives_batch(2, ids=True), ("queries", "keys", "negatives")
    ),
    "InfoNCE, joint": Row(
        with_options(lw.InfoNCELoss, symmetric="joint"), negatives_batch(2, ids=True), ("queries", "keys", "negatives")
    ),
    **{
        f"InfoNCE, guided, {symmetric}": Row(
            with_options(lw.InfoNCELoss, symmetric=symmetric, guide_margin=0.1),
            negatives_batch(2, ids=True, guide=True),
            ("queries", "keys", "negatives"),
        )
        for symmetric in (False, True, "joint")
    },
    "InfoNCE, widths": Row(
        of_widths(lw.InfoNCELoss, 6, 3), negatives_batch(2, ids=True), ("queries", "keys", "negatives")
    ),
    "Clip": Row(
        lw.ClipLoss,
        lambda b, draw: (
            pair_batch("image_features", "text_features")(b, draw) | {"logit_scale": torch.tensor([2.0]).double()}
        ),
        ("image_features", "text_features"),
        ("logit_scale",),
        temperature=False,
        normalizes=False,
    ),
    "SupCon out": Row(lw.SupConLoss, class_batch(2), EMBEDDINGS),
    "SupCon in": Row(with_options(lw.SupConLoss, form="in"), class_batch(2), EMBEDDINGS),
    "SupCon, one view": Row(lw.SupConLoss, class_batch(0), EMBEDDINGS),
    "SupCon, label sets": Row(
        lw.SupConLoss, lambda b, draw: {"embeddings": draw(b, 2, FEATURES), "labels": sets(b)}, EMBEDDINGS
    ),
    "SupCon, queue": Row(lw.SupConLoss, queue_batch(), EMBEDDINGS, WHOLE),
    "SupCon in, keys and queue": Row(
        with_options(lw.SupConLoss, form="in"),
        queue_batch(0, keys=True),
        ("embeddings", "references"),
        WHOLE,
    ),
    "SupCon pairs": Row(with_options(lw.SupConLoss, form="pairs"), class_batch(2), EMBEDDINGS, counts_rows=False),
    "SupCon pairs, keys and queue": Row(
        with_options(lw.SupConLoss, form="pairs"),
        queue_batch(0, keys=True),
        ("embeddings", "references"),
        WHOLE,
        counts_rows=False,
    ),
    "DCL": Row(lw.DCLLoss, view_batch(2), EMBEDDINGS),
    "DCL, weighted": Row(with_options(lw.DCLLoss, weighted=True), view_batch(2), EMBEDDINGS),
    "NPairs": Row(
        lw.NPairsLoss, pair_batch("anchors", "positives"), ("anchors", "positives"), temperature=False, normalizes=False
    ),
    "Triplet": Row(
        with_options(lw.TripletLoss, margin=0.2),
        pair_batch("anchors", "positives", "negatives"),
        ("anchors", "positives", "negatives"),
    ),
    **{
        f"BatchTriplet, {mining}": of_pairs(
            with_options(lw.BatchTripletLoss, margin=2.5, mining=mining), class_batch(2), EMBEDDINGS
        )
        for mining in ("all", "semi-hard", "hard")
    },
    **{
        f"BatchTriplet, {mining}, queue": of_pairs(
            with_options(lw.BatchTripletLoss, margin=2.5, mining=mining),
            queue_batch(0, keys=mining == "semi-hard"),
            ("embeddings", "references") if mining == "semi-hard" else EMBEDDINGS,
            WHOLE,
        )
        for mining in ("all", "semi-hard", "hard")
    },
    "BatchTriplet, by distance": of_pairs(
        with_options(lw.BatchTripletLoss, margin=2.5, mining="all semi-hard", distance="euclidean"),
        class_batch(2),
        EMBEDDINGS,
    ),
    "Triplet, by distance": Row(
        with_options(lw.TripletLoss, margin=0.2, distance="euclidean"),
        pair_batch("anchors", "positives", "negatives"),
        ("anchors", "positives", "negatives"),
    ),
    "SigLIP": Row(with_options(lw.SigLIPLoss, bias=-1.0), pair_batch("queries", "keys"), ("queries", "keys")),
    "SigLIP, ids": Row(
        with_options(lw.SigLIPLoss, bias=-1.0), negatives_batch(2, ids=True), ("queries", "keys", "negatives")
    ),
    "SigLIP, guided": Row(
        with_options(lw.SigLIPLoss, bias=-1.0, guide_margin=0.1),
        negatives_batch(0, ids=True, guide=True),
        ("queries", "keys", "negatives"),
    ),
    "ContrastiveMargin": of_pairs(
        with_options(lw.ContrastiveMarginLoss, positive_margin=1.5, negative_margin=-0.2), class_batch(2), EMBEDDINGS
    ),
    "ContrastiveMargin, squared": of_pairs(
        with_options(lw.ContrastiveMarginLoss, squared=True, negative_margin=-0.2), class_batch(0), EMBEDDINGS
    ),
    "ContrastiveMargin, queue": of_pairs(
        with_options(lw.ContrastiveMarginLoss, positive_margin=1.5, negative_margin=-0.2),
        queue_batch(),
        EMBEDDINGS,
        WHOLE,
    ),
    "ContrastiveMargin, keys and queue": of_pairs(
        with_options(lw.ContrastiveMarginLoss, squared=True, negative_margin=-0.2),
        queue_batch(0, keys=True),
        ("embeddings", "references"),
        WHOLE,
    ),
    "MulSupCon": Row(
        lw.MulSupConLoss,
        lambda b, draw: {"queries": draw(b, 2, FEATURES), "labels": sets(b)},
        ("queries",),
        counts_rows=False,
    ),
    "MulSupCon, references": Row(
        lw.MulSupConLoss,
        lambda b, draw: {
            "queries": draw(b, FEATURES),
            "labels": sets(b),
            "references": draw(b, FEATURES),
            "reference_labels": sets(b).flip(0),
        },
        ("queries", "references"),
        counts_rows=False,
    ),
    "MulSupCon, queue": Row(
        lw.MulSupConLoss,
        lambda b, draw: {
            "queries": draw(b, FEATURES),
            "labels": sets(b),
            "queue": draw(9, FEATURES),
            "queue_labels": sets(9),
        },
        ("queries",),
        WHOLE,
        counts_rows=False,
    ),
    "MSC": Row(lw.MSCLoss, label_batch(), QUERIES, WHOLE),
    "MSC, views, queue": Row(lw.MSCLoss, label_batch(queue=True, views=2), QUERIES, WHOLE),
    "NWS mean": Row(nws(), label_batch(keys=True, queue=True), QUERIES, WHOLE),
    "NWS max": Row(nws(aggregation="max"), label_batch(keys=True, queue=True), QUERIES, WHOLE),
    "NWS, normalized": Row(nws(normalized=True), label_batch(keys=True), QUERIES, WHOLE),
    "NWS, queue": Row(nws(positives_in_denominator=True), label_batch(queue=True), QUERIES, WHOLE),
    "RASCAL": rascal(),
    "RASCAL, sample": rascal(rank_level="sample"),
    "RASCAL, current": rascal(ranking="current"),
    "RASCAL, uniform": rascal(ranking="uniform"),
    "Patch": Row(lw.PatchLoss, patch_batch, ("query_maps", "support_maps"), temperature=False),
    "Prototypical": Row(lw.PrototypicalLoss, episode_batch, ("query_features", "class_means"), normalizes=False),
    "BCL": Row(lw.BCLLoss, class_batch(2, prototypes=True), ("embeddings", "prototypes"), WHOLE),
    "BCL, queue": Row(lw.BCLLoss, queue_batch(prototypes=True), ("embeddings", "prototypes"), WHOLE),
    "KCL": Row(with_options(lw.KCLLoss, k=2), class_batch(2), EMBEDDINGS),
    "ProxyNCA": Row(lw.ProxyNCALoss, class_batch(2, prototypes=True), ("embeddings", "prototypes"), WHOLE),
    "PaCo": Row(
        lw.PaCoLoss,
        lambda b, draw: {"embeddings": draw(b, 2, FEATURES), "labels": classes(b), "class_logits": draw(b, 2, 4)},
        ("embeddings", "class_logits"),
    ),
    "PaCo, queue": Row(
        lw.PaCoLoss,
        lambda b, draw: queue_batch()(b, draw) | {"class_logits": draw(b, 2, 4)},
        ("embeddings", "class_logits"),
        WHOLE,
    ),
    "HardNegative": Row(lw.HardNegativeLoss, view_batch(2), EMBEDDINGS),
    "MultiSimilarity": Row(lw.MultiSimilarityLoss, class_batch(2), EMBEDDINGS, temperature=False),
    "MultiSimilarity, mined": of_pairs(with_options(lw.MultiSimilarityLoss, epsilon=0.1), class_batch(0), EMBEDDINGS),
    "MultiSimilarity, queue": Row(lw.MultiSimilarityLoss, queue_batch(), EMBEDDINGS, WHOLE, temperature=False),
    "MultiSimilarity, mined, keys and queue": of_pairs(
        with_options(lw.MultiSimilarityLoss, epsilon=0.1),
        queue_batch(0, keys=True),
        ("embeddings", "references"),
        WHOLE,
    ),
    "LiftedStructure": Row(lw.LiftedStructureLoss, class_batch(2), EMBEDDINGS, counts_rows=False),
    "LiftedStructure, queue": Row(lw.LiftedStructureLoss, queue_batch(), EMBEDDINGS, WHOLE, counts_rows=False),
    "LiftedStructure, keys and queue": Row(
        lw.LiftedStructureLoss, queue_batch(0, keys=True), ("embeddings", "references"), WHOLE, counts_rows=False
    ),
    "ArcFace": Row(lw.ArcFaceLoss, class_batch(2, prototypes=True), ("embeddings", "prototypes"), WHOLE),
    "CosFace": Row(lw.CosFaceLoss, class_batch(2, prototypes=True), ("embeddings", "prototypes"), WHOLE),
    "ProxyAnchor": Row(lw.ProxyAnchorLoss, class_batch(2, prototypes=True), ("embeddings", "prototypes"), WHOLE),
    "ProxyAnchor, queue": Row(lw.ProxyAnchorLoss, queue_batch(prototypes=True), ("embeddings", "prototypes"), WHOLE),
}
"""Every loss with the usual options, in the variants whose weights differ."""


def draw(seed: int) -> Draw:
    """Return what draws a batch's values, the same for every process."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


def evaluate(loss: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Call a loss on a batch, its draws seeded."""
    torch.manual_seed(0)
    first, *others = batch
    return loss(batch[first], **{name: batch[name] for name in others})
