"""Evaluation labels that differ from the training labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.files.formats import first_of


@final
@dataclass(frozen=True)
class Superclasses:
    """The coarser class that each class lies in, such as the 20 superclasses of the 100 classes of CIFAR-100.

    Args:
        numbers: The superclass of each of C classes, (C,), int64 from 0 to S - 1.
        names: The names of the S superclasses.
    """

    numbers: Int[Tensor, " c"]
    names: tuple[str, ...]


@final
@dataclass(frozen=True)
class EvalLabels:
    """A second labelling: the classes by which samples are evaluated, while those in `Samples.labels` train.

    Args:
        classes: The class of each sample, (N,), int64 from 0 to C - 1; -1 for a sample without one.
        names: The names of the C classes.
        within: The classes trained on that these lie in; None where they are the same ones, as with label noise.

    Example:
        >>> fine, coarse = torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1])
        >>> EvalLabels.finer(fine, ("cat", "dog", "oak"), coarse, ("animals", "plants")).within.numbers
        tensor([0, 0, 1])
    """

    classes: Int[Tensor, " n"]
    names: tuple[str, ...]
    within: Superclasses | None = None

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, rows: Tensor) -> "EvalLabels":
        return replace(self, classes=self.classes[rows])

    @classmethod
    def finer(
        cls,
        fine: Tensor,
        fine_names: Sequence[str],
        coarse: Tensor | None,
        coarse_names: Sequence[str],
        name: str = "fine labels",
    ) -> "EvalLabels":
        """Return fine classes, (N,), or raise a ValueError unless each lies in one of the coarse classes, (N,).

        Of a sample without a coarse class, -1, nothing is evaluated. `name` is what errors call the fine labels.
        """
        if coarse is None or coarse.ndim != 1 or fine.ndim != 1:
            got = "no labels to train on" if coarse is None else "label sets"
            raise ValueError(f"expected one class each beside {name}, got {got}: name a column of classes as label")
        known = coarse >= 0
        if lacking := int((fine[known] < 0).sum()):
            got = f"none for {lacking:,} of {int(known.sum()):,}"
            raise ValueError(f"expected {name} of every sample with a class, got {got}")
        fine = fine.where(known, -1)
        pairs = torch.stack([fine[known], coarse[known]]).unique(dim=1)
        counts = torch.bincount(pairs[0], minlength=len(fine_names))
        if torn := (counts > 1).nonzero().flatten().tolist():
            in_both = [coarse_names[int(label)] for label in pairs[1, pairs[0] == torn[0]]]
            some = f"{fine_names[torn[0]]!r} in {first_of(in_both, separator=' and ')}"
            got = f"{len(torn):,} of {len(fine_names):,} in several, such as {some}: exchange label and fine_label?"
            raise ValueError(f"expected {name} that each lie in one class trained on, got {got}")
        numbers = torch.zeros(len(fine_names), dtype=torch.int64).index_copy(0, pairs[0], pairs[1])
        return cls(fine, tuple(fine_names), Superclasses(numbers, tuple(coarse_names))).compact()

    def compact(self, superclasses: Int[Tensor, " k"] | None = None) -> "EvalLabels":
        """Return it with only the classes that occur, and of superclasses those that are kept, (K,), renumbered."""
        if self.within is None:
            return self
        occurring = torch.bincount(self.classes[self.classes >= 0], minlength=len(self.names)).nonzero().flatten()
        classes = torch.searchsorted(occurring, self.classes).where(self.classes >= 0, -1)
        numbers, names = self.within.numbers[occurring], self.within.names
        if superclasses is not None:
            numbers = torch.searchsorted(superclasses, numbers)
            names = tuple(names[label] for label in superclasses.tolist())
        class_names = tuple(self.names[label] for label in occurring.tolist())
        return EvalLabels(classes, class_names, Superclasses(numbers, names))

    def joined(self, other: "EvalLabels") -> "EvalLabels":
        """Return the samples of both, and the classes of both, unless they are the same."""
        if self.names == other.names:
            return replace(self, classes=torch.cat([self.classes, other.classes]))
        ours, theirs = self.within, other.within
        within = None
        if ours is not None and theirs is not None:
            numbers = torch.cat([ours.numbers, theirs.numbers + len(ours.names)])
            within = Superclasses(numbers, ours.names + theirs.names)
        classes = torch.cat([self.classes, other.classes.where(other.classes < 0, other.classes + len(self.names))])
        return EvalLabels(classes, self.names + other.names, within)
