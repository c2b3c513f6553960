"""How far ranks drift in runs of RASCAL: by epoch, and by class in the last one, in a small file and as tables.

    python benchmarks/drift.py gather FILE.csv SETTING=FOLDER ...   adds the finished runs below each folder
    python benchmarks/drift.py print FILE.csv                       Markdown tables: means over seeds

Of each epoch, or of every few where there are many, it keeps the mean of drift, of the entropy of weights in nats, and
the share of samples that were cached; of each class the mean of drift in the last epoch. RASCAL with uniform weights is
SupCon, and records all of it.
"""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from likewise.runs.score_files import read_class_means

STEPS = {"rank_drift_mean": "drift", "weight_entropy": "entropy", "cache_hit_rate": "cached"}
MOST_EPOCHS = 20  # that are kept of each run, about
COLUMNS: tuple[str, ...] = ("setting", "seed", "epoch", "class", "statistic", "value")
Line = dict[str, str]


def lines_of(setting: str, run: Path) -> Iterator[Line]:
    """Yield the means of a finished run."""
    seed = str(json.loads((run / "run.json").read_text(encoding="utf-8"))["seed"])
    with (run / "metrics.csv").open(newline="", encoding="utf-8") as file:
        steps = list(csv.DictReader(file))
    epochs = list(dict.fromkeys(step["epoch"] for step in steps))
    every = max(1, len(epochs) // MOST_EPOCHS)
    for epoch in dict.fromkeys([*epochs[:2], *epochs[every - 1 :: every]]):
        for column, statistic in STEPS.items():
            values = [float(step[column]) for step in steps if step["epoch"] == epoch and step.get(column)]
            if values:
                row = (setting, seed, epoch, "all", statistic, f"{mean(values):.4f}")
                yield dict(zip(COLUMNS, row, strict=True))
    means = [of for of in read_class_means(run / "classes.csv") if of.statistic == "rank_drift"]
    last = max((of.epoch for of in means), default=0)
    for of in means:
        if of.epoch == last:
            yield dict(zip(COLUMNS, (setting, seed, str(last), of.label, "drift", f"{of.mean:.4f}"), strict=True))


def gather(file: Path, words: Sequence[str]) -> None:
    """Add runs to a file; those of a setting and seed that it has are replaced."""
    lines = read(file) if file.is_file() else []
    for word in words:
        setting, _, folder = word.partition("=")
        for found in sorted(Path(folder).rglob("run.json")):
            if found.parent.suffix == ".partial" or not (found.parent / "classes.csv").is_file():
                continue
            new = list(lines_of(setting, found.parent))
            lines = [of for of in lines if (of["setting"], of["seed"]) != (setting, new[0]["seed"])] + new
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def read(file: Path) -> list[Line]:
    """Read the rows of a file."""
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def table(lines: Sequence[Line], rows: str) -> str:
    """Write the mean over seeds of each setting and statistic, a row for each value of a column."""
    cells: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for of in lines:
        cells[of[rows], f"{of['setting']}: {of['statistic']}"].append(float(of["value"]))
    names = list(dict.fromkeys(name for _, name in cells))
    written = [f"| {rows} | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for row in dict.fromkeys(row for row, _ in cells):
        values = (f"{mean(cells[row, name]):.3f}" if (row, name) in cells else "" for name in names)
        written.append(f"| {row} | " + " | ".join(values) + " |")
    return "\n".join(written)


def main(words: Sequence[str]) -> None:
    """Run the script."""
    if len(words) >= 3 and words[0] == "gather":
        gather(Path(words[1]), words[2:])
    elif len(words) == 2 and words[0] == "print":
        lines = read(Path(words[1]))
        of_all = [of for of in lines if of["class"] == "all"]
        of_classes = [of for of in lines if of["class"] != "all"]
        sys.stdout.write(table(of_all, "epoch") + "\n\n" + table(of_classes, "class") + "\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
