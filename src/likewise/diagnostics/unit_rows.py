"""Features on the unit sphere, checked and in float64."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

TILE = 2**20  # similarities at a time
ROUNDING = 1e-5  # what differs by less between unit vectors is rounding: a hundred times float32's


def unit_rows(features: Float[Tensor, "n d"], labels: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n d"]:
    """Return features, L2-normalised, in float64; a zero row stays zero.

    Raises:
        ValueError: Features are not (N, D), labels are not (N,), or an entry is not finite.

    Example:
        >>> unit_rows(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]], dtype=torch.float64)
    """
    check_features(features, labels)
    return functional.normalize(features.double())


def check_features(features: Float[Tensor, "n d"], labels: Tensor | None = None) -> None:
    """Raise unless features are (N, D) and finite, and labels, if there are any, have N rows."""
    if features.ndim != 2 or (labels is not None and labels.shape[:1] != features.shape[:1]):
        got = tuple(features.shape) if labels is None else f"{tuple(features.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"expected features (N, D) and labels (N,), got {got}: give one label a row")
    if not torch.isfinite(features).all():
        raise ValueError("expected finite features, got NaN or infinity: look at the encoder")


def similarity_tiles(units: Float[Tensor, "n d"]) -> Iterator[tuple[int, Float[Tensor, "m n"]]]:
    """Yield the cosines of some rows with all rows, and the first of these rows, a tile of 2²⁰ at a time."""
    rows = max(1, TILE // max(len(units), 1))
    for start in range(0, len(units), rows):
        yield start, units[start : start + rows] @ units.T
