"""Texts with their labels, from CSV, TSV and JSON-lines files, read line by line."""

import csv
import io
import json
import warnings
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from likewise.data.columns import check_apart, check_separator, in_order, label_sets_of
from likewise.data.formats import JSON_LINES, PART_NAMES, PARTS, SEPARATED, TEXT_COLUMNS
from likewise.data.samples import Samples
from likewise.data.source import Source
from likewise.data.texts import Texts
from likewise.pickled import pickled

NAMED = 5  # lines that a warning names
LOOKED_AT = 100  # lines that tell the columns
LABELS = ("labels", "label", "class", "target")
LONGEST_CELL = 2**31 - 1
LONGEST_ROW = 200  # lines of a cell in quotation marks; more mean that one was never closed
OPEN, WRONG = "open", "wrong"


@final
class Text(Source):
    r"""Texts with a class each, with label sets, or without labels.

    A file with a column of texts and one of labels: .csv and .tsv with a header, .jsonl with an object a line. Or a
    folder of such files named after their parts: train, validation (valid, val, dev), test. Labels are classes (a
    string or number each) or label sets: lists in JSON lines, and strings with a separator. Lines that can't be read
    are left out; a warning counts them and names the first. Quotation marks around a cell of a table are taken off,
    and the cell may then have several lines; a mark that is never closed, or stands within a text, is the text's own.

    Args:
        path: The file or folder.
        text: The column of texts. None: the one called text, sentence, document or body.
        label: The column of labels, or "none" for no labels. None: the one called labels, label, class or target.
        separator: What separates the labels of a sample, if the column's strings hold several, such as ",".

    Raises:
        ValueError: The path does not exist, no file has texts, a column is missing, or some labels are lists and others
            are not.

    Memory:
        The strings.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = Path(folder.name) / "letters.csv"
        >>> _ = file.write_text("text,labels\nGood day,greeting;polite\nHello,greeting\n")
        >>> samples = Text(file, separator=";").load()
        >>> samples.names, samples.labels.tolist()
        (('greeting', 'polite'), [[True, True], [True, False]])
        >>> folder.cleanup()
    """

    def __init__(
        self, path: str | Path, text: str | None = None, label: str | None = None, *, separator: str | None = None
    ) -> None:
        self.path = Path(path)
        self.text = text
        self.label = label
        check_separator(separator)
        self.separator = separator

    def load(self) -> Samples:
        """Read the files."""
        read = {part: self._read(file) for part, file in self._files().items()}
        strings = [text for of in read.values() for text in of.texts]
        parts = torch.tensor([PART_NAMES[part] for part, of in read.items() for _ in of.texts])
        labels = [label for of in read.values() for label in of.labels]
        given = parts if len(read) > 1 else None
        if self.label == "none":
            return Samples(Texts(strings), parts=given)
        return Samples(Texts(strings), *self._labels(labels), given)

    def _files(self) -> dict[str, Path]:
        """Return the file of each part; a file alone is one of training."""
        known = (*JSON_LINES, *SEPARATED)
        if self.path.is_file() and self.path.suffix in known:
            return {"train": self.path}
        if not self.path.is_dir():
            what = "does not exist" if not self.path.exists() else f"ends in {self.path.suffix or 'nothing'}"
            told = pickled(self.path) or f"which {what}: check data.path"
            raise ValueError(f"expected a file ({', '.join(known)}) or a folder of them, got {self.path}, {told}")
        files = [file for file in sorted(self.path.iterdir()) if file.suffix in known]
        named = {file: PARTS[PART_NAMES[file.stem.lower()]] for file in files if file.stem.lower() in PART_NAMES}
        found = {part: file for file, part in named.items()}
        if len(found) < len(named) or "train" not in found:
            got = ", ".join(file.name for file in files) or "none"
            raise ValueError(
                f"expected one file of each part, train and maybe validation and test, got {got}: rename them"
            )
        return {part: found[part] for part in PARTS if part in found}

    def _read(self, file: Path) -> "_Read":
        """Read a file line by line."""
        read = _Read()
        rows = list(_rows(file, read))
        known = dict.fromkeys(name for _, row in rows[:LOOKED_AT] for name in row)
        if not known:
            raise read.nothing(file)
        text = self._column(known, self.text, TEXT_COLUMNS, "text")
        label = None if self.label == "none" else self._column(known, self.label, LABELS, "label")
        for line, row in rows:
            labels = None if label is None else row.get(label)
            if not isinstance(row.get(text), str):
                read.lost.append((line, "no text"))
            elif label is not None and not self._is_label(labels):
                is_dict = isinstance(labels, dict)
                read.lost.append((line, "labels are a dict: write a list" if is_dict else "no label"))
            else:
                read.texts.append(row[text].encode("utf-8", "replace").decode())  # half a surrogate pair is no text
                read.labels.append(labels)
        if not read.texts:
            raise read.nothing(file)
        if read.lost:
            total = len(read.lost) + len(read.texts)
            warnings.warn(f"left out {len(read.lost)} of {total} lines of {file}: {read.reasons}", stacklevel=3)
        return read

    def _is_label(self, label: Any) -> bool:
        """Tell whether a value is a class or a set of labels; an empty one is a set without labels."""
        if isinstance(label, list):
            return all(isinstance(one, str | int) for one in label)
        return isinstance(label, str | int) and (label != "" or self.separator is not None)

    def _column(self, known: Collection[str], given: str | None, usual: Sequence[str], what: str) -> str:
        """Return the name of a column."""
        found = next((name for name in ([given] if given else usual) if name in known), None)
        if found is None:
            raise ValueError(
                f"expected a column of {what}s ({given or ', '.join(usual)}) in {self.path}, got {', '.join(known)}: "
                f"name it in data.{what}" + (", or set that to none" if what == "label" else "")
            )
        return found

    def _labels(self, labels: Sequence[Any]) -> tuple[Tensor, tuple[str, ...]]:
        """Return classes or label sets, and their names."""
        separator = self.separator
        if separator is not None:
            labels = [
                [one.strip() for one in label.split(separator) if one.strip()] if isinstance(label, str) else label
                for label in labels
            ]
        lists = sum(isinstance(label, list) for label in labels)
        if lists == len(labels):
            numbers = all(isinstance(one, int) for label in labels for one in label)
            return label_sets_of([label if numbers else [str(one) for one in label] for label in labels])
        if lists:
            raise ValueError(
                f"expected lists of labels in every line or in none, got {lists:,} lists in {len(labels):,} lines: "
                "write single labels as lists too"
            )
        words = labels if all(isinstance(label, int) for label in labels) else [str(label) for label in labels]
        places = {label: place for place, label in enumerate(in_order(set(words)))}
        names = tuple(map(str, places))
        check_apart(names)
        return torch.tensor([places[label] for label in words]), names


@dataclass
class _Read:
    """What a file held: texts with labels, and why lines were left out."""

    texts: list[str] = field(default_factory=list[str])
    labels: list[Any] = field(default_factory=list[Any])
    lost: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    @property
    def reasons(self) -> str:
        """Why the first lines were left out."""
        named = [f"line {line}: {why}" for line, why in sorted(self.lost)[:NAMED]]
        return "; ".join(named) + ("; ..." if len(self.lost) > NAMED else "")

    def nothing(self, file: Path) -> ValueError:
        """Return the error that the file has no texts."""
        if not self.lost:
            return ValueError(f"expected texts in {file}, got none: fill it, or remove it")
        what = "a header, and a row a line" if file.suffix in SEPARATED else "an object a line, with a text"
        return ValueError(
            f"expected texts in {file}, got none in {len(self.lost)} lines ({self.reasons}): write {what}"
        )


def _rows(file: Path, read: _Read) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of a file that can be read, with their numbers."""
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as opened:
        if file.suffix in SEPARATED:
            yield from _of_table(opened, SEPARATED[file.suffix], read)
            return
        for number, line in enumerate(opened, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                read.lost.append((number, "no JSON"))
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                read.lost.append((number, "no object"))


def _of_table(opened: Any, delimiter: str, read: _Read) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(LONGEST_CELL)
    lines = enumerate(opened, 1)
    ahead: deque[tuple[int, str]] = deque()
    head: list[str] | None = None
    while (started := ahead.popleft() if ahead else next(lines, None)) is not None:
        number, line = started
        if not line.strip():
            continue
        cells = _cells(line, delimiter)
        taken = 0
        while cells is OPEN and taken < LONGEST_ROW:
            if taken == len(ahead) and (following := next(lines, None)) is not None:
                ahead.append(following)
            if taken == len(ahead):
                break
            line += ahead[taken][1]
            taken += 1
            cells = _cells(line, delimiter)
        if isinstance(cells, str):  # a quotation mark that is one of the text's own
            cells = started[1].rstrip("\r\n").split(delimiter)
        else:
            for _ in range(taken):
                ahead.popleft()
        if head is None:
            head = cells
        elif len(cells) == len(head):
            yield number, dict(zip(head, cells, strict=True))
        else:
            read.lost.append((number, f"{len(cells)} cells instead of {len(head)}"))


def _cells(row: str, delimiter: str) -> list[str] | str:
    """Return the cells of a row; or `OPEN` where a quotation mark isn't closed, and `WRONG` where one is misplaced."""
    if '"' not in row:
        return row.rstrip("\r\n").split(delimiter)
    try:
        return next(csv.reader(io.StringIO(row, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        return OPEN if "end of data" in str(error) else WRONG
