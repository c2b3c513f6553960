"""The files of a run's numbers: scores as a CSV table, outcomes as arrays, and the logged values of the training."""

import csv
import io
import json
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex, final

import torch

from likewise.runs.scores import ALL, ENCODER, SEPARATOR, Group, Metric, Outcomes, Score

Curves = dict[str, list[tuple[int, float]]]
"""For each metric its (step, value) pairs."""
Histograms = dict[str, list[tuple[int, tuple[int, ...]]]]
"""For each histogram its (epoch, counts) pairs; epochs are counted from 1."""
COLUMNS = (
    *("evaluation", "metric", "unit", "better", "selects", "shown", "value", "low", "high", "count", "counted"),
    *("classes", "features", "part", "kind", "group", "epoch", "settings", "protocol", "notes"),
)


@final
class Scores(tuple[Score, ...]):
    """All scores of a run, in their order; scores of the whole test part can be looked up by name.

    Raises:
        KeyError: There is no such score; the message names the existing ones.

    Example:
        >>> scores = Scores([Score("kNN", Metric("accuracy"), 0.9, 0.8, 0.95, 100)])
        >>> scores["kNN", "accuracy"].value, scores[0].count
        (0.9, 100)
    """

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        """Return the score at an index; or by evaluation, metric and, if they aren't the encoder's, features."""
        if isinstance(key, SupportsIndex | slice):
            return super().__getitem__(key)
        named = (key,) if isinstance(key, str) else tuple(key)
        wanted = (*named, ENCODER) if len(named) == 2 else named
        whole = [score for score in self if (score.part, score.epoch, score.group) == ("test", None, ALL)]
        for score in whole:
            if (score.evaluation, score.metric.name, score.features) == wanted:
                return score
        known = "; ".join(dict.fromkeys(f"{score.evaluation}, {score.metric.name}" for score in whole))
        got = ", ".join(map(str, named))
        raise KeyError(f"expected an evaluation and a metric, one of {known or 'none'}; got {got}")

    def frame(self) -> Any:
        """Return all scores as a pandas DataFrame, with the columns of scores.csv; needs pip install pandas."""
        try:
            import pandas  # noqa: ICN001, PLC0415 - of no extra by itself
        except ImportError as error:
            raise ImportError("expected pandas for a table of scores, which is missing: pip install pandas") from error
        return pandas.DataFrame([as_row(score) for score in self], columns=list(COLUMNS))


def as_csv(scores: Iterable[Score]) -> str:
    """Write scores as CSV, one row each, with a header; settings, protocol and notes as JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writeheader()
    writer.writerows(map(as_row, scores))
    return text.getvalue()


def as_row(score: Score) -> dict[str, Any]:
    """Return a score as the cells of a table, by their columns."""
    row = {name: getattr(score, name) for name in COLUMNS if hasattr(score, name)}
    row |= {name: getattr(score.metric, name) for name in ("unit", "better", "selects", "shown")}
    for name in ("settings", "protocol", "notes"):  # with numbers of NumPy and torch as Python's
        row[name] = json.dumps(row[name], default=lambda value: value.item() if hasattr(value, "item") else str(value))
    return {**row, "metric": score.metric.name, "kind": score.group.kind, "group": score.group.name}


def score_from_row(row: Mapping[str, Any]) -> Score:
    """Return a score from the cells of a table, as text."""
    truth = {"True": True, "False": False}
    marks = {name: truth[row[name]] for name in ("selects", "shown")}
    return Score(
        row["evaluation"],
        Metric(row["metric"], row["unit"], row["better"], **marks),
        *(float(row[name]) for name in ("value", "low", "high")),
        count=int(row["count"]),
        features=row["features"],
        part=row["part"],
        group=Group(row["kind"], row["group"]),
        epoch=int(row["epoch"]) if row["epoch"] else None,
        counted=row["counted"],
        classes=int(row["classes"]) if row["classes"] else None,
        settings=json.loads(row["settings"]),
        protocol=json.loads(row["protocol"]),
        notes=tuple(json.loads(row["notes"])),
    )


def from_csv(text: str) -> Scores:
    """Read scores from CSV.

    Raises:
        ValueError: A column is missing or a value has the wrong type.
    """
    scores: list[Score] = []
    for row in csv.DictReader(io.StringIO(text, newline="")):
        try:
            scores.append(score_from_row(row))
        except (KeyError, TypeError, ValueError) as error:
            got = f"got row {len(scores) + 2} with a wrong or missing value ({error})"
            expected = f"expected scores as CSV with the columns {', '.join(COLUMNS)}"
            raise ValueError(f"{expected}, {got}: restore the file, or evaluate again") from error
    return Scores(scores)


def save_outcomes(path: Path, outcomes: Iterable[Outcomes]) -> None:
    """Write outcomes as an .npz file: rows, values, classes and shares of each, as arrays named by its key."""
    import numpy as np  # noqa: PLC0415 - of an extra

    arrays: dict[str, Any] = {}
    for outcome in outcomes:
        for field in ("rows", "values", "classes", "shares"):
            if (array := getattr(outcome, field)) is not None:
                arrays[SEPARATOR.join((*outcome.key, field))] = array.numpy()
    with path.open("wb") as file:  # to a path NumPy would add .npz
        np.savez(file, **arrays)


def read_outcomes(path: Path) -> tuple[Outcomes, ...]:
    """Read the outcomes that `save_outcomes` wrote."""
    import numpy as np  # noqa: PLC0415 - of an extra

    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"expected the outcomes of a run in {path}, got {error}: evaluate the run again") from error
    keys = dict.fromkeys(name.rpartition(SEPARATOR)[0] for name in arrays)
    outcomes: list[Outcomes] = []
    for key in keys:
        evaluation, metric, features, part = key.split(SEPARATOR)
        rows, values = arrays[f"{key}{SEPARATOR}rows"], arrays[f"{key}{SEPARATOR}values"]
        classes, shares = (arrays.get(f"{key}{SEPARATOR}{field}") for field in ("classes", "shares"))
        outcomes.append(Outcomes(evaluation, metric, rows, values, features, part, classes, shares))
    return tuple(outcomes)


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
    """Read the columns of a metrics.csv, with one row per step, the loss first; none if there is no file."""
    curves: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in csv.DictReader(_text_of(path)):
        for name in row.keys() - {"step", "epoch"}:
            if row[name]:
                curves[name].append((int(row["step"]), float(row[name])))
    return {name: curves[name] for name in sorted(curves, key=lambda name: (name != "loss", name))}


def read_histograms(path: Path) -> Histograms:
    """Read a histograms.csv, without a header: name, epoch, counts of each bin; nothing if there is no file."""
    histograms: defaultdict[str, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for name, epoch, *counts in csv.reader(_text_of(path)):
        histograms[name].append((int(epoch), tuple(map(int, counts))))
    return dict(histograms)


def read_class_means(path: Path) -> list[ClassMean]:
    """Read a classes.csv, without a header: statistic, epoch, class, mean, count; nothing if there is no file."""
    rows = csv.reader(_text_of(path))
    return [ClassMean(what, int(epoch), name, float(mean), int(count)) for what, epoch, name, mean, count in rows]


def _text_of(path: Path) -> io.StringIO:
    return io.StringIO(path.read_bytes().decode() if path.is_file() else "", newline="")
