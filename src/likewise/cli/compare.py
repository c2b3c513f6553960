"""`likewise compare`: several runs on one page, with a table and a CSV file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from likewise.cli.printing import TERMINAL, say

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
    from likewise.workflows import compare  # noqa: PLC0415 - once the arguments are understood

    files = [path for path in given.runs if path.is_file()]
    if files:  # such as an export beside its run, in runs/*
        say(f"left out, as they are no folders: {', '.join(map(str, files))}")
    compare([path for path in given.runs if path not in files], given.output, progress=TERMINAL)
