"""Logistic regression of every label at once: the labels share each pass over the data, and converge on their own."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.evaluation.column_search import ColumnSearch

LOGITS = 2**23  # in memory at a time: 32 MiB in float32
CONSTANT = 1e-6  # a feature that varies by less than this part of its mean is constant but for rounding
MOST_ROTATED = 4096  # features; with more, the components of the D x D matrix cost more than the passes they save
MOST_PASSES = 500  # over the data, of a fit
SMALLEST = 1e-12


@final
@dataclass(frozen=True)
class LabelProbes:
    """A linear classifier for each label: P(label l | x) = sigmoid(x W_l + b_l).

    Args:
        weight: W, (D, L).
        bias: b, (L,).
    """

    weight: Float[Tensor, "d l"]
    bias: Float[Tensor, " l"]

    def logits(self, vectors: Float[Tensor, "m d"]) -> Float[Tensor, "m l"]:
        """Return the logits of every label, (M, L), float32 on the CPU."""
        weight, bias = self.weight.float(), self.bias.float()
        rows = max(1, LOGITS // max(1, len(bias)))
        return torch.cat([torch.addmm(bias, some.float(), weight).cpu() for some in vectors.split(rows)])

    def replaced(self, other: "LabelProbes", labels: Bool[Tensor, " l"]) -> "LabelProbes":
        """Return these classifiers, with the other's for some labels."""
        return LabelProbes(torch.where(labels, other.weight, self.weight), torch.where(labels, other.bias, self.bias))


@final
class LabelFitting:
    """Fits of one training part, penalty after penalty: features standardised and rotated once, in float32.

    For each label, with y_i of 0 or 1:

        minimise  1/N Σ_i BCE(x_i w + b, y_i)  +  penalty/2 · ‖w‖²,   x standardised

    In the basis of the principal components, XᵀX/N is diagonal, Λ, and with c the mean of p(1 - p) the Hessian of a
    label is close to diag(c·Λ + penalty). L-BFGS takes place in coordinates scaled by the square root of that, so that
    rare labels need no more passes than others. More than 4,096 features are not rotated.

    Args:
        vectors: Features of the training part, (N, D).
        labels: Label sets, (N, L), boolean. A label that n = 0 or n = N samples have is predicted with the constant
            probability (n + 0.5)/(N + 1).
        one_unit: See `Features`.

    Memory:
        The features once more in float32, O(min(D, 4096)² + D·L), and 2²³ logits.

    Example:
        >>> vectors, labels = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([[0, 1], [0, 1], [1, 1], [1, 1]])
        >>> probes = LabelFitting(vectors, labels.bool()).fit(0.01, 1e-4)
        >>> (probes.logits(vectors) > 0).long().tolist()
        [[0, 1], [0, 1], [1, 1], [1, 1]]
    """

    def __init__(self, vectors: Float[Tensor, "n d"], labels: Bool[Tensor, "n l"], *, one_unit: bool = False) -> None:
        inputs = vectors.float()
        self._mean = inputs.mean(dim=0)
        inputs = inputs - self._mean
        deviation = inputs.double().square().mean(dim=0).sqrt().float()
        constant = deviation <= CONSTANT * self._mean.abs()
        if one_unit:
            deviation = deviation.square().mean().sqrt().expand_as(deviation)
        self._deviation = torch.where(constant, torch.ones_like(deviation), deviation)
        inputs.div_(self._deviation).masked_fill_(constant, 0)
        if inputs.shape[1] <= MOST_ROTATED:
            variances, self._basis = torch.linalg.eigh((inputs.T @ inputs).double() / len(inputs))
            self._variances = variances.clamp(min=0)
            self._inputs = inputs @ self._basis.float()
        else:
            self._basis, self._inputs = None, inputs
            self._variances = inputs.square().mean(dim=0).double()
        self._labels = labels.to(inputs.device)
        counts = self._labels.sum(dim=0).double()
        prior = (counts + 0.5) / (len(inputs) + 1)
        self._prior = prior.logit()
        self._spread = prior * (1 - prior)
        self._vary = (counts > 0) & (counts < len(inputs))

    def fit(
        self,
        penalty: float | Float[Tensor, " l"],
        tolerance: float,
        start: LabelProbes | None = None,
        labels: Bool[Tensor, " l"] | None = None,
    ) -> LabelProbes:
        """Minimise the objective of every label.

        Args:
            penalty: The penalty, per sample: one for all labels, or one for each, (L,).
            tolerance: A label has converged when its gap to the minimum, estimated as half the squared gradient in
                scaled coordinates, is at most this part of its objective.
            start: Where to start. None: at zero.
            labels: Which labels to fit, (L,); the others stay where they start. None: all.
        """
        penalties = torch.as_tensor(penalty, dtype=torch.float64, device=self._mean.device).expand_as(self._prior)
        found = self._rotated(start)
        left = (self._vary if labels is None else self._vary & labels).nonzero().flatten()
        scale = self._scale(penalties)
        search = ColumnSearch(found[:, left] * scale[:, left])
        for _ in range(MOST_PASSES):
            if len(left) == 0:
                break
            loss, slope = self._objective(search.points / scale[:, left], left, penalties[left])
            taken = search.tell(loss, slope / scale[:, left])
            gap = 0.5 * (slope / self._scale(penalties)[:, left]).square().sum(dim=0)
            converged = taken & (gap <= tolerance * loss)
            found[:, left] = search.best / scale[:, left]
            left = left[~converged]
            search.keep(~converged)
        return self._probes(found)

    def _scale(self, penalties: Tensor) -> Float[Tensor, "d_and_1 l"]:
        """Return the square root of the Hessian's diagonal, as the spread of the last pass has it."""
        hessian = torch.cat([self._variances.unsqueeze(1) * self._spread + penalties, self._spread.unsqueeze(0)])
        return hessian.clamp(min=SMALLEST).sqrt()

    def _objective(self, points: Tensor, left: Int[Tensor, " a"], penalties: Tensor) -> tuple[Tensor, Tensor]:
        """Return the objective of some labels, (A,), and its gradient by w and b, (D + 1, A)."""
        weight, bias = points[:-1], points[-1]
        narrow, shift = weight.float(), bias.float()
        loss = 0.5 * penalties * weight.square().sum(dim=0)
        slope = torch.cat([penalties * weight, torch.zeros_like(bias).unsqueeze(0)])
        spread = torch.zeros_like(bias)
        rows, count = max(1, LOGITS // len(left)), len(self._inputs)
        for inputs, labels in zip(self._inputs.split(rows), self._labels.split(rows), strict=True):
            targets = labels[:, left].float()
            logits = torch.addmm(shift, inputs, narrow)
            loss += (
                functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(0).double() / count
            )
            probabilities = logits.sigmoid_()
            spread += (probabilities * (1 - probabilities)).sum(dim=0).double() / count
            away = probabilities.sub_(targets)
            slope[:-1] += (inputs.T @ away).double() / count
            slope[-1] += away.sum(dim=0).double() / count
        self._spread[left] = spread
        return loss, slope

    def _rotated(self, start: LabelProbes | None) -> Float[Tensor, "d_and_1 l"]:
        """Return w and b, float64, for standardised and rotated features."""
        mean, deviation = self._mean.double(), self._deviation.double()
        if start is None:
            weight = mean.new_zeros(len(mean), len(self._prior))
            return torch.cat([weight, self._prior.unsqueeze(0)])
        weight = start.weight.double() * deviation.unsqueeze(1)
        weight = weight if self._basis is None else self._basis.T @ weight
        return torch.cat([weight, (start.bias.double() + mean @ start.weight.double()).unsqueeze(0)])

    def _probes(self, found: Float[Tensor, "d_and_1 l"]) -> LabelProbes:
        """Return the classifiers of features as they come."""
        weight = found[:-1] if self._basis is None else self._basis @ found[:-1]
        weight = weight / self._deviation.double().unsqueeze(1)
        return LabelProbes(weight, found[-1] - self._mean.double() @ weight)
