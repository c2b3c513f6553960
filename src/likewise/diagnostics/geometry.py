"""The geometry of an embedding on the unit sphere: how close classes are, how spread everything is, a map."""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float, Int
from sklearn.manifold import TSNE
from torch import Tensor
from torch.nn import functional

TILE = 2**20  # similarities at a time
ROUNDING = 1e-5  # what differs by less between unit vectors is rounding: a hundred times float32's


def alignment(features: Float[Tensor, "n d"], labels: Int[Tensor, "n"]) -> float:
    """Mean squared distance between two samples of one class; 0 when every class is a point.

        E_{i≠j, y_i=y_j} ‖z_i - z_j‖²  =  2 - 2·Σ_c (‖Σ_{i∈c} z_i‖² - n_c) / Σ_c n_c(n_c - 1),   ‖z_i‖ = 1

    Args:
        features: (N, D); L2-normalised here.
        labels: Classes (N,). The positive pairs are those of one class, ordered, without self-pairs.

    Returns:
        The alignment, from 0 to 4; less is better aligned. NaN when no class has two samples.

    Raises:
        ValueError: Lengths disagree or an entry is not finite.

    Memory:
        O(N·D + C·D): class sums, no pairs.

    Source:
        T. Wang and P. Isola, Understanding Contrastive Representation Learning through Alignment and Uniformity on the
        Hypersphere, 2020, equation 7 with alpha = 2; there the pairs are views of one sample.

    Example:
        >>> round(alignment(torch.eye(2).repeat(2, 1), torch.tensor([0, 1, 0, 1])), 6)
        0.0
        >>> round(alignment(torch.eye(2), torch.tensor([0, 0])), 6)
        2.0
    """
    units = _unit_rows(features, labels)
    classes, members = labels.unique(return_inverse=True)
    counts = torch.bincount(members, minlength=len(classes)).double()
    sums = torch.zeros(len(classes), units.shape[1], dtype=units.dtype).index_add_(0, members, units)
    pairs = (counts * (counts - 1)).sum()
    if pairs == 0:
        return math.nan
    # a unit row's product with itself is 1, a zero row's is 0
    own = torch.zeros(len(classes), dtype=units.dtype).index_add_(0, members, units.square().sum(1))
    distances = 2 * (counts - 1) * own - 2 * (sums.square().sum(1) - own)
    return float(distances.sum() / pairs)


def uniformity(features: Float[Tensor, "n d"]) -> float:
    """How evenly the samples cover the sphere: the logarithm of their mean Gaussian potential.

        log E_{i≠j} exp(-2·‖z_i - z_j‖²),   ‖z_i‖ = 1

    Args:
        features: (N, D); L2-normalised here.

    Returns:
        The uniformity, at most 0, where every sample is the same point; less is more uniform. NaN for one sample.

    Raises:
        ValueError: An entry is not finite.

    Memory:
        O(N·D) and one tile of 2²⁰ similarities at a time.

    Source:
        T. Wang and P. Isola, 2020 (see alignment), equation 8 with t = 2.

    Example:
        >>> round(uniformity(torch.eye(3)), 6)
        -4.0
    """
    units = _unit_rows(features)
    if len(units) < 2:
        return math.nan
    squares = units.square().sum(1)
    total = torch.zeros((), dtype=units.dtype)
    for start, tile in _similarity_tiles(units):
        distances = squares[start : start + len(tile), None] + squares - 2 * tile
        total += torch.exp(-2 * distances.clamp(min=0)).sum()
    n = len(units)
    return math.log(max(float(total) - n, torch.finfo(units.dtype).tiny) / (n * (n - 1)))


def similarity_histogram(
    features: Float[Tensor, "n d"], labels: Int[Tensor, "n"], bins: int = 80
) -> tuple[Float[Tensor, "edges"], Float[Tensor, "bins"], Float[Tensor, "bins"]]:
    """Count the cosine similarities of pairs of one class and of pairs of two.

    Args:
        features: (N, D); L2-normalised here.
        labels: Classes, (N,).
        bins: Bins between -1 and 1.

    Returns:
        The edges (bins + 1,), and the share of each bin among positive pairs and among negative pairs, (bins,) each.

    Raises:
        ValueError: Lengths disagree or an entry is not finite.

    Memory:
        O(N·D) and one tile of 2²⁰ similarities at a time.

    Example:
        >>> edges, positive, negative = similarity_histogram(torch.eye(2).repeat(2, 1), torch.tensor([0, 1, 0, 1]), 4)
        >>> positive.tolist(), negative.tolist()
        ([0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0])
    """
    units = _unit_rows(features, labels)
    positive, negative = torch.zeros(bins, dtype=units.dtype), torch.zeros(bins, dtype=units.dtype)
    for start, tile in _similarity_tiles(units):
        rows = torch.arange(start, start + len(tile))
        same = labels[rows, None] == labels
        inside = tile.clamp(-1, 1)
        negative += torch.histc(inside[~same], bins, -1, 1)
        same[torch.arange(len(rows)), rows] = False
        positive += torch.histc(inside[same], bins, -1, 1)
    shares = [counts / counts.sum().clamp(min=1) for counts in (positive, negative)]
    return torch.linspace(-1, 1, bins + 1, dtype=units.dtype), shares[0], shares[1]


def two_dimensional_map(
    features: Float[Tensor, "n d"], method: Literal["tsne", "pca"] = "tsne", seed: int = 0
) -> Float[Tensor, "n 2"]:
    """Lay the samples out in the plane: neighbours stay neighbours under t-SNE, large distances under PCA.

    Args:
        features: (N, D); L2-normalised here, so that neighbours are those of cosine similarity.
        method: "tsne" or "pca"; below 4 samples, where t-SNE has no meaning, PCA.
        seed: Seed of t-SNE; the same seed gives the same map.

    Returns:
        Coordinates (N, 2) without a unit: all 0 where the features have collapsed. Samples whose features are the same
        up to rounding have the same place.

    Raises:
        ValueError: An entry is not finite.

    Memory:
        O(N·D).

    Example:
        >>> two_dimensional_map(torch.eye(5), method="pca").shape
        torch.Size([5, 2])
    """
    units = _unit_rows(features)
    if _spread(units) <= ROUNDING:
        return torch.zeros(len(units), 2, dtype=units.dtype)
    if method == "tsne":
        different, places = (units / ROUNDING).round().unique(dim=0, return_inverse=True)
        if len(different) < len(units):  # t-SNE throws samples at one place apart
            first = torch.full((len(different),), len(units)).scatter_reduce(
                0, places, torch.arange(len(units)), "amin"
            )
            return _map(units[first], method, seed)[places]
    return _map(units, method, seed)


def collapsed(features: Float[Tensor, "n d"]) -> bool:
    """Tell whether all features have the same direction, up to rounding: then the encoder tells no samples apart.

    Args:
        features: (N, D); L2-normalised here.

    Raises:
        ValueError: An entry is not finite.

    Example:
        >>> collapsed(torch.ones(5, 3)), collapsed(torch.eye(3))
        (True, False)
    """
    units = _unit_rows(features)
    return len(units) > 1 and _spread(units) <= ROUNDING


def _spread(units: Tensor) -> float:
    """Return the largest distance from the mean."""
    return float((units - units.mean(dim=0)).norm(dim=1).max()) if len(units) else 0.0


def _map(units: Tensor, method: str, seed: int) -> Tensor:
    if method == "pca" or len(units) < 4:
        centred = units - units.mean(dim=0)
        axes = torch.linalg.svd(centred, full_matrices=False).Vh[:2]
        places = centred @ axes.T
        return functional.pad(places, (0, 2 - places.shape[1]))
    start = "pca" if units.shape[1] >= 2 else "random"
    layout = TSNE(2, perplexity=min(30.0, (len(units) - 1) / 3), init=start, random_state=seed)
    return torch.from_numpy(layout.fit_transform(units.numpy())).double()


def _similarity_tiles(units: Tensor) -> Iterator[tuple[int, Tensor]]:
    rows = max(1, TILE // max(len(units), 1))
    for start in range(0, len(units), rows):
        yield start, units[start : start + rows] @ units.T


def _unit_rows(features: Tensor, labels: Tensor | None = None) -> Tensor:
    if features.ndim != 2 or (labels is not None and labels.shape != features.shape[:1]):
        got = tuple(features.shape) if labels is None else f"{tuple(features.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"expected features (N, D) and labels (N,), got {got}: give one label a row")
    if not torch.isfinite(features).all():
        raise ValueError("expected finite features, got NaN or infinity: look at the encoder")
    return functional.normalize(features.double())
