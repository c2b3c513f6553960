"""Mahalanobis distance to the nearest class mean, with a covariance that all classes share."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.evaluation.features import Features

CHUNK = 2**12  # samples in float64 at a time


@final
class Mahalanobis:
    """Distances to class means, measured by the covariance within classes; in float64.

        d(x)² = min_c (x - μ_c)ᵀ Σ⁻¹ (x - μ_c)
        Σ = (1 - α) S + α·tr(S)/D · I,   S = 1/N Σ_i (x_i - μ_{y_i})(x_i - μ_{y_i})ᵀ

    Where features are many or some are constant, S has no inverse. So it is shrunk towards a multiple of the identity,
    by the α of Ledoit and Wolf, which tends to 0 as samples become many.

    Source:
        K. Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks,
        2018, equation 2; O. Ledoit and M. Wolf, A Well-Conditioned Estimator for Large-Dimensional Covariance Matrices,
        2004.
    """

    def __init__(self, train: Features) -> None:
        classes, members = train.classes.unique(return_inverse=True)
        vectors, members = train.vectors, members.to(train.vectors.device)
        width = vectors.shape[1]
        means = vectors.new_zeros(len(classes), width, dtype=torch.float64)
        for some, own in zip(vectors.split(CHUNK), members.split(CHUNK), strict=True):
            means.index_add_(0, own, some.double())
        means /= torch.bincount(members, minlength=len(classes)).unsqueeze(1)
        scatter, fourth = vectors.new_zeros(width, width, dtype=torch.float64), 0.0
        for some, own in zip(vectors.split(CHUNK), members.split(CHUNK), strict=True):
            away = some.double() - means[own]
            scatter += away.T @ away / len(vectors)
            fourth += float(away.square().sum(dim=1).square().sum())
        self._centre = means.mean(dim=0)
        self._factor = torch.linalg.cholesky(_shrunk(scatter, fourth, len(vectors)))
        self._means = self._whitened(means)

    def distances(self, vectors: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """Return the distance to the nearest class mean, (M,), float64 on the CPU."""
        lengths = self._means.square().sum(dim=1)
        found: list[Tensor] = []
        for some in vectors.split(CHUNK):
            white = self._whitened(some.double())
            nearest = torch.addmm(lengths, white, self._means.T, alpha=-2).amin(dim=1)
            found.append((nearest + white.square().sum(dim=1)).clamp(min=0).sqrt().cpu())
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)

    def _whitened(self, vectors: Tensor) -> Tensor:
        """Return L⁻¹(x - centre) of each vector, Σ = L Lᵀ."""
        return torch.linalg.solve_triangular(self._factor, (vectors - self._centre).T, upper=False).T


def _shrunk(scatter: Tensor, fourth: float, count: int) -> Tensor:
    """Shrink a covariance towards a multiple of the identity; `fourth` is Σ ‖x‖⁴ of its centred samples."""
    width = len(scatter)
    variance = float(scatter.trace()) / width
    eye = torch.eye(width, dtype=scatter.dtype, device=scatter.device)
    if variance == 0:  # every sample is its class's mean
        return eye
    squares = float(scatter.square().sum())
    away = squares - width * variance**2
    noise = (fourth / count - squares) / count
    share = min(1.0, max(noise, 0.0) / away) if away > 0 else 1.0
    return (1 - max(share, 1e-12)) * scatter + max(share, 1e-12) * variance * eye
