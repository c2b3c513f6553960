"""Retrieval by similarity of samples with a query's class or label, also for classes not trained on."""

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, final, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.data import Samples, Source
from likewise.evaluation.arrays import gather_samples, three_parts
from likewise.evaluation.encoding import encoded_as, why_not_fitting, words_of
from likewise.evaluation.evaluation import Evaluation, ScoreCollector, as_int_list
from likewise.evaluation.features import Bar, FeatureParts, Features, joined, silent
from likewise.evaluation.intervals import mean_share, share
from likewise.evaluation.label_metrics import jaccard
from likewise.evaluation.nearest import TILE, classes_among, nearest, own_rows
from likewise.runs.scores import Metric, Result, format_count

LABEL_SET_DEPTH = 10
PRECISION = Metric("precision@1", selects=True)
METRICS = (PRECISION, Metric("R-precision"), Metric("MAP@R"))
AT_EACH = ("precision", "recall", "hit rate", "MRR", "MAP", "nDCG")
Gallery = Literal["test", "train"]
LEFT_OUT = {
    (True, "classes"): "with no other of the class",
    (False, "classes"): "of a class that the gallery lacks",
    **dict.fromkeys(((True, "label sets"), (False, "label sets")), "with no label or none that is shared"),
}


@final
class Retrieval(Evaluation):
    """Rank the test samples by their cosine similarity to each of them: the protocol of metric learning.

    Every test sample is a query. Its gallery is all other test samples, or the training samples; R samples in it have
    the query's class. With hit_j = 1 if the j-th nearest has its class:

        precision@1 = hit_1,   R-precision = 1/R Σ_{j≤R} hit_j,   MAP@R = 1/R Σ_{j≤R} hit_j · (1/j Σ_{i≤j} hit_i)

    The scores are their means over queries. Nothing is learned or chosen. Samples whose class has no second sample
    aren't queries, but are ranked; a note counts them. Intervals are over classes if the test classes weren't trained
    on, since other classes would have given other numbers; rotated copies of a class count as one. Otherwise they are
    over samples: Wilson's for precision@1, Student's for the others.

    For each k of `at` there are also, with r the rank of the first hit,

        precision@k = 1/k Σ_{j≤k} hit_j,   recall@k = 1/R Σ_{j≤k} hit_j,   hit rate@k = 1 if r ≤ k,   else 0
        MRR@k = 1/r if r ≤ k, else 0,      MAP@k = 1/min(k, R) Σ_{j≤k} hit_j · (1/j Σ_{i≤j} hit_i)
        nDCG@k = Σ_{j≤k} hit_j / log2(j + 1), divided by its highest value

    Papers on metric learning and on CLIP call the hit rate recall@k; with one right answer the two are equal.

    For label sets, a hit has a label of the query. With J the Jaccard similarity of two label sets, there are, besides
    precision@1,

        Jaccard@10 = 1/10 Σ_{j≤10} J_j,   nDCG@10 = Σ_{j≤10} J_j / log2(j + 1), divided by its highest value

    and nDCG@k is computed from J too. Samples without a label aren't queries, but are ranked.

    Args:
        at: k of the metrics at k, or several. None: precision@1 alone.
        gallery: The ranked samples: the other "test" samples, or the "train" samples, as for queries and a gallery.
        among: A separate gallery instead: a source with labels, encoded by the run's encoder.
        gallery_includes_queries: Whether the test samples are also rows of this gallery: each query's own row is then
            left out. Otherwise a note counts equal rows, with a warning if there are many.

    Raises:
        ValueError: k or the gallery is invalid.

    Memory:
        O((M + R)·D + M) and one tile of similarities, for M queries among R samples; two tiles for label sets.

    Source:
        K. Musgrave, S. Belongie and S.-N. Lim, A Metric Learning Reality Check, 2020, section 3.2.

    Example:
        >>> test = Features(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), torch.tensor([0, 0, 1, 1]))
        >>> [(score.metric.name, score.value) for score in Retrieval()(test, test, test).headline]
        [('precision@1', 1.0), ('R-precision', 1.0), ('MAP@R', 1.0)]
    """

    name: ClassVar[str] = "retrieval"
    accelerated: ClassVar[bool] = True
    among: Source | None = None

    def __init__(
        self,
        at: int | list[int] | None = None,
        gallery: Gallery = "test",
        *,
        among: Source | None = None,
        gallery_includes_queries: bool = False,
    ) -> None:
        depths = [] if at is None else sorted(as_int_list("at", at))
        if depths and depths[0] < 1:
            raise ValueError(f"expected at of at least 1, got {depths[0]}")
        if gallery not in get_args(Gallery):
            raise ValueError(f"expected gallery as one of {', '.join(get_args(Gallery))}, got {gallery!r}")
        self.at = tuple(depths)
        self.gallery: Gallery = gallery
        if among is not None:
            self.among = among
        if gallery_includes_queries:
            self.gallery_includes_queries = True

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        test = parts.test
        if test.label_kind is None:
            return "it needs classes or label sets, and there are no labels"
        if self.among is not None:
            samples = self._gallery
            if samples.label_kind != test.label_kind:
                return f"it needs a gallery with {test.label_kind}, and its labels are {samples.label_kind or 'none'}"
            if why := why_not_fitting(test, samples):
                return f"it needs a gallery of {why}"
        ranked = len(self._gallery_features(parts) or parts.test) - self._leaves_one_out
        lacking = self._lacks_answers(parts)
        if lacking is None and self.at and ranked < max(self.at):
            return f"it needs {max(self.at)} samples to rank for precision@{max(self.at)}, and there are {ranked}"
        return lacking

    @cached_property
    def _gallery(self) -> Samples:
        assert self.among is not None  # noqa: S101 - checked by the caller
        return self.among.load()

    @property
    def _leaves_one_out(self) -> bool:
        return (self.gallery == "test" and self.among is None) or self.gallery_includes_queries

    def _gallery_features(self, parts: FeatureParts, *, encoded: bool = False) -> Features | None:
        """Return the gallery, for a source with zeros as vectors unless `encoded`; None if it is the other queries."""
        if self.among is not None:
            samples, like = self._gallery, parts.test.vectors
            vectors = like.new_zeros(1, like.shape[1]).expand(len(samples), -1)
            if encoded:
                vectors, samples = encoded_as(parts.test, samples, "the gallery")
            return Features.of(samples, vectors.to(like), "gallery")
        return parts.train if self.gallery == "train" else None

    def _lacks_answers(self, parts: FeatureParts) -> str | None:
        test, gallery = parts.test, self._gallery_features(parts)
        if gallery is not None:
            if len(gallery) == 0 or len(test) == 0:
                return f"it needs test samples and a gallery, and there are {len(test)} and {len(gallery)}"
            answered = bool((_answers(test, gallery, self._leaves_one_out) > 0).any())
            return None if answered else "it needs a test sample with a right answer in the gallery, and there is none"
        if test.label_kind == "label sets":
            shared = int(test.counts.max()) if len(test) else 0
            return None if shared > 1 else "it needs a label that 2 test samples have, and there is none"
        occurring = test.counts[test.counts > 0]
        if len(occurring) < 2:
            are = "is 1" if len(occurring) else "are none"
            return f"it needs at least 2 classes in the test part, and there {are}"
        return None if int(occurring.max()) > 1 else "it needs a class with 2 test samples, and every class has 1"

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        by = self.on_validation(parts)
        tried = () if by is None else self._score(by, progress).selecting
        if refit and self.gallery == "train" and self.among is None and parts.train.names == parts.validation.names:
            parts = parts._replace(train=joined(parts.train, parts.validation))
        return replace(self._score(parts, progress), candidates=tried)

    def rank(
        self,
        queries: Any,
        labels: Any,
        gallery: Any = None,
        gallery_labels: Any = None,
        *,
        gallery_includes_queries: bool = False,
        names: Any = None,
        progress: Bar = silent,
    ) -> Result:
        """Rank arrays: each query among a gallery, or among the other queries.

        Args:
            queries: Vectors (M, D), an array, a tensor or lists of numbers.
            labels: Their classes (M,), integers or strings, or label sets (M, L); for pairs, the pair's number.
            gallery: Vectors (R, D). None: the other queries.
            gallery_labels: Their labels: a right answer has the query's class, or a label in common with it.
            gallery_includes_queries: See the class.
            names: The classes' or labels' names.
            progress: Wraps the tiles.

        Raises:
            ValueError: Shapes, lengths or kinds disagree, a vector isn't finite, or no query has a right answer.

        Example:
            >>> import numpy as np
            >>> images, texts = np.eye(3), np.array([[1, 0.1, 0], [0, 1, 0.1], [0, 0.9, 0.8]])
            >>> Retrieval(at=[1, 2]).rank(texts, [0, 1, 2], images, [0, 1, 2])["hit rate@2"].value
            1.0
        """
        arrays = {"test": ("queries", queries, "labels", labels)}
        if gallery is not None or gallery_labels is not None:
            arrays["train"] = ("gallery", gallery, "gallery_labels", gallery_labels)
        parts = three_parts(gather_samples(arrays, names))
        evaluation = copy(self)
        evaluation.among = None
        evaluation.gallery = "test" if gallery is None else "train"
        evaluation.gallery_includes_queries = gallery_includes_queries or self.gallery_includes_queries
        return evaluation(*parts, progress=progress)

    def each(self, queries: Features) -> dict[str, Float[Tensor, " m"]]:
        """Return each metric of every query among the others, (M,), by its name; NaN without a right answer."""
        measure = self._of_sets if queries.label_kind == "label sets" else self._of_classes
        results = measure(queries, queries, torch.arange(len(queries)), silent)
        return {metric.name: values for metric, values in results.items()}

    def _score(self, parts: FeatureParts, progress: Bar) -> Result:
        test, gallery = parts.test, self._gallery_features(parts, encoded=True)
        references, own_index, equal = test, torch.arange(len(test)), ()
        if gallery is not None:
            references, (own_index, equal) = gallery, own_rows(test, gallery, included=self.gallery_includes_queries)
        measure = self._of_sets if test.label_kind == "label sets" else self._of_classes
        values = measure(test, references, own_index, progress)
        unseen = test.label_kind == "classes" and len(parts.train) > 0 and not parts.closed
        protocol, collector = {}, ScoreCollector(self.name, test)
        if gallery is not None:
            name = "training part" if self.among is None else f"{words_of(self.among)}, {len(self._gallery):,} samples"
            protocol = {"gallery": name + (" without the query" if self.gallery_includes_queries else "")}
        why = LEFT_OUT[own_index is not None, str(test.label_kind)]
        binary = {PRECISION, *(_metric("hit rate", k) for k in self.at)}
        for metric, value in values.items():
            known = ~value.isnan()
            lost = int((~known).sum())
            notes = (f"{format_count(lost, 'sample')} left out, {why}", *equal) if lost else equal
            classes = test.groups[known] if unseen else None
            add_mean(collector, metric, value[known], classes, binary=metric in binary, notes=notes, protocol=protocol)
            collector.add_outcomes(metric.name, value, known)
        return collector.result()

    def _of_classes(
        self, test: Features, gallery: Features, own_index: Tensor | None, progress: Bar
    ) -> dict[Metric, Tensor]:
        positives = _answers(test, gallery, own_index is not None)
        wanted, known = classes_among(test, gallery), gallery.classes
        most = max(int(positives.max()), *self.at, 1)
        metrics = (*METRICS, *self._metrics())
        values = torch.full((len(metrics), len(test)), torch.nan, dtype=torch.float64)
        places = torch.arange(1, most + 1)
        neighbours = nearest(
            test.vectors, gallery.vectors, most, own_index=own_index, progress=progress, doing=self.name
        )
        for part, _, indices in neighbours:
            allowed = positives[part]
            hits = (known[indices.cpu()] == wanted[part].unsqueeze(1)).double()
            within = hits * (places <= allowed.unsqueeze(1))
            precisions = (within * within.cumsum(dim=1) / places).sum(dim=1)
            three = [hits[:, 0], within.sum(dim=1) / allowed, precisions / allowed]
            highest = (places <= allowed.unsqueeze(1)).double()
            values[:, part] = torch.stack([*three, *self._at_each(hits, allowed, hits, highest)])
        values[:, positives == 0] = torch.nan
        return dict(zip(metrics, values, strict=True))

    def _of_sets(
        self, test: Features, gallery: Features, own_index: Tensor | None, progress: Bar
    ) -> dict[Metric, Tensor]:
        sets, known = label_sets_among(test, gallery)
        depth = min(LABEL_SET_DEPTH, len(known) - (own_index is not None))
        most = max(depth, *self.at, 1)
        highest, answers = _highest(sets, known, most, own_index)
        metrics = (PRECISION, *(Metric(f"{name}@{LABEL_SET_DEPTH}") for name in ("Jaccard", "nDCG")), *self._metrics())
        values = torch.zeros(len(metrics), len(sets), dtype=torch.float64)
        neighbours = nearest(
            test.vectors, gallery.vectors, most, own_index=own_index, progress=progress, doing=self.name
        )
        for part, _, indices in neighbours:
            near, mine = known[indices.cpu()], sets[part].unsqueeze(1)
            gains, hits = jaccard(mine, near), (near & mine).any(dim=2).double()
            at_ten = gains[:, :depth].mean(dim=1), _gained(gains, highest[part], depth)
            each = self._at_each(hits, answers[part], gains, highest[part])
            values[:, part] = torch.stack([hits[:, 0], *at_ten, *each])
        values[:, ~sets.any(dim=1)] = torch.nan
        return dict(zip(metrics, values, strict=True))

    def _metrics(self) -> list[Metric]:
        return [_metric(name, k) for k in self.at for name in AT_EACH]

    def _at_each(
        self,
        hits: Float[Tensor, "m k"],
        answers: Int[Tensor, " m"],
        gains: Float[Tensor, "m k"],
        highest: Float[Tensor, "m k"],
    ) -> Iterator[Tensor]:
        """Yield the metrics of `AT_EACH`, (m,) each, for each k; nDCG divides gains by the highest possible gains."""
        places = torch.arange(1, hits.shape[1] + 1)
        precisions = hits * hits.cumsum(dim=1) / places
        for k in self.at:
            hit_count = hits[:, :k].sum(dim=1)
            yield from (hit_count / k, hit_count / answers, (hit_count > 0).double())
            yield (hits / places)[:, :k].amax(dim=1)  # 1/r, as the first hit has the lowest place
            yield precisions[:, :k].sum(dim=1) / answers.clamp(max=k)
            yield _gained(gains, highest, k)


def _gained(gains: Float[Tensor, "m k"], highest: Float[Tensor, "m k"], k: int) -> Float[Tensor, " m"]:
    discount = torch.arange(2, k + 2).double().log2().reciprocal()
    return (gains[:, :k] @ discount) / (highest[:, :k] @ discount)


def _metric(name: str, k: int) -> Metric:
    return PRECISION if (name, k) == ("precision", 1) else Metric(f"{name}@{k}")


def _answers(test: Features, gallery: Features, but_one: bool) -> Int[Tensor, " m"]:
    """Return the number of right answers of each query besides itself; for label sets, whether there is one."""
    if test.label_kind == "label sets":
        sets, known = label_sets_among(test, gallery)
        return (sets & (known.sum(dim=0) > but_one)).any(dim=1).long()
    wanted = classes_among(test, gallery)
    return (gallery.counts[wanted] - int(but_one)).where(wanted >= 0, 0)


def add_mean(
    collector: ScoreCollector, metric: Metric, values: Tensor, classes: Tensor | None, *, binary: bool, **details: Any
) -> None:
    """Add the mean over queries with its interval: over their classes, or Wilson's for 0 and 1, or Student's."""
    scored = share(values > 0) if classes is None and binary else mean_share(values, classes)
    collector.add(metric, *scored, classes=None if classes is None else len(classes.unique()), **details)


def _highest(
    sets: Bool[Tensor, "m l"], gallery: Bool[Tensor, "r l"], depth: int, own_index: Int[Tensor, " m"] | None
) -> tuple[Float[Tensor, "m k"], Int[Tensor, " m"]]:
    """Return each set's highest Jaccard similarities to others, in descending order, and the number above 0."""
    numbers, references = sets.float(), gallery.float()
    sizes = references.sum(dim=1)
    similarities: list[Tensor] = []
    answers: list[Tensor] = []
    for rows in torch.arange(len(sets)).split(max(1, TILE // max(1, len(references)))):
        both = numbers[rows] @ references.T
        alike = both / (numbers[rows].sum(dim=1, keepdim=True) + sizes - both).clamp(min=1)
        if own_index is not None:
            alike[torch.arange(len(rows)), own_index[rows]] = -1
        similarities.append(alike.topk(depth, dim=1).values.double())
        answers.append((alike > 0).sum(dim=1))
    return torch.cat(similarities), torch.cat(answers)


def label_sets_among(queries: Features, gallery: Features) -> tuple[Bool[Tensor, "m l"], Bool[Tensor, "r l"]]:
    """Return the label sets of both in the same columns, one for each label of either."""
    columns = {name: column for column, name in enumerate(dict.fromkeys((*gallery.names, *queries.names)))}

    def in_columns(part: Features) -> Bool[Tensor, "n l"]:
        sets = torch.zeros(len(part), len(columns), dtype=torch.bool)
        sets[:, [columns[name] for name in part.names]] = part.sets
        return sets

    return in_columns(queries), in_columns(gallery)
