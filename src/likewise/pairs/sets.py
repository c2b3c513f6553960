"""Label sets as weights keep them: checked once, copied once, and shared by all weights of the same sets."""

from collections.abc import Sequence
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.pairs.weight import STREAM

MultiHot = Float[Tensor, "_ l"] | Int[Tensor, "_ l"] | Bool[Tensor, "_ l"]


@final
class Sets:
    """Multi-hot labels (N, L), checked, and copied, since a queue changes its own before the backward.

    A weight makes its own from a tensor. Weights that are given the same one share the copy and the sizes. Values are
    checked on the CPU only.
    """

    def __init__(self, labels: MultiHot, name: str) -> None:
        labels = torch.as_tensor(labels).detach()
        if labels.ndim != 2:
            raise ValueError(f"expected {name} as multi-hot labels (n, labels), got shape {tuple(labels.shape)}")
        if not is_zeros_and_ones(labels):
            expected = f"expected {name} as multi-hot labels, only zeros and ones, got other values"
            raise ValueError(f"{expected}: pass class labels to SameClass as a vector (n,)")
        self.rows: Bool[Tensor, "n l"] = labels.to(torch.bool, copy=True)

    @classmethod
    def of(cls, labels: "MultiHot | Sets", name: str) -> "Sets":
        """Return label sets unchanged, and make them from a tensor."""
        return labels if isinstance(labels, Sets) else cls(labels, name)

    @cached_property
    def counts(self) -> Int[Tensor, " l"]:
        """The number of sets that each label is in."""
        return torch.stack([part.sum(dim=0) for part in self._parts()]).sum(dim=0)

    @cached_property
    def sizes(self) -> Int[Tensor, " n"]:
        """|y| of every set."""
        return torch.cat([part.sum(dim=1) for part in self._parts()])

    def _parts(self) -> Sequence[Tensor]:
        """Return the sets some rows at a time on a CPU, where a sum first makes eight bytes of each boolean."""
        return self.rows.split(STREAM) if self.rows.device.type == "cpu" else [self.rows]


def is_zeros_and_ones(labels: Tensor) -> bool:
    """Return whether all values are 0 or 1; those on a device other than the CPU are not checked.

    Booleans aren't compared: that would first make eight bytes of each.
    """
    if labels.dtype == torch.bool or labels.device.type != "cpu":
        return True
    return all(bool(((part == 0) | (part == 1)).all()) for part in labels.split(STREAM))
