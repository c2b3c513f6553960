"""Results in words: a line for each as it comes, and at the end a table of all."""

from collections.abc import Sequence

from likewise.benchmark.prediction import in_units
from likewise.benchmark.results import Result

HEAD = f"{'rows':>9}  {'loss':<17}{'contender':<32}{'ms':>10}  {'quartiles':<19}{'memory':>9}"


def line(result: Result) -> str:
    """Return a result as a line below HEAD.

    Example:
        >>> line(Result("SupConLoss", "likewise", "tiled", 4096, "float32", 80.12, (79.0, 83.4), 9, 12 << 20))
        '    4,096  SupConLoss       likewise, tiled                      80.12  79.00 – 83.40         12 MiB'
    """
    head = f"{result.rows:>9,}  {result.loss:<17}{result.who:<32}"
    if result.skipped is not None:
        return f"{head}   skipped: {result.skipped}"
    figures = ", ".join(f"{name} {value}" for name, value in result.figures.items())
    if result.milliseconds is None:
        return f"{head}   {figures}"
    spread = " – ".join(_digits(value) for value in result.quartiles) if result.quartiles else ""
    memory = "–" if result.peak_bytes is None else in_units(result.peak_bytes)
    return f"{head}{_digits(result.milliseconds):>10}  {spread:<19}{memory:>9}{'  ' * bool(figures)}{figures}"


def by_loss(results: Sequence[Result], losses: Sequence[str]) -> str:
    """Return results as a Markdown table with a row for each contender, loss by loss, and a column for each size.

    Args:
        results: What was measured and skipped.
        losses: The losses, in order.

    Example:
        >>> print(by_loss([Result("BYOLLoss", "likewise", "", 64, "float32", 0.5, None, 1, 1 << 20)], ["BYOLLoss"]))
        | loss | by | 64 |
        |---|---|---|
        | BYOLLoss | likewise | 0.50 ms, 1.0 MiB |
    """
    found = {(each.loss, each.who, each.rows): _cell(each) for each in results if each.milliseconds is not None}
    sizes = sorted({rows for _, _, rows in found})
    contenders = dict.fromkeys((each.loss, each.who) for each in results)
    rows: list[list[str]] = [["loss", "by", *(f"{rows:,}" for rows in sizes)], ["---"] * (2 + len(sizes))]
    for loss, name in sorted(contenders, key=lambda row: (losses.index(row[0]), not row[1].startswith("likewise"))):
        rows.append([loss, name, *(found.get((loss, name, size), "–") for size in sizes)])
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as a Markdown table; a row of dashes ends the head."""
    return "\n".join(f"|{'|'.join(row)}|" if row[0] == "---" else f"| {' | '.join(row)} |" for row in rows)


def _cell(result: Result) -> str:
    memory = "" if result.peak_bytes is None else f", {in_units(result.peak_bytes)}"
    return f"{_digits(result.milliseconds or 0)} ms{memory}"


def _digits(milliseconds: float) -> str:
    return f"{milliseconds:,.{0 if milliseconds >= 1000 else 1 if milliseconds >= 100 else 2}f}"
