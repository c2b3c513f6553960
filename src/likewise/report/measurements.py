"""What is measured of a run: features beside the raw inputs they were made of, by the same evaluations."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.data import Rows
from likewise.diagnostics import alignment, uniformity
from likewise.evaluation import Accuracy, Difference, Proportion, knn, linear, paired_difference

ENCODER = "encoder"
RAW = "raw inputs"
MOST_RAW = 2**22  # numbers; of larger raw inputs fewer samples are learnt from, or an hour goes by
EVALUATIONS: Mapping[str, Callable[..., Accuracy]] = {"kNN": knn, "linear probe": linear}


@final
@dataclass(frozen=True)
class Encoded:
    """Samples and what the encoder made of them.

    Args:
        features: (N, D).
        inputs: (N, ...), or what reads them.
        labels: Classes, (N,).
    """

    features: Float[Tensor, "n d"]
    inputs: Tensor | Rows
    labels: Int[Tensor, "n"]

    @property
    def kinds(self) -> dict[str, Float[Tensor, "n _"]]:
        """What is compared: the features, and the raw inputs as vectors, where they are in memory."""
        if not isinstance(self.inputs, Tensor):
            return {ENCODER: self.features}
        flat = self.inputs.flatten(1)
        return {ENCODER: self.features, RAW: flat if flat.is_floating_point() else flat.float() / 255}

    def fewer(self) -> "Encoded":
        """Return evenly spread samples, as many as raw inputs of that size can be learnt from in reasonable time."""
        count = max(1, MOST_RAW // max(1, math.prod(self.inputs.shape[1:])))
        if count >= len(self.labels):
            return self
        rows = torch.linspace(0, len(self.labels) - 1, count).long()
        return Encoded(self.features[rows], self.inputs[rows], self.labels[rows])


@final
@dataclass(frozen=True)
class Measurements:
    """Accuracies and geometry of the encoder's features and of the raw inputs, on the held-out samples.

    Args:
        accuracies: For each evaluation, for "encoder" and "raw inputs", the accuracy.
        geometry: For "alignment" and "uniformity", for "encoder" and "raw inputs", the value.
        class_names: The C names.
    """

    accuracies: Mapping[str, Mapping[str, Accuracy]]
    geometry: Mapping[str, Mapping[str, float]]
    class_names: tuple[str, ...]

    @property
    def differences(self) -> dict[str, Difference]:
        """For each evaluation, the encoder's accuracy less that of the raw inputs, paired by sample."""
        compared = {name: both for name, both in self.accuracies.items() if RAW in both}
        return {name: paired_difference(both[ENCODER], both[RAW]) for name, both in compared.items()}

    def as_json(self) -> dict[str, Any]:
        """Return everything as numbers and words, ready for json.dump."""
        accuracies = {
            name: {
                kind: {
                    **_share(accuracy.overall),
                    "per_class": {self.class_names[c]: _share(share) for c, share in accuracy.per_class.items()},
                }
                for kind, accuracy in both.items()
            }
            for name, both in self.accuracies.items()
        }
        differences = {name: asdict(difference) for name, difference in self.differences.items()}
        return {
            "intervals": "95 %; accuracies: Wilson; differences: Agresti and Min, paired by sample",
            "accuracy": accuracies,
            "encoder_less_raw_inputs": differences,
            **{name: {kind: _number(value) for kind, value in both.items()} for name, both in self.geometry.items()},
        }

    def table(self) -> list[tuple[str, ...]]:
        """Return overall and per-class accuracies as rows of words, the first of them the heads of the columns."""
        columns = [(name, kind) for name, both in self.accuracies.items() for kind in both]
        rows: list[tuple[str, ...]] = [("", *(f"{name}, {kind}" for name, kind in columns))]
        rows.append(("all", *(_words(self.accuracies[name][kind].overall) for name, kind in columns)))
        for label in self.accuracies[columns[0][0]][columns[0][1]].per_class:
            shares = [self.accuracies[name][kind].per_class[label] for name, kind in columns]
            rows.append((f"class {self.class_names[label]}", *map(_words, shares)))
        return rows


def measure(train: Encoded, test: Encoded, class_names: tuple[str, ...]) -> Measurements:
    """Evaluate features and raw inputs alike; of large raw inputs, evenly spread samples are learnt from.

    Args:
        train: The training samples, which evaluations learn from.
        test: The held-out samples, which they are judged by.
        class_names: The C names.

    Returns:
        The measurements.

    Raises:
        ValueError: Features and labels do not fit together, or are not finite.

    Example:
        >>> import torch
        >>> inputs, labels = torch.eye(2).repeat(3, 1), torch.tensor([0, 1]).repeat(3)
        >>> samples = Encoded(inputs, inputs, labels)
        >>> measure(samples, samples, ("cat", "dog")).accuracies["kNN"]["encoder"].overall.value
        1.0
    """
    few, judged = train.fewer(), test.kinds
    learnt = {kind: (few.kinds[RAW], few.labels) if kind == RAW else (train.features, train.labels) for kind in judged}
    accuracies = {
        name: {kind: evaluate(*learnt[kind], rows, test.labels) for kind, rows in judged.items()}
        for name, evaluate in EVALUATIONS.items()
    }
    spread = test.fewer()
    shown = {
        kind: (spread.kinds[RAW], spread.labels) if kind == RAW else (test.features, test.labels) for kind in judged
    }
    geometry = {
        "alignment": {kind: alignment(*both) for kind, both in shown.items()},
        "uniformity": {kind: uniformity(rows) for kind, (rows, _) in shown.items()},
    }
    return Measurements(accuracies, geometry, class_names)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows no NaN


def _share(share: Proportion) -> dict[str, Any]:
    return {"value": share.value, "interval": share.interval, **asdict(share)}


def _words(share: Proportion) -> str:
    low, high = share.interval
    return f"{100 * share.value:.2f} % [{100 * low:.1f}, {100 * high:.1f}]"
