"""What tiles are made of: the rows of a problem, its weights taken apart, and the order in which tiles are visited."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor

from likewise.operator import threads
from likewise.operator.problem import Problem
from likewise.operator.sums import OCTAVE, Plain, Running, Sums
from likewise.operator.threads import Task
from likewise.pairs.weight import Factors, blocks

TILE = 512
"""Rows and columns of a tile: 1 MiB in float32, so that a tile stays in a core's cache between its passes."""

LAUNCHES = 8
"""By how much a tile is longer and wider on a GPU: 64 MiB in float32, work enough to outlast the calls for it."""

BLOCKS = 4
"""Into how many blocks rows are cut at least, if there is more than one tile, so that threads can share them."""

SAFE = {torch.float32: 40.0, torch.float64: 300.0}
"""The largest |s| for which e^{s}, e^{−s} and the sums of them are far from the ends of the dtype's range."""


class Tile(NamedTuple):
    """Some queries, and some references of one section."""

    rows: slice
    section: int
    columns: slice
    """Within the section."""
    among_all: slice
    """Within all references."""


class Known(NamedTuple):
    """The one value that each push, and the pull, has in a tile; None where there are several, or it is not known."""

    pushes: list[float | None]
    pull: float | None


class View(NamedTuple):
    """A tile, what is known of its weights, its similarities, and the buffers of the thread that is at it."""

    tile: Tile
    known: Known
    x: Tensor
    """Similarities, in the unit of the scene."""
    buffers: "Buffers"

    def buffer(self, k: int) -> Tensor:
        """Return the k-th buffer, from 1, as a tile like x; x may be the buffer before these."""
        return self.buffers.tile(k, *self.x.shape)


class Buffers:
    """What one thread holds tiles in, again and again."""

    def __init__(self, like: Tensor, cells: int) -> None:
        self._like, self._cells = like, cells
        self._all: dict[int, Tensor] = {}
        self._tiles: dict[tuple[int, int, int], Tensor] = {}

    def tile(self, k: int, n: int, r: int) -> Tensor:
        """Return the k-th buffer as a tile of n x r, whatever stands in it."""
        tile = self._tiles.get((k, n, r))
        if tile is None:
            if k not in self._all:
                self._all[k] = self._like.new_empty(self._cells)
            tile = self._tiles[k, n, r] = self._all[k][: n * r].view(n, r)
        return tile


@final
class Scene:
    """A problem in tiles.

    Args:
        problem: What is asked.
        z: Queries as they are multiplied, (N, D).
        sections: References likewise, each (R, D); z itself where they are the queries.
        temperature: τ.
    """

    def __init__(self, problem: Problem, z: Tensor, sections: tuple[Tensor, ...], temperature: Tensor) -> None:
        self.z, self.sections, self.temperature = z, sections, temperature
        self.powers = [push.power for push in problem.pushes]
        self.pushes = [
            Factors(push.weight)  # a column's sum is over anchors, whose factors stay within
            if problem.both_ways
            else push.weight.factors(z.dtype, z.device, of_push=True)
            for push in problem.pushes
        ]
        within = problem.pull is not None and problem.pull.within_tiles
        self.pull = problem.pull.factors(z.dtype, z.device) if problem.pull is not None and within else None
        self.streamed = None if within else problem.pull
        """A pull that comes as pull @ references."""
        self.is_set = all(push.base.is_set for push in self.pushes)
        steepest = _steepest(problem, z, sections) * max(self.powers)
        self.is_plain = self.is_set and steepest <= SAFE[z.dtype]
        """Whether exponentials need no offset."""
        symmetric = all(push.base.is_symmetric for push in self.pushes) and not problem.both_ways
        self.is_alike = self.is_plain and len(set(self.powers)) == 1
        """Whether one exponential of a pair serves all pushes."""
        self.is_triangle = self.is_plain and symmetric and problem.own == (True,)
        """Whether a tile serves (i, j) and (j, i)."""
        self.rows, self.columns = self._sides()
        if self.is_plain:
            mantissa, exponent = math.frexp((problem.inverse or 0) / OCTAVE)
            self._extra, self._scale = mantissa - 1, math.ldexp(1, exponent)

    @property
    def unit(self) -> Tensor | float:
        """What of x is 1 of s."""
        if self.is_plain:
            return 1 / OCTAVE
        return self.temperature if self.is_set else 1.0

    @property
    def is_one_tile(self) -> bool:
        """Whether a tile holds all pairs, so that it can be kept."""
        one = len(self.sections) == 1 and self.rows >= self.z.shape[0]
        return one and self.columns >= self.sections[0].shape[0]

    def _sides(self) -> tuple[int, int]:
        """Return the rows and columns of a tile, by the numbers of both alone: so do sums not depend on threads."""
        n, most = self.z.shape[0], max(v.shape[0] for v in self.sections)
        if self.z.device.type != "cpu":
            return TILE * LAUNCHES, TILE * LAUNCHES
        if max(n, most) <= TILE and len(self.sections) == 1:
            return TILE, TILE
        if self.is_triangle:
            side = TILE if n > BLOCKS * TILE else max(1, TILE // 2)
            return side, side
        step = max(1, TILE // 8)
        rows = min(TILE, step * max(1, -(-n // (BLOCKS * step))))
        return rows, min(2 * TILE, TILE * TILE // rows)

    def sums(self, count: int, power: float) -> Sums:
        """Return empty sums for so many rows or columns, of e^{power·s}."""
        total = self.z.new_zeros(count)
        if self.is_plain:
            return Plain(total, power)
        return Running(total, self.temperature / power if self.is_set else torch.ones_like(self.temperature))

    def _buffers(self) -> Buffers:
        """Return buffers for one thread."""
        rows = min(self.rows, self.z.shape[0])
        return Buffers(self.z, rows * min(self.columns, max(v.shape[0] for v in self.sections)))

    def visit(
        self,
        visit: Callable[[View], None],
        *,
        owned: bool,
        skip: tuple[bool, ...] = (),
        kept: Tensor | None = None,
    ) -> None:
        """Visit the tiles in which anything pushes or pulls: in threads where there are several and rows on a CPU.

        Args:
            visit: What is done with a tile.
            owned: Whether it writes to the tile's rows alone, or to its columns as well.
            skip: Which sections are left out.
            kept: What takes the place of the similarities of the one tile, where there is one.
        """

        def worker() -> Callable[..., None]:
            buffers = self._buffers()

            def work(*tiles: Tile) -> None:
                for tile in tiles:
                    if (known := self._known(tile)) is not None:
                        visit(View(tile, known, self._products(tile, buffers) if kept is None else kept, buffers))

            return work

        if not self.z.shape[0] or not any(v.shape[0] for v in self.sections):
            return
        if self.is_one_tile:
            whole = slice(0, self.sections[0].shape[0])
            if not (skip and skip[0]):
                worker()(Tile(slice(0, self.z.shape[0]), 0, whole, whole))
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
                yield Task((i,), tuple(Tile(part, *others) for others in columns))
        elif columns and rows:
            for i, j in _turns(len(rows), len(columns)):
                yield Task((i, -1 - j), (Tile(rows[i], *columns[j]),))

    def _known(self, tile: Tile) -> Known | None:
        """Return the weights of a tile as far as they are one number each; None where nothing pushes nor pulls."""
        pushes = [push.base.constant(tile.rows, tile.among_all) for push in self.pushes]
        pull = 0.0 if self.pull is None else self.pull.base.constant(tile.rows, tile.among_all)
        if pull == 0 and self.pull is not None and not self.pull.is_symmetric and self.is_mirrored(tile):
            pull = None if self.pull.base.constant(tile.columns, tile.rows) != 0 else 0.0
        if pull == 0 and not any(push != 0 for push in pushes):
            return None
        return Known(pushes, pull)

    def _products(self, tile: Tile, buffers: Buffers) -> Tensor:
        """Return x of a tile: s / ln 2 where exponentials are plain, z·v of sets of pairs, else s."""
        z, v = self.z[tile.rows], self.sections[tile.section][tile.columns]
        x = buffers.tile(0, z.shape[0], v.shape[0])
        if self.is_plain:
            # Multiplied in the product, the mantissa would be rounded alike for all pairs: here each row rounds.
            return x.addmm_(torch.add(z, z, alpha=self._extra), v.T, beta=0, alpha=self._scale)
        torch.mm(z, v.T, out=x)
        return x if self.is_set else x.div_(self.temperature)

    def pulled(self, view: View, out: Tensor, *, mirrored: bool = False) -> Tensor | None:
        """Return the pull's weights in a tile, but for the factors of anchors; None where there are none.

        Mirrored, those of the references as anchors over the queries, turned round.
        """
        if self.pull is None or (view.known.pull == 0 and not mirrored):
            return None
        tile = view.tile
        rows, columns = (tile.among_all, tile.rows) if mirrored else (tile.rows, tile.among_all)
        weights = out.view(out.shape[1], out.shape[0]) if mirrored else out
        self.pull.base.fill(weights, rows, columns)
        if self.pull.references is not None:
            weights.mul_(self.pull.references[columns])
        return weights.T if mirrored else weights

    def weighed(self, k: int, view: View, e: Tensor, out: Tensor) -> Tensor | None:
        """Return e of the pairs in the k-th push, a set, 0 outside it: in ``out``, or e itself; None where none is."""
        inside, base = view.known.pushes[k], self.pushes[k].base
        if inside is not None:
            return e if inside else None
        if out is e:
            base.weigh(e, view.tile.rows, view.tile.among_all, logits=False)
            return e
        base.fill(out, view.tile.rows, view.tile.among_all)
        return out.mul_(e)

    def logits(self, k: int, view: View, out: Tensor) -> Tensor:
        """Return in ``out`` x of the k-th push, −∞ outside it; of weights that are no set, power·s + log weight."""
        if out is not view.x:
            out.copy_(view.x)
        if not self.is_set and self.powers[k] != 1:
            out.mul_(self.powers[k])
        weight = view.known.pushes[k]
        if weight is None:
            self.pushes[k].base.weigh(out, view.tile.rows, view.tile.among_all, logits=True)
        elif weight == 0:
            out.fill_(-torch.inf)
        elif weight != 1:
            out.add_(math.log(weight))
        return out

    def is_mirrored(self, tile: Tile) -> bool:
        """Say whether a tile serves its columns as rows, too."""
        return self.is_triangle and tile.rows != tile.columns


def _steepest(problem: Problem, z: Tensor, sections: tuple[Tensor, ...]) -> float:
    """Return what no |s| exceeds, infinity where that is not known without waiting for a GPU."""
    if problem.inverse is None:
        return math.inf
    if problem.normalize:
        return problem.inverse
    if z.device.type != "cpu":
        return math.inf
    longest = _longest(z)
    return longest * max(longest if v is z else _longest(v) for v in sections) * problem.inverse


def _longest(rows: Tensor) -> float:
    return float(torch.linalg.vector_norm(rows, dim=1).amax()) if len(rows) else 0.0


def _tournament(players: int) -> Iterator[tuple[int, int]]:
    """Yield every pair i ≤ j, those of one and the same first, then round by round, each player once in a round."""
    yield from ((i, i) for i in range(players))
    ring = [*range(players), *[players] * (players % 2)]
    for _ in range(len(ring) - 1):
        for one, other in zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True):
            if max(one, other) < players:
                yield min(one, other), max(one, other)
        ring = [ring[0], ring[-1], *ring[1:-1]]


def _turns(n: int, m: int) -> Iterator[tuple[int, int]]:
    """Yield every pair of 0 … n − 1 and 0 … m − 1, turn by turn, in each of which neither side occurs twice."""
    for turn in range(max(n, m)):
        for k in range(min(n, m)):
            yield (k, (k + turn) % m) if n <= m else ((k + turn) % n, k)
