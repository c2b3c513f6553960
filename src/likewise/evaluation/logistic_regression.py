"""Logistic regression on frozen features, for classes, for labels, and for many episodes at once, by one solver."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.evaluation.features import Features

LOGITS = 2**23  # in memory at a time: 32 MiB in float32
MIN_VARIATION = 1e-6  # of a feature, relative to its mean; below it, a feature is constant except for rounding
MAX_ROTATED_FEATURES = 4096  # with more, the components of the D x D matrix cost more than the passes they save
MAX_PASSES = 500  # over the data in one fit
MIN_HESSIAN = 1e-12  # on its diagonal
EPISODE_TOLERANCE = 1e-11  # gap to the minimum of an episode's fit, relative to its objective
HISTORY = 8  # steps that L-BFGS remembers
MAX_HISTORY_NUMBERS = 2**26  # in these steps, 512 MiB in float64; with more, everything is float32
MIN_HISTORY = 5  # steps kept in any case: with 3, fits ended twice as far from the minimum
MIN_DECREASE = 1e-4  # of the decrease predicted by the slope, needed to take a step
MIN_PRODUCT = 1e-30  # of a product in L-BFGS


@final
class ColumnSearch:
    """L-BFGS on many functions at once, f_1(x_1), …, f_C(x_C), each with its own step size.

    Evaluate all of them at `points`, (V, C), `tell` the values, and repeat. A column whose value has not decreased
    enough halves its step; the others continue. Coordinates should be scaled for Hessians close to the identity, as the
    first step is the gradient. `best` holds the last accepted points. In float32, fewer steps are remembered for many
    variables; values are always float64. See J. Nocedal and S. Wright, Numerical Optimization, 2006, algorithms 7.4 and
    3.1.
    """

    def __init__(self, start: Float[Tensor, "v c"]) -> None:
        self.points = start
        self.best = start
        self._value = torch.full_like(start[0], torch.inf, dtype=torch.float64)
        self._slope = self._direction = torch.zeros_like(start)
        self._step = torch.ones_like(start[0])
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        fitting = max(MIN_HISTORY, MAX_HISTORY_NUMBERS // max(1, 2 * start.numel()))
        self._history = min(HISTORY, fitting) if start.dtype == torch.float32 else HISTORY

    def tell(self, values: Float[Tensor, " c"], slopes: Float[Tensor, "v c"]) -> Bool[Tensor, " c"]:
        """Take the values and gradients at `points`, and move these; return a mask of accepted steps, (C,)."""
        promised = self._step * (self._slope * self._direction).sum(dim=0)
        taken = self._value.isinf() | (values <= self._value + MIN_DECREASE * promised)
        if not bool(self._value.isinf().any()):
            moved = torch.where(taken, self.points - self.best, 0.0)
            turned = torch.where(taken, slopes - self._slope, 0.0)
            product = (moved * turned).sum(dim=0)
            inverse = torch.where(product > MIN_PRODUCT, 1 / product, 0.0)
            self._pairs = [*self._pairs, (moved, turned, inverse)][-self._history :]
        self.best = torch.where(taken, self.points, self.best)
        self._value = torch.where(taken, values, self._value)
        self._slope = torch.where(taken, slopes, self._slope)
        self._direction = torch.where(taken, self._downhill(), self._direction)
        self._step = torch.where(taken, 1.0, self._step / 2)
        self.points = self.best + self._step * self._direction
        return taken

    def keep(self, columns: Bool[Tensor, " c"]) -> None:
        """Keep only the given columns."""
        if bool(columns.all()):
            return
        self.points, self.best, self._slope, self._direction = (
            tensor[:, columns] for tensor in (self.points, self.best, self._slope, self._direction)
        )
        self._value, self._step = self._value[columns], self._step[columns]
        self._pairs = [
            (moved[:, columns], turned[:, columns], inverse[columns]) for moved, turned, inverse in self._pairs
        ]

    def _downhill(self) -> Float[Tensor, "v c"]:
        """Return L-BFGS's direction for every column, or steepest descent where that would lead uphill."""
        direction = -self._slope
        shares: list[Tensor] = []
        for moved, turned, inverse in reversed(self._pairs):
            share = inverse * (moved * direction).sum(dim=0)
            direction = direction - share * turned
            shares.append(share)
        if self._pairs:
            _, turned, inverse = self._pairs[-1]
            scaled = 1 / (inverse * turned.square().sum(dim=0)).clamp(min=MIN_PRODUCT)
            direction = torch.where(inverse > 0, scaled, 1.0) * direction
        for (moved, turned, inverse), share in zip(self._pairs, reversed(shares), strict=True):
            direction = direction + moved * (share - inverse * (turned * direction).sum(dim=0))
        uphill = (direction * self._slope).sum(dim=0) >= 0
        return torch.where(uphill, -self._slope, direction)


@final
@dataclass(frozen=True)
class LinearClassifier:
    """A linear classifier with logits x W + b for classes or labels: W (D, C), and b (C,), on the CPU."""

    weight: Float[Tensor, "d c"]
    bias: Float[Tensor, " c"]

    def chunks(self, vectors: Float[Tensor, "m d"]) -> Iterator[tuple[slice, Float[Tensor, "chunk c"]]]:
        """Yield slices of samples and their logits, in float32 as in the fit, on the CPU."""
        weight, bias = (parameter.to(vectors.device, torch.float32) for parameter in (self.weight, self.bias))
        step = max(1, LOGITS // max(1, len(bias)))
        for first in range(0, len(vectors), step):
            rows = slice(first, first + step)
            yield rows, torch.addmm(bias, vectors[rows].float(), weight).cpu()

    def logits(self, vectors: Float[Tensor, "m d"]) -> Float[Tensor, "m c"]:
        """Return the logits, (M, C), float32 on the CPU."""
        return torch.cat([torch.empty(0, len(self.bias)), *(logits for _, logits in self.chunks(vectors))])

    def predict(self, vectors: Float[Tensor, "m d"]) -> Int[Tensor, " m"]:
        """Predict the classes, (M,)."""
        predictions = (logits.argmax(dim=1) for _, logits in self.chunks(vectors))
        return torch.cat([torch.empty(0, dtype=torch.int64), *predictions])

    def replaced(self, other: "LinearClassifier", columns: Bool[Tensor, " c"]) -> "LinearClassifier":
        """Return this classifier with the other's weights for some labels, or for all classes."""
        weight, bias = torch.where(columns, other.weight, self.weight), torch.where(columns, other.bias, self.bias)
        return LinearClassifier(weight, bias)


@final
class LogisticRegression:
    """Logistic regression on one training part, with features standardised and rotated once, in float32.

        classes:     minimise  1/N Σ_i -log softmax(x_i W + b)_{y_i}  +  penalty/2 · ‖W‖²,   x standardised
        label sets:  minimise  1/N Σ_i BCE(x_i w + b, y_i)            +  penalty/2 · ‖w‖²

    Classes are one problem; each label is a problem with its own penalty. Labels share each pass, but converge
    separately. A label with n = 0 or n = N samples gets the constant probability (n + 0.5)/(N + 1).

    In the basis of the principal components, XᵀX/N is a diagonal matrix Λ, and with c the mean of p(1 - p) at the last
    pass the Hessian is close to diag(c·Λ + penalty). L-BFGS runs in coordinates scaled by the square root of this
    diagonal: a fit takes tens of passes over the data instead of hundreds, and rare labels take no more than others.
    More than 4,096 features are not rotated. Arrays of W's size are float64, or float32 if W has more than 2²² numbers.
    Memory is one copy of the features in float32, O(min(D, 4096)² + D·C), and 2²³ logits.
    """

    def __init__(self, train: Features) -> None:
        vectors = train.vectors.float()
        self._mean = vectors.mean(dim=0)
        inputs = vectors - self._mean
        deviation = _variances(inputs).sqrt().float()
        constant = deviation <= MIN_VARIATION * self._mean.abs()
        if train.one_unit:
            deviation = deviation.square().mean().sqrt().expand_as(deviation)
        self._deviation = torch.where(constant, 1.0, deviation)
        inputs.div_(self._deviation).masked_fill_(constant, 0)
        self._basis = None
        if inputs.shape[1] <= MAX_ROTATED_FEATURES:
            self._basis = _principal(inputs.T @ inputs / len(inputs))
            for some in inputs.split(max(1, LOGITS // inputs.shape[1])):
                some.copy_(some @ self._basis)
        self._inputs, self._variances = inputs, _variances(inputs)
        if train.label_kind == "classes":
            targets, start = train.classes, torch.zeros(len(train.names), dtype=torch.float64)
            spread, varying = torch.full_like(start, (1 - 1 / len(start)) / len(start)), torch.ones_like(start).bool()
        else:
            targets, counts = train.sets, train.counts.double()
            prior = (counts + 0.5) / (len(train) + 1)
            start, spread, varying = prior.logit(), prior * (1 - prior), (counts > 0) & (counts < len(train))
        self._targets, self._start, self._spread, self._varying = (
            tensor.to(inputs.device) for tensor in (targets, start, spread, varying)
        )

    def _summed(self, columns: Float[Tensor, " a"]) -> Float[Tensor, " p"]:
        """Return one number per problem: its column's, or the sum over all columns where they are one problem."""
        return columns.sum(dim=0, keepdim=True) if self._targets.ndim == 1 else columns

    def _link(
        self, logits: Float[Tensor, "m a"], rows: slice, left: Int[Tensor, " a"]
    ) -> tuple[Float[Tensor, " p"], Float[Tensor, "m a"], Float[Tensor, " p"]]:
        """Return the summed loss of some samples, its gradient in the logits, and the sum of p(1 - p)."""
        if self._targets.ndim == 1:
            targets = self._targets[rows].unsqueeze(1)
            logs = logits.log_softmax(dim=1)
            loss = -logs.gather(1, targets).double().sum(dim=0)
            away = logs.exp_()
            spread = (1 - away.square().sum(dim=1, keepdim=True)).double().sum(dim=0) / len(left)
            return loss, away.scatter_add_(1, targets, torch.full_like(targets, -1, dtype=away.dtype)), spread
        targets = self._targets[rows, left].float()
        losses = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=0).double()
        probabilities = logits.sigmoid_()
        spread = (probabilities * (1 - probabilities)).sum(dim=0).double()
        return losses, probabilities.sub_(targets), spread

    def fit(
        self,
        penalty: float | Float[Tensor, " c"],
        tolerance: float,
        start: LinearClassifier | None = None,
        columns: Bool[Tensor, " c"] | None = None,
    ) -> LinearClassifier:
        """Minimise the objective with one penalty, or one per label; labels outside `columns` stay at `start`.

        A fit ends when its gap to the minimum, estimated as half the squared gradient in scaled coordinates, is at most
        `tolerance` times its objective.
        """
        penalties = torch.as_tensor(penalty, dtype=torch.float64, device=self._start.device).expand_as(self._start)
        solution = self._rotated(start)
        fitted = self._varying if columns is None else self._varying & columns.to(penalties.device)
        left = fitted.nonzero().flatten()
        dtype = torch.float32 if 2 * HISTORY * solution.numel() > MAX_HISTORY_NUMBERS else torch.float64
        solution = solution.to(dtype)
        scale = self._scale(penalties)[:, left].to(dtype)
        problems = len(self._summed(penalties[left]))
        search = ColumnSearch((solution[:, left] * scale).view(-1, problems))
        for _ in range(MAX_PASSES):
            if len(left) == 0:
                break
            points = search.points.view_as(scale) / scale
            loss, slope = self._objective(points, left, penalties[left])
            taken = search.tell(loss, (slope / scale).view(-1, len(loss)).to(dtype))
            gap = self._summed(0.5 * (slope / self._scale(penalties)[:, left]).square().sum(dim=0))
            solution[:, left] = torch.where(taken, points, solution[:, left])
            going = ~(taken & (gap <= tolerance * loss))
            search.keep(going)
            going = going.expand(len(left))
            left, scale = left[going], scale[:, going]
        return self._classifier(solution) if start is None else start.replaced(self._classifier(solution), fitted.cpu())

    def _scale(self, penalties: Float[Tensor, " c"]) -> Float[Tensor, "d_and_1 c"]:
        """Return the square root of the Hessian's diagonal, from the spread at the last pass."""
        hessian = torch.cat([self._variances.unsqueeze(1) * self._spread + penalties, self._spread.unsqueeze(0)])
        return hessian.clamp(min=MIN_HESSIAN).sqrt()

    def _objective(
        self, points: Float[Tensor, "d_and_1 a"], left: Int[Tensor, " a"], penalties: Float[Tensor, " a"]
    ) -> tuple[Float[Tensor, " p"], Float[Tensor, "d_and_1 a"]]:
        weight, bias = points[:-1], points[-1]
        loss = self._summed(0.5 * penalties * weight.square().sum(dim=0))
        slope = torch.cat([penalties * weight, torch.zeros_like(bias).unsqueeze(0)])
        spread = torch.zeros_like(loss)
        narrow, shift, count = weight.float(), bias.float(), len(self._inputs)
        step = max(1, LOGITS // len(left))
        for first in range(0, count, step):
            rows = slice(first, first + step)
            inputs = self._inputs[rows]
            losses, away, spreads = self._link(torch.addmm(shift, inputs, narrow), rows, left)
            loss += losses / count
            spread += spreads / count
            slope[:-1] += (inputs.T @ away).double() / count
            slope[-1] += away.sum(dim=0).double() / count
        self._spread[left] = spread
        return loss, slope

    def _rotated(self, start: LinearClassifier | None) -> Float[Tensor, "d_and_1 c"]:
        """Return W and b, float64, for standardised and rotated features."""
        mean, deviation = self._mean.double(), self._deviation.double()
        if start is None:
            return torch.cat([mean.new_zeros(len(mean), len(self._start)), self._start.unsqueeze(0)])
        weight, bias = (parameter.to(mean.device, torch.float64) for parameter in (start.weight, start.bias))
        bias = bias + mean @ weight
        weight = weight * deviation.unsqueeze(1)
        weight = weight if self._basis is None else self._basis.double().T @ weight
        return torch.cat([weight, bias.unsqueeze(0)])

    def _classifier(self, solution: Float[Tensor, "d_and_1 c"]) -> LinearClassifier:
        weight = solution[:-1].double() if self._basis is None else self._basis.double() @ solution[:-1].double()
        weight = weight / self._deviation.double().unsqueeze(1)
        bias = solution[-1].double() - self._mean.double() @ weight
        return LinearClassifier(weight.cpu(), bias.cpu())


def _principal(covariance: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """Return the eigenvectors as columns; in float64 if float32 fails, as with far fewer samples than features."""
    try:
        return torch.linalg.eigh(covariance).eigenvectors
    except RuntimeError:  # from LAPACK, for many eigenvalues near 0
        return torch.linalg.eigh(covariance.double()).eigenvectors.to(covariance.dtype)


def _variances(centred: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    rows = max(1, LOGITS // centred.shape[1])
    return torch.stack([some.double().square().sum(dim=0) for some in centred.split(rows)]).sum(dim=0) / len(centred)


def episode_probe(
    support: Float[Tensor, "e n k d"], queries: Float[Tensor, "e q d"], penalty: float
) -> tuple[Float[Tensor, "e q n"], Bool[Tensor, " e"]]:
    r"""Fit a classifier to each episode's support; return its logits for the queries, and whether it has converged.

    It minimises the sum of cross-entropies and $\frac{\lambda}{2} \lVert W \rVert^2$ over W, (D, N), without a bias, as
    classes have equally many samples. As W lies in the span of the support, X, only inner products are needed: in the
    basis of the principal components, X Xᵀ is a diagonal matrix Λ, and the Hessian is close to c·Λ + λ, with c the mean
    of p(1 - p) at the start. A fit ends when its gap to the minimum, bounded by ‖gradient‖²/2λ, is at most 1e-11 of the
    objective. Memory is O(E·(NK)² + E·Q·NK + E·N²K).
    """
    episodes, ways, shots, _ = support.shape
    x = support.flatten(1, 2).double()
    variances, basis = torch.linalg.eigh(x @ x.mT)
    lengths = variances.clamp(min=0).sqrt().unsqueeze(1)
    known = lengths > lengths.amax(dim=2, keepdim=True) * torch.finfo(torch.float32).eps
    inputs = basis * lengths.where(known, 0)
    truth = torch.arange(ways, device=x.device).repeat_interleave(shots).expand(episodes, -1)
    scale = (lengths.square() * (1 - 1 / ways) / ways + penalty).sqrt().mT.expand(-1, -1, ways)
    solution, left = torch.zeros_like(scale), torch.arange(episodes, device=x.device)
    search = ColumnSearch(solution.flatten(1).T)
    for _ in range(MAX_PASSES):
        weights = search.points.T.view(-1, ways * shots, ways) / scale[left]
        logs = (inputs[left] @ weights).log_softmax(dim=2)
        targets = truth[left].unsqueeze(2)
        loss = penalty / 2 * weights.square().sum(dim=(1, 2)) - logs.gather(2, targets).sum(dim=(1, 2))
        away = logs.exp_().scatter_add_(2, targets, torch.full_like(targets, -1, dtype=logs.dtype))
        slope = inputs[left].mT @ away + penalty * weights
        taken = search.tell(loss, (slope / scale[left]).flatten(1).T)
        solution[left] = torch.where(taken[:, None, None], weights, solution[left])
        going = ~(taken & (slope.square().sum(dim=(1, 2)) / (2 * penalty) <= EPISODE_TOLERANCE * loss))
        search.keep(going)
        left = left[going]
        if len(left) == 0:
            break
    done = torch.ones(episodes, dtype=torch.bool, device=x.device).index_fill_(0, left, value=False)
    weights = basis @ (solution / lengths.mT.where(known.mT, torch.inf))
    return ((queries.double() @ x.mT) @ weights).to(queries.dtype), done
