"""The table of `likewise bench`: row by row as results come, and at the end a loss at a time."""

import sys
import time
from collections.abc import Sequence
from typing import Any, Self, final

from tqdm import tqdm

from likewise.benchmark import Result, in_units

BAR_APART, LINES_APART = 0.1, 30.0  # seconds between what is told


@final
class Table:
    """Prints results row by row, and on a terminal a bar below them.

    Args:
        total: How many results there will be.
    """

    def __init__(self, total: int) -> None:
        self._bar: Any = tqdm(total=total, unit="result", file=sys.stderr) if sys.stderr.isatty() else None
        self._told = time.monotonic()
        self._rows: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def say(self, doing: str) -> None:
        """Tell what goes on now: beside the bar, or once in a while on a line."""
        if time.monotonic() < self._told + (LINES_APART if self._bar is None else BAR_APART):
            return
        self._told = time.monotonic()
        if self._bar is None:
            print(doing, file=sys.stderr, flush=True)
        else:
            self._bar.set_description_str(doing)

    def row(self, result: Result) -> None:
        """Print a result."""
        if result.rows != self._rows:
            self._rows = result.rows
            self._print(f"{'rows':>9}  {'loss':<17}{'contender':<32}{'ms':>10}  {'quartiles':<19}{'memory':>9}")
        self._print(line(result))
        if self._bar is not None:
            self._bar.update()

    def _print(self, text: str) -> None:
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.write(text, file=sys.stdout)


def who(result: Result) -> str:
    """Return who computed a result, in words."""
    return ", ".join(filter(None, (result.contender, result.backend)))


def by_loss(results: Sequence[Result], losses: Sequence[str]) -> str:
    """Return results as a table with a row for each contender, loss by loss, and a column for each size.

    Args:
        results: What was measured and skipped.
        losses: The losses, in order.

    Example:
        >>> print(by_loss([Result("BYOLLoss", "likewise", "", 64, "float32", 0.5, None, 1, 1 << 20)], ["BYOLLoss"]))
        | loss | by | 64 |
        |---|---|---|
        | BYOLLoss | likewise | 0.50 ms, 1.0 MiB |
    """
    found = {(each.loss, who(each), each.rows): each for each in results if each.milliseconds is not None}
    sizes = sorted({rows for _, _, rows in found})
    contenders = dict.fromkeys((each.loss, who(each)) for each in results)
    lines = [f"| loss | by | {' | '.join(f'{rows:,}' for rows in sizes)} |", "|---|---" + "|---" * len(sizes) + "|"]
    for loss, name in sorted(contenders, key=lambda row: (losses.index(row[0]), not row[1].startswith("likewise"))):
        cells = [_cell(found.get((loss, name, rows))) for rows in sizes]
        lines.append(f"| {loss} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(result: Result | None) -> str:
    if result is None or result.milliseconds is None:
        return "–"
    memory = "" if result.peak_bytes is None else f", {in_units(result.peak_bytes)}"
    return f"{_figures(result.milliseconds)} ms{memory}"


def line(result: Result) -> str:
    """Return a result as a line of the table.

    Example:
        >>> line(Result("SupConLoss", "likewise", "tiled", 4096, "float32", 80.12, (79.0, 83.4), 9, 12 << 20))
        '    4,096  SupConLoss       likewise, tiled                      80.12  79.00 – 83.40         12 MiB'
    """
    head = f"{result.rows:>9,}  {result.loss:<17}{who(result):<32}"
    if result.milliseconds is None:
        return f"{head}   skipped: {result.skipped}"
    spread = " – ".join(_figures(value) for value in result.quartiles) if result.quartiles else ""
    memory = "–" if result.peak_bytes is None else in_units(result.peak_bytes)
    return f"{head}{_figures(result.milliseconds):>10}  {spread:<19}{memory:>9}"


def _figures(milliseconds: float) -> str:
    return f"{milliseconds:,.{0 if milliseconds >= 1000 else 1 if milliseconds >= 100 else 2}f}"
