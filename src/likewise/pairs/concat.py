"""The concatenated pair weights of several sections of references."""

from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import Tensor

from likewise.pairs.equal import NoPairs
from likewise.pairs.expressions import PairWeight, Split


@final
class Concat(PairWeight):
    """Weights of the same anchors over consecutive sections of references."""

    def __init__(self, parts: tuple[PairWeight, ...]) -> None:
        counts = {part.shape[0] for part in parts}
        if len(counts) != 1:
            raise ValueError(f"expected sections with the same anchors, got {list(parts)}: build all of them for one N")
        super().__init__(
            (counts.pop(), sum(part.shape[1] for part in parts)),
            is_set=all(part.is_set for part in parts),
            is_nonnegative=all(part.is_nonnegative for part in parts),
            symmetric_at=None,
        )
        self.parts = parts
        self.is_learned = any(part.is_learned for part in parts)
        self.within_tiles = all(part.within_tiles for part in parts)

    @property
    def flat(self) -> Iterator[PairWeight]:
        """The sections, with nested concatenations flattened."""
        for part in self.parts:
            if isinstance(part, Concat):
                yield from part.flat
            else:
                yield part

    def _cut(self, columns: slice) -> Iterator[tuple[PairWeight, slice]]:
        start = 0
        for part in self.parts:
            inside = slice(max(columns.start - start, 0), min(columns.stop - start, part.shape[1]))
            if inside.start < inside.stop:
                yield part, inside
            start += part.shape[1]

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        tiles = [part.tile(rows, inside, dtype, device) for part, inside in self._cut(columns)]
        return torch.cat(tiles, dim=1) if tiles else torch.zeros(rows.stop - rows.start, 0, dtype=dtype, device=device)

    def fill(self, out: Tensor, rows: slice, columns: slice) -> None:
        start = 0
        for part, inside in self._cut(columns):
            stop = start + inside.stop - inside.start
            part.fill(out[:, start:stop], rows, inside)
            start = stop

    def split(self) -> Split:
        """Split each section by itself; a missing part of a section becomes a part without pairs."""
        parts = [part.split() for part in self.parts]
        if all(part.beside is None for part in parts) or all(part.within is None for part in parts):
            return super().split()
        none = [NoPairs(*part.shape) for part in self.parts]
        sides = zip(*parts, strict=True)
        whole = (tuple(no if part is None else part for part, no in zip(side, none, strict=True)) for side in sides)
        return Split(*map(Concat, whole))

    def constant(self, rows: slice, columns: slice) -> float | None:
        values = {part.constant(rows, inside) for part, inside in self._cut(columns)}
        return values.pop() if len(values) == 1 else None

    def product(self, references: Tensor) -> Tensor:
        sections = references.split([part.shape[1] for part in self.parts])
        return torch.stack([part.product(v) for part, v in zip(self.parts, sections, strict=True)]).sum(dim=0)

    def transposed_product(self, anchors: Tensor) -> Tensor:
        return torch.cat([part.transposed_product(anchors) for part in self.parts])

    def transposed_products(
        self, anchors: Tensor, lengths: Sequence[int], wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        if list(lengths) != [part.shape[1] for part in self.parts]:
            return super().transposed_products(anchors, lengths, wanted)
        pairs = zip(self.parts, wanted, strict=True)
        return [part.transposed_product(anchors) if want else None for part, want in pairs]

    def _row_sum(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.stack([part.known_row_sum(dtype, device) for part in self.parts]).sum(dim=0)

    def _support(self, device: torch.device) -> Tensor:
        return torch.stack([part.known_support(device) for part in self.parts]).any(dim=0)

    def __matmul__(self, references: Tensor | tuple[Tensor, ...]) -> Tensor:
        if isinstance(references, tuple) and [len(v) for v in references] == [part.shape[1] for part in self.parts]:
            products = [part @ v for part, v in zip(self.parts, references, strict=True)]
            return sum(products[1:], start=products[0])
        return super().__matmul__(references)


def concat(sections: Sequence[PairWeight]) -> PairWeight:
    """Concatenate the weights of several sections of references for the same anchors, (N, R₁), (N, R₂) and so on.

    Returns:
        The weight, (N, R₁ + R₂ + …). ``concat(...) @ (v₁, v₂, …)`` takes references split into the same sections.

    Example:
        >>> from likewise import pairs
        >>> pairs.concat([pairs.NotSelf(2), pairs.AllPairs(2, 1)]).dense()
        tensor([[0., 1., 1.],
                [1., 0., 1.]])
    """
    if not sections:
        raise ValueError("expected at least one section for concat, got none: pass a weight for each section")
    return sections[0] if len(sections) == 1 else Concat(tuple(sections))
