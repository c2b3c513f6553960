"""The linear probe: logistic regression with the best penalty on validation, and its predictor."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from likewise.evaluation.evaluation import Evaluation, needs_seen_labels
from likewise.evaluation.features import Bar, FeatureParts, Features, joined, labelled_validation, silent
from likewise.evaluation.logistic_regression import LinearClassifier, LogisticRegression
from likewise.evaluation.predictions import Predicted, Predictor, score_predictions, selecting_score
from likewise.runs.scores import ENCODER, Result, Score

PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
PENALTY_RANGE = (1e-8, 1e3)  # limits of the path, whatever validation prefers
LABEL_PENALTY_RANGE = (1e-6, 1e3)  # weaker penalties take hundreds of passes
MIN_LABEL_SAMPLES = 5  # samples of a label in validation; with fewer, it takes the choices for all labels
MAX_TEMPERATURE = 20.0  # temperatures lie between 1/20 and 20
COSINE_TEMPERATURE = 0.1  # of cosines without a labelled validation part
SCORING_BATCH = 2**14  # samples scored at a time
MAX_TRAINING_SCORES = 2**27  # scores (samples · classes) kept for the training part, 512 MiB
SAVED_FIELDS = ("by", "names", "width", "temperature", "probabilities", "few", "settings")
Logits = Callable[[], Iterable[tuple[slice, Tensor]]]
"""A function that yields slices of samples and their logits, (m, C), from the start in each call."""


@final
class LinearProbe(Evaluation):
    """Fit logistic regression on standardised training features and predict the test part's classes or label sets.

        minimise  1/N Σ_i -log softmax(x_i W + b)_{y_i}  +  penalty/2 · ‖W‖²,   x standardised

    The penalty with the highest validation accuracy wins; ties go to the lower cross-entropy. If the first or last of
    the path is the most accurate of all, the path continues beyond it by factors of 10.

    Label sets have a binary regression for each label instead, with the penalty of the label's lowest cross-entropy on
    validation, or, if fewer than 5 validation samples have the label, or fewer than 5 don't, of the lowest mean over
    all labels. Thresholds are chosen on validation too; see `label_set_scores`.

    Args:
        penalty: The penalty, per sample: 1/(C·N) for scikit-learn's C. None: chosen on validation.
        penalties: The penalties to try first.
        tolerance: A fit ends when its estimated gap to the minimum is at most this fraction of the objective.

    Raises:
        ValueError: A penalty or the tolerance isn't positive.

    Memory:
        The standardised features once more, and O(D² + D·C).

    Example:
        >>> train = Features(torch.tensor([[1.0], [2.0], [5.0], [6.0]]), torch.tensor([0, 0, 1, 1]), part="train")
        >>> test = Features(torch.tensor([[0.0], [7.0]]), torch.tensor([0, 1]))
        >>> LinearProbe()(train, test, test).scores[0].value
        1.0
    """

    name: ClassVar[str] = "linear probe"
    accelerated: ClassVar[bool] = True

    def __init__(
        self, penalty: float | None = None, penalties: Sequence[float] = PENALTIES, tolerance: float = 2e-3
    ) -> None:
        for name, values in (("penalty", [penalty]), ("tolerance", [tolerance]), ("penalties", penalties)):
            if wrong := [value for value in values if value is not None and not value > 0]:
                raise ValueError(f"expected {name} above 0, got {wrong[0]}")
        if not penalties:
            raise ValueError("expected at least one of penalties, got none: leave them out for the usual path")
        self.penalty = penalty
        self.penalties = tuple(penalties)
        self.tolerance = tolerance

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        return needs_seen_labels(parts)

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        train, validation, test = parts
        chosen = self.choose(train, validation, refit=refit, progress=progress)
        validation_predictions = predicted_by(chosen.held_out, labelled_validation(validation))
        predicted = predicted_by(chosen.probe, test)
        result = score_predictions(self.name, predicted, validation_predictions, train.frequencies, chosen.settings)
        is_multilabel = (
            test.label_kind == "label sets" and len(validation_predictions.features) > 0
        )  # each label with its own penalty
        label_scores = (selecting_score(self.name, validation_predictions, chosen.settings),) if is_multilabel else ()
        result = replace(result, candidates=(*chosen.candidates, *label_scores))
        if train.kind != ENCODER:
            return result
        width, held_out = train.vectors.shape[1], validation_predictions.features
        made = LinearPredictor(self.name, train.names, width, chosen.probe, settings=chosen.settings)
        return replace(result, predictor=made.calibrated(partial(chosen.held_out.chunks, held_out.vectors), held_out))

    def choose(self, train: Features, validation: Features, *, refit: bool = False, progress: Bar = silent) -> "Chosen":
        """Fit the path of penalties, and return the best probe on validation, fitted to both parts for a refit."""
        labelled = labelled_validation(validation)
        penalties = sorted(self.penalties, reverse=True) if self.penalty is None else [self.penalty]
        tried = iter(progress(penalties, f"{self.name}, penalties"))
        path = _Path(self.tolerance, train, labelled, next(tried))
        for penalty in tried:
            path.try_next(penalty)
        if self.penalty is None and len(labelled):
            path.go_on(penalties[0], 10)
            path.go_on(penalties[-1], 0.1)
        probe = path.probe
        if refit:
            probe = LogisticRegression(joined(train, validation)).fit(path.penalties, self.tolerance, probe)
        candidates = sorted(path.candidates, key=lambda score: -score.settings["penalty"])
        return Chosen(path.penalties, probe, path.probe, tuple(candidates))


@final
@dataclass(frozen=True)
class Chosen:
    """The best probe on validation, with its penalty, (1,), or one penalty per label, (L,).

    `held_out` is fitted to the training part only, `probe` also to the validation part after a refit.
    """

    penalties: Float[Tensor, " p"]
    probe: LinearClassifier
    held_out: LinearClassifier
    candidates: tuple[Score, ...]

    @property
    def settings(self) -> dict[str, float | str]:
        """The chosen penalty, or the range over the labels, as recorded in scores."""
        low, middle, high = (float(self.penalties.quantile(share, interpolation="nearest")) for share in (0, 0.5, 1))
        return {"penalty": low if low == high else f"{low:.6g} to {high:.6g}, median {middle:.6g}"}


@final
class _Path:
    """Fits along a path of penalties, and the best probe on validation, for all classes or for each label."""

    def __init__(self, tolerance: float, train: Features, validation: Features, penalty: float) -> None:
        self._of_classes = train.label_kind == "classes"
        self._regression = LogisticRegression(train)
        self._tolerance = tolerance
        self._validation = validation
        self._range = PENALTY_RANGE if self._of_classes else LABEL_PENALTY_RANGE
        self._rare = torch.zeros(1, dtype=torch.bool)
        if not self._of_classes:
            counts = validation.sets.sum(dim=0)
            self._rare = (counts < MIN_LABEL_SAMPLES) | (len(validation) - counts < MIN_LABEL_SAMPLES)
        self.candidates: list[Score] = []
        self.probe = self._last = self._regression.fit(penalty, tolerance)
        self.penalties = torch.full(self._rare.shape, penalty, dtype=torch.float64)
        self._best = torch.full((2, len(self._rare)), -torch.inf, dtype=torch.float64)  # in the form of `_ranks`
        self._alone = torch.ones_like(self._rare)  # whether no other penalty is as good
        self._compare(penalty, self._last)

    def try_next(self, penalty: float) -> None:
        self._last = self._regression.fit(penalty, self._tolerance, self._last)
        self._compare(penalty, self._last)

    def go_on(self, edge: float, factor: float) -> None:
        """Continue beyond an end of the path while it alone is best, with the labels it is best for."""
        while bool((columns := self._alone & (self.penalties == edge)).any()):
            edge *= factor
            if not self._range[0] <= edge <= self._range[1]:
                return
            fitted = None if self._of_classes or bool((columns & self._rare).any()) else columns
            self._compare(edge, self._regression.fit(edge, self._tolerance, self.probe, fitted), columns)

    def _compare(self, penalty: float, probe: LinearClassifier, columns: Bool[Tensor, " p"] | None = None) -> None:
        ranks, each = self._ranks(probe), torch.ones_like(self._rare) if columns is None else columns
        higher, same = ranks[0] > self._best[0], ranks[0] == self._best[0]
        better = each & (higher | (same & (ranks[1] > self._best[1])))
        self.penalties = torch.where(better, penalty, self.penalties)
        self.probe = self.probe.replaced(probe, better)
        self._best = torch.where(better, ranks, self._best)
        self._alone = torch.where(each & (higher | same), higher, self._alone)
        if len(self._validation) and (columns is None or self._of_classes):
            predicted = predicted_by(probe, self._validation)
            self.candidates.append(selecting_score(LinearProbe.name, predicted, {"penalty": penalty}))

    def _ranks(self, probe: LinearClassifier) -> Float[Tensor, "2 p"]:
        """Return the score for choosing the penalty, higher for better ones, and the tie-breaker."""
        part = self._validation
        if not self._of_classes:
            logits, sets = probe.logits(part.vectors).double(), part.sets.double()
            losses = functional.binary_cross_entropy_with_logits(logits, sets, reduction="none").sum(dim=0)
            losses = losses / max(1, len(part))
            losses = torch.where(self._rare, losses.mean(), losses)  # the mean is over all labels
            return torch.stack([-losses, torch.zeros_like(losses)])
        right, loss = 0.0, 0.0
        for rows, logits in probe.chunks(part.vectors):
            right += int((logits.argmax(dim=1) == part.classes[rows]).sum())
            loss += float(functional.cross_entropy(logits, part.classes[rows], reduction="sum"))
        return torch.tensor([[right], [-loss]], dtype=torch.float64) / max(1, len(part))


def predicted_by(probe: LinearClassifier, part: Features) -> Predicted:
    """Return a probe's predicted classes, or its probabilities of labels."""
    of_classes = part.label_kind == "classes"
    return Predicted(probe.predict(part.vectors) if of_classes else probe.logits(part.vectors).sigmoid(), part)


@final
@dataclass(frozen=True, repr=False)
class LinearPredictor(Predictor):
    """A predictor by a linear classifier on features or on a head's embeddings; a run keeps it in a file.

        classes:     softmax((x W + b) / temperature)
        label sets:  sigmoid(x W + b), or x W + b where these are cosines

    W and b apply to unscaled features: a probe's include its standardisation. With a head, x is its normalised
    embedding. The temperature is from `temperature_of`, and `settings` holds choices such as the penalty.
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
        """Add the logits, or cosines, to features, except to a large training part, whose logits are never read."""
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
        """Choose the temperature of classes, or the thresholds of labels, on validation; without samples, the default.

        The logits, or cosines, of the validation samples are from a classifier not fitted to them.
        """
        if validation.label_kind == "label sets":
            scores = torch.cat([torch.empty(0, len(self.names)), *(some for _, some in logits())])
            scores = scores.sigmoid() if self.probabilities else scores
            return self._with_thresholds(scores, validation)
        if len(validation) == 0:
            return self if self.head is None else replace(self, temperature=COSINE_TEMPERATURE)
        return replace(self, temperature=temperature_of(logits, validation.classes))

    def to_bytes(self) -> bytes:
        """Return the content of the safetensors file: weight (D, C), bias (C,), thresholds (L,), head.*, metadata."""
        from safetensors.torch import save  # noqa: PLC0415 - optional dependency

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
        """Read a predictor from its file; `head` makes the head, if there is one, before loading its weights."""
        from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - optional dependency

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


def temperature_of(logits: Logits, classes: Int[Tensor, " v"]) -> float:
    """Return the temperature from 1/20 to 20 that calibrates the logits of validation samples.

        minimise  (1 - ε)·mean_i -log p_{i, y_i}  +  ε·mean_i -log p_{i, z_i},   p_i = softmax(logits_i / temperature)

    y_i is sample i's class, z_i the most likely other one, and ε = 1/(2n + 2) for n samples: half a sample in n + 1 is
    assumed to be wrong. Otherwise a few samples that all happen to be right would make every probability 1. The logits
    are from a classifier not fitted to these samples.

    Sources: C. Guo et al., On Calibration of Modern Neural Networks, 2017; for targets below 1, J. C. Platt,
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
