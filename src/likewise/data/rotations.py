"""Quarter turns: every class of images four times, each turn a class of its own, as few-shot learning has Omniglot."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.samples import Rows, Samples
from likewise.data.unreadable import Unreadable, unreadable

TURNS = 4


def rotated(samples: Samples, rows: int) -> Samples:
    """Return the samples four times, turned by 0°, 90°, 180° and 270°, with four times as many classes.

    Args:
        samples: Square images with one class each.
        rows: Rows in the source: those of turned samples are numbered after them.

    Returns:
        4·N samples. Images that are read on demand are turned when they are read.

    Memory:
        4 times that of images in memory.

    Raises:
        ValueError: Samples are not square images with one class each.

    Source:
        A. Santoro et al., Meta-Learning with Memory-Augmented Neural Networks, 2016, section 4.2.

    Example:
        >>> samples = Samples(torch.rand(6, 1, 8, 8), torch.arange(6) % 2, ("cat", "dog"))
        >>> turned = rotated(samples, rows=6)
        >>> len(turned), turned.names[3:5], turned.input_shape
        (24, ('dog, turned 90°', 'cat, turned 180°'), (1, 8, 8))
    """
    if samples.label_kind != "classes" or samples.labels is None:
        raise ValueError(f"expected one class a sample to turn classes, got {samples.label_kind or 'no labels'}")
    shape = samples.input_shape
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ValueError(
            f"expected square images to turn them, got inputs {shape}: set data.size, or leave rotations out"
        )
    turns = torch.arange(TURNS).repeat_interleave(len(samples))
    classes = len(samples.names)
    names = samples.names + tuple(f"{name}, turned {90 * turn}°" for turn in range(1, TURNS) for name in samples.names)
    turned = TurnedRows(samples.inputs, torch.arange(len(samples)).repeat(TURNS), turns)
    return replace(
        samples,
        inputs=turned[torch.arange(len(turned))] if isinstance(samples.inputs, Tensor) else turned,
        labels=samples.labels.repeat(TURNS) + turns * classes,
        names=names,
        parts=None if samples.parts is None else samples.parts.repeat(TURNS),
        rows=None if samples.rows is None else samples.rows.repeat(TURNS) + turns * rows,
    )


def unturned(names: Sequence[str]) -> Int[Tensor, " classes"]:
    """Tell which classes are turns of one class, since these are not independent of each other.

    Returns:
        For each class a number that it shares with its turns.

    Example:
        >>> unturned(["dog", "cat", "dog, turned 90°", "cat, turned 90°"])
        tensor([0, 1, 0, 1])
    """
    plain = [re.sub(r", turned \d+°$", "", name) for name in names]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(plain))}
    return torch.tensor([numbers[name] for name in plain], dtype=torch.int64)


@final
class TurnedRows(Rows):
    """Images, each turned by its own number of quarters when it is read.

    Args:
        images: The images, a tensor or `Rows`.
        rows: Which image each row is, (N,).
        turns: Quarter turns of each, anticlockwise, (N,).
    """

    def __init__(self, images: Tensor | Rows, rows: Int[Tensor, " n"], turns: Int[Tensor, " n"]) -> None:
        self.images = images
        self.rows = rows
        self.turns = turns

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, channels, height, width)."""
        return (len(self.rows), *self.images.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the images."""
        return self.images.dtype

    def __len__(self) -> int:
        """Count the images."""
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Read and turn the images given by their indices, (n,)."""
        images, turns = self.images[self.rows[rows]], self.turns[rows]
        turned = torch.empty_like(images)
        for turn in range(TURNS):
            turned[turns == turn] = images[turns == turn].rot90(turn, (2, 3))
        return turned

    def unreadable(self, rows: Tensor) -> list[Unreadable]:
        """Return those of the images given by their indices, (n,), that were found to be undecodable."""
        return unreadable(self.images, self.rows[rows])

    def take(self, rows: Tensor) -> "TurnedRows":
        """Return a subset of the images, given by their indices, without reading them."""
        return TurnedRows(self.images, self.rows[rows], self.turns[rows])
