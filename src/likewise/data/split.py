"""Splits: samples divided into training, validation and test; the test part is chosen first and never reduced."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from likewise.data.rows import JoinedRows
from likewise.data.samples import Samples
from likewise.data.subset import Subset
from likewise.data.texts import Texts


@final
@dataclass(frozen=True)
class Parts:
    """The parts of a data set.

    Args:
        train: The samples to train on.
        validation: The samples for model selection, such as a penalty, a threshold or an epoch.
        test: The samples held out from both.
    """

    train: Samples
    validation: Samples
    test: Samples

    @property
    def new_in_validation(self) -> bool:
        """Whether the validation classes are others than those that are trained on."""
        return self.train.names[: len(self.validation.names)] != self.validation.names

    def refitted(self) -> "Parts":
        """Return parts that train on training and validation samples together, for use after model selection.

        If the two have different classes, those of the validation part are numbered after those of the training part.
        """
        return replace(self, train=_joined(self.train, self.validation))


class Split(ABC):
    """Abstract: how samples are split.

    Args:
        refit: Whether to train on training and validation samples together, after model selection.
    """

    def __init__(self, *, refit: bool = False) -> None:
        self.refit = refit

    @abstractmethod
    def __call__(self, samples: Samples, subset: Subset | None = None) -> Parts:
        """Split the samples.

        Args:
            samples: All samples of the source.
            subset: Applied to all samples but the test part, before the validation part is split off; or to all
                samples if its `every_part` is set.

        Returns:
            The parts; none is empty, and they are disjoint.
        """


def whole_classes(samples: Samples, subset: Subset | None) -> Samples:
    """Number the rows, apply a subset of every part, drop empty classes, and refuse a single class."""
    samples = samples.numbered()
    if subset is not None and subset.every_part:
        samples = samples[subset(samples)]
    samples = samples.compact()
    if samples.label_kind == "classes" and len(samples.names) < 2:
        name = f" ({samples.names[0]!r})" if samples.names else ""
        raise ValueError(
            f"expected at least 2 classes, got {len(samples.names)}{name} in {len(samples)} samples: "
            "contrast and evaluation both need a second class"
        )
    return samples


def _joined(first: Samples, second: Samples) -> Samples:
    if isinstance(first.inputs, Tensor) and isinstance(second.inputs, Tensor):
        inputs = torch.cat([first.inputs, second.inputs])
    elif isinstance(first.inputs, Texts) and isinstance(second.inputs, Texts):
        inputs = Texts([*first.inputs.strings, *second.inputs.strings])
    elif isinstance(first.inputs, Tensor) or isinstance(second.inputs, Tensor):
        raise TypeError("expected all parts of a source in memory, or none")
    else:
        inputs = JoinedRows(first.inputs, second.inputs)
    rows = None if first.rows is None or second.rows is None else torch.cat([first.rows, second.rows])
    if first.labels is None or second.labels is None:
        return Samples(inputs, rows=rows)
    names, labels = first.names, second.labels
    if first.names != second.names:
        names, labels = first.names + second.names, second.labels + len(first.names)
    return Samples(inputs, torch.cat([first.labels, labels]), names, rows=rows)
