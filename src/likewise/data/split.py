"""Splits: samples parted into training, validation and test; the test part is found first and is never cut."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.joined import JoinedRows
from likewise.data.samples import PARTS, Samples, rows_by_class
from likewise.data.subset import Subset


@final
@dataclass(frozen=True)
class Parts:
    """What is trained on, what choices are made on, and what is reported.

    Args:
        train: The samples to train on.
        validation: The samples that choose: a penalty, a threshold, an epoch.
        test: The samples held out from all of that.
    """

    train: Samples
    validation: Samples
    test: Samples

    def refitted(self) -> "Parts":
        """Return parts that train on training and validation samples, for when all choices are made.

        Where the two have classes of their own, the validation part's are numbered after the training part's.
        """
        return replace(self, train=_joined(self.train, self.validation))


class Split(ABC):
    """Abstract: how samples are parted.

    Args:
        refit: Whether to train once more on training and validation samples after the choices are made.
    """

    def __init__(self, *, refit: bool = False) -> None:
        self.refit = refit

    @abstractmethod
    def __call__(self, samples: Samples, subset: Subset | None = None) -> Parts:
        """Part the samples.

        Args:
            samples: Everything that the source has.
            subset: A choice made of what is not the test part, before the validation part is cut from it; of
                everything where it says `every_part`.

        Returns:
            The parts; each has samples, and none has another's.
        """


@final
class Stratified(Split):
    """Parts with the same classes: those that the source gives, the others cut from each class in proportion.

    Label sets, and samples without labels, are cut at random.

    Args:
        test: The part of all samples held out; unused where the source gives a test part.
        validation: The part of the other samples that makes the choices, cut after the subset; unused where the source
            gives a validation part. Every class keeps a sample to train on, so that the smallest give none.
        seed: Seed of the cuts. It is not the run's seed, so that runs are compared on the same test part.
        refit: Whether to train once more on training and validation samples after the choices are made.

    Raises:
        ValueError: A part outside (0, 1); one class only, a class too small to be on both sides of the test's cut, a
            test class without a training sample, or no class with a sample to spare for validation.

    Example:
        >>> samples = Samples(torch.zeros(40, 3), torch.tensor([0, 1] * 20), ("cat", "dog"))
        >>> parts = Stratified(test=0.25, validation=0.2)(samples)
        >>> parts.train.counts, parts.validation.counts, parts.test.counts
        (tensor([12, 12]), tensor([3, 3]), tensor([5, 5]))
    """

    def __init__(self, test: float = 0.25, validation: float = 0.1, seed: int = 0, *, refit: bool = False) -> None:
        super().__init__(refit=refit)
        for name, part in (("test", test), ("validation", validation)):
            if not 0 < part < 1:
                usual = {"test": 0.25, "validation": 0.1}[name]
                raise ValueError(f"expected {name} between 0 and 1, got {part}: {usual} is usual")
        self.test = test
        self.validation = validation
        self.seed = seed

    def __call__(self, samples: Samples, subset: Subset | None = None) -> Parts:
        """Part the samples."""
        samples = whole_classes(samples, subset)
        given = torch.zeros(len(samples), dtype=torch.int64) if samples.parts is None else samples.parts
        test = (given == 2).nonzero().flatten() if bool((given == 2).any()) else self._cut_test(samples, given == 0)
        rest = torch.isin(torch.arange(len(samples)), test, invert=True).nonzero().flatten()
        if subset is not None and not subset.every_part:
            rest = rest[subset(samples[rest])]
        validation = rest[given[rest] == 1]
        if len(validation) == 0:
            validation = self._cut_validation(samples, rest)
        elif subset is not None:
            validation = _less_last_ones(samples, rest, validation)
        train = rest[~torch.isin(rest, validation)]
        for part, rows in (("validation", validation), ("test", test)):
            _check_seen(samples, train, rows, part)
        return Parts(*(replace(samples[rows], parts=None) for rows in (train, validation, test)))

    def _cut_test(self, samples: Samples, cuttable: Tensor) -> Int[Tensor, " t"]:
        from sklearn.model_selection import train_test_split  # noqa: PLC0415 - not needed where a test part is given

        rows = cuttable.nonzero().flatten()
        held_out = round(len(rows) * self.test)
        labels = samples.labels[rows] if samples.labels is not None and samples.label_kind == "classes" else None
        counts = torch.tensor([len(rows)]) if labels is None else torch.bincount(labels, minlength=len(samples.names))
        smallest = int(counts.argmin())
        if counts[smallest] < 3 or not len(counts) <= held_out <= len(rows) - 2 * len(counts):
            few = f"{int(counts[smallest])}" + ("" if labels is None else f" of {samples.names[smallest]!r}")
            raise ValueError(
                f"expected at least 3 samples{'' if labels is None else ' of every class'}, 2 to train and 1 to test, "
                f"got {few} and test={self.test} of {len(rows)} samples: "
                "add samples, drop the class or change test"
            )
        stratify = None if labels is None else labels.numpy()
        _, held = train_test_split(rows.numpy(), test_size=held_out, stratify=stratify, random_state=self.seed)
        return torch.from_numpy(held).sort().values

    def _cut_validation(self, samples: Samples, rows: Tensor) -> Int[Tensor, " v"]:
        if samples.labels is None or samples.label_kind != "classes":
            labels = torch.zeros(len(rows), dtype=torch.int64)
        else:
            labels = samples.labels[rows]
        shares = _shares(torch.bincount(labels), self.validation)
        if int(shares.sum()) == 0:
            raise ValueError(
                "expected a class with a sample to train on and one for validation, "
                f"got {len(rows)} samples of {len(labels.unique())} classes without their test part: add samples"
            )
        generator = torch.Generator().manual_seed(self.seed)
        chosen: list[Tensor] = []
        for own, share in zip(rows_by_class(labels, len(shares)), shares.tolist(), strict=True):
            chosen.append(rows[own][torch.randperm(len(own), generator=generator)[:share]])
        return torch.cat(chosen).sort().values


def whole_classes(samples: Samples, subset: Subset | None) -> Samples:
    """Leave out the classes that a subset of every part leaves out, and those without a sample; refuse a single one."""
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


def _shares(counts: Tensor, part: float) -> Tensor:
    """Return how many samples of each class make a part: in proportion, and each class keeps one.

    What rounding down leaves out goes to the classes with the largest remainders.
    """
    exact = counts.double() * part
    shares = exact.floor().long()
    spare = counts - 1
    missing = max(1, round(int(counts.sum()) * part)) - int(shares.sum())
    remainders = torch.where(shares < spare, exact - shares, -1)
    order = remainders.argsort(descending=True, stable=True)[: min(missing, int((shares < spare).sum()))]
    shares[order] += 1
    return shares


def _less_last_ones(samples: Samples, rest: Tensor, validation: Tensor) -> Tensor:
    """Leave to training the validation samples of a class that a subset has left no other sample."""
    if samples.labels is None or samples.label_kind != "classes":
        return validation
    trained = samples.labels[rest[~torch.isin(rest, validation)]]
    return validation[torch.isin(samples.labels[validation], trained)]


def _check_seen(samples: Samples, train: Tensor, rows: Tensor, part: str) -> None:
    if len(train) == 0 or len(rows) == 0:
        empty = PARTS[0] if len(train) == 0 else part
        raise ValueError(f"expected samples in every part, got no {empty} sample: change the parts")
    if samples.labels is None or samples.label_kind != "classes":
        return
    unseen = sorted(set(samples.labels[rows].tolist()) - set(samples.labels[train].tolist()))
    if unseen:
        lost = ", ".join(samples.names[label] for label in unseen[:3]) + (", ..." if len(unseen) > 3 else "")
        raise ValueError(
            f"expected a {part} part with every class in training, got no training sample for {lost}: "
            "change the parts, or part by class with ByClass"
        )


def _joined(first: Samples, second: Samples) -> Samples:
    if isinstance(first.inputs, Tensor) and isinstance(second.inputs, Tensor):
        inputs = torch.cat([first.inputs, second.inputs])
    elif isinstance(first.inputs, Tensor) or isinstance(second.inputs, Tensor):
        raise TypeError("the parts of one source are all in memory, or none is")
    else:
        inputs = JoinedRows(first.inputs, second.inputs)
    rows = None if first.rows is None or second.rows is None else torch.cat([first.rows, second.rows])
    if first.labels is None or second.labels is None:
        return Samples(inputs, rows=rows)
    names, labels = first.names, second.labels
    if first.names != second.names:
        names, labels = first.names + second.names, second.labels + len(first.names)
    return Samples(inputs, torch.cat([first.labels, labels]), names, rows=rows)
