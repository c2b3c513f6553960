"""Subsets: fewer samples to train on, or wrong labels on purpose, with a test part that stays whole."""

import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Literal, final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.samples import EvalLabels, Samples, some_of_each_class
from likewise.files.detection import suggest
from likewise.files.formats import first_of
from likewise.instantiate import Described, describe


class Subset(Described, ABC):
    """Abstract: a choice of samples. A split applies it to all samples except the test part."""

    every_part: bool = False
    """Whether the subset is applied to all samples, the test part included, and the classes are renumbered."""
    hides: bool = False
    """Whether losses without labels are also trained on the omitted samples, without their labels."""

    __repr__ = describe

    @abstractmethod
    def __call__(self, samples: Samples) -> Int[Tensor, " k"]:
        """Return the rows of the samples to keep, (k,), sorted."""

    def of_source(self, samples: Samples) -> "Subset":  # noqa: ARG002 - lists look samples up
        """Return the subset for all samples of a source, before any is left out: by default itself."""
        return self

    def of_unlabelled(self, samples: Samples) -> Samples:
        """Return the unlabelled training samples to keep: by default all."""
        return samples

    def relabelled(self, samples: Samples) -> Samples:
        """Return the samples of the training or the validation part with training labels: by default unchanged."""
        return samples

    def taken(self, samples: Samples) -> Samples:
        """Return the samples to keep, of every part."""
        return samples[self(samples)]


@final
class LongTail(Subset):
    """A long-tailed subset: class sizes decrease from the first class to the last.

    A class keeps n · s_c samples, rounded down: exponential s_c = imbalance^(−c / (C − 1)), or step, 1 for the first
    half of the classes and 1 / imbalance for the others. n is the largest for which every class has enough samples.

    Args:
        imbalance: Size of the largest class divided by the size of the smallest.
        form: "exponential" or "step".
        seed: Seed of the choice. A subset of higher imbalance is contained in one of lower imbalance.

    Raises:
        ValueError: imbalance is below 1, or so large that a class would keep no sample; or samples do not have one
            class each.

    Source:
        Exponential: Y. Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019. Step: M. Buda
        et al., A systematic study of the class imbalance problem in convolutional neural networks, 2018.

    Example:
        >>> samples = Samples(torch.zeros(60, 1), torch.arange(60) % 3, ("ash", "elm", "oak"))
        >>> samples[LongTail(imbalance=10)(samples)].counts
        tensor([20,  6,  2])
    """

    def __init__(
        self, imbalance: float = 100, form: Literal["exponential", "step"] = "exponential", seed: int = 0
    ) -> None:
        if imbalance < 1:
            raise ValueError(f"expected imbalance of at least 1, got {imbalance}")
        self.imbalance, self.form, self.seed = imbalance, form, seed

    def __call__(self, samples: Samples) -> Int[Tensor, " k"]:
        labels = samples.classes_for("LongTail", "choose Fraction")
        counts = samples.counts.tolist()
        shares = self._shares(len(counts))
        largest = min(count / share for count, share in zip(counts, shares, strict=True))
        # a product that should be whole may be rounded down to just below
        kept = [int(largest * share + 1e-9) for share in shares]
        if min(kept) == 0:
            empty = samples.names[kept.index(0)]
            got = f"{self.imbalance}, which leaves none for {empty!r}: lower subset.imbalance to at most {largest:.0f}"
            raise ValueError(f"expected an imbalance that leaves every class a sample, got {got}")
        return some_of_each_class(labels, kept, self.seed)

    def _shares(self, classes: int) -> list[float]:
        if self.form == "exponential":
            return [self.imbalance ** (-label / max(classes - 1, 1)) for label in range(classes)]
        return [1.0 if label < classes - classes // 2 else 1 / self.imbalance for label in range(classes)]


@final
class Labelled(Subset):
    """The samples with at least one label, for label sets.

    Raises:
        ValueError: Samples don't have label sets, or none has a label.

    Example:
        >>> labels = torch.tensor([[True, False], [False, False], [True, True]])
        >>> Labelled()(Samples(torch.zeros(3, 1), labels, ("a", "b")))
        tensor([0, 2])
    """

    def __call__(self, samples: Samples) -> Int[Tensor, " k"]:
        if samples.labels is None or samples.label_kind != "label sets":
            raise ValueError(f"Labelled expected label sets, got {samples.label_kind or 'no labels'}: leave it out")
        rows = samples.labels.any(dim=1).nonzero().flatten()
        if len(rows) == 0:
            raise ValueError(f"expected samples with a label, got {len(samples)} without: check data.label")
        return rows


@final
class Fraction(Subset):
    """A fraction of the samples, stratified by class if there are classes.

    Args:
        fraction: The fraction to keep, above 0 and at most 1. A class keeps at least one sample.
        seed: Seed of the choice. A smaller fraction is contained in a larger one.

    Raises:
        ValueError: fraction is outside (0, 1].

    Example:
        >>> samples = Samples(torch.zeros(60, 1), torch.arange(60) % 3, ("ash", "elm", "oak"))
        >>> samples[Fraction(0.1)(samples)].counts
        tensor([2, 2, 2])
    """

    def __init__(self, fraction: float, seed: int = 0) -> None:
        if not 0 < fraction <= 1:
            raise ValueError(f"expected fraction above 0 and at most 1, got {fraction}")
        self.fraction, self.seed = fraction, seed

    def __call__(self, samples: Samples) -> Int[Tensor, " k"]:
        labels = torch.zeros(len(samples), dtype=torch.int64) if samples.classes is None else samples.classes
        kept = [min(count, max(1, round(count * self.fraction))) for count in torch.bincount(labels).tolist()]
        return some_of_each_class(labels, kept, self.seed)


@final
class FewLabels(Subset):
    """The labels of a fraction of the samples, or of a number per class; the other samples lose their labels.

    Losses with labels are trained on the labelled samples, other losses on all; evaluation always uses the labels.

    Args:
        fraction: The fraction of samples that keep their label, above 0 and at most 1; at least one of each class.
        per_class: The number of samples per class that keep it, instead.
        seed: Seed of the choice. A smaller choice is contained in a larger one.

    Raises:
        ValueError: Neither is given, or both; a number is out of range; or samples do not have one class each.

    Example:
        >>> samples = Samples(torch.zeros(60, 1), torch.arange(60) % 3, ("ash", "elm", "oak"))
        >>> samples[FewLabels(per_class=5)(samples)].counts
        tensor([5, 5, 5])
    """

    hides = True

    def __init__(self, fraction: float | None = None, per_class: int | None = None, seed: int = 0) -> None:
        if (fraction is None) == (per_class is None):
            raise ValueError(f"expected fraction or per_class, got {'neither' if fraction is None else 'both'}")
        if per_class is not None and not (per_class >= 2 and float(per_class).is_integer()):  # NaN is refused, too
            raise ValueError(f"expected per_class of 2 or more, to train and to validate on, got {per_class}")
        if fraction is not None:
            Fraction(fraction)  # checks it
        self.fraction, self.per_class, self.seed = fraction, per_class, seed

    def __call__(self, samples: Samples) -> Int[Tensor, " k"]:
        classes = samples.classes_for("FewLabels", "leave it out")
        if self.fraction is not None:
            counts = zip(samples.names, samples.counts.tolist(), strict=True)
            if scarce := [name for name, count in counts if count and round(count * self.fraction) == 0]:
                summary = f"{len(scarce):,} of {len(samples.names):,} classes, which keep one each"
                message = f"{self.fraction:g} of the labels would leave none in {summary}: {first_of(scarce)}"
                warnings.warn(message, stacklevel=2)
            return Fraction(self.fraction, self.seed)(samples)
        return some_of_each_class(classes, [self.per_class or 0] * len(samples.names), self.seed)


@final
class LabelNoise(Subset):
    """All samples, a share of them with a wrong class on purpose; the test part is unchanged.

        symmetric:  c becomes one of the C - 1 other classes, each as likely
        pair:       c becomes c + 1, and the last class the first

    In the training part and in the validation part exactly share · N samples are changed, rounded. Training uses the
    wrong classes; all scores, neighbours and probes use the right ones. It comes after all other subsets.

    Args:
        share: The share of changed samples, from 0 to below 1.
        form: "symmetric" or "pair".
        seed: Seed of the choice. The changes of a smaller share are among those of a larger one.

    Raises:
        ValueError: share is out of range, form is unknown, or samples do not have one class each.

    Source:
        B. Han et al., Co-teaching: Robust training of deep neural networks with extremely noisy labels, NeurIPS 2018.

    Example:
        >>> samples = Samples(torch.zeros(60, 1), torch.arange(60) % 3, ("ash", "elm", "oak"))
        >>> noisy = LabelNoise(0.2, form="pair").relabelled(samples)
        >>> int(noisy.changed.sum()), torch.equal(noisy.as_evaluated().labels, samples.labels)
        (12, True)
    """

    def __init__(self, share: float, form: Literal["symmetric", "pair"] = "symmetric", seed: int = 0) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"expected share from 0 to below 1, got {share}")
        if form not in ("symmetric", "pair"):
            raise ValueError(f"expected form as symmetric or pair, got {form!r}")
        self.share, self.form, self.seed = share, form, seed

    def __call__(self, samples: Samples) -> Int[Tensor, " k"]:
        samples.classes_for("LabelNoise", "leave it out")
        return torch.arange(len(samples))

    def relabelled(self, samples: Samples) -> Samples:
        classes, count = samples.classes_for("LabelNoise", "leave it out"), len(samples.names)
        if count < 2:
            raise ValueError(f"LabelNoise expected 2 classes or more, to take others for, got {count}: leave it out")
        generator = torch.Generator().manual_seed(self.seed)
        chosen = torch.randperm(len(classes), generator=generator)[: round(len(classes) * self.share)]
        steps = torch.ones_like(classes)
        if self.form == "symmetric":
            steps = torch.randint(1, count, (len(classes),), generator=generator)
        noisy = classes.index_copy(0, chosen, (classes + steps)[chosen] % count)
        second = EvalLabels(classes, samples.names) if samples.evaluated is None else samples.evaluated
        return replace(samples, labels=noisy, evaluated=second)


@final
class Classes(Subset):
    """The samples of some classes, in every part. The classes are renumbered and keep their order.

    Args:
        names: The classes to keep, by name.
        count: How many classes to keep, from the first, instead of names.

    Raises:
        ValueError: Neither names nor count is given, or both; fewer than two classes are kept; a class does not exist;
            or samples do not have one class each.

    Example:
        >>> samples = Samples(torch.zeros(60, 1), torch.arange(60) % 3, ("ash", "elm", "oak"))
        >>> samples[Classes(names=["oak", "ash"])(samples)].counts
        tensor([20,  0, 20])
    """

    every_part = True

    def __init__(self, names: list[str] | None = None, count: int | None = None) -> None:
        if (names is None) == (count is None):
            raise ValueError(f"expected names or count, got {'neither' if names is None else 'both'}")
        kept = len(set(names)) if names is not None else count or 0
        if kept < 2:
            raise ValueError(f"expected at least 2 classes, got {kept}")
        self.names, self.count = names, count

    def __call__(self, samples: Samples) -> Int[Tensor, " k"]:
        labels = samples.classes_for("Classes", "choose Fraction")
        names = samples.names[: self.count] if self.names is None else self.names
        if self.count is not None and self.count > len(samples.names):
            raise ValueError(f"Classes expected count of at most {len(samples.names)}, got {self.count}")
        for name in names:
            if name not in samples.names:
                known = f": choose from {first_of(samples.names)}"
                raise ValueError(f"expected names of classes, got {name}{suggest(name, samples.names, known)}")
        kept = torch.tensor([label for label, name in enumerate(samples.names) if name in set(names)])
        return torch.isin(labels, kept).nonzero().flatten()


@final
class MinPerClass(Subset):
    """The samples of classes with at least `count` of them, in every part; a warning counts the rest.

    Args:
        count: The fewest samples of a kept class.

    Raises:
        ValueError: Fewer than two classes are kept, or samples do not have one class each.

    Example:
        >>> samples = Samples(torch.zeros(6, 1), torch.tensor([0, 0, 0, 1, 1, 1]), ("ash", "elm"))
        >>> samples[MinPerClass(count=2)(samples)].counts
        tensor([3, 3])
    """

    every_part = True

    def __init__(self, count: int = 2) -> None:
        self.count = count

    def __call__(self, samples: Samples) -> Int[Tensor, " k"]:
        labels, counts = samples.classes_for("MinPerClass", "leave it out"), samples.counts
        kept = (counts >= self.count)[labels]
        dropped = ((counts > 0) & (counts < self.count)).nonzero().flatten().tolist()
        occurring, left = int((counts > 0).sum()), int((counts >= self.count).sum())
        if left < 2:
            most = int(counts.sort(descending=True).values[:2].min()) if len(counts) > 1 else 0
            got = f"{left} of {occurring:,}: lower min_per_class to {most} or less"
            raise ValueError(f"expected at least 2 classes of {self.count:,} samples or more, got {got}")
        if dropped:
            lost = f"{len(dropped):,} of {occurring:,} classes, with {int((~kept).sum()):,} of {len(samples):,} samples"
            names = first_of([samples.names[label] for label in dropped])
            warnings.warn(f"left out {lost}, as they have fewer than {self.count:,} each: {names}", stacklevel=2)
        return kept.nonzero().flatten()
