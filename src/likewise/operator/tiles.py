"""A problem cut into tiles: its rows, its weights split into factors, and the order of visits to the tiles."""

import math
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple, final

import torch
from torch import Tensor

from likewise.operator import threads
from likewise.operator.rows import MAX_EXPONENT, OCTAVE, rounded, steepest
from likewise.operator.spec import ContrastSpec
from likewise.operator.threads import Task
from likewise.pairs.explicit import Listed
from likewise.pairs.weight import blocks

TILE = 512
"""Rows and columns of a tile: 1 MiB in float32, so that it stays in a core's cache between passes."""

GPU_FACTOR = 8
"""The factor by which a tile is longer and wider on a GPU: 64 MiB in float32, enough work to hide the launches."""

MIN_BLOCKS = 4
"""The minimum number of blocks of rows if there is more than one tile, so that threads can share them."""


class Exponentials(Enum):
    """The form x of the similarities in a tile, and the kind of their exponentials."""

    SHARED = "x = s / ln 2: one exponential of each pair for all pushes, without an offset"
    PLAIN = "x = s / ln 2: one for each push, without an offset"
    RELATIVE = "x = z·v: relative to running maxima, for sets of pairs"
    WEIGHTED = "x = s: relative to running maxima, with the logarithms of weights"


class Tile(NamedTuple):
    """Some queries, and some references of one section."""

    rows: slice
    section: int
    columns: slice
    """Within the section."""
    among_all: slice
    """Within all references."""


class View(NamedTuple):
    """A tile, its weights if constant, its similarities, and the buffers of its thread."""

    tile: Tile
    pushes: list[float | None]
    """The value of each push, and of the pull, if constant over the tile; None if it varies or is unknown."""
    pull: float | None
    x: Tensor
    """Similarities, in the unit of the problem."""
    buffers: "Buffers"

    def buffer(self, k: int) -> Tensor:
        """Return the k-th buffer, from 1, as a tile of the shape of x; x may be buffer 0."""
        return self.buffers.tile(k, *self.x.shape)


class Buffers:
    """Reusable memory for the tiles of one thread."""

    def __init__(self, like: Tensor, cells: int) -> None:
        self._like, self._cells = like, cells
        self._all: dict[int, Tensor] = {}
        self._tiles: dict[tuple[int, int, int], Tensor] = {}

    def tile(self, k: int, n: int, r: int) -> Tensor:
        """Return the k-th buffer as an n x r tile with arbitrary contents."""
        tile = self._tiles.get((k, n, r))
        if tile is None:
            if k not in self._all:
                self._all[k] = self._like.new_empty(self._cells)
            tile = self._tiles[k, n, r] = self._all[k][: n * r].view(n, r)
        return tile


@final
class TiledProblem:
    """A problem cut into tiles: prepared queries z, (N, D), and sections, each (R, D), or z itself for the queries."""

    def __init__(self, problem: ContrastSpec, z: Tensor, sections: tuple[Tensor, ...], temperature: Tensor) -> None:
        self.z, self.sections, self.temperature = z, sections, temperature
        self.powers = [push.power for push in problem.pushes]
        self.pushes = problem.push_factors(z.dtype, z.device)
        within, self.beside = problem.pulls
        self.pull = None if within is None else within.factors(z.dtype, z.device)
        plain = self.pull is not None and self.pull.references is None
        self.listed = self.pull.base if plain and self.pull and isinstance(self.pull.base, Listed) else None
        """The pull, if it is a list of pairs: these are then picked by index, without tiles of weights."""
        self.exponentials = self._exponentials(problem)
        self.is_plain = self.exponentials in {Exponentials.SHARED, Exponentials.PLAIN}
        """Whether exponentials need no offset."""
        symmetric = all(push.base.is_symmetric for push in self.pushes) and not problem.both_ways
        self.is_triangle = self.is_plain and symmetric and problem.own == (True,)
        """Whether a tile is used for both (i, j) and (j, i)."""
        self.rows, self.columns = self._sides()
        self._inverse = problem.inv_temperature

    def _exponentials(self, problem: ContrastSpec) -> Exponentials:
        if problem.is_pairwise:
            return Exponentials.PLAIN
        if not all(push.base.is_set for push in self.pushes):
            return Exponentials.WEIGHTED
        if steepest(problem, self.z, self.sections) * max(map(abs, self.powers)) > MAX_EXPONENT[self.z.dtype]:
            return Exponentials.RELATIVE
        return Exponentials.SHARED if len(set(self.powers)) == 1 else Exponentials.PLAIN

    @property
    def unit(self) -> Tensor | float:
        """The value of x at s = 1."""
        if self.is_plain:
            return 1 / OCTAVE
        return self.temperature if self.exponentials is Exponentials.RELATIVE else 1.0

    def _sides(self) -> tuple[int, int]:
        """Return the size of a tile, rows and columns; it depends only on N and R, so sums do not depend on threads."""
        n, most = self.z.shape[0], max(v.shape[0] for v in self.sections)
        if self.z.device.type != "cpu":
            return TILE * GPU_FACTOR, TILE * GPU_FACTOR
        if max(n, most) <= TILE and len(self.sections) == 1:
            return TILE, TILE
        if self.is_triangle:
            side = TILE if n > MIN_BLOCKS * TILE else max(1, TILE // 2)
            return side, side
        step = max(1, TILE // 8)
        rows = min(TILE, step * max(1, -(-n // (MIN_BLOCKS * step))))
        return rows, min(2 * TILE, TILE * TILE // rows)

    def visit(self, visit: Callable[[View], None], *, owned: bool, skip: tuple[bool, ...] = ()) -> None:
        """Visit the tiles with any nonzero push or pull, in threads if there are several tiles and rows are on a CPU.

        ``owned``: a visit writes only to the tile's rows, not to its columns. ``skip``: whether to skip each section.
        """

        def worker() -> Callable[..., None]:
            longest = max(v.shape[0] for v in self.sections)
            buffers = Buffers(self.z, min(self.rows, self.z.shape[0]) * min(self.columns, longest))

            def work(*tiles: Tile) -> None:
                for tile in tiles:
                    if (known := self._known(tile)) is not None:
                        visit(View(tile, *known, self._products(tile, buffers), buffers))

            return work

        if not self.z.shape[0] or not any(v.shape[0] for v in self.sections):
            return
        apart = self.z.device.type == "cpu" and type(self.z) is Tensor and self.z.shape[0] > self.rows
        threads.run(self._tasks(owned=owned, skip=skip), worker, count=threads.workers() if apart else 1)

    def _tasks(self, *, owned: bool, skip: tuple[bool, ...]) -> Iterator[Task]:
        rows = list(blocks(len(self.z), self.rows))
        if self.is_triangle:
            for i, j in _tournament(len(rows)):
                yield Task((i, j), (Tile(rows[i], 0, rows[j], rows[j]),))
            return
        columns: list[tuple[int, slice, slice]] = []
        start = 0
        for k, v in enumerate(self.sections):
            parts = blocks(0 if skip and skip[k] else len(v), self.columns)
            columns += [(k, part, slice(start + part.start, start + part.stop)) for part in parts]
            start += len(v)
        if owned:
            for i, part in enumerate(rows):
                yield Task((i,), tuple(Tile(part, *column) for column in columns))
        elif columns and rows:
            for i, j in _turns(len(rows), len(columns)):
                yield Task((i, -1 - j), (Tile(rows[i], *columns[j]),))

    def _known(self, tile: Tile) -> tuple[list[float | None], float | None] | None:
        """Return the pushes and the pull of a tile for its `View`; None if no pair in it pushes or pulls."""
        pushes = [push.base.constant(tile.rows, tile.among_all) for push in self.pushes]
        if self.is_plain:  # 0 and 1 leave pairs out or unchanged; other constants count as unknown
            pushes = [None if value not in {0, 1} else value for value in pushes]
        pull = 0.0 if self.pull is None else self.pull.base.constant(tile.rows, tile.among_all)
        if pull == 0 and self.pull is not None and not self.pull.is_symmetric and self.is_mirrored(tile):
            pull = None if self.pull.base.constant(tile.columns, tile.rows) != 0 else 0.0
        if pull == 0 and not any(push != 0 for push in pushes):
            return None
        return pushes, pull

    def _products(self, tile: Tile, buffers: Buffers) -> Tensor:
        """Return x of a tile: s / ln 2 if exponentials are plain, z·v for sets of pairs, else s."""
        z, v = self.z[tile.rows], self.sections[tile.section][tile.columns]
        x = buffers.tile(0, z.shape[0], v.shape[0])
        if self.is_plain and self._inverse is not None:
            return rounded(z, v, self._inverse, x)
        torch.mm(z, v.T, out=x)
        if self.exponentials is Exponentials.RELATIVE:
            return x
        return x.div_(self.temperature * OCTAVE if self.is_plain else self.temperature)

    def pulled(self, view: View, out: Tensor, *, mirrored: bool = False) -> Tensor | None:
        """Return the pull's weights in a tile, without the factors of anchors; None if there are none.

        If mirrored, return the transposed weights of the references as anchors over the queries.
        """
        if self.pull is None or (view.pull == 0 and not mirrored):
            return None
        tile = view.tile
        rows, columns = (tile.among_all, tile.rows) if mirrored else (tile.rows, tile.among_all)
        weights = out.view(out.shape[1], out.shape[0]) if mirrored else out
        self.pull.base.fill(weights, rows, columns)
        if self.pull.references is not None:
            weights.mul_(self.pull.references[columns])
        return weights.T if mirrored else weights

    def weighed(self, k: int, view: View, e: Tensor, out: Tensor) -> Tensor | None:
        """Return e, or 0 outside the k-th push, a set, in ``out``; e itself if all are inside; None if all are out."""
        inside, base = view.pushes[k], self.pushes[k].base
        if inside is not None:
            return e if inside else None
        if out is e:
            base.weigh(e, view.tile.rows, view.tile.among_all, logits=False)
            return e
        base.fill(out, view.tile.rows, view.tile.among_all)
        return out.mul_(e)

    def logits(self, k: int, view: View, out: Tensor) -> Tensor:
        """Return ± x of the k-th push in ``out``, −∞ outside it; for a push other than a set, power·s + log weight."""
        if out is not view.x:
            out.copy_(view.x)
        if self.exponentials is Exponentials.WEIGHTED and self.powers[k] != 1:
            out.mul_(self.powers[k])
        elif self.exponentials is Exponentials.RELATIVE and self.powers[k] < 0:
            out.neg_()  # its maximum then has the largest exponential
        weight = view.pushes[k]
        if weight is None:
            self.pushes[k].base.weigh(out, view.tile.rows, view.tile.among_all, logits=True)
        elif weight == 0:
            out.fill_(-torch.inf)
        elif weight != 1:
            out.add_(math.log(weight))
        return out

    def is_mirrored(self, tile: Tile) -> bool:
        """Return whether a tile is also used with its columns as rows."""
        return self.is_triangle and tile.rows != tile.columns


def _tournament(players: int) -> Iterator[tuple[int, int]]:
    """Yield every pair i ≤ j: first each player with itself, then rounds in which each player occurs once."""
    yield from ((i, i) for i in range(players))
    ring = [*range(players), *[players] * (players % 2)]
    for _ in range(len(ring) - 1):
        for player, other in zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True):
            if max(player, other) < players:
                yield min(player, other), max(player, other)
        ring = [ring[0], ring[-1], *ring[1:-1]]


def _turns(n: int, m: int) -> Iterator[tuple[int, int]]:
    """Yield every pair of 0 … n − 1 and 0 … m − 1, in rounds in which no index of either side occurs twice."""
    for turn in range(max(n, m)):
        for k in range(min(n, m)):
            yield (k, (k + turn) % m) if n <= m else ((k + turn) % n, k)
