"""A subset by list: the samples named in a file, the published form of long tails and other fixed parts."""

import re
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.samples import Samples
from likewise.data.subset import Subset
from likewise.files import formats
from likewise.files.detection import exists, expanded, near

_PATH_COLUMNS = ("path", "file", "file_name", "filename", *formats.IMAGE_COLUMNS, formats.ID_COLUMN, "row")
OPTION = "subset.encoding"
Line = tuple[str, str | None]  # a path, an id or a row; and its class


@final
@dataclass(repr=False, eq=False)
class FromList(Subset):
    """The samples listed in a file, one per line: a path, an id or a row from 0, and optionally a class.

    The training samples in `file` are kept, with or without a class. The source's validation and test samples stay,
    unless they have their own list, which then decides. A path may be the end of an id, or an id the end of a path. The
    file is text, `train/cat/1.jpg 0`, or a table with a column path, file, file_name, filename, image, id or row (.csv,
    .tsv, .jsonl). Classes are the source's, however the list numbers them; a warning counts samples with the number of
    another class.

    Args:
        file: The list of training samples.
        validation: The list of validation samples, which may be among the source's training samples.
        test: The list of test samples. None: the source's; or, if it has none, a part cut off from all samples before
            the list of training samples is applied.
        encoding: Encoding of the lists, such as "latin-1". None: UTF-8.

    Raises:
        ValueError: A list cannot be read or is empty, most of it names no sample, a path is the end of several ids, a
            sample is in two lists, or there is a validation list but neither a test part nor a test list.

    Source:
        ImageNet-LT and Places-LT: Z. Liu et al., Large-Scale Long-Tailed Recognition in an Open World, CVPR 2019.

    Example:
        >>> FromList(Path("ImageNet_LT_train.txt"), test=Path("ImageNet_LT_test.txt")).every_part
        True
    """

    file: Path
    validation: Path | None = None
    test: Path | None = None
    _: KW_ONLY
    encoding: str | None = None

    def __post_init__(self) -> None:
        self.every_part = self.validation is not None or self.test is not None

    def __call__(self, samples: Samples) -> Int[Tensor, " k"]:
        return self.of_source(samples)(samples)

    def taken(self, samples: Samples) -> Samples:
        return self.of_source(samples).taken(samples)

    def of_source(self, samples: Samples) -> Subset:
        files = enumerate((self.file, self.validation, self.test))
        lists = {part: expanded(path) for part, path in files if path is not None}
        has_test = samples.parts is not None and bool((samples.parts == 2).any())
        if self.validation is not None and self.test is None and not has_test:
            got = "none in the data and no list: give subset.test, or leave out subset.validation"
            raise ValueError(f"expected a test part beside {lists[1]}, got {got}")
        chosen = {part: _places(file, samples, self.encoding) for part, file in lists.items()}
        known = torch.ones(len(samples), dtype=torch.bool) if samples.labels is None else samples.labelled
        for part, places in chosen.items():
            for other in range(part):
                twice = places[torch.isin(places, chosen.get(other, places[:0]))]
                if len(twice):
                    some = next(iter(samples.ids[twice]))
                    got = f"{len(twice):,} of {lists[part]} in {lists[other]} too, such as {some}"
                    raise ValueError(f"expected lists without a sample in common, got {got}")
            blank = int((~known[places]).sum())
            if part > 0 and blank:
                message = f"left out {blank:,} of {len(places):,} samples in {lists[part]}"
                warnings.warn(f"{message}, which have no class to be evaluated by", stacklevel=3)
        rows = {part: _get_source_rows(samples)[places] for part, places in chosen.items()}
        return _Found(lists[0], rows, rows[0][known[chosen[0]]], whole=self.every_part)


@final
class _Found(Subset):
    """Listed samples found in a source: the rows of each part, and the labelled training rows."""

    def __init__(self, file: Path, rows: Mapping[int, Tensor], to_train: Tensor, *, whole: bool) -> None:
        self.file, self.rows, self.to_train, self.every_part = file, rows, to_train, whole

    def __call__(self, samples: Samples) -> Int[Tensor, " k"]:
        absent = 0 if self.every_part else int((~torch.isin(self.to_train, _get_source_rows(samples))).sum())
        if absent:
            message = f"{absent:,} of {len(self.to_train):,} samples in {self.file} are left out"
            warnings.warn(f"{message}, as they are in the test part or another subset has", stacklevel=3)
        return self._parts(samples).add(1).nonzero().flatten()

    def taken(self, samples: Samples) -> Samples:
        parts = self._parts(samples)
        return replace(samples, parts=parts)[parts >= 0]

    def of_unlabelled(self, samples: Samples) -> Samples:
        return samples[torch.isin(_get_source_rows(samples), self.rows[0])]

    def _parts(self, samples: Samples) -> Int[Tensor, " n"]:
        source_parts = torch.zeros(len(samples), dtype=torch.int64) if samples.parts is None else samples.parts
        parts = source_parts.masked_fill(torch.isin(source_parts, torch.tensor(list(self.rows))), -1)
        for part, rows in self.rows.items():
            parts[torch.isin(_get_source_rows(samples), rows)] = part
        return parts


def _get_source_rows(samples: Samples) -> Int[Tensor, " n"]:
    return torch.arange(len(samples)) if samples.rows is None else samples.rows


def _places(file: Path, samples: Samples, encoding: str | None) -> Int[Tensor, " k"]:
    ids = [_normalise_path(name) for name in samples.ids]
    known = {name: index for index, name in enumerate(ids)}
    lines = _read_lines(file, known, encoding)
    names = [name for name, _ in lines]
    if all(name.isdecimal() and name not in known for name in names):
        known = {str(row): index for index, row in enumerate(_get_source_rows(samples).tolist())}
    matches = _matched(names, known, file)
    lost = [name for name, index in zip(names, matches, strict=True) if index is None]
    if 2 * len(lost) >= len(lines):
        some = f"of whose {len(lines):,} lines {len(lost):,} name none, such as {lost[0]!r}"
        raise ValueError(f"expected a list of samples, got {file}, {some}, where samples are called {ids[0]!r}")
    if lost:
        some = formats.first_of(lost)
        warnings.warn(f"{len(lost):,} of {len(lines):,} lines of {file} name no sample: {some}", stacklevel=4)
    each = zip(lines, matches, strict=True)
    pairs = dict.fromkeys((index, label) for (_, label), index in each if index is not None)
    places = sorted({index for index, _ in pairs})
    if again := len(lines) - len(lost) - len(places):
        warnings.warn(f"{again:,} of {len(lines):,} lines of {file} name a sample again", stacklevel=4)
    listed = [(index, label) for index, label in pairs if label is not None]
    odd = min((_odd(labelling, listed) for labelling in (samples, samples.as_evaluated())), key=len)
    if odd:
        label, name = odd[0]
        message = f"{len(odd):,} of {len(listed):,} samples have the number of another class in {file}"
        warnings.warn(f"{message}, such as {label} for {name!r}: the classes of the data are taken", stacklevel=4)
    return torch.tensor(places)


def _matched(names: Sequence[str], known: Mapping[str, int], file: Path) -> list[int | None]:
    """Return the position of each name: of the only id that ends in it, or else of the longest id that it ends in."""
    backwards = sorted(name[::-1] for name in known)  # ids with a common ending are neighbours
    matches: list[int | None] = []
    for name in names:
        if name in known:
            matches.append(known[name])
            continue
        start, stop = (bisect_left(backwards, name[::-1] + after) for after in "/0")  # 0 is the character after /
        if stop - start > 1:
            first, second = sorted((reverse[::-1] for reverse in backwards[start:stop]), key=known.__getitem__)[:2]
            got = f"{name!r}, with which {stop - start:,} end, such as {first!r} and {second!r}"
            raise ValueError(f"expected paths of one sample each in {file}, got {got}: write more of the paths")
        folders = name.split("/")
        longer = [reverse[::-1] for reverse in backwards[start:stop]]
        ends = (*longer, *("/".join(folders[first:]) for first in range(1, len(folders))))
        matches.append(next((known[end] for end in ends if end in known), None))
    return matches


def _odd(samples: Samples, listed: Sequence[tuple[int, str]]) -> list[tuple[str, str]]:
    """Return the number and the class of listed samples with an unusual number for their class."""
    if samples.classes is None:
        return []
    classes, names = samples.classes.tolist(), samples.names
    pairs = [(label, names[classes[index]]) for index, label in listed if classes[index] >= 0]
    ours, theirs = dict[str, str](), set[str]()
    for (label, name), _ in Counter(pairs).most_common():
        if label not in ours and name not in theirs:
            ours[label] = name
            theirs.add(name)
    return [(label, name) for label, name in pairs if ours.get(label) != name]


def _normalise_path(name: str) -> str:
    return re.sub(r"^(\./|/)+", "", formats.as_class(name).replace("\\", "/"))


def _read_lines(file: Path, known: Collection[str], encoding: str | None) -> list[Line]:
    if not (exists(file) and file.is_file()):
        raise ValueError(f"expected a list of samples, got {file}, which is no file: check subset.file{near(file)}")
    suffix = file.suffix.lower()
    if suffix in {*formats.CELL_SEPARATORS, *formats.JSON_LINES}:
        lines = _of_table(formats.Lines(file, encoding, OPTION))
    else:
        lines = _of_text([line.strip() for line in formats.lines_in(file, encoding, OPTION) if line.strip()], known)
    if not lines:
        raise ValueError(f"expected a list of samples, got {file}, which has none")
    return [(_normalise_path(name), label) for name, label in lines]


def _of_text(lines: Sequence[str], known: Collection[str]) -> list[Line]:
    # paths and classes, if every line ends in a number after a space and no whole line is an id
    parted = [re.fullmatch(r"(.*\S)\s+(-?\d+)", line) for line in lines]
    if any(match is None or line in known for match, line in zip(parted, lines, strict=True)):
        return [(line, None) for line in lines]
    return [(match[1], match[2]) for match in parted if match]


def _of_table(lines: formats.Lines) -> list[Line]:
    rows = [row for _, row in lines]
    usual = _PATH_COLUMNS, formats.LABEL_COLUMNS
    column, label = (next((name for name in names if rows and name in rows[0]), "") for names in usual)
    if rows and not column:
        got = ", ".join(rows[0])
        raise ValueError(f"expected a column of paths ({', '.join(_PATH_COLUMNS)}) in {lines.file}, got {got}")
    rows = [row for row in rows if row.get(column) not in (None, "")]
    return [(str(row[column]), str(row[label]) if label else None) for row in rows]
