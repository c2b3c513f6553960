"""Retrieval across the sides of pairs, and evaluation of pairs or classes by the first features, at several widths."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.data import Samples, never_apart
from likewise.evaluation.arrays import array_of, vectors_of
from likewise.evaluation.evaluation import Evaluation, ScoreCollector, as_int_list
from likewise.evaluation.features import Bar, FeatureParts, Features, silent
from likewise.evaluation.intervals import mean_share, median, share
from likewise.evaluation.nearest import CACHE_TILE, own_rows, sort_keys
from likewise.evaluation.retrieval import Retrieval
from likewise.runs.scores import Metric, Outcomes, Result, Score, format_count

DEFAULT_DEPTHS = (1, 5, 10)
DEPTH = 10
NDCG = Metric(f"nDCG@{DEPTH}", shown=False)
DIRECTIONS = ("first to second", "second to first")


@final
class CrossModalRetrieval(Evaluation):
    """Rank one side of the test pairs for each input of the other, by cosine similarity: images for captions and back.

    The queries are the distinct inputs of one side, the gallery is the distinct inputs of the other, and each input
    paired with a query is one right answer, however many pairs it is in. With r the rank of a query's first right
    answer, hit_j = 1 if the j-th nearest is right, and R right answers,

        recall@k = 1 if r ≤ k,   MRR = 1/r,   nDCG@10 = Σ_{j≤10} hit_j / log2(j + 1), divided by its highest value

    The scores are their means over queries, and the median of r, in both directions. recall@k is as in papers on images
    and captions; `Retrieval` calls it the hit rate. A k not below the size of the gallery is left out. Runs and epochs
    are chosen by recall@1 from the first side to the second: put the side of future queries first.

    Nothing is learned, and ties are broken in a fixed random order. Intervals are over queries: Wilson's for recall,
    Student's for means, and one between two ranks for the median. Queries that share a right answer, directly or
    through others, such as the captions of one image, are found or missed together: they form a group, and intervals
    are over groups. The size of the gallery is part of the protocol: a larger one is harder.

    Args:
        at: k of recall, or several; 1 is always included. None: 1, 5 and 10.
        gallery_includes_queries: Whether each query is also a row of the other side, as in pairs within one set of
            texts: its own row is then left out. Otherwise a note counts equal rows, with a warning if there are many.

    Raises:
        ValueError: k is invalid.

    Memory:
        O((M + R)·D + P) and one tile of similarities, for M queries, a gallery of R, and P pairs.

    Example:
        >>> texts = Features(torch.tensor([[1.0, 0.1], [0.3, 1.0]]), None)
        >>> images = Features(torch.eye(2), None, counterparts=texts)
        >>> CrossModalRetrieval()(images, images, images)["recall@1, first to second"].value
        1.0
    """

    name: ClassVar[str] = "cross-modal retrieval"
    of_pairs: ClassVar[bool] = True

    def __init__(self, at: int | list[int] | None = None, *, gallery_includes_queries: bool = False) -> None:
        depths = DEFAULT_DEPTHS if at is None else tuple(sorted({1, *as_int_list("at", at)}))
        if depths[0] < 1:
            raise ValueError(f"expected at of at least 1, got {depths[0]}")
        self.at = depths
        if gallery_includes_queries:
            self.gallery_includes_queries = True

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        test, counterparts = parts.test, parts.test.counterparts
        if counterparts is None:
            return "it needs pairs, and the samples have no other side"
        if (fewest := min(len(side.unique_index[0]) for side in (test, counterparts))) < 2:
            return f"it needs 2 different inputs on each side of the test pairs, and there is {fewest}"
        return None

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        del refit
        by = self.on_validation(parts)
        tried = () if by is None else self._rank_both(*sides_of(by.test), progress).selecting
        return replace(self._rank_both(*sides_of(parts.test), progress), candidates=tried)

    def rank(
        self,
        first: Any,
        second: Any,
        pairs: Any = None,
        *,
        gallery_includes_queries: bool = False,
        progress: Bar = silent,
    ) -> Result:
        """Rank two arrays for each other. Vectors without a partner are ranked, but aren't queries; a note counts them.

        Args:
            first: Vectors (M, D), an array, a tensor or lists of numbers.
            second: Vectors (R, D).
            pairs: The pairs, (P, 2): an index into the first, and one into the second. None: row by row.
            gallery_includes_queries: See the class.
            progress: Wraps the tiles.

        Raises:
            ValueError: Shapes disagree, a vector isn't finite, or an index is out of range.

        Example:
            >>> images, texts = torch.eye(2), [[1, 0.1], [1, 0.2], [0.1, 1]]
            >>> result = CrossModalRetrieval().rank(images, texts, [[0, 0], [0, 1], [1, 2]])
            >>> result["median rank, second to first"].value
            1.0
        """
        sides = [vectors_of(side, name) for side, name in ((first, "first"), (second, "second"))]
        sizes = tuple(map(len, sides))
        if sides[0].shape[1] != sides[1].shape[1]:
            got = f"{sides[0].shape[1]} and {sides[1].shape[1]}"
            raise ValueError(f"expected first and second of one width, got {got}: encode both into one space")
        if pairs is None and sizes[0] != sizes[1]:
            raise ValueError(f"expected as many in second as in first, {sizes[0]}, got {sizes[1]}: give pairs")
        indices = array_of(np.arange(sizes[0])[:, None].repeat(2, 1) if pairs is None else pairs, "pairs")
        if indices.ndim != 2 or indices.shape[1] != 2 or indices.dtype.kind not in "ui" or not len(indices):
            got = f"got {indices.shape} of {indices.dtype}: give places"
            raise ValueError(f"expected pairs as whole numbers (P, 2), {got}")
        if (indices < 0).any() or (indices >= sizes).any():
            got = f"{indices.min()} to {indices.max()}"
            raise ValueError(f"expected pairs of places below {sizes[0]} and {sizes[1]}, got {got}")
        if min(sizes) < 2:
            raise ValueError(f"expected at least 2 vectors in first and in second, got {sizes[0]} and {sizes[1]}")
        queries, gallery = (Features(torch.from_numpy(side), None) for side in sides)
        ranking = copy(self)
        ranking.gallery_includes_queries = gallery_includes_queries or self.gallery_includes_queries
        places = torch.from_numpy(indices.astype(np.int64))
        return ranking._rank_both(queries, gallery, places, progress)  # noqa: SLF001 - its own

    def _rank_both(self, first: Features, second: Features, pairs: Int[Tensor, "p 2"], progress: Bar) -> Result:
        forward = self._of_direction(DIRECTIONS[0], first, second, pairs, progress)
        other = self._of_direction(DIRECTIONS[1], second, first, pairs.flip(1), progress)
        return Result((*forward.scores, *other.scores), outcomes=(*forward.outcomes, *other.outcomes))

    def _of_direction(
        self, direction: str, queries: Features, gallery: Features, pairs: Int[Tensor, "p 2"], progress: Bar
    ) -> Result:
        own_index, equal = own_rows(queries, gallery, included=self.gallery_includes_queries)
        pairs, size = pairs.unique(dim=0), len(gallery) - (own_index is not None)
        if own_index is not None:
            pairs = pairs[pairs[:, 1] != own_index[pairs[:, 0]]]
            if not len(pairs):
                raise ValueError("expected pairs of different rows, got each row with itself alone: give pairs")
        bound = never_apart(Samples(pairs, items=pairs[:, 0], counterparts=Samples(pairs, items=pairs[:, 1])))
        doing = f"{self.name}, {direction}"
        ranks, hits = rank_gallery(
            queries.vectors, gallery.vectors, pairs, DEPTH, own_index=own_index, progress=progress, doing=doing
        )
        known = ranks > 0
        groups = torch.zeros_like(ranks).scatter(0, pairs[:, 0], bound)[known]
        several = len(groups.unique())
        lost = int((~known).sum())
        notes = (f"{format_count(lost, 'sample')} without a partner left out", *equal) if lost else equal
        discount = torch.arange(2, hits.shape[1] + 2).double().log2().reciprocal()
        answers = torch.bincount(pairs[:, 0], minlength=len(queries)).clamp(1, hits.shape[1])
        gained = hits.double() @ discount / discount.cumsum(0)[answers - 1]
        collector = ScoreCollector(self.name, queries)

        def add(metric: Metric, scored: Sequence[Any], values: Tensor | None = None) -> None:
            named = replace(metric, name=f"{metric}, {direction}")
            over = several if several < len(groups) else None
            collector.add(named, *scored, counted="query", classes=over, protocol={"gallery": size}, notes=notes)
            if values is not None:
                collector.add_outcomes(named.name, values, known, groups)

        for k in (k for k in self.at if k == 1 or k < size):
            first = k == 1 and direction == DIRECTIONS[0]
            add(Metric(f"recall@{k}", selects=first), share(ranks[known] <= k, groups), ranks <= k)
        for metric, values in ((Metric("MRR", shown=False), ranks.double().reciprocal()), (NDCG, gained)):
            add(metric, mean_share(values[known], groups), values)
        add(Metric("median rank", "rank", "lower"), median(ranks[known], 1, size, groups))
        return collector.result()


def sides_of(pairs: Features) -> tuple[Features, Features, Int[Tensor, "n 2"]]:
    """Return the distinct inputs of both sides, each from its first pair, and the pairs as indices into these."""
    if pairs.counterparts is None:
        raise ValueError("expected features of pairs, got features without another side")
    sides = (pairs, replace(pairs.counterparts, rows=pairs.numbers, part=pairs.part))
    (rows, places), (other_rows, other_places) = (side.unique_index for side in sides)
    return sides[0][rows], sides[1][other_rows], torch.stack([places, other_places], dim=1)


def rank_gallery(
    queries: Float[Tensor, "m d"],
    gallery: Float[Tensor, "r d"],
    pairs: Int[Tensor, "p 2"],
    depth: int,
    *,
    own_index: Int[Tensor, " m"] | None = None,
    progress: Bar = silent,
    doing: str = "ranking",
) -> tuple[Int[Tensor, " m"], Bool[Tensor, "m k"]]:
    """Rank a whole gallery for queries by cosine similarity, exactly, tile by tile, in the order of `nearest`.

    `pairs` are indices of a query and of a right answer; `own_index` is the gallery index left out for each query,
    which is not a right answer. It returns the rank of each query's first right answer, from 1, or 0 without one, and a
    mask of right answers among the `depth` nearest.
    """
    units, gallery_units = functional.normalize(queries.float()), functional.normalize(gallery.float())
    order = torch.randperm(len(gallery_units), generator=torch.Generator().manual_seed(0))
    columns = torch.arange(len(gallery_units))
    back = order.argsort()
    query, position = pairs[:, 0], back[pairs[:, 1]]
    by_query = query.argsort()
    query, position = query[by_query], position[by_query]
    shuffled, right = gallery_units[order].T, query * len(gallery_units) + position
    first = torch.zeros(len(units), dtype=torch.int64)
    hits = torch.zeros(len(units), min(depth, len(gallery_units)), dtype=torch.bool)
    rows = max(1, CACHE_TILE["cpu"] // max(1, len(gallery_units)))
    for start in progress(range(0, len(units), rows), doing):
        part = slice(start, min(start + rows, len(units)))
        keys = sort_keys(units[part] @ shuffled, columns)
        if own_index is not None:
            keys.scatter_(1, back[own_index[part]].unsqueeze(1), torch.iinfo(torch.int64).min)
        these = slice(*torch.searchsorted(query, torch.tensor([part.start, part.stop])).tolist())
        row = query[these] - start
        best = torch.full((len(keys),), torch.iinfo(torch.int64).max)
        best.scatter_reduce_(0, row, keys[row, position[these]], "amax", include_self=False)
        first[part] = (keys >= best.unsqueeze(1)).sum(dim=1)
        near = keys.topk(hits.shape[1], dim=1).indices
        hits[part] = torch.isin(near + torch.arange(start, part.stop).unsqueeze(1) * len(gallery_units), right[these])
    return first, hits


@final
class Widths(Evaluation):
    """Evaluate the first features alone, at several widths, in one table.

        score at w = score of (x_1, ..., x_w),   which the evaluation normalises anew

    Args:
        widths: The numbers of first features, each at most the number of all features.
        evaluation: The evaluation at each width. None: cross-modal retrieval of pairs, else retrieval.

    Raises:
        ValueError: A width is below 1.

    Memory:
        The evaluation's memory, and the features once more.

    Source:
        A. Kusupati et al., Matryoshka Representation Learning, 2022, section 4; trained by `likewise.Matryoshka`.

    Example:
        >>> part = Features(torch.tensor([[1.0, 0], [0.9, 5], [-1, 0.1], [-0.8, 5]]), torch.tensor([0, 0, 1, 1]))
        >>> [f"{score.metric} {score.value}" for score in Widths([1, 2])(part, part, part).headline][::3]
        ['precision@1, first 1 1.0', 'precision@1, first 2 0.5']
    """

    name: ClassVar[str] = "widths"
    of_pairs: ClassVar[bool] = True

    def __init__(self, widths: list[int], evaluation: Evaluation | None = None) -> None:
        self.widths = sorted(as_int_list("widths", widths))
        if self.widths[0] < 1:
            raise ValueError(f"expected widths of at least 1, got {self.widths[0]}")
        if evaluation is not None and (getattr(evaluation, "among", None) or hasattr(evaluation, "outside")):
            got = f"{evaluation}: leave out its other source"
            raise ValueError(f"expected an evaluation of the run's own samples, got {got}")
        self.evaluation = evaluation

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        width = parts.test.vectors.shape[1]
        if 1 < width < self.widths[-1]:  # 1 stands for features not yet encoded
            return f"it needs {self.widths[-1]} features, and there are {width}"
        evaluation = self._choose(parts)
        return evaluation.why_not_applicable(evaluation.select(parts))

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        evaluation, scores, outcomes = self._choose(parts), list[Score](), list[Outcomes]()
        for width in self.widths:
            few = evaluation.select(FeatureParts(*(_first(part, width) for part in parts)))
            result = evaluation.evaluate(few, refit=refit, progress=progress)
            for score in result.headline:
                metric = replace(score.metric, name=f"{score.metric}, first {width}", selects=False)
                scores.append(replace(score, evaluation=self.name, metric=metric))
            for outcome in result.outcomes:
                outcomes.append(replace(outcome, evaluation=self.name, metric=f"{outcome.metric}, first {width}"))
        return Result(tuple(scores), outcomes=tuple(outcomes))

    def _choose(self, parts: FeatureParts) -> Evaluation:
        return self.evaluation or (Retrieval() if parts.test.counterparts is None else CrossModalRetrieval())


def _first(part: Features, width: int) -> Features:
    beside = None if part.counterparts is None else _first(part.counterparts, width)
    return replace(part, vectors=part.vectors[:, :width], counterparts=beside, origin=None)
