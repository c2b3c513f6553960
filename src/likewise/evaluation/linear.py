"""The linear probe: logistic regression along a path of penalties, the best chosen on validation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional

from likewise.evaluation.accuracy import accuracy
from likewise.evaluation.evaluation import Evaluation, needs_seen_labels
from likewise.evaluation.features import FeatureParts, Features, Progress, joined, silent
from likewise.evaluation.label_probe import LabelPath
from likewise.scores import Result, Score

PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
WIDEST = (1e-8, 1e3)  # where the path ends, whatever validation prefers
CHUNK = 2**14  # samples whose logits are in memory at a time
MOST_CONDITIONED = 4096  # features; with more, the D x D matrix of the preconditioner costs more than it saves
MOST_STEPS = 1000  # of a fit
SMALLEST = 1e-12
CONSTANT = 1e-6  # a feature that varies by less than this part of its mean is constant but for rounding


@final
class LinearProbe(Evaluation):
    """Fit logistic regression on standardised training features and predict the test part's classes or label sets.

        minimise  1/N Σ_i -log softmax(W x_i + b)_{y_i}  +  penalty/2 · ‖W‖²,   x standardised

    From the strongest penalty to the weakest, each fit starting at the one before. The penalty with the highest
    validation accuracy wins, the lower cross-entropy where accuracies are equal; if the first or last of the path is
    the most accurate of all, the path goes on beyond it by factors of 10.

    Label sets: a binary regression for each label instead, with a penalty of its own, for which its cross-entropy on
    validation is lowest. Thresholds are chosen on validation too, as `label_set_scores` says.

    Args:
        penalty: The penalty, per sample: 1/(C·N) for scikit-learn's C. None: chosen on validation.
        penalties: The path that is tried first.
        tolerance: A fit ends when its gap to the minimum, estimated as half the squared gradient in coordinates in
            which the Hessian is close to the identity, is at most this part of the objective.

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

    def __init__(
        self, penalty: float | None = None, penalties: Sequence[float] = PENALTIES, tolerance: float = 2e-3
    ) -> None:
        for name, value in (("penalty", penalty), ("tolerance", tolerance), *(("penalties", of) for of in penalties)):
            if value is not None and not value > 0:
                raise ValueError(f"expected {name} above 0, got {value}: 0.001 is a usual penalty and tolerance")
        if not penalties:
            raise ValueError("expected at least one of penalties, got none: leave them out for the usual path")
        self.penalty = penalty
        self.penalties = tuple(penalties)
        self.tolerance = tolerance

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        """Say why these parts can't be evaluated."""
        return needs_seen_labels(parts)

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Progress = silent) -> Result:
        """Choose the penalty on validation, and predict the test part."""
        train, validation, test = parts
        if test.label_kind == "label sets":
            penalties = self.penalties if self.penalty is None else (self.penalty,)
            path = LabelPath(penalties, self.tolerance)
            return path.evaluated(self.name, train, validation, test, refit=refit, progress=progress)
        chosen = self.choose(train, validation, refit=refit, progress=progress)
        found = accuracy(self.name, chosen.probe.predict(test.vectors), test, train.frequencies, chosen.settings)
        return Result(found.scores, chosen.candidates, found.outcomes)

    def choose(
        self, train: Features, validation: Features, *, refit: bool = False, progress: Progress = silent
    ) -> "Chosen":
        """Fit the path of penalties, and return the probe that is best on validation.

        Args:
            train: What is learned from.
            validation: What the penalty is chosen by.
            refit: Whether to fit once more to both parts, with the chosen penalty.
            progress: Wraps the fits.
        """
        tried = self._tried(train, validation, progress)
        best = max(tried, key=lambda one: one.rank)
        probe = best.probe
        if refit:
            probe = Fitting(joined(train, validation)).fit(best.penalty, self.tolerance, probe)
        candidates = tuple(one.found.headline[0] for one in tried if one.found is not None)
        return Chosen(best.penalty, probe, best.probe, candidates)

    def _tried(self, train: Features, validation: Features, progress: Progress) -> list["_Tried"]:
        """Fit the path of penalties, and beyond its ends while they are best."""
        fitting = Fitting(train)
        path = sorted(self.penalties, reverse=True) if self.penalty is None else [self.penalty]
        tried: list[_Tried] = []
        for penalty in progress(path, f"{self.name}, penalties"):
            probe = fitting.fit(penalty, self.tolerance, tried[-1].probe if tried else None)
            tried.append(_Tried.of(penalty, probe, train, validation))
        while self.penalty is None and len(validation):
            tried.sort(key=lambda one: -one.penalty)
            best = max(tried, key=lambda one: one.rank)
            further = best.penalty * (10 if best is tried[0] else 0.1)
            if len(tried) > 1 and best.rank[0] <= max(one.rank[0] for one in tried if one is not best):
                break  # no more accurate than another: further penalties would not be, either
            if (best is not tried[0] and best is not tried[-1]) or not WIDEST[0] <= further <= WIDEST[1]:
                break
            probe = fitting.fit(further, self.tolerance, best.probe)
            tried.append(_Tried.of(further, probe, train, validation))
        return tried


@final
@dataclass(frozen=True)
class Probe:
    """A linear classifier: logits = x W + b.

    Args:
        weight: W, (D, C).
        bias: b, (C,).
    """

    weight: Float[Tensor, "d c"]
    bias: Float[Tensor, " c"]

    def logits(self, vectors: Float[Tensor, "m d"]) -> Iterator[Float[Tensor, "chunk c"]]:
        """Yield the logits, some samples at a time, in float32 as the fit computed them."""
        weight, bias = self.weight.float(), self.bias.float()
        for chunk in vectors.split(CHUNK):
            yield torch.addmm(bias, chunk.float(), weight)

    def predict(self, vectors: Float[Tensor, "m d"]) -> Int[Tensor, " m"]:
        """Predict the classes, (M,)."""
        if len(vectors) == 0:
            return torch.empty(0, dtype=torch.int64)
        return torch.cat([logits.argmax(dim=1) for logits in self.logits(vectors)]).cpu()

    def cross_entropy(self, features: Features) -> float:
        """Return the mean cross-entropy."""
        labels = features.classes.to(self.weight.device).split(CHUNK)
        pairs = zip(self.logits(features.vectors), labels, strict=True)
        total = sum(float(functional.cross_entropy(logits, part, reduction="sum")) for logits, part in pairs)
        return total / max(1, len(features))


@final
@dataclass(frozen=True)
class Chosen:
    """The probe that is best on validation.

    Args:
        penalty: Its penalty.
        probe: The probe, fitted to the validation part too if a refit was asked for.
        held_out: The probe fitted to the training part only.
        candidates: The validation score of every penalty that was tried.
    """

    penalty: float
    probe: Probe
    held_out: Probe
    candidates: tuple[Score, ...]

    @property
    def settings(self) -> dict[str, float]:
        """The choice, as scores have it."""
        return _settings(self.penalty)


@final
@dataclass(frozen=True)
class _Tried:
    """A probe, and what validation says of it."""

    penalty: float
    probe: Probe
    found: Result | None
    rank: tuple[float, float]

    @classmethod
    def of(cls, penalty: float, probe: Probe, train: Features, validation: Features) -> "_Tried":
        """Ask validation."""
        if len(validation) == 0:
            return cls(penalty, probe, None, (0.0, 0.0))
        predictions = probe.predict(validation.vectors)
        found = accuracy(LinearProbe.name, predictions, validation, train.frequencies, _settings(penalty))
        return cls(penalty, probe, found, (found.scores[0].value, -probe.cross_entropy(validation)))


@final
class Fitting:
    """Fits of one training part, penalty after penalty: features standardised once, in float32.

    With X the standardised features, G = XᵀX/N and w the mean of p(1 - p) over samples and classes, the Hessian is
    close to w·G + penalty·I for each class. L-BFGS works in coordinates V = Lᵀ W, L Lᵀ = w·G + penalty·I, in which it
    is close to the identity: a fit takes tens of passes over the data instead of hundreds. Products with X are float32;
    what is of the size of W is float64.

    Args:
        train: The training part.
    """

    def __init__(self, train: Features) -> None:
        vectors = train.vectors.float()
        self._mean = vectors.mean(dim=0)
        self._inputs = vectors - self._mean
        squares = sum(chunk.square().sum(dim=0).double() for chunk in self._inputs.split(CHUNK))
        deviation = (torch.as_tensor(squares) / len(vectors)).sqrt().float()
        constant = deviation <= CONSTANT * self._mean.abs()
        if train.one_unit:
            deviation = deviation.square().mean().sqrt().expand_as(deviation)
        self._deviation = torch.where(constant, torch.ones_like(deviation), deviation)
        self._inputs.div_(self._deviation).masked_fill_(constant, 0)
        self._labels = train.classes.to(vectors.device)
        self._classes = len(train.names)
        self._gram = self._second_moment() if vectors.shape[1] <= MOST_CONDITIONED else None
        self._spread = (1 - 1 / self._classes) / self._classes  # at zero every class has the probability 1/C

    def fit(self, penalty: float, tolerance: float, start: Probe | None = None) -> Probe:
        """Minimise the objective for one penalty.

        Args:
            penalty: The penalty, per sample.
            tolerance: The gap at the end, as a part of the objective; see `LinearProbe`.
            start: Where to start; None: at zero.
        """
        width = self._inputs.shape[1]
        weight, bias = self._standardized(start)
        factor = self._factor(penalty)
        start_at = torch.cat([weight if factor is None else factor.T @ weight, bias.unsqueeze(0)])

        def weights(variables: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
            rows = torch.from_numpy(variables).view(width + 1, -1).to(self._inputs.device)
            return _solved(factor, rows[:width], transposed=True), rows[width]

        def objective(variables: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            loss, slope, offset, self._spread = self._objective(*weights(variables), penalty)
            slope = _solved(factor, slope)
            gap = 0.5 * float(slope.square().sum() + offset.square().sum() / max(self._spread, SMALLEST))
            if gap <= tolerance * float(loss):
                raise _ConvergedError(variables.copy())
            return float(loss), torch.cat([slope, offset.unsqueeze(0)]).flatten().cpu().numpy()

        options = {"gtol": 0, "ftol": 0, "maxiter": MOST_STEPS, "maxfun": 2 * MOST_STEPS}
        try:
            found = minimize(objective, start_at.flatten().cpu().numpy(), jac=True, method="L-BFGS-B", options=options)
        except _ConvergedError as converged:
            return self._probe(*weights(converged.variables))
        return self._probe(*weights(found.x))

    def _objective(self, weight: Tensor, bias: Tensor, penalty: float) -> tuple[Tensor, Tensor, Tensor, float]:
        """Return the objective, its gradient by W and b, and the mean of p(1 - p)."""
        count = len(self._inputs)
        loss = 0.5 * penalty * weight.square().sum()
        slope, offset, spread = penalty * weight, torch.zeros_like(bias), 0.0
        narrow, shift = weight.float(), bias.float()
        for inputs, labels in zip(self._inputs.split(CHUNK), self._labels.split(CHUNK), strict=True):
            logs = torch.addmm(shift, inputs, narrow).log_softmax(dim=1)
            loss -= logs.gather(1, labels.unsqueeze(1)).double().sum() / count
            away = logs.exp_()
            spread += float((1 - away.square().sum(dim=1)).double().sum()) / count
            away.scatter_add_(1, labels.unsqueeze(1), torch.full_like(labels, -1, dtype=away.dtype).unsqueeze(1))
            slope += (inputs.T @ away).double() / count
            offset += away.sum(dim=0).double() / count
        return loss, slope, offset, spread / self._classes

    def _factor(self, penalty: float) -> Tensor | None:
        """Return L, the Cholesky factor of the Hessian's approximation at the last fit, (D, D) float64."""
        if self._gram is None:
            return None
        matrix = self._spread * self._gram
        matrix.diagonal().add_(penalty)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        return None if int(failed) else factor

    def _second_moment(self) -> Tensor:
        total = self._inputs.new_zeros(self._inputs.shape[1], self._inputs.shape[1], dtype=torch.float64)
        for chunk in self._inputs.split(CHUNK):
            total += (chunk.T @ chunk).double() / len(self._inputs)
        return total

    def _standardized(self, start: Probe | None) -> tuple[Tensor, Tensor]:
        """Return W and b, float64, for standardised features."""
        mean, deviation = self._mean.double(), self._deviation.double()
        if start is None:
            weight = mean.new_zeros(len(mean), self._classes)
            return weight, weight.new_zeros(self._classes)
        weight = start.weight.double() * deviation.unsqueeze(1)
        return weight, start.bias.double() + mean @ start.weight.double()

    def _probe(self, weight: Tensor, bias: Tensor) -> Probe:
        """Return the classifier of features as they come."""
        weight = weight / self._deviation.double().unsqueeze(1)
        return Probe(weight, bias - self._mean.double() @ weight)


class _ConvergedError(Exception):
    """The gap is small enough."""

    def __init__(self, variables: NDArray[np.float64]) -> None:
        super().__init__()
        self.variables = variables


def _solved(factor: Tensor | None, values: Tensor, *, transposed: bool = False) -> Tensor:
    """Return L⁻¹ X, or L⁻ᵀ X; X where there is no L."""
    if factor is None:
        return values
    return torch.linalg.solve_triangular(factor.T if transposed else factor, values, upper=transposed)


def _settings(penalty: float) -> dict[str, float]:
    return {"penalty": penalty}
