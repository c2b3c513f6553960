"""Quarter turns: every class of images four times, each turn a class of its own, as few-shot learning has Omniglot."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.rows import Rows, Unreadable, unreadable
from likewise.data.samples import Samples

TURNS = 4


def rotated(samples: Samples, rows: int) -> Samples:
    """Return the samples four times, turned by 0°, 90°, 180° and 270°, with four times as many classes.

    Rows of turned samples are numbered after `rows`, those in the source. Images that are read on demand are turned
    when they are read; others take 4 times the memory. See Santoro et al., 2016, section 4.2.
    """
    labels = samples.classes_for("rotations", "leave rotations out")
    shape = samples.input_shape
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ValueError(
            f"expected square images to turn them, got inputs {shape}: set data.size, or leave rotations out"
        )
    turns = torch.arange(TURNS).repeat_interleave(len(samples))
    classes = len(samples.names)
    names = samples.names + tuple(f"{name}, turned {90 * turn}°" for turn in range(1, TURNS) for name in samples.names)
    turned = TurnedRows(samples.inputs)
    return replace(
        samples,
        inputs=turned[torch.arange(len(turned))] if isinstance(samples.inputs, Tensor) else turned,
        labels=labels.repeat(TURNS) + turns * classes,
        names=names,
        parts=None if samples.parts is None else samples.parts.repeat(TURNS),
        rows=None if samples.rows is None else samples.rows.repeat(TURNS) + turns * rows,
    )


def unturned(names: Sequence[str]) -> Int[Tensor, " classes"]:
    """Return for each class a number that it shares with its turns, which are not independent of it."""
    plain = [re.sub(r", turned \d+°$", "", name) for name in names]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(plain))}
    return torch.tensor([numbers[name] for name in plain], dtype=torch.int64)


@final
class TurnedRows(Rows):
    """Images, a tensor or `Rows`, once for each quarter turn: all of them as they are, then all turned by 90°, ..."""

    def __init__(self, images: Tensor | Rows) -> None:
        self.images = images

    @property
    def shape(self) -> tuple[int, ...]:
        return (TURNS * len(self.images), *self.images.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return self.images.dtype

    def __getitem__(self, rows: Tensor) -> Tensor:
        images, turns = self.images[rows % len(self.images)], rows // len(self.images)
        turned = torch.empty_like(images)
        for turn in range(TURNS):
            turned[turns == turn] = images[turns == turn].rot90(turn, (2, 3))
        return turned

    def unreadable(self, rows: Tensor) -> list[Unreadable]:
        return unreadable(self.images, rows % len(self.images))
