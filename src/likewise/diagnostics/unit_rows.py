"""Features on the unit sphere, checked and in float64, and their spectrum and effective rank."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

TILE = 2**20  # similarities at a time
ROUNDING = 1e-5  # smaller differences between unit vectors are rounding: a hundred times float32's
Array = Tensor | NDArray[Any]


def unit_rows(features: Float[Array, "n d"]) -> Float[Tensor, "n d"]:
    """Return features, L2-normalised, in float64; a zero row stays zero."""
    return functional.normalize(as_rows(features).double())


def as_rows(features: Float[Array, "n d"]) -> Float[Tensor, "n d"]:
    """Return features as a tensor on the CPU; raise unless they are numbers, (N, D), and finite."""
    rows = on_cpu("features", features)
    if rows.ndim != 2:
        raise ValueError(f"expected features (N, D), got {tuple(rows.shape)}: give one row for each sample")
    if not torch.isfinite(rows).all():
        raise ValueError("expected finite features, got NaN or infinity: look at the encoder")
    return rows


def with_labels(
    features: Float[Array, "n d"], labels: Shaped[Array, "n ..."]
) -> tuple[Float[Tensor, "n d"], Shaped[Tensor, "n ..."]]:
    """Return features and labels as tensors on the CPU; raise unless each row has a label."""
    rows, numbers = as_rows(features), on_cpu("labels", labels)
    if numbers.shape[:1] != rows.shape[:1]:
        got = f"{tuple(rows.shape)} and {tuple(numbers.shape)}"
        raise ValueError(f"expected features (N, D) and labels (N,), got {got}: give one label a row")
    return rows, numbers


def on_cpu(name: str, values: Any) -> Tensor:
    """Return values as a tensor on the CPU, without gradient; raise unless they are numbers."""
    try:
        return torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        expected, remedy = "a tensor or an array of numbers", "number classes by numpy.unique(…, return_inverse=True)"
        raise ValueError(f"expected {name} as {expected}, got {type(values).__name__}: {remedy}") from error


def similarity_tiles(units: Float[Tensor, "n d"]) -> Iterator[tuple[int, Float[Tensor, "m n"]]]:
    """Yield tiles of up to 2²⁰ cosines of some rows with all rows, each after the index of its first row."""
    rows = max(1, TILE // max(len(units), 1))
    for start in range(0, len(units), rows):
        yield start, units[start : start + rows] @ units.T


def singular_values(features: Float[Array, "n d"]) -> Float[Tensor, " k"]:
    """Return the standard deviations of features, L2-normalised here, along principal directions, largest first.

        σ_k / √N,   U diag(σ) Vᵀ = Z − 1 z̄ᵀ,   ‖z_i‖ = 1

    Returns:
        min(N, D) values, from 0 to 1, in float64: their squares sum to the variance 1 − ‖z̄‖². Values below 1e-5 are
        rounding, and returned as 0.

    Memory:
        O(N·D + min(N, D)²).

    Example:
        >>> singular_values(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        tensor([1., 0.], dtype=torch.float64)
    """
    units = unit_rows(features)
    if len(units) == 0:
        return torch.zeros(0, dtype=units.dtype)
    centred = units - units.mean(dim=0)
    products = centred @ centred.T if len(units) < units.shape[1] else centred.T @ centred
    squares = torch.linalg.eigvalsh(products / len(units)).flip(0).clamp(min=0)
    values = squares.sqrt()
    return values.where(values > ROUNDING, 0)


def effective_rank(features: Float[Array, "n d"]) -> float:
    """Return the number of directions in use: the exponential of the entropy of the features' singular values.

        exp(−Σ_k p_k log p_k),   p_k = σ_k / Σ_l σ_l

    Returns:
        From 1, for a line, to min(N − 1, D), for equal use of all directions; 0 if all features have the same
        direction. C classes, as points at equal distances, have C − 1.

    Memory:
        O(N·D + min(N, D)²).

    Source:
        O. Roy and M. Vetterli, The Effective Rank: A Measure of Effective Dimensionality, 2007, definition 1; for any
        matrix there, for centred unit rows here.

    Example:
        >>> round(effective_rank(torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]])), 6)
        2.0
    """
    return rank_of(singular_values(features))


def rank_of(values: Float[Tensor, " k"]) -> float:
    """Return the effective rank of singular values; 0 if none is above 0."""
    total = values.sum()
    if total == 0:
        return 0.0
    shares = values / total
    return float(torch.special.entr(shares).sum().exp())


def spread(features: Float[Array, "n d"]) -> float:
    """Return the mean squared distance of features from their mean on the unit sphere: 1 − ‖z̄‖², 0 for one point.

    One minus the spread is the mean cosine of two samples, including pairs of a sample with itself.

    Example:
        >>> spread(torch.eye(4)), spread(torch.ones(4, 2))
        (0.75, 0.0)
    """
    units = unit_rows(features)
    return float((units - units.mean(dim=0)).square().sum(dim=1).mean()) if len(units) else 0.0


def collapsed(features: Float[Array, "n d"]) -> bool:
    """Tell whether all features, (N, D), have the same direction, up to rounding: no two samples differ.

    Example:
        >>> collapsed(torch.ones(5, 3)), collapsed(torch.eye(3))
        (True, False)
    """
    units = unit_rows(features)
    return len(units) > 1 and float((units - units.mean(dim=0)).norm(dim=1).max()) <= ROUNDING
