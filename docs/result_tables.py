"""A script that keeps the scores of many runs in one small file, and writes the tables of a results page from it.

    uv run python docs/result_tables.py gather FILE.csv SETTING=FOLDER ...   adds the finished runs below each folder
    uv run python docs/result_tables.py print FILE.csv [FIRST]               Markdown tables, and a verdict

The file has a row for each score of each run on the test part, over all samples and by the size of classes. What others
are compared with is the setting FIRST, by default that of the first row. A baseline that was not trained, the raw
inputs, is the mean over the runs, too.
"""

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from likewise.evaluation.intervals import student
from likewise.report.row import Row, rows_as_markdown
from likewise.report.verdict import verdict
from likewise.report.words import is_main, is_share
from likewise.runs import Run
from likewise.scores import ALL, ENCODER, SUBSETS, Score

Line = Mapping[str, str]
RUN = ("setting", "seed", "seconds", "device")
COLUMNS = (*RUN, "evaluation", "metric", "subset", "features", "value", "count", "choices")


def gather(file: Path, folders: Mapping[str, Path]) -> None:
    """Add the scores of finished runs to a file; those of a setting and seed that it has are replaced."""
    lines = read(file) if file.is_file() else []
    for setting, folder in folders.items():
        for found in sorted(folder.rglob("run.json")):
            if found.parent.suffix == ".partial":
                continue
            new = list(_lines(setting, Run.open(found.parent)))
            seeds = {line["seed"] for line in new}
            lines = [of for of in lines if not (of["setting"] == setting and of["seed"] in seeds)] + new
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([line[name] for name in COLUMNS] for line in lines)


def read(file: Path) -> list[Line]:
    """Read the rows of a file."""
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def rows_of(lines: Sequence[Line], first: str) -> list[Row]:
    """Return the mean of each setting over its seeds, and its paired difference to the first."""
    found: list[Row] = []
    for evaluation, metric in dict.fromkeys((of["evaluation"], of["metric"]) for of in lines):
        for subset in (ALL, *SUBSETS):
            of_score = [
                of for of in lines if (of["evaluation"], of["metric"], of["subset"]) == (evaluation, metric, subset)
            ]
            base = _by_seed(of_score, first)
            for setting in dict.fromkeys(of["setting"] for of in of_score):
                row = _row(setting, _by_seed(of_score, setting), subset)
                found.append(row if setting == first else _paired(row, _by_seed(of_score, setting), base))
    return found


def _lines(setting: str, run: Run) -> Iterator[Line]:
    for score in run.scores:
        if score.epoch is not None or score.part != "test" or score.subset not in (ALL, *SUBSETS):
            continue
        facts = {"setting": setting, "seed": run.facts["seed"], "device": run.facts["device"]}
        facts |= {"seconds": round(run.facts["seconds"]["training"]), "value": f"{score.value:.6f}"}
        yield {name: str(facts[name] if name in facts else getattr(score, name)) for name in COLUMNS}


def _by_seed(lines: Sequence[Line], setting: str) -> dict[int, Line]:
    return {int(of["seed"]): of for of in lines if of["setting"] == setting}


def _row(setting: str, lines: Mapping[int, Line], subset: str) -> Row:
    values = [float(of["value"]) for of in lines.values()]
    one = next(iter(lines.values()))
    low, high = student(values) if len(values) > 1 else (values[0], values[0])
    share = all(is_share(Score(one["evaluation"], one["metric"], of, of, of, 1)) for of in values)
    if share:
        low, high = max(low, 0.0), min(high, 1.0)
    row = Row(setting, one["evaluation"], one["metric"], len(values), mean(values), low, high, "", share, subset=subset)
    seconds = mean(float(of["seconds"]) for of in lines.values())
    return replace(row, interval=f"{len(values)} seeds", seconds=seconds)


def _paired(row: Row, ours: Mapping[int, Line], theirs: Mapping[int, Line]) -> Row:
    each = [float(ours[seed]["value"]) - float(theirs[seed]["value"]) for seed in ours if seed in theirs]
    if len(each) < 2:
        return replace(row, paired="not paired: fewer than 2 seeds in common")
    low, high = student(each)
    bounds = {"difference": mean(each), "difference_low": low, "difference_high": high}
    return replace(row, **bounds, pairs=len(each), paired=f"{len(each)} seeds")


def tables(lines: Sequence[Line], first: str | None) -> str:
    """Write the tables and the verdict."""
    main = [of for of in lines if is_main(of["metric"])]
    own = [of for of in main if of["features"] == ENCODER]
    base = first or own[0]["setting"]
    rows = rows_of(own, base)
    raw = [
        replace(row, difference=None, paired="", seconds=None)
        for row in rows_of([{**of, "setting": of["features"]} for of in main if of["features"] != ENCODER], base)
    ]
    return "\n".join([rows_as_markdown([*rows, *raw], base), "\n\n".join(verdict(rows))])


def main(words: Sequence[str]) -> None:
    """Run the script."""
    if len(words) >= 3 and words[0] == "gather":
        gather(Path(words[1]), {name: Path(folder) for name, _, folder in (of.partition("=") for of in words[2:])})
    elif len(words) in (2, 3) and words[0] == "print":
        sys.stdout.write(tables(read(Path(words[1])), words[2] if len(words) == 3 else None) + "\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
