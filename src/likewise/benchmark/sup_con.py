"""SupCon in all its forms, the matrix products that it cannot avoid, and other sets of references."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from likewise.benchmark.case import Batch, Case, Contender, Sampler
from likewise.benchmark.losses import TEMPERATURE, classes
from likewise.benchmark.measurement import Timed, option
from likewise.benchmark.rivals import rivals
from likewise.losses import InfoNCELoss, SupConLoss

TILE = 512


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
    return classes(Sampler(sampler.case._replace(dtype="bfloat16")))


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

    yield ours("likewise", classes)
    yield ours("likewise, in", classes, form="in")
    yield ours("likewise, bfloat16", _bfloat16)
    yield ours("likewise, label sets, 20 labels", _sets)
    yield Contender("SupConLoss", "products alone", "", lambda _: products, lambda sampler: _keys(sampler)[1:])
    for name, batch, make in (
        ("a queue of 4 N", _queue, _info_nce()),
        ("one way", _keys, _info_nce()),
        ("both ways", _keys, _info_nce(symmetric=True)),
    ):
        yield Contender("InfoNCELoss", f"likewise, {name}", "", make, batch)


@dataclass(kw_only=True)
class Measure(Timed):
    """Measure SupCon in all its forms, forward and backward.

    "products alone" are the matrix products of its tiles, which no exact form can avoid. InfoNCE is measured with a
    queue, and with two batches one way and both ways.
    """

    sizes: tuple[int, ...] = option((256, 512, 1024, 4096, 8192, 16384, 32768), "Numbers of rows.", least=32)

    def contenders(self) -> list[Contender]:
        others = (each for each in rivals({"SupConLoss": classes}, self.device) if not each.module)
        return [*_contenders(), *others]
