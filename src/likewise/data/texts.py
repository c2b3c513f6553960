"""Texts: read line by line from files, as inputs, and as rows of tokens for an encoder."""

import warnings
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.columns import check_separator, column_of, labels_of
from likewise.data.lazy_inputs import Ids, LazyInputs
from likewise.data.samples import Samples, Source
from likewise.files import formats
from likewise.files.detection import JUDGED_ROWS, describe_pickle, inputs_at

PADDING = 0  # fills a row of tokens after its last one
MASK = 1  # stands for a hidden token, or one outside the vocabulary
LABELS = ("labels", "label", "class", "target")


@final
@dataclass(repr=False, eq=False)
class Text(Source):
    r"""Texts with a class each, with label sets, or without labels.

    The path is a file with a column of texts and one of labels: .csv and .tsv with a header, .jsonl with one object per
    line; a folder of these named after their parts: train, validation (valid, val, dev), test; or, without labels, any
    other file with one text per line, also with .gz. Labels are classes (a string or number each) or label sets: lists
    in JSON lines, and strings with a separator. Unreadable lines are left out, with a warning. Quotation marks around a
    cell are removed, and a quoted cell may span several lines; an unclosed mark is kept. A column id gives the texts'
    ids; without one they are the file's name and the line, such as "train.csv:7".

    Args:
        path: The file or folder.
        text: The column of texts. None: the one called text, sentence, document or body, or else the only column of
            strings, or of long strings.
        label: The column of labels, or "none" for no labels. None: the one called labels, label, class or target.
        separator: Separator of the labels of a sample, if the column's strings hold several, such as ",".
        encoding: Encoding of the files, such as "latin-1". None: UTF-8.
        part: The column of parts in a single file; see `Table`.

    Raises:
        ValueError: The path does not exist, no file has texts, a column is missing, some labels are lists and others
            are not, or a file is in another encoding.

    Memory:
        The strings.

    Example:
        >>> Text("greetings.csv", text="words", label="tone", separator=";").label
        'tone'
    """

    path: str | Path
    text: str | None = None
    label: str | None = None
    _: KW_ONLY
    separator: str | None = None
    encoding: str | None = None
    part: str | None = None

    def __post_init__(self) -> None:
        check_separator(self.separator)

    def load(self) -> Samples:
        read = {part: self._read(file) for part, file in self._files().items()}
        every = [record for records in read.values() for record in records]
        rows = [row for *_, row in every]
        numbers = [formats.PART_NAMES[part] for part, records in read.items() for _ in records]
        if len(read) == 1:
            names = dict.fromkeys(name for row in rows[:JUDGED_ROWS] for name in row)
            by_row = formats.part_column(self.part, names, lambda name: [row.get(name) for row in rows], self.path)
            numbers = numbers if by_row is None else by_row[1]
        parts = torch.tensor(numbers) if any(numbers) else None
        labels, known = None, ()
        if self.label != "none":
            labels, known = labels_of([label for _, label, *_ in every], self.separator, in_part=self.in_part)
        texts, ids = Texts(text for text, *_ in every), Ids.of(name for *_, name, _ in every)
        return Samples(texts, labels, known, parts, ids=ids)

    def _files(self) -> dict[str, Path]:
        known, path = (*formats.JSON_LINES, *formats.CELL_SEPARATORS), Path(self.path)
        if path.is_file() and (path.suffix in known or formats.has_lines(path, self.encoding)):
            return {"train": path}
        if not path.is_dir():
            what = "does not exist" if not path.exists() else f"ends in {path.suffix or 'nothing'}"
            problem = describe_pickle(path) or f"which {what}: check data.path"
            raise ValueError(f"expected a file ({', '.join(known)}) or a folder of them, got {path}, {problem}")
        files = [file for file in sorted(path.iterdir()) if file.suffix in known]
        parts = formats.PART_NAMES
        named = {file: formats.PARTS[parts[file.stem.lower()]] for file in files if file.stem.lower() in parts}
        part_files = {part: file for file, part in named.items()}
        if len(part_files) < len(named) or "train" not in part_files:
            got = ", ".join(file.name for file in files) or "none"
            raise ValueError(f"expected one file of each part, train and maybe validation and test, got {got}: rename")
        return {part: part_files[part] for part in formats.PARTS if part in part_files}

    def _read(self, file: Path) -> list[tuple[str, Any, str, dict[str, Any]]]:
        """Return the texts of a file, each with its label, id and row."""
        lines = formats.Lines(file, self.encoding)
        rows = list(lines)
        known = dict.fromkeys(name for _, row in rows[:JUDGED_ROWS] for name in row)
        if not known:
            raise _nothing(lines)
        input_type, columns = inputs_at(file, vars(self))
        alone = columns[0] if input_type == "texts" and len(columns) == 1 else None
        text = column_of(known, self.text or alone, formats.TEXT_COLUMNS, "text", self.path)
        cells: Callable[[str], list[Any]] = lambda name: [row.get(name) for _, row in rows]  # noqa: E731
        label = None if self.label == "none" else column_of(known, self.label, LABELS, "label", self.path, cells=cells)
        kept = list[tuple[str, Any, str, dict[str, Any]]]()
        every = [] if label is None else [row.get(label) for _, row in rows]
        classes = any(map(self._is_label, every)) and not any(isinstance(value, list) for value in every)
        in_part = self.in_part and self.separator is None and classes
        for line, row in rows:
            row_label = None if label is None else row.get(label)
            if not isinstance(row.get(text), str):
                lines.lost.append((line, "no text"))
            elif label is not None and not self._is_label(row_label) and not (in_part and row_label in (None, "")):
                why = "labels are a dict: write a list" if isinstance(row_label, dict) else "no label"
                lines.lost.append((line, why))
            else:
                string = row[text].encode("utf-8", "replace").decode()  # half a surrogate pair is no text
                kept.append((string, row_label, str(row.get(formats.ID_COLUMN, f"{file.name}:{line}")), row))
        if not kept:
            raise _nothing(lines)
        if lines.lost:
            total = len(lines.lost) + len(kept)
            warnings.warn(f"left out {len(lines.lost)} of {total} lines of {file}: {lines.reasons}", stacklevel=3)
        return kept

    def _is_label(self, label: Any) -> bool:
        # an empty list is a set without labels
        if isinstance(label, list):
            return all(isinstance(class_label, str | int) for class_label in label)
        return isinstance(label, str | int) and (label != "" or self.separator is not None)


def _nothing(lines: formats.Lines) -> ValueError:
    if not lines.lost:
        return ValueError(f"expected texts in {lines.file}, got none: fill it, or remove it")
    has_header = lines.file.suffix in formats.CELL_SEPARATORS
    what = "a header, and a row a line" if has_header else "an object a line, with a text"
    got = f"none in {len(lines.lost)} lines ({lines.reasons}): write {what}"
    return ValueError(f"expected texts in {lines.file}, got {got}")


@final
class Texts(LazyInputs):
    r"""Strings, read as rows of their UTF-8 bytes, padded with zeros: (n, T), uint8.

    Args:
        strings: The texts, N of them.

    Example:
        >>> texts = Texts(["pull", "what is alike"])
        >>> texts.shape, texts[torch.tensor([0])].tolist(), texts.take(torch.tensor([1])).strings
        ((2,), [[112, 117, 108, 108]], ['what is alike'])
    """

    in_memory = True
    read_together = 4096  # texts read together, sorted by length

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = list(strings)
        self.shape, self.dtype = (len(self.strings),), torch.uint8  # one text has no shape

    def __getitem__(self, rows: Tensor) -> Tensor:
        encoded = [self.strings[row].encode(errors="surrogatepass") for row in rows.tolist()]
        longest = max(map(len, encoded), default=0)
        return torch.tensor([[*text, *[PADDING] * (longest - len(text))] for text in encoded], dtype=torch.uint8)

    def take(self, rows: Tensor) -> "Texts":
        return Texts(self.strings[row] for row in rows.tolist())


@final
class TokenRows(LazyInputs):
    """Rows of tokens: 0 is padding, 1 the mask, and 2 or more the encoder's own. Indexing pads to the longest row.

    Args:
        tokens: The tokens of all rows, one after another.
        starts: The start of each row, and the end of the last, (N + 1,).
        rows: The rows to use, (N,). None: all.
        cut: The number of texts above the encoder's maximum length.

    Memory:
        4 bytes per token, shared by subsets.

    Example:
        >>> rows = TokenRows.of([[5, 6, 7], [8]])
        >>> rows[torch.tensor([1, 0])].tolist(), rows.lengths.tolist()
        ([[8, 0, 0], [5, 6, 7]], [3, 1])
    """

    in_memory = True

    def __init__(self, tokens: Tensor, starts: Tensor, rows: Tensor | None = None, cut: int = 0) -> None:
        self._tokens, self._starts, self.cut = tokens, starts, cut
        self._rows = torch.arange(len(starts) - 1) if rows is None else rows
        self.shape, self.dtype = (len(self._rows),), torch.int64  # rows have lengths of their own

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]], cut: int = 0) -> "TokenRows":
        """Combine rows; an empty row becomes a mask, so no row is empty."""
        tokens, starts = array("i"), array("q", [0])
        for row in rows:
            tokens.extend(row or [MASK])
            starts.append(len(tokens))
        return cls(torch.tensor(tokens, dtype=torch.int32), torch.tensor(starts), cut=cut)

    @property
    def lengths(self) -> Int[Tensor, " n"]:
        """Number of tokens of each row, (N,)."""
        return self._starts[self._rows + 1] - self._starts[self._rows]

    def longest(self, rows: Tensor) -> int:
        chosen = self._rows[rows]
        return int((self._starts[chosen + 1] - self._starts[chosen]).max()) if len(rows) else 0

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.padded(rows, self.longest(rows))

    def padded(self, rows: Tensor, length: int) -> Int[Tensor, "n t"]:
        """Return some rows, padded to a length at least their own."""
        chosen = self._rows[rows]
        places = self._starts[chosen].unsqueeze(1) + torch.arange(length)
        inside = places < self._starts[chosen + 1].unsqueeze(1)
        tokens = self._tokens[places.clamp(max=max(0, len(self._tokens) - 1))]
        return torch.where(inside, tokens, PADDING).long()

    def take(self, rows: Tensor) -> "TokenRows":
        return TokenRows(self._tokens, self._starts, self._rows[rows], self.cut)
