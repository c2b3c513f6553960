"""The nearest vectors by cosine similarity, tile by tile: never all pairs in memory."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from likewise.evaluation.features import Bar, silent

TILE = 2**23  # similarities at a time: 32 MiB in float32


def nearest(
    queries: Float[Tensor, "m d"],
    references: Float[Tensor, "r d"] | None,
    count: int,
    *,
    progress: Bar = silent,
    doing: str = "neighbours",
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield slices of queries with cosines and indices, (m, count) each, of their nearest references, nearest first.

    Without references, those of a query are the other queries. Equal similarities come in a random order that is the
    same every time, so that the order of the data, which often is by class, decides nothing. A tile has 2²³ of them.
    """
    own = references is None
    units = functional.normalize(queries)
    others = units if own else functional.normalize(references)
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(0)).to(units.device)
    shuffled = others[order]
    place = order.argsort()
    rows = max(1, TILE // max(1, len(others)))
    count = min(count, len(others) - own)
    for start in progress(range(0, len(units), rows), doing):
        part = slice(start, min(start + rows, len(units)))
        tile = units[part] @ shuffled.T
        if own:
            tile[torch.arange(len(tile)), place[part]] = -torch.inf
        similarities, indices = tile.topk(count, dim=1)
        yield part, similarities, order[indices]
