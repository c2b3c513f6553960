"""Features: checked vectors of samples with labels, their origin, subsamples and device."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.data import Superclasses
from likewise.data.by_class import unturned
from likewise.data.lazy_inputs import Ids, LazyInputs
from likewise.data.samples import LabelKind, Samples, some_rows
from likewise.data.split import components
from likewise.runs.scores import ENCODER, places_of

MAX_NAMED_LABELS = 5  # of a sample
CHECK_BATCH = 2**14  # samples at a time
Bar = Callable[[Iterable[Any], str], Iterable[Any]]
"""A function that wraps an iterable of an evaluation, given a description of the work, as tqdm does."""
CPU = torch.device("cpu")
COPIES = 6  # of the features on a GPU: original, standardised, both again for a refit, and some to spare


def silent(walked: Iterable[Any], doing: str) -> Iterable[Any]:
    """Return the iterable without showing progress."""
    del doing
    return walked


@final
@dataclass(frozen=True)
class Origin:
    """The source samples of features, and their encoder.

    Args:
        samples: The samples of the part.
        encode: Encodes inputs (N, ...), a tensor or `LazyInputs`, like these samples: features (N, D), float32, CPU.

    Example:
        >>> samples = Samples(torch.rand(3, 1, 4, 4), rows=torch.tensor([7, 2, 5]))
        >>> Origin(samples, lambda images: images.flatten(1)).inputs(torch.tensor([5, 7])).shape
        torch.Size([2, 1, 4, 4])
    """

    samples: Samples
    encode: Callable[[Tensor | LazyInputs], Tensor]

    def __repr__(self) -> str:
        return f"Origin({len(self.samples):,} samples of {self.input_shape})"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.samples.input_shape

    def inputs(self, rows: Int[Tensor, " n"]) -> Tensor | LazyInputs:
        """Return the inputs of samples, by their rows in the source, (N,); raise a ValueError if one is missing."""
        numbered = self.samples.numbered()
        index = places_of(rows, torch.as_tensor(numbered.rows))
        if missing := int((index < 0).sum()):
            got = f"got data without {missing} of {len(rows)}: encode the data again"
            raise ValueError(f"expected the samples that the features come from, {got}")
        return numbered[index].inputs


@final
@dataclass(frozen=True)
class Features:
    """Vectors of one part's samples, with their labels.

    Args:
        vectors: Floating-point vectors, (N, D), finite; a tensor, or a NumPy array.
        labels: Classes (N,), integers from 0; label sets (N, L), boolean; or None. Also a tensor or an array.
        names: The classes' or labels' names.
        rows: The samples' rows in their source, (N,). None: 0 to N - 1.
        part: "train", "validation" or "test".
        kind: "encoder", "as it began" or "raw inputs".
        whole: The number of samples of each class or label in the whole part, (C,), if these are a subset.
        predictions: Scores of the classes or labels by a classifier trained with the encoder, (N, C).
        logits: Whether the predictions are logits: the sigmoid of each is the probability of its label.
        one_unit: Whether all features have one unit, such as word weights: a probe then divides them by one number, as
            division by each feature's spread would make rare words as large as frequent ones.
        origin: The inputs and the encoder of the vectors, if available; neither saved nor pickled.
        ids: The ID of each sample, (N,). None: its row.
        items: A number for each input, (N,), equal for equal inputs. None: all differ.
        counterparts: Features of the other side of pairs, (N, D), in the same order. None: there is no other side.
        within: The coarser class of each class, if the encoder was trained on coarser classes.

    Raises:
        ValueError: Shapes or lengths disagree, labels are of the wrong kind, or a vector isn't finite.

    Example:
        >>> features = Features(torch.eye(3), torch.tensor([0, 1, 1]), ("cat", "dog"))
        >>> len(features), features.counts, features[torch.tensor([2])].rows
        (3, tensor([1, 2]), tensor([2]))
    """

    vectors: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"] | Bool[Tensor, "n l"] | None
    names: tuple[str, ...] = ()
    rows: Int[Tensor, " n"] | None = None
    part: str = "test"
    kind: str = ENCODER
    whole: Int[Tensor, " c"] | None = None
    predictions: Float[Tensor, "n c"] | None = None
    logits: bool = False
    one_unit: bool = False
    origin: Origin | None = field(default=None, compare=False, repr=False)
    ids: Ids = None  # pyright: ignore[reportAssignmentType] - numbers by default
    items: Int[Tensor, " n"] | None = None
    counterparts: "Features | None" = None
    within: Superclasses | None = None

    def __post_init__(self) -> None:
        vectors = _tensor(self.vectors, f"{self.part} features")
        labels = None if self.labels is None else _tensor(self.labels, f"{self.part} labels")
        object.__setattr__(self, "vectors", vectors)
        if vectors.ndim != 2 or not vectors.is_floating_point():
            got = f"got {tuple(vectors.shape)} of {vectors.dtype}"
            raise ValueError(f"expected {self.part} features (N, D), floating point, {got}: flatten or convert them")
        if labels is not None and len(labels) != len(vectors):
            got = f"got {len(labels)} labels: drop what has no partner"
            raise ValueError(f"expected one label for each of {len(vectors)} {self.part} features, {got}")
        if labels is not None and (labels.ndim not in {1, 2} or labels.is_floating_point()):
            got = f"got {tuple(labels.shape)} of {labels.dtype}: convert them with .long() or .bool()"
            raise ValueError(f"expected {self.part} labels as integers (N,), or as label sets (N, L), boolean, {got}")
        wrong = sum(int((~torch.isfinite(some)).any(dim=1).sum()) for some in vectors.split(CHECK_BATCH))
        if wrong:
            got = f"got NaN or infinity in {wrong} of {len(vectors)}: look at the encoder, or lower the learning rate"
            raise ValueError(f"expected finite {self.part} features, {got}")
        if labels is not None and not self.names:
            named = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1 if len(labels) else 0
            object.__setattr__(self, "names", tuple(map(str, range(named))))
        if labels is not None:
            object.__setattr__(self, "labels", self._checked(labels))
        if self.counterparts is not None and self.counterparts.vectors.shape != vectors.shape:
            got = f"{tuple(vectors.shape)}, got {tuple(self.counterparts.vectors.shape)}: encode both sides"
            raise ValueError(f"expected counterparts of {self.part} features like these, {got}")
        if self.rows is None:
            object.__setattr__(self, "rows", torch.arange(len(vectors)))
        if self.ids is None:  # pyright: ignore[reportUnnecessaryComparison]
            object.__setattr__(self, "ids", Ids.numbers(self.numbers))

    @classmethod
    def of(cls, samples: Samples, vectors: Tensor, part: str, **more: Any) -> "Features":
        """Return features with the vectors of samples, (N, D), in their order, and their labels, ids and items."""
        details = {"ids": samples.ids, "items": samples.items, "within": samples.within}
        return cls(vectors, samples.labels, samples.names, samples.rows, part, **details, **more)

    def __len__(self) -> int:
        return len(self.vectors)

    def __repr__(self) -> str:
        count, width = self.vectors.shape
        named = "" if self.label_kind is None else f", {len(self.names):,} {self.label_kind.removesuffix(' sets')}"
        return f"Features({self.part}: {count:,} × {width:,}{named}, {self.kind})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the origin: features are pickled without their encoder and inputs."""
        return {name: value for name, value in vars(self).items() if name != "origin"}

    def _checked(self, labels: Tensor) -> Tensor:
        if labels.ndim == 2:
            return labels.bool()
        low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
        if len(labels) and not 0 <= low <= high < len(self.names):
            got = f"one for each of {len(self.names)} names, got {low} to {high}: renumber them"
            raise ValueError(f"expected {self.part} labels from 0 to {len(self.names) - 1}, {got}")
        return labels.long()

    def __getitem__(self, index: Tensor) -> "Features":
        """Return some of the samples, by their indices."""
        columns = {name: getattr(self, name) for name in ("labels", "predictions", "items", "counterparts")}
        beside = {name: None if column is None else column[index] for name, column in columns.items()}
        return replace(self, vectors=self.vectors[index], rows=self.numbers[index], ids=self.ids[index], **beside)

    @property
    def unique_index(self) -> tuple[Int[Tensor, " m"], Int[Tensor, " n"]]:
        """The first row of each distinct input, (M,), and each row's index among these, (N,)."""
        every = torch.arange(len(self))
        if self.items is None:
            return every, every
        occurring, places = self.items.unique(return_inverse=True)
        return torch.full((len(occurring),), len(self)).scatter_reduce(0, places, every, "amin"), places

    def unique(self) -> "Features":
        """Return each distinct input once, from its first row; for pairs, the inputs of this side."""
        return self if self.items is None else self[self.unique_index[0].sort().values]

    @property
    def predicted(self) -> Float[Tensor, "n c"]:
        """The predictions, (N, C); a ValueError if there are none."""
        if self.predictions is None:
            raise ValueError("expected features with predictions, got none: a run with a classifier has them")
        return self.predictions

    @property
    def numbers(self) -> Int[Tensor, " n"]:
        """The samples' rows in their source, (N,)."""
        return torch.arange(len(self)) if self.rows is None else self.rows

    @property
    def classes(self) -> Int[Tensor, " n"]:
        """The classes, (N,), of samples with one each."""
        if self.labels is None or self.labels.ndim != 1:
            raise ValueError(f"expected samples with one class each, got {self.label_kind or 'no labels'}")
        return self.labels

    def as_trained(self) -> "Features":
        """Return the features with the encoder's training classes, if these are coarser."""
        coarse = self.within
        if coarse is None:
            return self
        blank = torch.zeros(len(coarse.names), dtype=torch.int64)
        whole = None if self.whole is None else blank.index_add(0, coarse.numbers, self.whole)
        labels = None if self.labels is None else coarse.numbers[self.classes]
        return replace(self, labels=labels, names=coarse.names, whole=whole, within=None)

    @property
    def groups(self) -> Int[Tensor, " n"]:
        """The classes, (N,), with rotated copies of a class as one: the groups for intervals over classes."""
        return unturned(self.names)[self.classes]

    def groups_of(self, rows: Int[Tensor, " m"]) -> Int[Tensor, " k"]:
        """Return the `groups` of some samples, by their rows; missing rows are left out."""
        index = places_of(rows, self.numbers)
        return self.groups[index[index >= 0]]

    @property
    def sets(self) -> Bool[Tensor, "n l"]:
        """The label sets, (N, L), of samples with label sets."""
        if self.labels is None or self.labels.ndim != 2:
            raise ValueError(f"expected samples with label sets, got {self.label_kind or 'no labels'}")
        return self.labels

    @property
    def label_kind(self) -> LabelKind | None:
        """The kind of labels; None where there are none."""
        if self.labels is None:
            return None
        return "classes" if self.labels.ndim == 1 else "label sets"

    @property
    def counts(self) -> Int[Tensor, " c"]:
        """The number of samples of each class or label, (C,)."""
        of_sets = self.label_kind == "label sets"
        return self.sets.sum(0) if of_sets else torch.bincount(self.classes, minlength=len(self.names))

    @property
    def frequencies(self) -> Int[Tensor, " c"]:
        """The number of samples of each class or label in the whole part, (C,)."""
        return self.counts if self.whole is None else self.whole

    def fewer(self, most: int, seed: int = 0, *, whole_classes: bool = False) -> "Features":
        """Return a random subsample of limited size, or whole classes; see `Samples.fewer`."""
        if len(self) <= most:
            return self
        sides = () if self.counterparts is None else (self.items, self.counterparts.items)
        kinds = [items for items in sides if items is not None]
        groups = components(len(self), kinds) if kinds else None
        chosen = self[some_rows(len(self), most, seed, self.classes if whole_classes else None, groups)]
        return chosen if self.labels is None else replace(chosen, whole=self.frequencies)


class FeatureParts(NamedTuple):
    """Features of the three parts, for learning, choosing settings and reporting; one may be empty."""

    train: Features
    validation: Features
    test: Features

    def to(self, device: torch.device) -> "FeatureParts":
        """Return the parts with their vectors on a device; labels and all else stay where they are."""
        return FeatureParts(*(replace(part, vectors=part.vectors.to(device)) for part in self))

    @property
    def closed(self) -> bool:
        """Whether the training part has all test classes; if not, no classifier can predict them."""
        return closed(self.train, self.test)


def closed(train: Features | Samples, test: Features | Samples) -> bool:
    """Return whether the training part has all test classes."""
    fewer = min(len(train.names), len(test.names))
    if train.names[:fewer] != test.names[:fewer]:
        return False
    if test.label_kind == "label sets" or test.labels is None:
        return True
    return len(test) == 0 or int(test.labels.max()) < len(train.names)


def labelled_validation(validation: Features) -> Features:
    """Return the validation samples for choosing settings: none, if no sample has a label."""
    blank = validation.label_kind == "label sets" and not bool(validation.sets.any())
    return validation[torch.arange(0)] if blank else validation


def joined(first: Features, second: Features) -> Features:
    """Join the samples of two parts with the same classes; the result has neither predictions nor origin."""
    labels = None if first.labels is None or second.labels is None else torch.cat([first.labels, second.labels])
    vectors = torch.cat([first.vectors, second.vectors])
    items = None if first.items is None or second.items is None else torch.cat([first.items, second.items])
    both = first.counterparts, second.counterparts
    beside = {"items": items, "counterparts": None if both[0] is None or both[1] is None else joined(both[0], both[1])}
    rows = torch.cat([first.numbers, second.numbers])
    ids = first.ids + second.ids
    return replace(first, vectors=vectors, labels=labels, rows=rows, ids=ids, predictions=None, origin=None, **beside)


def label_words(features: Features, most: int = MAX_NAMED_LABELS) -> list[str]:
    """Return the classes or labels of samples in words, such as 'cat + dog', or 'no label'; at most `most` of each."""
    if features.label_kind is None:
        return [""] * len(features)
    if features.label_kind == "classes":
        return [features.names[label] for label in features.classes.tolist()]
    texts: list[str] = []
    for labels in features.sets:
        names = [features.names[label] for label in labels.nonzero().flatten().tolist()]
        more = f" and {len(names) - most} more" if len(names) > most else ""
        texts.append((" + ".join(names[:most]) or "no label") + more)
    return texts


def id_words(features: Features) -> list[str]:
    """Return the ids of samples as shown on a page; numbers are preceded by "id" or "row"."""
    number = "row" if features.ids.plain else "id"
    return [f"{number} {name}" if name.isdecimal() else name for name in features.ids]


def _tensor(values: Any, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"expected {name} as numbers, got {array.dtype}: number classes from 0, and give their names")
    return torch.from_numpy(array)


class Subsample(NamedTuple):
    """Samples of a part; for a subset, also the number per class or label in the whole part, (C,)."""

    samples: Samples
    whole: Int[Tensor, " c"] | None = None

    def of(self, features: Features) -> Features:
        """Return features of these samples with the counts of the whole part."""
        return features if self.whole is None else replace(features, whole=self.whole)


def capped(parts: Sequence[Samples], most: int | None) -> list[Subsample]:
    """Subsample each of three parts to `most`; classes without training samples stay whole."""
    train, validation, test = (part.as_evaluated().numbered() for part in parts)
    new = test.label_kind == "classes" and not closed(train, test)
    subsamples: list[Subsample] = []
    for part, whole_classes in ((train, False), (validation, new), (test, new)):
        few = part if most is None else part.fewer(most, whole_classes=whole_classes)
        subsamples.append(Subsample(few, None if few is part or part.labels is None else part.counts))
    return subsamples


def capped_features(features: FeatureParts, most: int | None) -> FeatureParts:
    """Return at most `most` features of each part, chosen as `capped` chooses samples."""
    if most is None:
        return features
    train, validation, test = features
    new = test.label_kind == "classes" and not features.closed
    return FeatureParts(train.fewer(most), *(part.fewer(most, whole_classes=new) for part in (validation, test)))


def with_room(device: torch.device, count: int, width: int) -> torch.device:
    """Return the device if features can be evaluated there: a GPU with room for them and their copies; else the CPU."""
    if device.type != "cuda":  # others have no float64
        return CPU
    return device if torch.cuda.mem_get_info(device)[0] > COPIES * 4 * count * width else CPU


def features_on(device: torch.device, features: FeatureParts) -> FeatureParts:
    """Return features with their vectors on a device, if there is room for them."""
    target = with_room(device, sum(map(len, features)), features.test.vectors.shape[1])
    return features if target == CPU else features.to(target)
