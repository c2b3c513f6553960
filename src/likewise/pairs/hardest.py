"""The set of the hardest references of each anchor."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.pairs.explicit import Listed
from likewise.pairs.expressions import PairWeight
from likewise.pairs.vectors import checked_vectors
from likewise.pairs.weight import all_tiles


@final
class Hardest(Listed):
    """The k references of each anchor, among a set of pairs, that are most similar to it.

    Args:
        queries: Rows of the anchors, (N, D), whose inner products are the similarities; detached here.
        among: The set of pairs to choose from, (N, R).
        k: How many for each anchor; fewer where it has fewer pairs.
        references: Rows of the references, (R, D); None: the anchors'.
        farthest: Choose the least similar instead: the hardest positives.

    Attributes:
        similarities: The pairs' similarities, the hardest first, (N, k); −∞ (or +∞, if farthest) where there is none.

    Memory:
        O((N + R)·D + N·k + tile): similarities are computed once, tile by tile.

    Example:
        >>> from likewise import pairs
        >>> z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> Hardest(z, pairs.NotSelf(3)).similarities.flatten()
        tensor([0.8000, 0.8000, 0.6000])
    """

    def __init__(
        self,
        queries: Float[Tensor, "n d"],
        among: PairWeight,
        k: int = 1,
        *,
        references: Float[Tensor, "r d"] | None = None,
        farthest: bool = False,
    ) -> None:
        z, v = (vectors.detach() for vectors in checked_vectors(queries, references, "queries"))
        if not isinstance(k, int) or k < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"expected k to be an integer of at least 1, got {k!r}")
        known = isinstance(among, PairWeight)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not known or among.shape != (len(z), len(v)) or not among.is_set:
            got = among if known else type(among).__name__
            expected = f"a set of pairs (weights 0 and 1) of {len(z)} anchors and {len(v)} references"
            raise ValueError(f"expected among to be {expected}, got {got}: build a set with likewise.pairs")
        highest, index = z.new_full((len(z), k), -torch.inf), torch.full((len(z), k), len(v), device=z.device)
        sign, everyone = -1 if farthest else 1, torch.arange(len(v), device=z.device)
        with torch.autocast(z.device.type, enabled=False):
            for rows, columns in all_tiles(among.shape):
                s = (z[rows] @ v[columns].T).mul_(sign)
                s.masked_fill_(among.tile(rows, columns, s.dtype, s.device) == 0, -torch.inf)
                highest[rows], best = torch.cat([highest[rows], s], dim=1).topk(k)
                index[rows] = torch.cat([index[rows], everyone[columns].expand(s.shape)], dim=1).gather(1, best)
        super().__init__(index.masked_fill_(highest == -torch.inf, len(v)).T, len(v))
        self.similarities = sign * highest
