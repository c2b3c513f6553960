"""Several runs compared: a page, and its table as CSV and Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from likewise import report
from likewise.parts import Spec, built
from likewise.runs import Run
from likewise.workflows.progress import PRINTED, Progress


@final
@dataclass(frozen=True)
class Comparison:
    """Runs compared.

    Args:
        page: The page; the table, with the endings .csv and .md, is next to it.
        rows: The table: a row for each score and setting.
        verdict: What it shows, a sentence each.
    """

    page: Path
    rows: Sequence[report.Row]
    verdict: Sequence[str]

    @property
    def table(self) -> Path:
        """The table's CSV file."""
        return self.page.with_suffix(".csv")


def compare(
    runs: Iterable[Run | Path | str],
    output: Path | str = "compare.html",
    *,
    names: Mapping[Path, str] | None = None,
    sections: Sequence[report.Section | Spec] | report.Section | Spec | None = None,
    progress: Progress = PRINTED,
) -> Comparison:
    """Compare runs: tell the table, and write it as CSV and Markdown next to a page that shows more.

    Args:
        runs: The runs, or their folders; the first one's setting is what others are compared with. Files among them,
            such as an export beside its run, are left out.
        output: Where the page goes; the table, with the endings .csv and .md, next to it.
        names: What the setting of a run's folder is called. None: what its settings don't share with others.
        sections: The sections of the page, or their classes with arguments; None: those that come with likewise.
        progress: What is said meanwhile, and where the table is told.

    Raises:
        ValueError: Fewer than two runs, the same twice, one without scores, or the output is no .html file.
        OSError: A file can't be written.
    """
    page = Path(output)
    if page.suffix != ".html":
        raise ValueError(f"expected --output to end in .html, got {page}: the table is written next to it")
    given = list(runs)
    files = [path for path in given if not isinstance(path, Run) and Path(path).is_file()]
    if files:
        progress.say(f"left out, as they are no folders: {', '.join(map(str, files))}")
    opened = [run if isinstance(run, Run) else Run.open(run) for run in given if run not in files]
    _check(opened)
    progress.say("comparing ...")
    subjects = report.in_settings(opened, names, progress=progress.bar)
    settings = report.settings_of(subjects)
    rows = report.compared(settings)
    comparison = Comparison(page, rows, report.verdict(rows))
    page.parent.mkdir(parents=True, exist_ok=True)
    comparison.table.write_text(report.rows_as_csv(rows), encoding="utf-8")
    written = [report.rows_as_markdown(rows, settings[0].name), *comparison.verdict]
    page.with_suffix(".md").write_text("\n\n".join(written) + "\n", encoding="utf-8")
    report.write_page(page, subjects, sections=built(sections, report.Section))
    progress.tell(f"Scores on the test part with 95 % intervals, and paired differences to {settings[0].name}\n")
    progress.tell(_table(rows))
    progress.tell("\n" + "\n\n".join(comparison.verdict))
    progress.tell(f"\npage: {page}\ntable: {comparison.table} and .md")
    return comparison


def _check(runs: Sequence[Run]) -> None:
    if len(runs) < 2:
        raise ValueError(f"expected two or more runs to compare, got {len(runs)}: likewise compare RUN RUN ...")
    folders = [run.folder.resolve() for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if folders.count(folder) > 1:
            raise ValueError(f"expected different runs, got {run.folder} twice: name it once")
        final = (score for score in run.scores if score.part == "test" and score.epoch is None)
        if not any(final):
            raise ValueError(
                f"expected runs with scores, got {run.folder}, which has none: evaluate it first with "
                f"likewise evaluate {run.folder}"
            )


def _table(rows: Sequence[report.Row]) -> str:
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
