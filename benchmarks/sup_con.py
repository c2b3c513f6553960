"""SupCon in all its forms, the matrix products that it cannot avoid, and other sets of references."""

import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.losses import batch_of
from benchmarks.measuring.case import Batch, Case, Contender, Sampler
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.results import Timing
from benchmarks.measuring.rivals import TEMPERATURE, rivals
from likewise.losses import InfoNCELoss, SupConLoss

TILE = 512
CLASSES = batch_of("rows", "classes")


def products(z: Tensor) -> None:
    """Multiply the tiles that forward and backward of the upper triangle consist of.

    Each tile takes one product in the forward, and in the backward one to compute it again and one for the gradient of
    its rows; off the diagonal another for that of its columns.
    """
    gradient, e = torch.zeros_like(z), z.new_empty(TILE, TILE).uniform_()
    tiles = z.split(TILE)
    gradients = gradient.split(TILE)
    for backward in (False, True):
        for i, rows in enumerate(tiles):
            for j, columns in enumerate(tiles[i:], start=i):
                tile = e[: len(rows), : len(columns)]
                torch.mm(rows, columns.T, out=tile)
                if backward:
                    gradients[i].addmm_(tile, columns)
                if backward and i != j:
                    gradients[j].addmm_(tile.T, rows)


def _bfloat16(sampler: Sampler) -> Batch:
    return CLASSES(Sampler(sampler.case._replace(dtype="bfloat16")))


def _sets(sampler: Sampler) -> Batch:
    return sampler.embeddings(sampler.rows), sampler.label_sets(sampler.rows, 20)


def _keys(sampler: Sampler) -> Batch:
    return sampler.embeddings(sampler.rows), sampler.embeddings(sampler.rows, learned=False)


def _queue(sampler: Sampler) -> Batch:
    return *_keys(sampler), sampler.embeddings(4 * sampler.rows, learned=False)


def _info_nce(*, symmetric: bool = False) -> Callable[[Case], Callable[..., Tensor]]:
    loss = InfoNCELoss(temperature=TEMPERATURE, symmetric=symmetric)
    return lambda _: lambda z, keys, queue=None: loss(z, keys, queue=queue)


def _contenders() -> Iterator[Contender]:
    def ours(name: str, batch: Callable[[Sampler], Batch], form: Any = "out") -> Contender:
        return Contender("SupConLoss", name, "", lambda _: SupConLoss(temperature=TEMPERATURE, form=form), batch)

    yield ours("likewise", CLASSES)
    yield ours("likewise, in", CLASSES, form="in")
    yield ours("likewise, bfloat16", _bfloat16)
    yield ours("likewise, label sets, 20 labels", _sets)
    yield Contender("SupConLoss", "products alone", "", lambda _: products, lambda sampler: _keys(sampler)[1:])
    for name, batch, make in (
        ("a queue of 4 N", _queue, _info_nce()),
        ("one way", _keys, _info_nce()),
        ("both ways", _keys, _info_nce(symmetric=True)),
    ):
        yield Contender("InfoNCELoss", f"likewise, {name}", "", make, batch)


@contextmanager
def _busy(count: int) -> Generator[None]:
    """Keep some other processes busy while the block runs."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure SupCon in all its forms, forward and backward.

    "products alone" are the matrix products of its tiles, which no exact form can avoid. InfoNCE is measured with a
    queue, and with two batches one way and both ways.
    """

    sizes: tuple[int, ...] = option((256, 512, 1024, 4096, 8192, 16384, 32768), "Numbers of rows.", least=32)
    busy: int = option(0, "How many busy processes to run at the same time.", least=0)

    def results(self, tell: Callable[[str], object]) -> Iterator[Timing]:
        with _busy(self.busy):
            yield from super().results(tell)

    def contenders(self) -> list[Contender]:
        others = (each for each in rivals({"SupConLoss": CLASSES}, self.device) if not each.module)
        return [*_contenders(), *others]
