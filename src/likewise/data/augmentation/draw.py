"""The random numbers of one step: drawn for the global batch, of which each process takes its own rows."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor


@final
class Draw:
    """Random numbers for the rows of a batch, the same for a row whoever holds it.

    Numbers are drawn for all rows of the global batch; a process that holds some of them takes theirs. So several
    processes see, together, what one would that holds everything.

    Args:
        seed: Seed of the draws; a step has its own.
        rows: Rows of the global batch.
        own: The rows held here; None: all.
        device: Where the numbers are drawn, and needed.

    Example:
        >>> all_of_them = Draw(7, rows=4).uniform(2)
        >>> second_half = Draw(7, rows=4, own=slice(2, 4)).uniform(2)
        >>> torch.equal(all_of_them[2:], second_half)
        True
    """

    def __init__(
        self, seed: int, rows: int, own: slice | None = None, device: torch.device | str | None = None
    ) -> None:
        self.device = torch.device(device or "cpu")
        self.rows = rows
        self._own = slice(None) if own is None else own
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def uniform(self, *shape: int) -> Float[Tensor, "n ..."]:
        """Return numbers from [0, 1), (n, *shape), float32, for the n rows held here."""
        return torch.rand(self.rows, *shape, generator=self._generator, device=self.device)[self._own]

    def normal(self, *shape: int) -> Float[Tensor, "n ..."]:
        """Return standard normal numbers, (n, *shape), float32, for the n rows held here."""
        return torch.randn(self.rows, *shape, generator=self._generator, device=self.device)[self._own]
