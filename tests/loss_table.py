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


class Draw:
    """Draws batches in float64, of few classes, some with one sample, and label sets, some empty; rows lie anywhere."""

    features, labels, class_count, queue, cached = FEATURES, LABELS, max(CLASS) + 1, 9, 37

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def classes(self, samples: int) -> Tensor:
        return torch.tensor(CLASS).repeat(samples // 7 + 1)[:samples]

    def sets(self, samples: int) -> Tensor:
        return torch.tensor(SETS).repeat(samples // 7 + 1, 1)[:samples]

    def rows(self, classes: Tensor, *views: int) -> Tensor:
        """Return rows of classes, (…, views, D); without views, or with none, (…, D)."""
        return self(*classes.shape, *filter(None, views), self.features)

    def mixed(self, classes: Tensor, *views: int) -> Tensor:
        """Return rows half of which lie where those of another class do: else some losses would have no gradient."""
        return self.rows(classes, *views)

    def logits(self, classes: Tensor, views: int) -> Tensor:
        return self(*classes.shape, views, self.class_count)

    def episodes(self, samples: int, each: int) -> tuple[int, int]:
        """Return how many episodes there are, and queries in each."""
        return samples, each


class Row(NamedTuple):
    """A loss, and a batch of its arguments in their order."""

    make: Callable[..., nn.Module]
    """Makes the loss from options such as temperature and backend."""
    batch: Callable[[int, Draw], dict[str, Tensor]]
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


def view_batch(views):
    return lambda b, draw: {"embeddings": draw.rows(draw.classes(b), views)}


def class_batch(views, *, prototypes=False, queue=False, keys=False, mixed=False, logits=False):
    """Return rows and their classes, with others to compare with in addition or, keys, instead of the batch."""

    def batch(b, draw):
        classes, older = draw.classes(b), draw.classes(draw.queue)
        parts = {"embeddings": (draw.mixed if mixed else draw.rows)(classes, views), "labels": classes}
        parts |= {"prototypes": draw.rows(torch.arange(draw.class_count))} if prototypes else {}
        parts |= {"class_logits": draw.logits(classes, views)} if logits else {}
        parts |= {"references": draw.rows(classes.flip(0)), "reference_labels": classes.flip(0)} if keys else {}
        return parts | ({"queue": draw.rows(older), "queue_labels": older} if queue else {})

    return batch


def pair_batch(*names, queue=False):
    def batch(b, draw):
        classes = draw.classes(b)
        parts = {name: (draw.mixed if name == "negatives" else draw.rows)(classes) for name in names}
        return parts | ({"queue": draw.rows(draw.classes(draw.queue))} if queue else {})

    return batch


def negatives_batch(each, *, ids=False, queue=False, guide=False):
    """Return queries, keys and hard negatives, each so many or one; with ids that several share, and a guide."""

    def batch(b, draw):
        parts = pair_batch("queries", "keys", queue=queue)(b, draw)
        parts["negatives"] = draw.rows(draw.classes(b), each) if each else draw.mixed(draw.classes(b))
        if ids:
            of_each = parts["negatives"].shape[:-1]
            parts |= {"ids": torch.arange(b) % 5, "negative_ids": torch.arange(of_each.numel()).view(of_each) % 8}
        if guide:
            parts |= {f"guide_{of}": draw(*parts[of].shape[:-1], 3) for of in ("queries", "keys", "negatives")}
        return parts | ({"queue_ids": torch.arange(draw.queue)} if ids and queue else {})

    return batch


def label_batch(*, prototypes=True, keys="", queue=False, views=0):
    """Return rows and their label sets; keys are called by a name, and have the queries' own sets."""

    def batch(b, draw):
        classes = draw.classes(b)
        parts = {"queries": draw.rows(classes, views), "labels": draw.sets(b)}
        if prototypes:
            parts["prototypes"] = draw.rows(torch.arange(draw.labels) % draw.class_count)
        if keys:
            parts |= {f"{keys}s": draw.rows(classes), f"{keys}_labels": draw.sets(b)}
        if queue:
            parts |= {"queue": draw.rows(draw.classes(draw.queue)), "queue_labels": draw.sets(draw.queue)}
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
        return class_batch(2)(b, draw) | {"sample_index": torch.arange(b) * 5 % draw.cached}

    return Row(make, batch, ("embeddings",))


def nws(**own):
    return lambda **options: lw.NWSLoss(torch.tensor(SIMILARITY, dtype=torch.float64), **own, **options)


def of_widths(make, *widths):
    return lambda **options: lw.Matryoshka(make(**options), widths)


def patch_batch(b, draw):
    e, q = draw.episodes(b, 3)
    cells, first = torch.arange(e * q * 2 * 2).view(e, q, 2, 2) % 4, 4 * torch.arange(e)[:, None]
    maps = draw.rows(first[:, :, None, None] + cells), draw.rows(first + torch.arange(4), 2, 3)
    query_maps, support_maps = (of.movedim(-1, 2).contiguous() for of in maps)
    return {"query_maps": query_maps, "support_maps": support_maps, "cell_labels": cells}


def episode_batch(b, draw):
    e, q = draw.episodes(b, 6)
    labels, first = torch.arange(e * q).view(e, q) % 4, 4 * torch.arange(e)[:, None]
    features, means = draw.rows(first + labels), draw.rows(first + torch.arange(4))
    return {"query_features": features, "class_means": means, "query_labels": labels}


EMBEDDINGS, REFERENCES = ("embeddings",), ("embeddings", "references")
PROTOTYPES, LABEL_PROTOTYPES = ("embeddings", "prototypes"), ("queries", "prototypes")
PAIRS, TRIPLETS, TUPLES = ("queries", "keys"), ("anchors", "positives", "negatives"), ("queries", "keys", "negatives")
keys_and_queue = partial(class_batch, 0, queue=True, keys=True)
of_pairs = partial(Row, temperature=False, counts_rows=False)
batch_triplet = partial(lw.BatchTripletLoss, margin=2.5)
contrastive_margin = partial(lw.ContrastiveMarginLoss, negative_margin=-0.2)
WHOLE = ("prototypes", "queue", "queue_labels")
LOSSES = {
    "NTXent": Row(lw.NTXentLoss, view_batch(2), EMBEDDINGS),
    "NTXent, widths": Row(of_widths(lw.NTXentLoss, 5, 2), view_batch(2), EMBEDDINGS),
    "NTXent, three views": Row(lw.NTXentLoss, view_batch(3), EMBEDDINGS),
    "InfoNCE": Row(lw.InfoNCELoss, pair_batch(*PAIRS), PAIRS),
    "InfoNCE, symmetric": Row(partial(lw.InfoNCELoss, symmetric=True), pair_batch(*PAIRS), PAIRS),
    "InfoNCE, queue": Row(lw.InfoNCELoss, pair_batch(*PAIRS, queue=True), ("queries",), ("queue",)),
    "InfoNCE, negatives": Row(lw.InfoNCELoss, negatives_batch(2), TUPLES),
    "InfoNCE, ids": Row(lw.InfoNCELoss, negatives_batch(0, ids=True, queue=True), TUPLES, ("queue", "queue_ids")),
    "InfoNCE, symmetric, negatives": Row(partial(lw.InfoNCELoss, symmetric=True), negatives_batch(2, ids=True), TUPLES),
    "InfoNCE, joint": Row(partial(lw.InfoNCELoss, symmetric="joint"), negatives_batch(2, ids=True), TUPLES),
    **{
        f"InfoNCE, guided, {symmetric}": Row(
            partial(lw.InfoNCELoss, symmetric=symmetric, guide_margin=0.1),
            negatives_batch(2, ids=True, guide=True),
            TUPLES,
        )
        for symmetric in (False, True, "joint")
    },
    "InfoNCE, widths": Row(of_widths(lw.InfoNCELoss, 6, 3), negatives_batch(2, ids=True), TUPLES),
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
    "SupCon in": Row(partial(lw.SupConLoss, form="in"), class_batch(2), EMBEDDINGS),
    "SupCon, one view": Row(lw.SupConLoss, class_batch(0), EMBEDDINGS),
    "SupCon, label sets": Row(
        lw.SupConLoss, lambda b, draw: {"embeddings": draw.rows(draw.classes(b), 2), "labels": draw.sets(b)}, EMBEDDINGS
    ),
    "SupCon, queue": Row(lw.SupConLoss, class_batch(2, queue=True), EMBEDDINGS, WHOLE),
    "SupCon in, keys and queue": Row(partial(lw.SupConLoss, form="in"), keys_and_queue(), REFERENCES, WHOLE),
    "SupCon pairs": Row(partial(lw.SupConLoss, form="pairs"), class_batch(2), EMBEDDINGS, counts_rows=False),
    "SupCon pairs, keys and queue": Row(
        partial(lw.SupConLoss, form="pairs"), keys_and_queue(), REFERENCES, WHOLE, counts_rows=False
    ),
    "DCL": Row(lw.DCLLoss, view_batch(2), EMBEDDINGS),
    "DCL, weighted": Row(partial(lw.DCLLoss, weighted=True), view_batch(2), EMBEDDINGS),
    "NPairs": Row(
        lw.NPairsLoss, pair_batch("anchors", "positives"), ("anchors", "positives"), temperature=False, normalizes=False
    ),
    "Triplet": Row(partial(lw.TripletLoss, margin=0.2), pair_batch(*TRIPLETS), TRIPLETS),
    **{
        f"BatchTriplet, {mining}": of_pairs(partial(batch_triplet, mining=mining), class_batch(2), EMBEDDINGS)
        for mining in ("all", "semi-hard", "hard")
    },
    **{
        f"BatchTriplet, {mining}, queue": of_pairs(
            partial(batch_triplet, mining=mining),
            class_batch(0, queue=True, keys=mining == "semi-hard"),
            REFERENCES if mining == "semi-hard" else EMBEDDINGS,
            WHOLE,
        )
        for mining in ("all", "semi-hard", "hard")
    },
    "BatchTriplet, by distance": of_pairs(
        partial(batch_triplet, mining="all semi-hard", distance="euclidean"), class_batch(2), EMBEDDINGS
    ),
    "Triplet, by distance": Row(
        partial(lw.TripletLoss, margin=0.2, distance="euclidean"), pair_batch(*TRIPLETS), TRIPLETS
    ),
    "SigLIP": Row(partial(lw.SigLIPLoss, bias=-1.0), pair_batch(*PAIRS), PAIRS),
    "SigLIP, ids": Row(partial(lw.SigLIPLoss, bias=-1.0), negatives_batch(2, ids=True), TUPLES),
    "SigLIP, guided": Row(
        partial(lw.SigLIPLoss, bias=-1.0, guide_margin=0.1), negatives_batch(0, ids=True, guide=True), TUPLES
    ),
    "ContrastiveMargin": of_pairs(partial(contrastive_margin, positive_margin=1.5), class_batch(2), EMBEDDINGS),
    "ContrastiveMargin, squared": of_pairs(partial(contrastive_margin, squared=True), class_batch(0), EMBEDDINGS),
    "ContrastiveMargin, queue": of_pairs(
        partial(contrastive_margin, positive_margin=1.5), class_batch(2, queue=True), EMBEDDINGS, WHOLE
    ),
    "ContrastiveMargin, keys and queue": of_pairs(
        partial(contrastive_margin, squared=True), keys_and_queue(), REFERENCES, WHOLE
    ),
    "MulSupCon": Row(lw.MulSupConLoss, label_batch(prototypes=False, views=2), ("queries",), counts_rows=False),
    "MulSupCon, references": Row(
        lw.MulSupConLoss, label_batch(prototypes=False, keys="reference"), ("queries", "references"), counts_rows=False
    ),
    "MulSupCon, queue": Row(
        lw.MulSupConLoss, label_batch(prototypes=False, queue=True), ("queries",), WHOLE, counts_rows=False
    ),
    "MSC": Row(lw.MSCLoss, label_batch(), LABEL_PROTOTYPES, WHOLE),
    "MSC, views, queue": Row(lw.MSCLoss, label_batch(queue=True, views=2), LABEL_PROTOTYPES, WHOLE),
    "NWS mean": Row(nws(), label_batch(keys="key", queue=True), LABEL_PROTOTYPES, WHOLE),
    "NWS max": Row(nws(aggregation="max"), label_batch(keys="key", queue=True), LABEL_PROTOTYPES, WHOLE),
    "NWS, normalized": Row(nws(normalized=True), label_batch(keys="key"), LABEL_PROTOTYPES, WHOLE),
    "NWS, queue": Row(nws(positives_in_denominator=True), label_batch(queue=True), LABEL_PROTOTYPES, WHOLE),
    "RASCAL": rascal(),
    "RASCAL, sample": rascal(rank_level="sample"),
    "RASCAL, current": rascal(ranking="current"),
    "RASCAL, uniform": rascal(ranking="uniform"),
    "Patch": Row(lw.PatchLoss, patch_batch, ("query_maps", "support_maps"), temperature=False),
    "Prototypical": Row(lw.PrototypicalLoss, episode_batch, ("query_features", "class_means"), normalizes=False),
    "BCL": Row(lw.BCLLoss, class_batch(2, prototypes=True), PROTOTYPES, WHOLE),
    "BCL, queue": Row(lw.BCLLoss, class_batch(2, prototypes=True, queue=True), PROTOTYPES, WHOLE),
    "KCL": Row(partial(lw.KCLLoss, k=2), class_batch(2), EMBEDDINGS),
    "ProxyNCA": Row(lw.ProxyNCALoss, class_batch(2, prototypes=True), PROTOTYPES, WHOLE),
    "PaCo": Row(lw.PaCoLoss, class_batch(2, logits=True), ("embeddings", "class_logits")),
    "PaCo, queue": Row(lw.PaCoLoss, class_batch(2, logits=True, queue=True), ("embeddings", "class_logits"), WHOLE),
    "HardNegative": Row(lw.HardNegativeLoss, view_batch(2), EMBEDDINGS),
    "MultiSimilarity": Row(lw.MultiSimilarityLoss, class_batch(2), EMBEDDINGS, temperature=False),
    "MultiSimilarity, mined": of_pairs(
        partial(lw.MultiSimilarityLoss, epsilon=0.1), class_batch(0, mixed=True), EMBEDDINGS
    ),
    "MultiSimilarity, queue": Row(
        lw.MultiSimilarityLoss, class_batch(2, queue=True), EMBEDDINGS, WHOLE, temperature=False
    ),
    "MultiSimilarity, mined, keys and queue": of_pairs(
        partial(lw.MultiSimilarityLoss, epsilon=0.1), keys_and_queue(mixed=True), REFERENCES, WHOLE
    ),
    "LiftedStructure": Row(lw.LiftedStructureLoss, class_batch(2, mixed=True), EMBEDDINGS, counts_rows=False),
    "LiftedStructure, queue": Row(
        lw.LiftedStructureLoss, class_batch(2, queue=True, mixed=True), EMBEDDINGS, WHOLE, counts_rows=False
    ),
    "LiftedStructure, keys and queue": Row(
        lw.LiftedStructureLoss, keys_and_queue(mixed=True), REFERENCES, WHOLE, counts_rows=False
    ),
    "ArcFace": Row(lw.ArcFaceLoss, class_batch(2, prototypes=True), PROTOTYPES, WHOLE),
    "CosFace": Row(lw.CosFaceLoss, class_batch(2, prototypes=True), PROTOTYPES, WHOLE),
    "ProxyAnchor": Row(lw.ProxyAnchorLoss, class_batch(2, prototypes=True), PROTOTYPES, WHOLE),
    "ProxyAnchor, queue": Row(lw.ProxyAnchorLoss, class_batch(2, prototypes=True, queue=True), PROTOTYPES, WHOLE),
}
"""Every loss with the usual options, in the variants whose weights differ."""


draw = Draw


def evaluate(loss: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Call a loss on a batch, its draws seeded."""
    torch.manual_seed(0)
    first, *others = batch
    return loss(batch[first], **{name: batch[name] for name in others})
