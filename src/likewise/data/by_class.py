"""A split by class: train on some classes and test on others, optionally with quarter turns of images as classes."""

import fnmatch
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.lazy_inputs import Ids, LazyInputs, Unreadable, note_unreadable, unreadable
from likewise.data.samples import Samples, some_of_each_class
from likewise.data.split import Parts, Split, relabelled, whole_classes
from likewise.data.subset import Subset
from likewise.files.detection import suggest
from likewise.files.formats import PART_NAMES, PARTS, Part, as_class, lines_in

SPLITS = Path(__file__).parent / "splits"
OPTION = "split.encoding"
MIN_CLASSES = 6  # three parts of two classes
TURNS = 4  # orientations of a class of images
ROWS_PER_TURN = 2**32  # more rows than a source has
TOLERANCE = 1e-9  # sums of fractions that differ by less are equal


@final
@dataclass(repr=False, eq=False)
class ByClass(Split):
    """Parts with disjoint classes, numbered from 0 in each part.

    If the source's own parts have disjoint classes and no file is given, they are kept. Otherwise each class goes to
    one part with all of its samples. A fraction gives at least 2 classes. With only 4 or 5 classes, 2 are for testing,
    and validation uses held-out samples of the training classes. With 3 classes, testing has 1 of its own, and both
    testing and validation use such held-out samples of the other 2. A warning reports this.

    Args:
        train: Classes to train on: a number of classes, or below 1 a fraction of them.
        validation: Classes for model selection, given the same way.
        test: Classes held out, given the same way.
        file: The class names of each part, instead of numbers. Either a JSON file {"train": [...], "validation": [...],
            "test": [...]}, or a text file of the training classes, one per line, with "train" in its name, beside files
            with "val" or "validation" and "test" in its place; * stands for anything, as in Greek/*. Classes in no part
            are left out. Or a published split: "cifar-fs", 64, 16 and 20 classes of CIFAR-100 (Bertinetto et al.,
            2019); "mini-imagenet", as many of ImageNet by WordNet id (Ravi and Larochelle, 2017); "omniglot-alphabets",
            25, 5 and 20 alphabets, as background and evaluation set (Lake et al., 2015).
        seed: Seed of the choice of classes.
        encoding: Encoding of the file, such as "latin-1". None: UTF-8.
        rotations: Whether each quarter turn of a class of images is a class of its own, in the same part.

    Raises:
        ValueError: More classes are requested than exist, a part has fewer than 2, a class does not exist or is in two
            parts, the file cannot be read, or samples do not have one class each.

    Example:
        >>> samples = Samples(torch.zeros(40, 3), torch.arange(40) % 10, tuple("abcdefghij"))
        >>> parts = ByClass(train=6, validation=2, test=2)(samples)
        >>> len(parts.train.names), len(parts.test), parts.test.labels.unique()
        (6, 8, tensor([0, 1]))
    """

    train: float = 0.64
    validation: float = 0.16
    test: float = 0.2
    file: Path | None = None
    seed: int = 0
    _: KW_ONLY
    encoding: str | None = None
    rotations: bool = False

    @property
    def sizes(self) -> dict[Part, float]:
        return {part: getattr(self, part) for part in PARTS}

    def __post_init__(self) -> None:
        for part, size in self.sizes.items():
            if size <= 0 or (size >= 1 and size != int(size)):
                expected = f"{part} as a fraction of the classes below 1, or a number of classes"
                raise ValueError(f"expected {expected}, got {size:g}: every part needs classes")

    def __call__(self, samples: Samples, subset: Subset | None = None) -> Parts:
        subset = None if subset is None else subset.of_source(samples)
        samples = whole_classes(samples, subset)
        labels = samples.classes_for("ByClass", "choose Stratified")
        if samples.groups is not None:
            raise ValueError("expected single samples, got pairs, of which some belong together: choose Stratified")
        file = None if self.file is None else _find_file(Path(self.file))
        part_classes = _given(samples) if file is None else _named(samples, _read_lists(file, self.encoding), file)
        chosen = part_classes or self._drawn(len(samples.names))
        short: list[Part] = [] if part_classes or len(samples.names) >= MIN_CLASSES else self._short(*map(len, chosen))
        for part, classes in zip(PARTS, chosen, strict=True):
            if len(classes) < 2 and part not in short:
                where = "" if file is None else f" in {file}"
                got = f"{len(classes)} of {len(samples.names)} for {part}: give it more, or choose Stratified"
                raise ValueError(f"expected at least 2 classes in every part{where}, got {got}")
        if file is not None:
            in_none = sorted({*range(len(samples.names))} - {*torch.cat(chosen).tolist()})
            some = f"{len(in_none):,} of {len(samples.names):,} classes, which are in no part of {file}"
            if in_none:
                warnings.warn(f"left out {some}, such as {samples.names[in_none[0]]!r}", stacklevel=2)
        train, validation, test = masks = [torch.isin(labels, classes) for classes in chosen]
        for part in short:
            taken = _some_of_each(labels, train, self.sizes[part], self.seed)
            masks[PARTS.index(part)][taken], train[taken] = True, False
        if short:
            message = f"{len(samples.names)} classes are too few for three parts of two or more: {' and '.join(short)}"
            warnings.warn(f"{message} take samples of the training classes, which are not trained on", stacklevel=2)
        if subset is not None and not subset.every_part:
            rest = (train | validation).nonzero().flatten()
            kept = torch.zeros(len(samples), dtype=torch.bool)
            kept[rest[subset(samples[rest].compact())]] = True
            train, validation = train & kept, validation & kept
        parts = (replace(samples[rows], parts=None).compact() for rows in (train, validation, test))
        return relabelled(Parts(*(rotated(part) if self.rotations else part for part in parts)), subset)

    def _drawn(self, total: int) -> tuple[Tensor, ...]:
        numbers = {part: int(size) if size >= 1 else round(size * total) for part, size in self.sizes.items()}
        free = total - sum(numbers[part] for part in PARTS if self.sizes[part] >= 1)
        for part in ("train", "test", "validation"):  # in this order if there are few classes
            if self.sizes[part] < 1:
                least = min(2, max(free, 0)) if part != "validation" else 2 * (free >= 2)
                numbers[part] = max(numbers[part], least) if least == 2 else least
                free -= least
        if self.sizes["train"] < 1:
            left = total - numbers["validation"] - numbers["test"]
            shares = sum(size for size in self.sizes.values() if size < 1)
            if abs(shares - 1) < TOLERANCE and max(self.sizes.values()) < 1:
                numbers["train"] = left  # all classes are in a part, however their numbers are rounded
            elif shares <= 1:
                numbers["train"] = min(numbers["train"], left)
        if sum(numbers.values()) > total:
            wanted = ", ".join(f"{part}={size:g}" for part, size in self.sizes.items())
            raise ValueError(f"expected at most {total} classes in all parts together, got {wanted}")
        shuffled = torch.randperm(total, generator=torch.Generator().manual_seed(self.seed))
        return shuffled[: sum(numbers.values())].split(list(numbers.values()))

    def _short(self, train: int, validation: int, test: int) -> list[Part]:
        """Return the parts, given as fractions of too few classes, that need samples of training classes."""
        lacking: dict[Part, bool] = {"test": test == 1, "validation": validation == 0}
        return [part for part, lacks in lacking.items() if lacks and train > 1 and self.sizes[part] < 1]


def _some_of_each(labels: Int[Tensor, " n"], chosen: Tensor, share: float, seed: int) -> Int[Tensor, " k"]:
    # at least one of each class, and never all
    rows = chosen.nonzero().flatten()
    counts = torch.bincount(labels[rows])
    shares = (counts * share).round().long().clamp(min=1).minimum((counts - 1).clamp(min=0))
    return rows[some_of_each_class(labels[rows], shares.tolist(), seed)]


def _given(samples: Samples) -> tuple[Tensor, ...] | None:
    """Return the classes of the source's parts, if there are three parts with disjoint classes."""
    if samples.parts is None or samples.labels is None:
        return None
    part_classes = tuple(samples.labels[samples.parts == part].unique() for part in range(3))
    apart = len(torch.cat(part_classes).unique()) == sum(map(len, part_classes))
    return part_classes if apart and all(map(len, part_classes)) else None


def _named(samples: Samples, names: Mapping[str, Sequence[str]], file: Path) -> tuple[Tensor, ...]:
    numbers = {name: label for label, name in enumerate(samples.names)}

    def matching(name: str) -> list[str]:
        return [name] if name in numbers or "*" not in name else fnmatch.filter(samples.names, name) or [name]

    names = {part: [match for name in names[part] for match in matching(as_class(name))] for part in PARTS}
    unknown = [name for part in PARTS for name in names[part] if name not in numbers]
    if unknown:
        near = suggest(unknown[0], samples.names, ", which the data has not")
        many = f", and {len(unknown) - 1} others that the data has not" if len(unknown) > 1 else ""
        raise ValueError(f"expected names of classes in {file}, got {unknown[0]}{near}{many}")
    seen: dict[str, str] = {}
    for part in PARTS:
        for name in names[part]:
            if seen.setdefault(name, part) != part:
                raise ValueError(f"expected every class in one part only in {file}, got {name!r} in two")
    return tuple(torch.tensor(sorted({numbers[name] for name in names[part]}), dtype=torch.int64) for part in PARTS)


def _find_file(file: Path) -> Path:
    if file.exists():
        return file
    known = {path.stem: path for path in sorted(SPLITS.glob("*.json"))}
    if str(file) in known:
        return known[str(file)]
    remedy = suggest(str(file), known, f": check the path, or name one of {', '.join(known)}")
    raise ValueError(f"expected a file of class names, got {file}, which does not exist{remedy}")


def _read_lists(file: Path, encoding: str | None) -> Mapping[str, Sequence[str]]:
    if file.suffix == ".json":
        return _of_parts("\n".join(lines_in(file, encoding, OPTION)), file)
    lists = {part: lines_in(_find_sibling(file, part), encoding, OPTION) for part in PARTS}
    return {part: [line.strip() for line in lines if line.strip()] for part, lines in lists.items()}


def _of_parts(text: str, file: Path) -> Mapping[str, Sequence[str]]:
    lists: dict[str, Sequence[str]] = {}
    content: Any = None
    invalid = ""
    try:
        content = json.loads(text)
    except ValueError as error:  # also raised by an integer of thousands of digits
        invalid = f"invalid JSON at line {getattr(error, 'lineno', 1)}, column {getattr(error, 'colno', 1)}"
    for name, names in content.items() if isinstance(content, dict) else ():
        if name in PART_NAMES and isinstance(names, list):
            part = PARTS[PART_NAMES[name]]
            if part in lists:
                part_names = ", ".join(key for key in content if key in PART_NAMES)
                raise ValueError(f"expected one list for each part in {file}, got {part_names}")
            lists[part] = [str(class_name) for class_name in names]
    missing = ", ".join(part for part in PARTS if part not in lists)
    if missing:
        got = (invalid or f"no list for {missing}") + ': write {"train": [...], "validation": [...], "test": [...]}'
        raise ValueError(f"expected a list of class names for each part in {file}, got {got}")
    return lists


def _find_sibling(file: Path, part: str) -> Path:
    if "train" not in file.name:
        raise ValueError(f'expected "train" in the name of a file of classes, got {file}: rename it, or write JSON')
    names = [file.name.replace("train", name) for name, number in PART_NAMES.items() if PARTS[number] == part]
    sibling = next((file.with_name(name) for name in names if file.with_name(name).is_file()), None)
    if sibling is None:
        name = file.name.replace("train", part)
        raise ValueError(f"expected a file of the {part} classes next to {file}, got none: name it {name}")
    return sibling


def rotated(samples: Samples) -> Samples:
    """Return the samples four times, each quarter turn as classes of its own (Santoro et al., 2016, section 4.2)."""
    labels = samples.classes_for("rotations", "leave rotations out")
    if samples.evaluated is not None:
        raise ValueError("rotations expected samples with one labelling, got a second to evaluate by: leave out one")
    shape = samples.input_shape
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ValueError(f"expected square images to turn, got inputs {shape}: set data.size, or leave rotations out")
    turns = torch.arange(TURNS).repeat_interleave(len(samples))
    classes = len(samples.names)
    names = samples.names + tuple(f"{name}, turned {90 * turn}°" for turn in range(1, TURNS) for name in samples.names)
    turned = TurnedRows(samples.inputs)
    ids = samples.ids + Ids.of(f"{name}, turned {90 * turn}°" for turn in range(1, TURNS) for name in samples.ids)
    inputs = turned[torch.arange(len(turned))] if isinstance(samples.inputs, Tensor) else turned
    parts = None if samples.parts is None else samples.parts.repeat(TURNS)
    rows = None if samples.rows is None else samples.rows.repeat(TURNS) + turns * ROWS_PER_TURN
    labels = labels.repeat(TURNS) + turns * classes
    return replace(samples, inputs=inputs, labels=labels, names=names, parts=parts, rows=rows, ids=ids)


def unturned(names: Sequence[str]) -> Int[Tensor, " classes"]:
    """Return a number for each class, shared with its turns, which are not independent of it."""
    plain = [re.sub(r", turned \d+°$", "", name) for name in names]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(plain))}
    return torch.tensor([numbers[name] for name in plain], dtype=torch.int64)


@final
class TurnedRows(LazyInputs):
    """Images, a tensor or `LazyInputs`, once for each quarter turn: first all unturned, then all turned by 90°, ..."""

    def __init__(self, images: Tensor | LazyInputs) -> None:
        self.images = images
        self.shape, self.dtype = (TURNS * len(images), *images.shape[1:]), images.dtype

    def __getitem__(self, rows: Tensor) -> Tensor:
        images, turns = self.images[rows % len(self.images)], rows // len(self.images)
        turned = torch.empty_like(images)
        for turn in range(TURNS):
            turned[turns == turn] = images[turns == turn].rot90(turn, (2, 3))
        return turned

    def unreadable(self, rows: Tensor) -> list[Unreadable]:
        return unreadable(self.images, rows % len(self.images))

    def note_unreadable(self, rows: Tensor) -> None:
        note_unreadable(self.images, rows % len(self.images))
