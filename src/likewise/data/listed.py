"""A subset by list: the samples that a file names, as long tails and other fixed parts are published."""

import re
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.samples import Samples
from likewise.data.subset import Subset
from likewise.files.detection import exists, expanded, near
from likewise.files.formats import (
    ID_COLUMN,
    IMAGE_COLUMNS,
    JSON_LINES,
    LABEL_COLUMNS,
    SEPARATED,
    Lines,
    first_of,
    lines_in,
)

_PATH_COLUMNS = ("path", "file", "file_name", "filename", *IMAGE_COLUMNS, ID_COLUMN, "row")


class _Line(NamedTuple):
    """What a list says of one sample: its path, id or row, and perhaps its class."""

    name: str
    label: str | None


@final
class FromList(Subset):
    """The samples that a file lists, one a line, as published: a path, an id or a row from 0, and perhaps a class.

    Of the training samples those in `file` are kept; validation and test samples of the source stay, unless they have a
    list too, which then decides. A path need not begin where a sample's id does: one may be the end of the other. The
    file is text, `train/cat/1.jpg 0`, or a table with a column path, file, file_name, filename, image, id or row (.csv,
    .tsv, .jsonl). Classes are those of the source, however the list numbers them; a warning counts where it differs by
    more than that.

    Args:
        file: The list of training samples.
        validation: The list of validation samples, which may be among the source's training samples.
        test: The list of test samples. None: those of the source, or cut off before the others are listed.

    Raises:
        ValueError: A list cannot be read or is empty, most of it names no sample, a path is the end of several, or a
            sample is in two lists.

    Source:
        ImageNet-LT and Places-LT: Z. Liu et al., Large-Scale Long-Tailed Recognition in an Open World, CVPR 2019.

    Example:
        >>> import tempfile
        >>> from likewise.data.ids import Ids
        >>> samples = Samples(torch.zeros(3, 1), torch.tensor([0, 0, 1]), ("ash", "elm"), ids=Ids.of(["a", "b", "c"]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "train.txt")
        ...     _ = file.write_text("trees/a 1")
        ...     FromList(file)(samples)
        tensor([0])
    """

    def __init__(self, file: Path, validation: Path | None = None, test: Path | None = None) -> None:
        self.file = file
        self.validation = validation
        self.test = test
        self.every_part = validation is not None or test is not None

    def __call__(self, samples: Samples) -> Int[Tensor, " k"]:
        return self._parts(samples).add(1).nonzero().flatten()

    def taken(self, samples: Samples) -> Samples:
        parts = self._parts(samples)
        return replace(samples, parts=parts)[parts >= 0]

    def _parts(self, samples: Samples) -> Int[Tensor, " n"]:
        """Return the part of each sample, -1 for those that are left out."""
        given = torch.zeros(len(samples), dtype=torch.int64) if samples.parts is None else samples.parts
        lists = {
            part: expanded(of) for part, of in enumerate((self.file, self.validation, self.test)) if of is not None
        }
        parts = given.masked_fill(torch.isin(given, torch.tensor(list(lists))), -1)
        chosen = {part: _places(file, samples) for part, file in lists.items()}
        for part, rows in chosen.items():
            for other in range(part):
                twice = rows[torch.isin(rows, chosen.get(other, rows[:0]))]
                if len(twice):
                    raise ValueError(
                        f"expected lists without a sample in common, got {len(twice):,} of {lists[part]} in "
                        f"{lists[other]} too, such as {next(iter(samples.ids[twice[:1]]))}: keep them in one"
                    )
            parts[rows] = part
        return parts


def _places(file: Path, samples: Samples) -> Int[Tensor, " k"]:
    """Return the samples that a list names, sorted; warnings count what is odd in it."""
    ids = [_plain(name) for name in samples.ids]
    known = {name: place for place, name in enumerate(ids)}
    lines = _read(file, known)
    rows = samples.numbered().rows
    if rows is not None and all(line.name.isdecimal() and line.name not in known for line in lines):
        known = {str(row): place for place, row in enumerate(rows.tolist())}
    found = _matched([line.name for line in lines], known, file)
    lost = [line.name for line, place in zip(lines, found, strict=True) if place is None]
    if 2 * len(lost) >= len(lines):
        raise ValueError(
            f"expected a list of samples, got {file}, of whose {len(lines):,} lines {len(lost):,} name none, "
            f"such as {lost[0]!r}, where samples are called {ids[0]!r}: check the list and data.path"
        )
    if lost:
        warnings.warn(f"{len(lost):,} of {len(lines):,} lines of {file} name no sample: {first_of(lost)}", stacklevel=4)
    pairs = dict.fromkeys((place, line.label) for line, place in zip(lines, found, strict=True) if place is not None)
    places = sorted({place for place, _ in pairs})
    if again := len(lines) - len(lost) - len(places):
        warnings.warn(f"{again:,} of {len(lines):,} lines of {file} name a sample again", stacklevel=4)
    if samples.classes is not None:
        labels = samples.classes.tolist()
        _check_classes([(label, samples.names[labels[place]]) for place, label in pairs if label is not None], file)
    return torch.tensor(places)


def _matched(names: Sequence[str], known: Mapping[str, int], file: Path) -> list[int | None]:
    """Return the place of each name: that of the id that has the longest end in common with it, of which one is all."""
    backwards = sorted(name[::-1] for name in known)  # ids with one end are neighbours
    found: list[int | None] = []
    for name in names:
        if name in known:
            found.append(known[name])
            continue
        start, stop = (bisect_left(backwards, name[::-1] + after) for after in "/0")  # 0 is the sign after /
        if stop - start > 1:
            first, second = sorted((one[::-1] for one in backwards[start:stop]), key=known.__getitem__)[:2]
            raise ValueError(
                f"expected paths of one sample each in {file}, got {name!r}, with which {stop - start:,} end, such as "
                f"{first!r} and {second!r}: write more of the paths"
            )
        folders = name.split("/")
        longer = [one[::-1] for one in backwards[start:stop]]
        ends = (*longer, *("/".join(folders[first:]) for first in range(1, len(folders))))
        found.append(next((known[end] for end in ends if end in known), None))
    return found


def _check_classes(pairs: Sequence[tuple[str, str]], file: Path) -> None:
    """Warn of samples whose class in a list is not the one that most samples of this class have."""
    ours, theirs, agree = dict[str, str](), set[str](), 0
    for (label, name), count in Counter(pairs).most_common():
        if label not in ours and name not in theirs:
            ours[label] = name
            theirs.add(name)
            agree += count
    if agree < len(pairs):
        label, name = next((label, name) for label, name in pairs if ours.get(label) != name)
        warnings.warn(
            f"{len(pairs) - agree:,} of {len(pairs):,} samples have the number of another class in {file}, such as "
            f"{label} for {name!r}: the classes of the data are taken",
            stacklevel=5,
        )


def _plain(name: str) -> str:
    return re.sub(r"^(\./|/)+", "", name.replace("\\", "/"))


def _read(file: Path, known: Collection[str]) -> list[_Line]:
    """Read the lines of a list: of text, or of a table."""
    if not (exists(file) and file.is_file()):
        raise ValueError(f"expected a list of samples, got {file}, which is no file: check subset.file{near(file)}")
    suffix = file.suffix.lower()
    if suffix in {*SEPARATED, *JSON_LINES}:
        lines = _of_table(file)
    else:
        lines = _of_text([line.strip() for line in lines_in(file) if line.strip()], known)
    if not lines:
        raise ValueError(f"expected a list of samples, got {file}, which has none: write a path in each line")
    return [_Line(_plain(line.name), line.label) for line in lines]


def _of_text(lines: Sequence[str], known: Collection[str]) -> list[_Line]:
    """Part paths from classes, if every line ends in a number after a space and none is an id as it is."""
    parted = [re.fullmatch(r"(.*\S)\s+(-?\d+)", line) for line in lines]
    if any(of is None or line in known for of, line in zip(parted, lines, strict=True)):
        return [_Line(line, None) for line in lines]
    return [_Line(of[1], of[2]) for of in parted if of]


def _of_table(file: Path) -> list[_Line]:
    rows = [row for _, row in Lines(file)]
    column, label = (
        next((name for name in of if rows and name in rows[0]), "") for of in (_PATH_COLUMNS, LABEL_COLUMNS)
    )
    if rows and not column:
        raise ValueError(
            f"expected a column of paths ({', '.join(_PATH_COLUMNS)}) in {file}, got {', '.join(rows[0])}: rename one"
        )
    return [_Line(str(row[column]), str(row[label]) if label else None) for row in rows if row.get(column)]
