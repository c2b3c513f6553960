"""Predictors of classes or label sets from features: a linear classifier, saved with a run, and nearest neighbours."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from likewise.evaluation.features import Features
from likewise.evaluation.knn import KNN, TEMPERATURE, Weights
from likewise.evaluation.logistic_regression import LinearClassifier
from likewise.evaluation.predictions import Predicted, Thresholds

MAX_TEMPERATURE = 20.0  # temperatures lie between 1/20 and 20
SAVED_FIELDS = ("by", "names", "width", "temperature", "probabilities", "few", "settings")
Logits = Callable[[], Iterable[tuple[slice, Tensor]]]
"""Yields some samples at a time and their logits, (m, C), anew in each call."""
SCORING_BATCH = 2**14  # samples that are scored at a time
MAX_TRAINING_SCORES = 2**27  # scores (samples · classes) kept for the training part, 512 MiB
MIN_LABEL_PROBABILITY = 0.05  # of a label that is given
COSINE_TEMPERATURE = 0.1  # of cosines, where no validation part chooses one


@dataclass(frozen=True)
class Predictor(ABC):
    """Abstract: predicts the classes or label sets of new features.

    Args:
        by: Name of the predictor, such as "linear probe".
        names: The classes or labels, C of them.
        width: The length of a feature vector.
        thresholds: Above which scores labels are predicted, (L,); None for classes.
        probabilities: Whether its scores are probabilities: of classes they are.
        few: How many labels share a common threshold, as validation has fewer than 5 samples of each.
    """

    by: str
    names: tuple[str, ...]
    width: int
    thresholds: Float[Tensor, " l"] | None = field(default=None, kw_only=True)
    probabilities: bool = field(default=True, kw_only=True)
    few: int = field(default=0, kw_only=True)

    def __str__(self) -> str:
        return self.by

    @property
    def limits(self) -> Float[Tensor, " l"] | None:
        """The scores above which labels are given, (L,): thresholds, no probability below `MIN_LABEL_PROBABILITY`."""
        limits = self.thresholds
        return limits.clamp(min=MIN_LABEL_PROBABILITY) if limits is not None and self.probabilities else limits

    def scores(self, vectors: Float[Tensor, "m d"]) -> Float[Tensor, "m c"]:
        """Return the probability of each class, (M, C), which sum to 1, or the score of each label, (M, L)."""
        if vectors.ndim != 2 or vectors.shape[1] != self.width:
            got = f"got {tuple(vectors.shape)}: encode the inputs with the encoder of this run"
            raise ValueError(f"expected features (M, {self.width}), as the {self.by} learned from, {got}")
        return self._scores(vectors)

    @abstractmethod
    def _scores(self, vectors: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True, repr=False)
class LinearPredictor(Predictor):
    """Predicts by a linear classifier, of features or of a head's embeddings; a run keeps it in a file.

        classes:     softmax((x W + b) / temperature)
        label sets:  sigmoid(x W + b), or x W + b where these are cosines

    W and b are for features as they come: a probe's hold its standardisation. Where there is a head, x is its embedding
    of length 1. The temperature is that of `temperature_of`, and settings are what was chosen, such as the penalty.
    """

    classifier: LinearClassifier
    temperature: float = 1.0
    head: nn.Module | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    def __repr__(self) -> str:
        label_kind = "labels" if self.thresholds is not None else "classes"
        return f"LinearPredictor({self.by}: {len(self.names):,} {label_kind})"

    @torch.no_grad()
    def logits(self, vectors: Float[Tensor, "m d"]) -> Float[Tensor, "m c"]:
        """Return the logits, or cosines, (M, C)."""
        rows = vectors.float() if self.head is None else functional.normalize(self.head(vectors.float()))
        return self.classifier.logits(rows)

    def with_predictions(self, features: Features) -> Features:
        """Add the logits, or cosines, to features; not to a large training part, whose logits nothing reads."""
        if features.part == "train" and len(features) * len(self.names) > MAX_TRAINING_SCORES:
            return features
        scores = [torch.empty(0, len(self.names)), *map(self.logits, features.vectors.split(SCORING_BATCH))]
        return replace(features, predictions=torch.cat(scores), logits=self.head is None)

    def _scores(self, vectors: Tensor) -> Tensor:
        logits = self.logits(vectors)
        if self.thresholds is None:
            return (logits.double() / self.temperature).softmax(dim=1)
        return logits.sigmoid() if self.probabilities else logits

    def calibrated(self, logits: Logits, validation: Features) -> "LinearPredictor":
        """Choose the temperature of classes, or the thresholds of labels, on validation; without samples the default.

        The logits, or cosines, are those of the validation samples, by a classifier that has not learned from them.
        """
        if validation.label_kind == "label sets":
            scores = torch.cat([torch.empty(0, len(self.names)), *(some for _, some in logits())])
            scores = scores.sigmoid() if self.probabilities else scores
            chosen = Thresholds.choose(Predicted(scores, validation, self.probabilities))
            return replace(self, thresholds=chosen.to_predict, few=int(chosen.few.sum()))
        if len(validation) == 0:
            return self if self.head is None else replace(self, temperature=COSINE_TEMPERATURE)
        return replace(self, temperature=temperature_of(logits, validation.classes))

    def to_bytes(self) -> bytes:
        """Return the content of its file, safetensors: weight (D, C), bias (C,), thresholds (L,), head.*, metadata."""
        from safetensors.torch import save  # noqa: PLC0415 - of an extra

        tensors = {"weight": self.classifier.weight.float(), "bias": self.classifier.bias.float()}
        if self.thresholds is not None:
            tensors["thresholds"] = self.thresholds.double()
        for name, tensor in ({} if self.head is None else self.head.state_dict()).items():
            tensors[f"head.{name}"] = tensor
        facts = {name: getattr(self, name) for name in SAVED_FIELDS}
        facts["head"] = None if self.head is None else "none" if isinstance(self.head, nn.Identity) else "head"
        kept = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        return save(kept, {"likewise": json.dumps(facts)})

    @classmethod
    def load(cls, path: Path, head: Callable[[], nn.Module]) -> "LinearPredictor":
        """Read it from its file; `head` makes the head, if there is one, whose weights are then loaded."""
        from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - of an extra

        try:
            with safe_open(path, "pt") as file:
                tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                facts = json.loads(file.metadata()["likewise"])
            if facts["head"] is not None:
                facts["head"] = head().eval() if facts["head"] == "head" else nn.Identity()
                weights = {name: tensor for name, tensor in tensors.items() if name.startswith("head.")}
                facts["head"].load_state_dict({name.removeprefix("head."): weights[name] for name in weights})
            facts["names"] = tuple(facts["names"])
            classifier = LinearClassifier(tensors["weight"], tensors["bias"])
            return cls(**facts, classifier=classifier, thresholds=tensors.get("thresholds"))
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"expected a classifier in {path}, got {reason}: evaluate the run again") from error


@final
@dataclass(frozen=True, repr=False)
class NeighbourPredictor(Predictor):
    """Predicts by the share of the votes of the k nearest training samples, as `KNN` does.

        score_c = Σ_{j ∈ k nearest, c ∈ y_j} w_j / Σ_{j ∈ k nearest} w_j,   w_j = 1 or exp(s_j/temperature)

    Training sample j has the class, or the labels, y_j.
    """

    train: Features
    k: int
    weights: Weights
    temperature: float = TEMPERATURE

    @classmethod
    def of(
        cls, train: Features, k: int, weights: Weights, temperature: float = TEMPERATURE,
        validation: Features | None = None,
    ) -> "NeighbourPredictor":  # fmt: skip
        """Make it, and choose thresholds of labels on validation samples, which are not among those that vote."""
        made = cls(KNN.name, train.names, train.vectors.shape[1], train, min(k, len(train)), weights, temperature)
        if train.label_kind == "classes":
            return made
        some = train[torch.arange(0)] if validation is None else validation
        scores = made.scores(some.vectors)
        chosen = Thresholds.choose(Predicted(scores, some))
        return replace(made, thresholds=chosen.to_predict, few=int(chosen.few.sum()))

    def __repr__(self) -> str:
        return f"NeighbourPredictor({self.k} of {len(self.train):,}, {self.weights})"

    def __str__(self) -> str:
        return f"the nearest {self.k} of {len(self.train):,} samples"

    def _scores(self, vectors: Tensor) -> Tensor:
        knn, scores = KNN(temperature=self.temperature), [torch.zeros(0, len(self.names))]
        for _, _, votes in knn.votes(self.train, vectors.float(), [self.k], [self.weights]):
            shares = votes / votes.sum(dim=1, keepdim=True) if self.train.label_kind == "classes" else votes
            scores.append(shares.cpu())
        return torch.cat(scores)


def temperature_of(logits: Logits, classes: Int[Tensor, " v"]) -> float:
    """Return the temperature from 1/20 to 20 that calibrates the logits of validation samples.

        minimise  (1 - ε)·mean_i -log p_{i, y_i}  +  ε·mean_i -log p_{i, z_i},   p_i = softmax(logits_i / temperature)

    y_i is sample i's class, z_i the likeliest other one, and ε = 1/(2n + 2) for n samples: half a sample in n + 1 is
    taken to be wrong. Otherwise a few samples that all happen to be right would make every probability 1. The logits
    are those of a classifier that has not learned from these samples.

    Sources: C. Guo et al., On Calibration of Modern Neural Networks, 2017; that no target is 1, J. C. Platt,
    Probabilistic Outputs for Support Vector Machines, 1999, with Jeffreys' half a sample instead of one.
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 - takes a second to import

    epsilon = 1 / (2 * len(classes) + 2)

    def loss(logarithm: float) -> float:
        total = 0.0
        for rows, some in logits():
            logs, targets = (some.double() / math.exp(logarithm)).log_softmax(dim=1), classes[rows].unsqueeze(1)
            other = logs.scatter(1, targets, -torch.inf).amax(dim=1)
            total -= float((1 - epsilon) * logs.gather(1, targets).sum() + epsilon * other.sum())
        return total / len(classes)

    most = math.log(MAX_TEMPERATURE)
    optimum = minimize_scalar(loss, bounds=(-most, most), method="bounded", options={"xatol": 1e-4})
    return math.exp(float(optimum.x))
