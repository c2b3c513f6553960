"""The comparison of several runs: a page, and its table as CSV and Markdown."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from likewise import report
from likewise.configuration.options import CompareOptions
from likewise.files.formats import first_of
from likewise.instantiate import Spec, instantiate_all
from likewise.report.comparison import same_test
from likewise.runs import Run
from likewise.runs.scores import aligned
from likewise.workflows.progress import PRINTED, Progress, shown


@final
@dataclass(frozen=True)
class Comparison:
    """A comparison of several runs.

    Args:
        page: The page; the table is next to it, in files ending in .csv and .md.
        rows: The rows of the table, one for each score and setting.
        verdict: Its conclusions, one sentence each.
    """

    page: Path
    rows: Sequence[report.Row]
    verdict: Sequence[str]

    @property
    def table(self) -> Path:
        """The table's CSV file."""
        return self.page.with_suffix(".csv")


def compare(
    runs: Iterable[Run | Path | str] | CompareOptions,
    output: Path | str = "compare.html",
    *,
    names: Mapping[Path, str] | None = None,
    sections: Sequence[report.Section | Spec] | report.Section | Spec | None = None,
    progress: Progress = PRINTED,
) -> Comparison:
    """Compare runs: report the table, and write it as CSV and Markdown next to a page with more detail.

    Args:
        runs: The runs, or their folders. Files and folders other than runs, runs without scores, and, next to trained
            runs, evaluated files with other test samples are left out and reported. Or all options as a record.
        output: The page to write; see `CompareOptions`.
        names: The name of each run folder's setting. None: the options in which it differs from the others.
        sections: The sections of the page, or their classes with arguments. None: likewise's own sections.
        progress: Receives messages during the work, and the table.

    Raises:
        ValueError: There are fewer than two runs, one comes twice or lacks scores, or the output isn't an .html file.
        OSError: A file can't be written.
    """
    if isinstance(runs, CompareOptions):
        return compare(**vars(runs), progress=progress)
    page = Path(output)
    if page.suffix != ".html":
        raise ValueError(f"expected --output to end in .html, got {page}: the table is written next to it")
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: progress.log(f"warning: {' '.join(str(message).split())}")
        comparable = _comparable(runs, progress)
        progress.log("comparing ...")
        views = report.in_settings(comparable, names, progress=progress.bar)
        settings = report.settings_of(views)
        rows = report.compared(settings)
        comparison = Comparison(page, rows, report.verdict(rows))
        page.parent.mkdir(parents=True, exist_ok=True)
        comparison.table.write_text(report.rows_as_csv(rows), "utf-8", "backslashreplace")
        written = [report.rows_as_markdown(rows, settings[0].name), *comparison.verdict]
        page.with_suffix(".md").write_text("\n\n".join(written) + "\n", "utf-8", "backslashreplace")
        report.write_page(page, views, sections=instantiate_all(sections, report.Section))
    progress.result(f"Scores on the test part with 95 % intervals, and paired differences to {settings[0].name}\n")
    progress.result(_format_table(rows))
    progress.result("\n" + "\n\n".join(comparison.verdict))
    progress.result(f"\npage: {shown(page)}\ntable: {shown(comparison.table)} and .md")
    return comparison


def _comparable(sources: Iterable[Run | Path | str], progress: Progress) -> list[Run]:
    """Open the comparable runs, report the others with the reason, and raise unless there are two."""
    runs: list[Run] = []
    left: dict[str, list[str]] = {}
    refused: ValueError | None = None
    for source in sources:
        path = source.folder if isinstance(source, Run) else Path(source)
        try:
            run = Run.open(path)
        except ValueError as error:
            if not path.exists():
                raise
            refused = refused or (error if path.is_dir() else None)
            left.setdefault("no run", []).append(path.name)
            continue
        why = _why_not(run, runs)
        if why is None:
            runs.append(run)
        else:
            left.setdefault(why, []).append(run.name)
    if excluded := _of_other_samples(runs):
        runs = [run for run in runs if run not in excluded]
        left["evaluated files of other test samples than the runs'"] = [run.name for run in excluded]
    reasons = "; ".join(f"{first_of(names)} ({why})" for why, names in left.items())
    if len(runs) < 2:
        also = f"; left out: {reasons}" if reasons else ""
        message = f"expected two or more runs to compare, got {len(runs)}: likewise compare RUN RUN ...{also}"
        raise refused or ValueError(message)
    if reasons:
        progress.log(f"left out: {reasons}")
    return runs


def _why_not(run: Run, accepted: Sequence[Run]) -> str | None:
    """Return why a run cannot be compared, with the remedy; raise if it was named before."""
    if run.folder.resolve() in [other.folder.resolve() for other in accepted]:
        raise ValueError(f"expected different runs, got {run.folder} twice: name it once")
    if any(score.part == "test" and score.epoch is None for score in run.scores):
        return None
    if run.stage == "finished":
        return f"no scores, likewise evaluate {shown(run.folder)}"
    return f"unfinished, likewise train --resume {shown(run.folder)}"


def _of_other_samples(runs: Sequence[Run]) -> list[Run]:
    """Return the evaluated files without the test samples of the trained runs, if two or more runs are trained."""
    trained, files = ([run for run in runs if ("source" in run.metadata) == is_file] for is_file in (False, True))
    views = [report.RunView(run) for run in (trained if files and len(trained) > 1 else [])]
    return [run for run in files if views and not any(same_test(report.RunView(run), view) for view in views)]


def _format_table(rows: Sequence[report.Row]) -> str:
    head = ["", "score", "over", "difference", "paired over"]
    first, *lines = aligned([head, *([row.setting, *row.cells[1:]] for row in rows)])
    table = [f"  {first}"]
    for index, (row, line) in enumerate(zip(rows, lines, strict=True)):
        if index == 0 or rows[index - 1].name != row.name:
            table.append(row.name)
        table.append(f"  {line}")
    return "\n".join(table)
