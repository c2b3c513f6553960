"""Features on the unit sphere, checked and in float64."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

TILE = 2**20  # similarities at a time
ROUNDING = 1e-5  # what differs by less between unit vectors is rounding: a hundred times float32's


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
        raise ValueError(
            f"expected features (N, D) and labels (N,), got {tuple(rows.shape)} and {tuple(numbers.shape)}: give one "
            "label a row"
        )
    return rows, numbers


def on_cpu(name: str, values: Any) -> Tensor:
    """Return values as a tensor on the CPU, without gradient; raise unless they are numbers."""
    try:
        return torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"expected {name} as a tensor or an array of numbers, got {type(values).__name__}: number classes by "
            "numpy.unique(…, return_inverse=True)"
        ) from error


def similarity_tiles(units: Float[Tensor, "n d"]) -> Iterator[tuple[int, Float[Tensor, "m n"]]]:
    """Yield the cosines of some rows with all rows, and the first of these rows, a tile of 2²⁰ at a time."""
    rows = max(1, TILE // max(len(units), 1))
    for start in range(0, len(units), rows):
        yield start, units[start : start + rows] @ units.T
