"""Retrieval by label sets: do the samples nearest to a query have labels like its own?"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.evaluation.features import Features, Progress
from likewise.evaluation.intervals import of_share, student, wilson
from likewise.evaluation.nearest import TILE, nearest
from likewise.scores import Metric, Outcomes, Result, Score

NEAREST = 10
PRECISION = Metric("precision@1", selects=True)


def label_retrieval(name: str, test: Features, progress: Progress) -> Result:
    """Rank the test samples for each of them that has a label; see `Retrieval`."""
    sets = test.sets
    queries = sets.any(dim=1)
    depth = min(NEAREST, len(sets) - 1)
    gains = torch.zeros(len(sets), depth, dtype=torch.float64)
    shared = torch.zeros(len(sets), dtype=torch.float64)
    for part, _, indices in nearest(test.vectors, None, depth, progress=progress, doing=name):
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
    return _found(name, test, values, queries)


def jaccard(first: Bool[Tensor, "... l"], second: Bool[Tensor, "... l"]) -> Float[Tensor, "..."]:
    """Return how alike label sets are: labels that both have, of those that either has; 0 for two empty sets.

    Example:
        >>> jaccard(torch.tensor([True, True, False]), torch.tensor([True, False, True])).item()
        0.3333333333333333
    """
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


def _found(name: str, test: Features, values: dict[Metric, Tensor], queries: Tensor) -> Result:
    """Return the means over queries, and each query's value."""
    scores: list[Score] = []
    outcomes: list[Outcomes] = []
    for metric, value in values.items():
        known = queries & ~value.isnan()
        lost = int((~known).sum())
        left = (f"{lost} samples left out, with no label or none that is shared",) if lost else ()
        own = value[known]
        low, high = (
            wilson(int(own.sum()), len(own))
            if metric == PRECISION
            else of_share(student(own), float(own.mean()), len(own))
        )
        where = (test.kind, test.part)
        scores.append(Score(name, metric, float(own.mean()), low, high, len(own), *where, notes=left))
        outcomes.append(Outcomes(name, metric.name, test.numbers[known], own.float(), *where))
    return Result(tuple(scores), outcomes=tuple(outcomes))
