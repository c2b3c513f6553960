"""The random numbers of one step: sampled for the global batch, of which each process takes its own rows."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor


@final
class Draw:
    """Random numbers for the rows of a batch, which do not depend on the process that holds a row.

    Numbers are sampled for all rows of the global batch, and each process takes those of its rows. So several processes
    together see the same numbers as a single one.

    Args:
        seed: Seed of the numbers; every step has another.
        rows: Number of rows in the global batch.
        own: The rows held here. None: all.
        device: The device of the numbers. None: the CPU.

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
