"""Retrieval: are the samples nearest to a query of its class? The classes need not have been trained on."""

from dataclasses import replace
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.evaluation.evaluation import Evaluation, Findings
from likewise.evaluation.features import Bar, FeatureParts, Features, silent
from likewise.evaluation.intervals import of_share, over_classes, student, wilson
from likewise.evaluation.nearest import TILE, nearest
from likewise.scores import Metric, Result, Score

NEAREST = 10  # of label sets
PRECISION = Metric("precision@1", selects=True)
METRICS = (PRECISION, Metric("R-precision"), Metric("MAP@R"))
LEFT_OUT = {"classes": "the only ones of their class", "label sets": "with no label or none that is shared"}


@final
class Retrieval(Evaluation):
    """Rank the test samples by their cosine similarity to each of them: the protocol of metric learning.

    Every test sample is a query among all others, R of which have its class. With hit_j whether the j-th nearest has
    its class:

        precision@1 = hit_1,   R-precision = 1/R Σ_{j≤R} hit_j,   MAP@R = 1/R Σ_{j≤R} hit_j · (1/j Σ_{i≤j} hit_i)

    and their means over queries. Nothing is learned and nothing is chosen; the candidate is precision@1 of the
    validation part. Samples whose class has no second sample aren't queries, but are ranked; a note counts them.
    Intervals are over classes where the test classes weren't trained on, since other classes would have given other
    numbers, and turns of a class count as one; else over samples: Wilson's for precision@1, Student's for the others.

    Label sets: precision@1 is the share of queries whose nearest has a label of theirs, and with J the Jaccard
    similarity of two label sets

        Jaccard@10 = 1/10 Σ_{j≤10} J_j,   nDCG@10 = Σ_{j≤10} J_j / log2(j + 1), divided by its highest value

    Samples without a label aren't queries, but are ranked.

    Memory:
        O(M·D + M) and one tile of similarities, for M test samples; label sets: two.

    Source:
        K. Musgrave, S. Belongie and S.-N. Lim, A Metric Learning Reality Check, 2020, section 3.2.

    Example:
        >>> test = Features(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), torch.tensor([0, 0, 1, 1]))
        >>> [(score.metric.name, score.value) for score in Retrieval()(test, test, test).headline]
        [('precision@1', 1.0), ('R-precision', 1.0), ('MAP@R', 1.0)]
    """

    name: ClassVar[str] = "retrieval"

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        """Say why these parts can't be evaluated."""
        if parts.test.label_kind is None:
            return "it needs classes or label sets, and there are no labels"
        if parts.test.label_kind == "label sets":
            shared = int(parts.test.counts.max()) if len(parts.test) else 0
            return None if shared > 1 else "it needs a label that 2 test samples have, and there is none"
        occurring = parts.test.counts[parts.test.counts > 0]
        if len(occurring) < 2:
            are = "is 1" if len(occurring) else "are none"
            return f"it needs at least 2 classes in the test part, and there {are}"
        return None if int(occurring.max()) > 1 else "it needs a class with 2 test samples, and every class has 1"

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        """Rank the test samples for each query."""
        del refit
        tried: tuple[Score, ...] = ()
        chosen_by = parts._replace(test=parts.validation)
        if chosen_by.test.part != parts.test.part and self.why_not_applicable(chosen_by) is None:
            tried = self._found(chosen_by, progress).selecting
        return replace(self._found(parts, progress), candidates=tried)

    def _found(self, parts: FeatureParts, progress: Bar) -> Result:
        test = parts.test
        values = (_of_sets if test.label_kind == "label sets" else _of_classes)(test, progress)
        unseen = test.label_kind == "classes" and len(parts.train) > 0 and not parts.closed
        found = Findings(self.name, test)
        for metric, value in values.items():
            known = ~value.isnan()
            own, lost = value[known], int((~known).sum())
            notes = (f"{lost} samples left out, {LEFT_OUT[str(test.label_kind)]}",) if lost else ()
            classes = test.groups[known] if unseen else None
            low, high = _interval(metric, own, classes)
            over = None if classes is None else len(classes.unique())
            found.add(metric, float(own.mean()), low, high, len(own), classes=over, notes=notes)
            found.contributed(metric.name, value, known)
        return found.result()


def _of_classes(test: Features, progress: Bar) -> dict[Metric, Tensor]:
    """Return each metric of every query, (M,), float64; NaN of the only sample of a class."""
    positives = test.counts[test.classes] - 1
    most = int(positives.max())
    values = torch.full((len(METRICS), len(test)), torch.nan, dtype=torch.float64)
    places = torch.arange(1, most + 1)
    for part, _, indices in nearest(test.vectors, None, most, progress=progress, doing="retrieval"):
        classes, allowed = test.classes[part], positives[part]
        hits = (test.classes[indices.cpu()] == classes.unsqueeze(1)).double()
        within = hits * (places <= allowed.unsqueeze(1))
        precisions = (within * within.cumsum(dim=1) / places).sum(dim=1)
        values[:, part] = torch.stack([hits[:, 0], within.sum(dim=1) / allowed, precisions / allowed])
    values[:, positives == 0] = torch.nan
    return dict(zip(METRICS, values, strict=True))


def _of_sets(test: Features, progress: Bar) -> dict[Metric, Tensor]:
    """Return each metric of every query, (M,), float64; NaN of samples without a label or a shared one."""
    sets = test.sets
    depth = min(NEAREST, len(sets) - 1)
    gains = torch.zeros(len(sets), depth, dtype=torch.float64)
    shared = torch.zeros(len(sets), dtype=torch.float64)
    for part, _, indices in nearest(test.vectors, None, depth, progress=progress, doing="retrieval"):
        near = sets[indices.cpu()]
        gains[part] = jaccard(sets[part].unsqueeze(1), near)
        shared[part] = (near[:, 0] & sets[part]).any(dim=1).double()
    discount = torch.arange(2, depth + 2).log2().reciprocal().double()
    ideal = _highest(sets, depth) @ discount
    values = {
        PRECISION: shared,
        Metric(f"Jaccard@{NEAREST}"): gains.mean(dim=1),
        Metric(f"nDCG@{NEAREST}"): torch.where(ideal > 0, gains @ discount / ideal, torch.nan),
    }
    return {metric: value.where(sets.any(dim=1), torch.nan) for metric, value in values.items()}


def _interval(metric: Metric, values: Tensor, classes: Tensor | None) -> tuple[float, float]:
    mean = float(values.mean())
    if classes is not None:
        return of_share(over_classes(values, classes), mean, len(classes.unique()))
    if metric == PRECISION:
        return wilson(int(values.sum()), len(values))
    return of_share(student(values), mean, len(values))


def jaccard(first: Bool[Tensor, "... l"], second: Bool[Tensor, "... l"]) -> Float[Tensor, "..."]:
    """Return how alike label sets are: labels that both have, of those that either has; 0 for two empty sets."""
    both, either = (first & second).sum(dim=-1).double(), (first | second).sum(dim=-1)
    return both / either.clamp(min=1)


def _highest(sets: Bool[Tensor, "m l"], depth: int) -> Float[Tensor, "m k"]:
    """Return the highest Jaccard similarities of each set to others, highest first, tile by tile."""
    numbers, sizes = sets.float(), sets.sum(dim=1).float()
    found: list[Tensor] = []
    for rows in torch.arange(len(sets)).split(max(1, TILE // max(1, len(sets)))):
        both = numbers[rows] @ numbers.T
        alike = both / (sizes[rows].unsqueeze(1) + sizes - both).clamp(min=1)
        alike[torch.arange(len(rows)), rows] = -1
        found.append(alike.topk(depth, dim=1).values.double())
    return torch.cat(found)
