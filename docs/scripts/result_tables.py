"""A script that keeps the scores of many runs in one small file, and writes the tables of a results page from it.

    uv run python docs/scripts/result_tables.py gather FILE.csv SETTING=FOLDER ...  adds the runs below each folder
    uv run python docs/scripts/result_tables.py gather FILE.csv SWEEP               adds all settings of a sweep
    uv run python docs/scripts/result_tables.py print FILE.csv [FIRST]              Markdown tables, and a verdict
    uv run python docs/scripts/result_tables.py matrix FILE.csv FIRST SCORE ...     one table: a column for each score

The file has a row for each score of each run on the test part, over all samples and by the size of classes. Of a sweep
that tuned its settings it has the runs with the chosen options; FILE-tuning.csv has all trials. What others are
compared with is the setting FIRST, by default that of the first row. A baseline that was not trained, the raw inputs,
is the mean over the runs, too; where it is the same for all, it is kept once.
"""

import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from likewise.evaluation.intervals import student
from likewise.report.comparison import Over, Row, different, rows_as_markdown, verdict
from likewise.runs import Run
from likewise.runs.scores import ALL, BEGUN, ENCODER, FREQUENCIES, Group, Metric, remarks

Line = Mapping[str, str]
RUN = ("setting", "seed", "seconds", "device")
METRIC = ("unit", "better", "selects", "shown")
COLUMNS = (*RUN, "evaluation", "metric", *METRIC, "subset", "features", "value", "count", "remarks")
GROUPS = (ALL, *FREQUENCIES)


def gather(file: Path, runs: Iterable[tuple[str, Path]]) -> None:
    """Add the scores of runs to a file, each with its setting; those of a setting and seed that it has are replaced."""
    lines = read(file) if file.is_file() else []
    for setting, folder in runs:
        new = list(_lines(setting, Run.open(folder)))
        seeds = {line["seed"] for line in new}
        lines = [of for of in lines if not (of["setting"] == setting and of["seed"] in seeds)]
        kept = {_what(of) for of in lines if of["features"] != ENCODER}
        lines += [of for of in new if _what(of) not in kept]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([line[name] for name in COLUMNS] for line in lines)


def finished(folder: Path) -> list[Path]:
    """Return the folders of the finished runs below a folder."""
    return [found.parent for found in sorted(folder.rglob("run.json")) if found.parent.suffix != ".partial"]


def of_sweep(sweep: Path) -> Iterator[tuple[str, Path]]:
    """Yield the runs of a sweep; of its trials only those that were chosen."""
    chosen = {of["setting"]: of["run"] for of in trials(sweep) if of["chosen"]}
    for place, setting in enumerate(json.loads((sweep / "sweep.json").read_text())["settings"], 1):
        if setting in chosen:
            yield setting, sweep / chosen[setting]
        for folder in sorted(sweep.glob(f"{place}-*/seed-*")):
            yield from ((setting, run) for run in finished(folder))


def trials(sweep: Path) -> list[Line]:
    """Return the rows of a sweep's table of trials; none where it tuned nothing."""
    return read(sweep / "tuning.csv") if (sweep / "tuning.csv").is_file() else []


def keep_trials(file: Path, sweep: Path) -> None:
    """Write what was tried in a sweep beside the file of its scores."""
    if trials(sweep):
        with file.with_name(f"{file.stem}-tuning.csv").open("w", newline="", encoding="utf-8") as opened:
            names = ("setting", "options", "evaluation", "metric", "validation", "chosen")
            writer = csv.writer(opened, lineterminator="\n")
            writer.writerow(names)
            writer.writerows([of[name] for name in names] for of in trials(sweep))


def read(file: Path) -> list[Line]:
    """Read the rows of a file."""
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def rows_of(lines: Sequence[Line], first: str) -> list[Row]:
    """Return the mean of each setting over its seeds, and its paired difference to the first."""
    found: list[Row] = []
    for evaluation, metric in dict.fromkeys((of["evaluation"], of["metric"]) for of in lines):
        for group in GROUPS:
            named = (evaluation, metric, str(group))
            of_score = [of for of in lines if (of["evaluation"], of["metric"], of["subset"]) == named]
            base = _by_seed(of_score, first)
            for setting in dict.fromkeys(of["setting"] for of in of_score):
                row = _row(setting, _by_seed(of_score, setting), group)
                found.append(row if setting == first else _paired(row, _by_seed(of_score, setting), base))
    return found


def _what(line: Line) -> tuple[str, ...]:
    return tuple(line[name] for name in ("evaluation", "metric", "subset", "features", "value"))


def _lines(setting: str, run: Run) -> Iterator[Line]:
    for score in run.scores:
        if score.epoch is not None or score.part != "test" or score.group not in GROUPS:
            continue
        if score.features == BEGUN and str(run.metadata["begins_with"]).endswith(
            run.weights.name
        ):  # with another run's
            continue
        facts = {"setting": setting, "seed": run.metadata["seed"], "device": run.metadata["device"]}
        facts |= {"seconds": round(run.metadata["seconds"]["training"]), "value": f"{score.value:.6f}"}
        facts |= {name: getattr(score.metric, name) for name in METRIC}
        facts |= {"subset": score.group, "remarks": remarks(score)}
        yield {name: str(facts[name] if name in facts else getattr(score, name)) for name in COLUMNS}


def metric_of(line: Line) -> Metric:
    """Return the metric of a row."""
    unit: Any = line["unit"]
    better: Any = line["better"]
    return Metric(line["metric"], unit, better, selects=line["selects"] == "True", shown=line["shown"] == "True")


def _by_seed(lines: Sequence[Line], setting: str) -> dict[int, Line]:
    return {int(of["seed"]): of for of in lines if of["setting"] == setting}


def _row(setting: str, lines: Mapping[int, Line], group: Group) -> Row:
    values = [float(of["value"]) for of in lines.values()]
    one = next(iter(lines.values()))
    low, high = student(values) if len(values) > 1 else (values[0], values[0])
    metric = metric_of(one)
    if metric.is_share:
        low, high = max(low, 0.0), min(high, 1.0)
    seconds = mean(float(of["seconds"]) for of in lines.values())
    over = Over(len(values), "seed")
    return Row(
        *(setting, one["evaluation"], metric, len(values), mean(values), low, high, over), group=group, seconds=seconds
    )


def _paired(row: Row, ours: Mapping[int, Line], theirs: Mapping[int, Line]) -> Row:
    each = [float(ours[seed]["value"]) - float(theirs[seed]["value"]) for seed in ours if seed in theirs]
    if len(each) < 2:
        return replace(row, unpaired="fewer than 2 seeds in common")
    low, high = student(each)
    bounds = {"difference": mean(each), "difference_low": low, "difference_high": high}
    return replace(row, **bounds, paired=Over(len(each), "seed"))


def matrix(lines: Sequence[Line], first: str, scores: Sequence[str]) -> str:
    """Write one table of settings and scores, such as "linear probe, mAP", with the half-widths of 95 % intervals.

    An arrow says that a setting differs from the first by more than chance, by Holm's procedure within its column.
    """
    cells: dict[str, dict[str, str]] = {}
    seconds: dict[str, str] = {}
    for score in scores:
        of_score = [of for of in lines if f"{of['evaluation']}, {of['metric']}" == score and of["subset"] == str(ALL)]
        own = [of for of in of_score if of["features"] == ENCODER]
        rows = rows_of(own, first)
        marked = {row.setting for row in different([row for row in rows if row.difference is not None])}
        for row in rows:
            mark = "" if row.setting not in marked else " ↑" if (row.difference or 0) > 0 else " ↓"
            low, high = student([float(of["value"]) for of in own if of["setting"] == row.setting])
            spread = f" ± {50 * (high - low):.1f}" if math.isfinite(high) else ""  # of one run; a row's ends stop at 1
            text = f"{100 * row.value:.1f}{spread}{mark}"
            cells.setdefault(row.setting, {})[score] = text
            seconds[row.setting] = f"{row.seconds:.0f} s"
        for name in dict.fromkeys(of["features"] for of in of_score if of["features"] != ENCODER):
            every = [float(of["value"]) for of in of_score if of["features"] == name]
            cells.setdefault(name, {})[score] = f"{100 * mean(every):.1f}"
    raw = [name for name in cells if name not in seconds]
    written = ["| setting | " + " | ".join(scores) + " | training |", "|---|" + "---|" * (len(scores) + 1)]
    for name in [*raw, *(name for name in cells if name in seconds)]:
        values = " | ".join(cells[name].get(score, "") for score in scores)
        written.append(f"| {name} | {values} | {seconds.get(name, '')} |")
    return "\n".join(written)


def tables(lines: Sequence[Line], first: str | None) -> str:
    """Write the tables and the verdict."""
    main = [of for of in lines if of["shown"] == "True"]
    own = [of for of in main if of["features"] == ENCODER]
    base = first or own[0]["setting"]
    rows = sorted(rows_of(own, base), key=lambda row: row.setting != base)  # the verdict compares with its first row
    raw = [
        replace(row, difference=None, paired=None, unpaired="", seconds=None)
        for row in rows_of([{**of, "setting": of["features"]} for of in main if of["features"] != ENCODER], base)
    ]
    return "\n".join([rows_as_markdown([*rows, *raw], base), "\n\n".join(verdict(rows))])


def main(words: Sequence[str]) -> None:
    """Run the script."""
    if len(words) >= 3 and words[0] == "gather":
        for word in words[2:]:
            setting, is_setting, folder = word.partition("=")
            runs = ((setting, run) for run in finished(Path(folder))) if is_setting else of_sweep(Path(word))
            gather(Path(words[1]), runs)
            if not is_setting:
                keep_trials(Path(words[1]), Path(word))
    elif len(words) in (2, 3) and words[0] == "print":
        sys.stdout.write(tables(read(Path(words[1])), words[2] if len(words) == 3 else None) + "\n")
    elif len(words) > 3 and words[0] == "matrix":
        sys.stdout.write(matrix(read(Path(words[1])), words[2], words[3:]) + "\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
