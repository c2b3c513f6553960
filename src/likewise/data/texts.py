"""Texts as inputs: strings, and the rows of tokens that an encoder makes of them."""

from array import array
from collections.abc import Iterable, Sequence
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.rows import Rows

PADDING = 0
"""Fills a row of tokens after its last one."""
MASK = 1
"""Stands for a token that is hidden, or that the vocabulary lacks."""


@final
class Texts(Rows):
    r"""Strings. Read as rows they are their UTF-8 bytes, filled up with zeros: (n, T), uint8.

    Args:
        strings: The texts, N of them.

    Example:
        >>> texts = Texts(["pull", "what is alike"])
        >>> texts.shape, texts[torch.tensor([0])].tolist(), texts.take(torch.tensor([1])).strings
        ((2,), [[112, 117, 108, 108]], ['what is alike'])
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = list(strings)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N,): one text has no shape."""
        return (len(self.strings),)

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def __getitem__(self, rows: Tensor) -> Tensor:
        encoded = [self.strings[row].encode(errors="surrogatepass") for row in rows.tolist()]
        longest = max(map(len, encoded), default=0)
        return torch.tensor([[*text, *[PADDING] * (longest - len(text))] for text in encoded], dtype=torch.uint8)

    def take(self, rows: Tensor) -> "Texts":
        return Texts(self.strings[row] for row in rows.tolist())


@final
class TokenRows(Rows):
    """Rows of tokens: 0 is padding, 1 the mask, and from 2 on the numbers are the encoder's own.

    Indexing pads to the longest of the rows that are asked for.

    Args:
        tokens: The tokens of all rows, one after another.
        starts: Where each row starts, and where the last ends, (N + 1,).
        rows: Which of them, (N,). None: all.
        cut: How many of all texts were longer than the encoder takes.

    Memory:
        4 bytes a token, which subsets share.

    Example:
        >>> rows = TokenRows.of([[5, 6, 7], [8]])
        >>> rows[torch.tensor([1, 0])].tolist(), rows.lengths.tolist()
        ([[8, 0, 0], [5, 6, 7]], [3, 1])
    """

    def __init__(self, tokens: Tensor, starts: Tensor, rows: Tensor | None = None, cut: int = 0) -> None:
        self._tokens = tokens
        self._starts = starts
        self._rows = torch.arange(len(starts) - 1) if rows is None else rows
        self.cut = cut

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]], cut: int = 0) -> "TokenRows":
        """Put rows together; an empty one becomes a mask, so that no row is empty."""
        tokens, starts = array("i"), array("q", [0])
        for row in rows:
            tokens.extend(row or [MASK])
            starts.append(len(tokens))
        return cls(torch.tensor(tokens, dtype=torch.int32), torch.tensor(starts), cut=cut)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N,): rows have lengths of their own."""
        return (len(self._rows),)

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64

    @property
    def lengths(self) -> Int[Tensor, " n"]:
        """Number of tokens of each row, (N,)."""
        return self._starts[self._rows + 1] - self._starts[self._rows]

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.padded(rows, int(self.lengths[rows].max()) if len(rows) else 0)

    def padded(self, rows: Tensor, length: int) -> Int[Tensor, "n t"]:
        """Return some rows, padded to a length that is at least theirs."""
        chosen = self._rows[rows]
        places = self._starts[chosen].unsqueeze(1) + torch.arange(length)
        inside = places < self._starts[chosen + 1].unsqueeze(1)
        tokens = self._tokens[places.clamp(max=max(0, len(self._tokens) - 1))]
        return torch.where(inside, tokens, PADDING).long()

    def take(self, rows: Tensor) -> "TokenRows":
        return TokenRows(self._tokens, self._starts, self._rows[rows], self.cut)
