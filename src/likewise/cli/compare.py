"""`likewise compare`: several runs on one page, with a table and a CSV file."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from likewise.cli.printing import bar, say, tell

if TYPE_CHECKING:
    from likewise.report import Row
    from likewise.runs import Run

DESCRIPTION = """Compare runs: a table with intervals and paired differences, curves overlaid, differences by class.

    likewise compare runs/A runs/B                         compare.html, and the table as compare.csv and .md
    likewise compare runs/* --output results/all.html

Runs that differ in the seed only are one setting; the first run's setting is what others are compared with. Scores are
means over seeds with 95 % intervals, differences are paired by seed; with one run each, by test sample.
"""


def run(arguments: Sequence[str]) -> None:
    """Run `likewise compare` with the arguments that follow the verb.

    Raises:
        ValueError: Fewer than two runs, the same twice, a folder that isn't a run's, or a run without scores.
        OSError: The page can't be written.
    """
    parser = argparse.ArgumentParser(
        prog="likewise compare",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        exit_on_error=False,
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="*", help="the runs' folders, two or more")
    parser.add_argument("--output", type=Path, default=Path("compare.html"), help="the page to write")
    try:
        given, unknown = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ValueError(f"{error}: see likewise compare --help") from error
    if unknown:
        raise ValueError(f"expected folders of runs and --output, got {unknown[0]}: see likewise compare --help")
    from likewise.runs import Run  # noqa: PLC0415 - once the arguments are understood

    if given.output.suffix != ".html":
        raise ValueError(f"expected --output to end in .html, got {given.output}: the table is written next to it")
    files = [path for path in given.runs if path.is_file()]
    if files:  # such as an export beside its run, in runs/*
        say(f"left out, as they are no folders: {', '.join(map(str, files))}")
    compare([Run.open(path) for path in given.runs if path not in files], given.output)


def compare(runs: "Sequence[Run]", output: Path, names: Mapping[Path, str] | None = None) -> None:
    """Compare runs: print the table, and write it as CSV and Markdown next to a page that shows more.

    Args:
        runs: The runs; the first one's setting is what others are compared with.
        output: Where the page goes; the table, with the endings .csv and .md, next to it.
        names: What the setting of a run's folder is called. None: what its settings don't share with others.

    Raises:
        ValueError: Fewer than two runs, the same twice, or a run without scores.
        OSError: A file can't be written.
    """
    _check(runs)
    from likewise import report  # noqa: PLC0415 - slow

    say("comparing ...")
    subjects = report.in_settings(runs, names, progress=bar)
    settings = report.settings_of(subjects)
    rows = report.compared(settings)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".csv").write_text(report.rows_as_csv(rows), encoding="utf-8")
    judged = report.verdict(rows)
    written = [report.rows_as_markdown(rows, settings[0].name), *judged]
    output.with_suffix(".md").write_text("\n\n".join(written) + "\n", encoding="utf-8")
    report.write_page(output, subjects)
    tell(f"Scores on the test part with 95 % intervals, and paired differences to {settings[0].name}\n")
    tell(_table(rows))
    tell("\n" + "\n\n".join(judged))
    tell(f"\npage: {output}\ntable: {output.with_suffix('.csv')} and .md")


def _check(runs: "Sequence[Run]") -> None:
    if len(runs) < 2:
        raise ValueError(f"expected two or more runs to compare, got {len(runs)}: likewise compare RUN RUN ...")
    folders = [one.folder.resolve() for one in runs]
    for one, folder in zip(runs, folders, strict=True):
        if folders.count(folder) > 1:
            raise ValueError(f"expected different runs, got {one.folder} twice: name it once")
        final = (score for score in one.scores if score.part == "test" and score.epoch is None)
        if not any(final):
            raise ValueError(
                f"expected runs with scores, got {one.folder}, which has none: evaluate it first with "
                f"likewise evaluate {one.folder}"
            )


def _table(rows: "Sequence[Row]") -> str:
    """Return rows in columns, with a line for each score above its settings."""
    cells = [[row.setting, *row.cells[1:]] for row in rows]
    head = ["", "score", "over", "difference", "paired over"]
    widths = [max(len(line[column]) for line in [head, *cells]) for column in range(len(head))]
    lines = [_line(head, widths)]
    for place, (row, line) in enumerate(zip(rows, cells, strict=True)):
        if place == 0 or rows[place - 1].name != row.name:
            lines.append(row.name)
        lines.append(_line(line, widths))
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(["", *(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))]).rstrip()
