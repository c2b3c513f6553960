"""CSV, TSV and JSON-lines files, read line by line, so that one that cannot be read costs no other."""

import csv
import io
import json
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, final

from likewise.data.formats import SEPARATED

NAMED = 5  # lines that a warning names
LONGEST_CELL = 2**31 - 1
LONGEST_ROW = 200  # lines of a cell in quotation marks; more mean that one was never closed
OPEN, WRONG = "open", "wrong"


@final
class Lines:
    """The rows of a file by the numbers of their lines, and why lines are left out.

    Quotation marks around a cell of a table are taken off, and the cell may then have several lines; a mark that is
    never closed, or stands within a text, is kept.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lost: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        with self.file.open(newline="", encoding="utf-8-sig", errors="replace") as opened:
            yield from self._of_table(opened) if self.file.suffix in SEPARATED else self._of_json(opened)

    @property
    def reasons(self) -> str:
        """Why the first lines were left out."""
        named = [f"line {line}: {why}" for line, why in sorted(self.lost)[:NAMED]]
        return "; ".join(named) + ("; ..." if len(self.lost) > NAMED else "")

    def _of_json(self, opened: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(opened, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                self.lost.append((number, "no JSON"))
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                self.lost.append((number, "no object"))

    def _of_table(self, opened: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        rows = _rows(opened, SEPARATED[self.file.suffix])
        _, head = next(rows, (0, list[str]()))
        for number, cells in rows:
            if len(cells) == len(head):
                yield number, dict(zip(head, cells, strict=True))
            else:
                self.lost.append((number, f"{len(cells)} cells instead of {len(head)}"))


def _rows(opened: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each row that is not blank, with the number of its first line."""
    csv.field_size_limit(LONGEST_CELL)
    lines = enumerate(opened, 1)
    ahead: deque[tuple[int, str]] = deque()
    while (started := ahead.popleft() if ahead else next(lines, None)) is not None:
        number, line = started
        if not line.strip():
            continue
        cells, taken = _cells(line, delimiter), 0
        while cells is OPEN and taken < LONGEST_ROW:
            if taken == len(ahead) and (following := next(lines, None)) is not None:
                ahead.append(following)
            if taken == len(ahead):
                break
            line += ahead[taken][1]
            taken += 1
            cells = _cells(line, delimiter)
        if isinstance(cells, str):  # the quotation mark belongs to the text
            yield number, started[1].rstrip("\r\n").split(delimiter)
        else:
            for _ in range(taken):
                ahead.popleft()
            yield number, cells


def _cells(row: str, delimiter: str) -> list[str] | str:
    """Return the cells of a row; or `OPEN` where a quotation mark isn't closed, and `WRONG` where one is misplaced."""
    if '"' not in row:
        return row.rstrip("\r\n").split(delimiter)
    try:
        return next(csv.reader(io.StringIO(row, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        return OPEN if "end of data" in str(error) else WRONG
