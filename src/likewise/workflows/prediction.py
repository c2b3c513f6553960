"""Prediction by a trained run: a table of samples, and its accuracy where they have labels."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from likewise.configuration.options import PredictOptions
from likewise.data import Samples
from likewise.data.lazy_inputs import in_words, readable, unreadable
from likewise.evaluation import Features, Predictions
from likewise.evaluation.intervals import wilson
from likewise.evaluation.label_metrics import MIN_SAMPLES
from likewise.evaluation.predictions import MIN_LABEL_PROBABILITY
from likewise.evaluation.run_predictors import By
from likewise.inference import Model, load
from likewise.inference.inputs import check_kind, samples_at
from likewise.inference.outputs import check_apart, check_output, label_cells, table_at
from likewise.runs import Run
from likewise.runs.machine import device_named
from likewise.runs.scores import aligned
from likewise.workflows.progress import PRINTED, Progress

Source = str | Path | Sequence[str | Path]
CHUNK = 1024  # samples at a time
MAX_PRINTED_ROWS = 20  # printed rows, and confusions


def predict(
    run: Run | Path | str | PredictOptions,
    input: Source = (),  # noqa: A002 - the command's word for it
    output: Path | str | None = None,
    *,
    by: By | None = None,
    among: str | Path | None = None,
    force: bool = False,
    device: str = "auto",
    progress: Progress = PRINTED,
) -> Path | None:
    """Predict the class or labels of samples with a run, and report samples unlike its training data.

    Unreadable samples are reported and left out. `likewise.load(run).predict(inputs)` predicts in Python.

    Args:
        run: The run, its folder, or an ONNX file with a probe; a run of features alone takes features. Or all options
            as a record.
        input: The samples: any data for `likewise train`, labelled or not; or images, or texts; - takes the lines of
            standard input.
        output: The table to write: .csv, .jsonl or .parquet. Default: none, the first 20 rows are printed.
        by: The predictor: probe, the linear probe; own, the classifier or prototypes trained with the encoder; knn, the
            nearest training samples. Default: the first of these that the run has.
        among: Labelled samples in the forms of `input`, whose nearest 20 predict instead.
        force: Whether to replace an existing output.
        device: Where the encoder runs: auto, cpu, cuda ...
        progress: Receives messages during the work, and the results.

    Returns:
        The written table.

    Raises:
        ValueError: The folder holds no run, the run has learned no labels, there is no input, or the output exists.

    Memory:
        Training features, and 1,024 samples; for inputs in files, their names.

    Example:
        >>> import numpy as np
        >>> from likewise.workflows import Silent, evaluate
        >>> np.savez("mine.npz", features=np.eye(3).repeat(30, 0), labels=np.arange(3).repeat(30))
        >>> run = evaluate("mine.npz", evaluations="LinearProbe", progress=Silent())
        >>> np.save("new.npy", np.eye(3))
        >>> len(predict(run, "new.npy", "new.csv", progress=Silent()).read_text().splitlines())
        4
    """
    if isinstance(run, PredictOptions):
        return predict(**vars(run), progress=progress)
    path = None if output is None else Path(output)
    if path is not None:
        check_output(path, force=force)
        for source in (*([input] if isinstance(input, str | Path) else input), among or ""):
            check_apart(path, source)
    model = load(run, device=None if device == "auto" else device_named(device))
    learned = model.learned
    support = None if among is None else _encoded(model, among, progress)
    predictor = learned.predictor(by, support)  # may raise, so before anything is encoded
    progress.log(f"predicting by {predictor} ...")
    summary = _Found()
    with nullcontext(summary.show) if path is None else table_at(path) as write:
        for samples, vectors in _in_chunks(model, input, summary, progress):
            predictions = learned.predictions(vectors, list(samples.ids), by, support)
            known = samples if by == "own" else samples.as_evaluated()  # "own" predicts training classes
            write(predictions.columns | summary.compare(predictions, known))
        if summary.count == 0:
            raise ValueError(f"expected samples that can be read, got none in {input}: {in_words(summary.lost)}")
    for line in summary.lines():
        progress.result(line)
    if predictor.few:
        few = f"{predictor.few:,} of {len(predictor.names):,} labels have fewer than {MIN_SAMPLES} validation samples"
        progress.result(f"{few} each, and take the threshold of all labels together")
    if predictor.thresholds is not None and predictor.probabilities:
        progress.result(f"no label is given with a probability below {MIN_LABEL_PROBABILITY}")
    if path is not None:
        progress.result(f"predictions: {path}")
    return path


def _in_chunks(
    model: Model, source: Source, summary: "_Found", progress: Progress, *, labelled: bool = False
) -> Iterator[tuple[Samples, Tensor]]:
    samples = samples_at(source, model, labelled=labelled)
    if len(samples) == 0:
        raise ValueError(f"expected samples in {source}, got none: check the path")
    for rows in progress.bar(torch.arange(len(samples)).split(CHUNK), "predicting"):
        some = samples[rows]
        inputs: Any = some.inputs
        if not model.encodes or (model.preprocessing is not None and len(inputs.shape) == 2):  # features
            vectors = inputs[torch.arange(len(some))].float()
        else:
            check_kind(model, some)
            inputs = model.rows(inputs)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "an image that cannot be read")  # reported at the end
                vectors = model.encoder.encode(inputs)
        within = torch.arange(len(some))
        summary.lost |= {rows.tolist()[file.place]: file.name for file in unreadable(inputs, within)}
        could = readable(inputs, within)
        yield some[could], vectors[could]


def _encoded(model: Model, source: str | Path, progress: Progress) -> Features:
    read = _in_chunks(model, source, _Found(), progress, labelled=True)
    parts = [(samples.as_evaluated(), vectors) for samples, vectors in read]
    labels = [samples.labels for samples, _ in parts if samples.labels is not None]
    vectors = torch.cat([vectors for _, vectors in parts])
    return Features(vectors, torch.cat(labels) if labels else None, parts[0][0].names, part="train")


@final
class _Found:
    def __init__(self) -> None:
        self.lost: dict[int, str] = {}
        self._rows: list[list[str]] = []
        self._pairs: dict[bool, Counter[tuple[str, str]]] = {False: Counter(), True: Counter()}
        self._of_sets: bool | None = None
        self._unlike, self._trained_on, self.count, self._known = 0, 0, 0, False

    def show(self, columns: Mapping[str, Sequence[Any]]) -> None:
        if not self._rows:
            self._rows.append(list(columns))
        left = MAX_PRINTED_ROWS + 1 - len(self._rows)
        self._rows += [list(map(_format_cell, row)) for row in list(zip(*columns.values(), strict=True))[:left]]

    def compare(self, predictions: Predictions, samples: Samples) -> dict[str, list[Any]]:
        self.count += len(samples)
        if predictions.unlike_training is not None:
            self._known = True
            self._unlike += sum(predictions.unlike_training)
        seen = [False] * len(samples) if predictions.trained_on is None else predictions.trained_on.tolist()
        self._trained_on += sum(seen)
        if samples.labels is None:
            return {}
        truth = label_cells(samples.names, samples.labels)
        if (predictions.sets is None) == (samples.label_kind == "classes"):
            self._of_sets = predictions.sets is not None
            for target, prediction, trained in zip(truth, predictions.labels, seen, strict=True):
                self._pairs[trained].update(_decisions(target, prediction) if self._of_sets else [(target, prediction)])
        return {"label": truth}

    def lines(self) -> Iterator[str]:
        yield from aligned(self._rows) if self._rows else []
        if self.count > len(self._rows) - 1 > 0:
            yield f"... and {self.count - len(self._rows) + 1:,} more: --output photos.csv writes all"
        if self._trained_on:
            yield f"trained on: {self._trained_on:,} of {self.count:,}, by their features; they say nothing of new ones"
        suffixes = {True: " that it was trained on", False: " that are new to it"} if self._trained_on else {False: ""}
        for trained, suffix in suffixes.items():
            yield from [self._rightness(self._pairs[trained], suffix)] if self._pairs[trained] else []
        if pairs := self._pairs[False] + self._pairs[True]:
            wrong = [(pair, count) for pair, count in pairs.most_common() if pair[0] != pair[1]]
            rows = [[*pair, f"{count:,}"] for pair, count in wrong[:MAX_PRINTED_ROWS]]
            yield from aligned([["label", "predicted", "count"], *rows]) if wrong else []
            if len(wrong) > MAX_PRINTED_ROWS:
                yield f"... and {len(wrong) - MAX_PRINTED_ROWS:,} more kinds of mistakes"
        if self._known:
            share = f"{100 * self._unlike / max(1, self.count):.1f} %"
            yield f"unlike the training data: {self._unlike:,} of {self.count:,} ({share}; of data like it up to 5 %)"
        if self.lost:
            yield f"warning: {in_words(self.lost)}"

    def _rightness(self, pairs: Counter[tuple[str, str]], suffix: str) -> str:
        right = sum(count for (target, prediction), count in pairs.items() if target == prediction)
        total = pairs.total()
        low, high = (100 * end for end in wilson(right, total))
        what = "labels that a sample has or is predicted to have" if self._of_sets else "labelled samples"
        return f"right: {100 * right / total:.2f} % [{low:.1f}, {high:.1f}] of {total:,} {what}{suffix}"


def _decisions(targets: list[str], predictions: list[str]) -> list[tuple[str, str]]:
    either = dict.fromkeys([*targets, *predictions])
    return [(label if label in targets else "", label if label in predictions else "") for label in either]


def _format_cell(value: Any) -> str:
    if isinstance(value, list):
        return " + ".join(map(_format_cell, value))  # pyright: ignore[reportUnknownArgumentType]
    return f"{value:.3g}" if isinstance(value, float) else str(value)
