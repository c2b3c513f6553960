"""Samples, the output of every source: inputs by row, with labels, optional evaluation labels, names and parts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from likewise.data.lazy_inputs import Ids, LazyInputs, distinct, readable
from likewise.data.preprocessing import FoundImages, ImagePreprocessing
from likewise.files.formats import first_of
from likewise.instantiate import Described, describe

LabelKind = Literal["classes", "label sets"]


@final
@dataclass(frozen=True)
class Superclasses:
    """The superclass of each class, such as the 20 superclasses of the 100 classes of CIFAR-100.

    Args:
        numbers: The superclass of each of C classes, (C,), int64 from 0 to S - 1.
        names: The names of the S superclasses.
    """

    numbers: Int[Tensor, " c"]
    names: tuple[str, ...]


@final
@dataclass(frozen=True)
class EvalLabels:
    """A second labelling: the classes for evaluation, where `Samples.labels` are for training.

    Args:
        classes: The class of each sample, (N,), int64 from 0 to C - 1; -1 for a sample without one.
        names: The names of the C classes.
        within: The training classes that contain these; None if both are the same classes, as with label noise.

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

        A sample without a coarse class, -1, is not evaluated. `name` is the name of the fine labels in errors.
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
        """Return a copy with only the occurring classes, and the given superclasses, (K,), renumbered."""
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
        """Join two labellings, with the classes of both unless they are the same."""
        if self.names == other.names:
            return replace(self, classes=torch.cat([self.classes, other.classes]))
        ours, theirs = self.within, other.within
        within = None
        if ours is not None and theirs is not None:
            numbers = torch.cat([ours.numbers, theirs.numbers + len(ours.names)])
            within = Superclasses(numbers, ours.names + theirs.names)
        classes = torch.cat([self.classes, other.classes.where(other.classes < 0, other.classes + len(self.names))])
        return EvalLabels(classes, self.names + other.names, within)


@final
@dataclass(frozen=True)
class Samples:
    """Inputs with their labels and parts.

    Args:
        inputs: Images (N, channels, height, width), uint8 or from 0 to 1, or vectors (N, F), finite: a tensor, or
            `LazyInputs`, which are read on demand.
        labels: Classes (N,), int64 from 0 to C - 1, and -1 for a sample without one; label sets (N, L), boolean; or
            None.
        names: The names of the C classes or L labels, in order.
        parts: The part of each sample if the source gives it, (N,): 0 train, 1 validation, 2 test; or None.
        rows: Row of each sample in the source, (N,), set by a split; or None.
        ids: The name of each sample, (N,). None: its number here.
        preprocessing: The source's preprocessing of images; None for other inputs.
        found: The kinds and sizes of images in their files; None without files.
        items: The number of each sample's input, (N,), equal for equal inputs. None: all differ.
        groups: The group of each sample, (N,), to keep in one part. None: each is its own group.
        counterparts: The other side of pairs, (N,): the counterpart of each sample. None: there is no other side.
        negatives: Hard negatives among the other side; see `Negatives`.
        columns: The table columns of vectors, in order; empty for other inputs.
        evaluated: A second labelling for evaluation. None: evaluation uses `labels`.
        said: The input columns of a table, the others, and the reasons, in words; empty if the inputs were named.

    Raises:
        ValueError: Lengths differ, an input is not finite, labels are of another kind, or a label has no name.

    Example:
        >>> samples = Samples(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]), ("cat", "dog"))
        >>> samples.label_kind, samples.input_shape
        ('classes', (3,))
    """

    inputs: Tensor | LazyInputs
    labels: Int[Tensor, " n"] | Bool[Tensor, "n l"] | None = None
    names: tuple[str, ...] = ()
    parts: Int[Tensor, " n"] | None = None
    rows: Int[Tensor, " n"] | None = None
    ids: Ids = None  # pyright: ignore[reportAssignmentType] - set to numbers if left out
    preprocessing: ImagePreprocessing | None = None
    found: FoundImages | None = None
    items: Int[Tensor, " n"] | None = None
    groups: Int[Tensor, " n"] | None = None
    counterparts: "Samples | None" = None
    negatives: "Negatives | None" = None
    columns: tuple[str, ...] = ()
    evaluated: EvalLabels | None = None
    said: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(distinct(self.names)))
        if self.ids is None:  # pyright: ignore[reportUnnecessaryComparison]
            object.__setattr__(self, "ids", Ids.numbers(torch.arange(len(self.inputs))))
        for name, values in self._beside_inputs.items():
            if values is not None and len(values) != len(self.inputs):
                raise ValueError(f"expected {name} of {len(self.inputs)} samples, one per input, got {len(values)}")
        self._check_labels()
        if isinstance(self.inputs, Tensor) and self.inputs.is_floating_point():
            wrong = sum(int((~torch.isfinite(some.flatten(1))).any(dim=1).sum()) for some in self.inputs.split(4096))
            if wrong:
                raise ValueError(f"expected finite inputs, got NaN or infinity in {wrong} of {len(self)}")

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: Tensor) -> "Samples":
        """Take the rows given by a mask or by indices, without reading inputs on demand."""
        index = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        inputs = self.inputs[index] if isinstance(self.inputs, Tensor) else self.inputs.take(index)
        beside: Any = self._beside_inputs.items()
        taken = {name: None if values is None else values[index] for name, values in beside}
        return replace(self, inputs=inputs, **taken)

    @property
    def _beside_inputs(self) -> "Mapping[str, Tensor | Ids | Samples | Negatives | EvalLabels | None]":
        names = ("labels", "parts", "rows", "ids", "items", "groups", "counterparts", "negatives", "evaluated")
        return {name: getattr(self, name) for name in names}

    @property
    def could_be_read(self) -> Bool[Tensor, " n"]:
        """A mask of the samples, False for those that turned out to be unreadable on either side; see `LazyInputs`."""
        every = torch.arange(len(self))
        could = readable(self.inputs, every)
        return could if self.counterparts is None else could & readable(self.counterparts.inputs, every)

    def readable(self) -> "Samples":
        """Return the samples without those that turned out to be unreadable."""
        could = self.could_be_read
        return self if bool(could.all()) else self.numbered()[could]

    def fewer(self, most: int, seed: int = 0, *, whole_classes: bool = False) -> "Samples":
        """Return a random subsample, in order: whole groups of pairs, or, with `whole_classes`, one or more classes."""
        if len(self) <= most:
            return self
        return self[some_rows(len(self), most, seed, self.classes if whole_classes else None, self.groups)]

    def fewer_of_each(self, most: int, least: int = 1, seed: int = 0) -> "Samples":
        """Return a random subsample balanced over classes, with at least `least` of each, in the original order."""
        classes = self.classes_for("fewer_of_each", "use fewer")
        if len(self) <= most:
            return self
        each = max(least, most // int((self.counts > 0).sum()))
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        chosen = [order[rows[:each]] for rows in rows_by_class(classes[order], len(self.names))]
        return self[torch.cat(chosen).sort().values]

    def numbered(self) -> "Samples":
        """Return the samples with rows numbered from 0, unless they are numbered already."""
        return self if self.rows is not None else replace(self, rows=torch.arange(len(self)))

    @property
    def changed(self) -> Bool[Tensor, " n"]:
        """A mask of the samples with a wrong training class; see `LabelNoise`."""
        second = self.evaluated
        if second is None or self.labels is None:
            return torch.zeros(len(self), dtype=torch.bool)
        right = second.classes if second.within is None else second.within.numbers[second.classes]
        return self.labelled & (self.labels != right)

    @property
    def within(self) -> Superclasses | None:
        """The training classes, as superclasses of the evaluated classes; None if they are the same."""
        return None if self.evaluated is None else self.evaluated.within

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width) for an image, (F,) for a vector."""
        return tuple(self.inputs.shape[1:])

    @property
    def label_kind(self) -> LabelKind | None:
        return None if self.labels is None else "classes" if self.labels.ndim == 1 else "label sets"

    @property
    def classes(self) -> Int[Tensor, " n"] | None:
        """The class of each sample, (N,); None where samples do not have one class each."""
        return self.labels if self.label_kind == "classes" else None

    def classes_for(self, who: str, remedy: str) -> Int[Tensor, " n"]:
        """Return the class of each sample, or raise a ValueError that says `who` needs them, and the `remedy`."""
        got = self.label_kind or "no labels"
        if self.classes is not None:
            if not (blank := int((self.classes < 0).sum())):
                return self.classes
            got = f"{blank:,} of {len(self):,} without"
        raise ValueError(f"{who} expected samples with one class each, got {got}: {remedy}")

    @property
    def counts(self) -> Int[Tensor, " c"]:
        """Number of samples of each class or label, (C,); empty without labels."""
        if self.labels is None:
            return torch.zeros(0, dtype=torch.int64)
        if self.labels.ndim == 2:
            return self.labels.sum(0)
        return torch.bincount(self.labels[self.labels >= 0], minlength=len(self.names))

    def compact(self) -> "Samples":
        """Return the samples with only the classes that occur, renumbered in order; label sets are unchanged."""
        occurring = self.counts.nonzero().flatten()
        if self.labels is None or self.labels.ndim == 2:
            return self
        if self.evaluated is None and len(occurring) == len(self.names):
            return self
        evaluated = None if self.evaluated is None else self.evaluated.compact(occurring)
        names = tuple(self.names[label] for label in occurring.tolist())
        labels = torch.searchsorted(occurring, self.labels).where(self.labels >= 0, -1)
        return replace(self, labels=labels, names=names, evaluated=evaluated)

    @property
    def labelled(self) -> Bool[Tensor, " n"]:
        """A mask of the samples with a class or a label set, even an empty one; all False without labels."""
        if self.labels is None:
            return torch.zeros(len(self), dtype=torch.bool)
        return self.labels >= 0 if self.labels.ndim == 1 else torch.ones(len(self), dtype=torch.bool)

    def unlabelled(self) -> "Samples":
        return replace(self, labels=None, names=(), evaluated=None)

    def as_evaluated(self) -> "Samples":
        """Return the samples with their evaluation labels as labels, if those differ."""
        second = self.evaluated
        return self if second is None else replace(self, labels=second.classes, names=second.names)

    def _check_labels(self) -> None:
        labels = self.labels
        if labels is None:
            return
        kinds = {1: torch.int64, 2: torch.bool}
        if labels.dtype != kinds.get(labels.ndim):
            got = f"{tuple(labels.shape)} of {labels.dtype}: convert them with .long() or .bool()"
            raise ValueError(f"expected labels as classes (N,), int64, or label sets (N, L), boolean, got {got}")
        named = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1 if len(labels) else 0
        if named > len(self.names) or (labels.ndim == 2 and named != len(self.names)):
            raise ValueError(f"expected a name for each of {named} labels, got {len(self.names)}")
        if labels.ndim == 1 and len(labels) and int(labels.min()) < -1:
            raise ValueError(f"expected classes from 0, or -1 for none, got {int(labels.min())}")


@final
@dataclass(frozen=True)
class Negatives:
    """Hard negatives of pairs: inputs of the other side that resemble a sample's counterpart, but are wrong.

    Args:
        inputs: All negatives, (M, ...), like `Samples.inputs`.
        items: The number of each negative's input, (M,), as in `Samples.counterparts`: a negative that is also a pair's
            counterpart has its number.
        places: The positions of each sample's negatives, (N, K); -1 if a sample has fewer than K.
    """

    inputs: Tensor | LazyInputs
    items: Int[Tensor, " m"]
    places: Int[Tensor, "n k"]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: Tensor) -> "Negatives":
        return replace(self, places=self.places[rows])


class Source(Described, ABC):
    """Abstract: a data set. A source reads samples and does nothing else."""

    streams: bool = False
    """Whether to read inputs on demand, if possible; see `stream`."""
    made_of: ImagePreprocessing | None = None
    """The preprocessing of images, instead of the source's own; see `stream`."""
    in_part: bool = False
    """Whether samples may lack a class, -1, which a source otherwise refuses; see `parts_of`."""

    __repr__ = describe

    @abstractmethod
    def load(self) -> Samples:
        """Read all samples. Their inputs may be `LazyInputs`, which are read on demand."""

    def stream(self, made_of: ImagePreprocessing | None = None) -> Samples:
        """Read all samples, with inputs on demand if possible; `made_of`, if given, is the preprocessing of images."""
        other = copy(self)
        vars(other).update(streams=True, made_of=made_of)
        return other.load()


def rows_by_class(labels: Int[Tensor, " n"], classes: int) -> tuple[Int[Tensor, " k"], ...]:
    """Return the rows of each class, in order, by a single sort."""
    counts = torch.bincount(labels, minlength=classes).tolist()
    return labels.argsort(stable=True).split(counts)


def some_of_each_class(labels: Int[Tensor, " n"], counts: Sequence[int], seed: int) -> Int[Tensor, " m"]:
    """Choose `counts[c]` rows of each class c, in order: the first of a shuffle that does not depend on the counts."""
    generator = torch.Generator().manual_seed(seed)
    each = zip(rows_by_class(labels, len(counts)), counts, strict=True)
    chosen = [rows[torch.randperm(len(rows), generator=generator)[:count]] for rows, count in each]
    return torch.cat(chosen).sort().values


def some_rows(
    count: int, most: int, seed: int, classes: Tensor | None = None, groups: Tensor | None = None
) -> Int[Tensor, " m"]:
    """Choose at most `most` rows at random, by whole classes or groups, or as single rows if no group fits."""
    generator = torch.Generator().manual_seed(seed)
    if classes is None:
        rows = torch.arange(0) if groups is None else rows_of_groups(groups, most, seed)
        return rows if len(rows) else torch.randperm(count, generator=generator)[:most].sort().values
    counts = torch.bincount(classes)
    order = torch.randperm(len(counts), generator=generator)
    chosen = order[: max(1, int((counts[order].cumsum(0) <= most).sum()))]
    return torch.isin(classes, chosen).nonzero().flatten()


def rows_of_groups(groups: Int[Tensor, " n"], room: int, seed: int, most: int | None = None) -> Int[Tensor, " m"]:
    """Choose groups at random, as many as fit into `room`, and at most `most`; return all of their rows, in order."""
    numbers, counts = groups.unique(return_inverse=True, return_counts=True)[1:]
    sizes, chosen = counts.tolist(), list[int]()
    for group in torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed)).tolist():
        if sizes[group] <= room and (most is None or len(chosen) < most):
            chosen.append(group)
            room -= sizes[group]
    return torch.isin(numbers, torch.tensor(chosen)).nonzero().flatten()
