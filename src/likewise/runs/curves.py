"""Readers of a run's metrics.csv, histograms.csv and classes.csv."""

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import final

Curves = dict[str, list[tuple[int, float]]]
"""For each metric its (step, value) pairs."""
Histograms = dict[str, list[tuple[int, tuple[int, ...]]]]
"""For each histogram its (epoch, counts) pairs; epochs are counted from 1."""


@final
@dataclass(frozen=True)
class ClassMean:
    """The mean of a statistic, such as "rank_drift", over the anchors of a class in an epoch, counted from 1."""

    statistic: str
    epoch: int
    label: str
    mean: float
    count: int


def read_curves(path: Path) -> Curves:
    """Read the columns of a file with one row per step, the loss first; none where there is no file."""
    if not path.is_file():
        return {}
    curves: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name in row.keys() - {"step", "epoch"}:
                if row[name]:
                    curves[name].append((int(row["step"]), float(row[name])))
    return {name: curves[name] for name in sorted(curves, key=lambda name: (name != "loss", name))}


def read_histograms(path: Path) -> Histograms:
    """Read a file without a header: name, epoch, counts of each bin; nothing where there is no file."""
    if not path.is_file():
        return {}
    histograms: defaultdict[str, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for name, epoch, *counts in csv.reader(file):
            histograms[name].append((int(epoch), tuple(map(int, counts))))
    return dict(histograms)


def read_class_means(path: Path) -> list[ClassMean]:
    """Read a file without a header: statistic, epoch, class, mean, count; nothing where there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return [ClassMean(what, int(epoch), name, float(mean), int(count)) for what, epoch, name, mean, count in rows]
