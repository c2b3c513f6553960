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
    """Run `likewise compare` with the arguments that follow the verb."""
    parser = argparse.ArgumentParser(
        prog="likewise compare",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        exit_on_error=False,
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="*", help="the runs' folders, two or more")
    parser.add_argument("--output", type=Path, default=Path("compare.html"), help="the page to write")
    added = "a section to add to the page, by its class path: my_sections.MySection"
    parser.add_argument("--report.sections+", dest="added", metavar="CLASS", action="append", default=[], help=added)
    only = "a section instead of those that come with likewise"
    parser.add_argument("--report.sections", dest="only", metavar="CLASS", action="append", default=[], help=only)
    try:
        given, unknown = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ValueError(f"{error}: see likewise compare --help") from error
    if unknown:
        raise ValueError(f"expected folders of runs and --output, got {unknown[0]}: see likewise compare --help")
    from likewise.parts import build  # noqa: PLC0415 - once the arguments are understood
    from likewise.report import SECTIONS, Section  # noqa: PLC0415 - likewise
    from likewise.workflows import compare  # noqa: PLC0415 - likewise

    files = [path for path in given.runs if path.is_file()]
    if files:  # such as an export beside its run, in runs/*
        say(f"left out, as they are no folders: {', '.join(map(str, files))}")
    standard = [] if given.only else [kind() for kind in SECTIONS]
    named = [path if "." in path else f"likewise.report.sections.{path}" for path in (*given.only, *given.added)]
    sections = [*standard, *(build({"class_path": path}, Section) for path in named)]
    compare([path for path in given.runs if path not in files], given.output, sections=sections, progress=TERMINAL)
