"""Texts with their labels, from CSV, TSV and JSON-lines files, read line by line."""

import warnings
from pathlib import Path
from typing import Any, final

import torch

from likewise.data.formats import JSON_LINES, PART_NAMES, PARTS, SEPARATED, TEXT_COLUMNS
from likewise.data.labels import check_separator, column_of, labels_of
from likewise.data.lines import Lines
from likewise.data.samples import Samples
from likewise.data.source import Source
from likewise.data.texts import Texts
from likewise.pickled import pickled

LOOKED_AT = 100  # lines that tell the columns
LABELS = ("labels", "label", "class", "target")


@final
class Text(Source):
    r"""Texts with a class each, with label sets, or without labels.

    A file with a column of texts and one of labels: .csv and .tsv with a header, .jsonl with an object a line. Or a
    folder of such files named after their parts: train, validation (valid, val, dev), test. Labels are classes (a
    string or number each) or label sets: lists in JSON lines, and strings with a separator. Lines that can't be read
    are left out; a warning counts them and names the first. Quotation marks around a cell of a table are taken off,
    and the cell may then have several lines; a mark that is never closed, or stands within a text, is kept.

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
        read = {part: self._read(file) for part, file in self._files().items()}
        texts = Texts(text for strings, _ in read.values() for text in strings)
        numbers = torch.tensor([PART_NAMES[part] for part, (strings, _) in read.items() for _ in strings])
        parts = numbers if len(read) > 1 else None
        if self.label == "none":
            return Samples(texts, parts=parts)
        return Samples(texts, *labels_of([label for _, own in read.values() for label in own], self.separator), parts)

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

    def _read(self, file: Path) -> tuple[list[str], list[Any]]:
        """Return the texts of a file and their labels."""
        lines = Lines(file)
        rows = list(lines)
        known = dict.fromkeys(name for _, row in rows[:LOOKED_AT] for name in row)
        if not known:
            raise _nothing(lines)
        text = column_of(known, self.text, TEXT_COLUMNS, "text", self.path)
        label = None if self.label == "none" else column_of(known, self.label, LABELS, "label", self.path)
        texts, labels = list[str](), list[Any]()
        for line, row in rows:
            given = None if label is None else row.get(label)
            if not isinstance(row.get(text), str):
                lines.lost.append((line, "no text"))
            elif label is not None and not self._is_label(given):
                why = "labels are a dict: write a list" if isinstance(given, dict) else "no label"
                lines.lost.append((line, why))
            else:
                texts.append(row[text].encode("utf-8", "replace").decode())  # half a surrogate pair is no text
                labels.append(given)
        if not texts:
            raise _nothing(lines)
        if lines.lost:
            total = len(lines.lost) + len(texts)
            warnings.warn(f"left out {len(lines.lost)} of {total} lines of {file}: {lines.reasons}", stacklevel=3)
        return texts, labels

    def _is_label(self, label: Any) -> bool:
        """Tell whether a value is a class or a set of labels; an empty one is a set without labels."""
        if isinstance(label, list):
            return all(isinstance(one, str | int) for one in label)
        return isinstance(label, str | int) and (label != "" or self.separator is not None)


def _nothing(lines: Lines) -> ValueError:
    """Return the error that a file has no texts."""
    if not lines.lost:
        return ValueError(f"expected texts in {lines.file}, got none: fill it, or remove it")
    what = "a header, and a row a line" if lines.file.suffix in SEPARATED else "an object a line, with a text"
    return ValueError(
        f"expected texts in {lines.file}, got none in {len(lines.lost)} lines ({lines.reasons}): write {what}"
    )
