"""The geometry of an embedding: distances of classes and labels, uniformity, hubs, and maps in the plane."""

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.diagnostics.unit_rows import ROUNDING, Array, as_rows, collapsed, similarity_tiles, unit_rows, with_labels
from likewise.evaluation.features import Bar, silent
from likewise.evaluation.nearest import nearest
from likewise.pairs import MaxSimilarity, MeanSimilarity, PairWeight, SharesLabel

Method = Literal["tsne", "pca", "umap"]
MIN_SAMPLES = 4  # samples for which t-SNE and UMAP make sense
START_STD = 1e-4  # of t-SNE's first layout
MIN_LABELS = 3  # labels with more than one order to choose from


def alignment(features: Float[Array, "n d"], labels: Int[Array, "n"]) -> float:
    """Return the mean squared distance between two samples of one class; 0 when every class is a point.

        E_{i≠j, y_i=y_j} ‖z_i - z_j‖²  =  2 - 2·Σ_c (‖Σ_{i∈c} z_i‖² - n_c) / Σ_c n_c(n_c - 1),   ‖z_i‖ = 1

    The positive pairs are the ordered pairs within a class, without self-pairs. Features are L2-normalised here.

    Returns:
        The alignment, from 0 to 4; less is better aligned. NaN when no class has two samples.

    Memory:
        O(N·D + C·D): class sums, no pairs.

    Source:
        T. Wang and P. Isola, Understanding Contrastive Representation Learning through Alignment and Uniformity on the
        Hypersphere, 2020, equation 7 with alpha = 2; the pairs there are views of one sample.

    Example:
        >>> round(alignment(torch.eye(2), torch.tensor([0, 0])), 6)
        2.0
    """
    rows, labels = with_labels(features, labels)
    units = unit_rows(rows)
    classes, members = labels.unique(return_inverse=True)
    counts, sums, squares = _of_classes(units, members, len(classes))
    pairs = (counts * (counts - 1)).sum()
    if pairs == 0:
        return math.nan
    distances = 2 * (counts - 1) * squares - 2 * (sums.square().sum(1) - squares)
    return float(distances.sum() / pairs)


def class_distances(features: Float[Array, "n d"], labels: Int[Array, "n"], classes: int) -> Float[Tensor, "c c"]:
    """Return the mean squared distance between samples of two classes, or of one class, on the unit sphere.

        E_{y_i=a, y_j=b, i≠j} ‖z_i − z_j‖²,   ‖z_i‖ = 1

    Returns:
        Distances of C classes, (C, C), from 0 to 4, in float64, within a class on the diagonal; NaN without a pair.

    Memory:
        O(N·D + C·D + C²): class sums, no pairs.

    Example:
        >>> class_distances(torch.eye(2).repeat(2, 1), torch.tensor([0, 1, 0, 1]), 2)
        tensor([[0., 2.],
                [2., 0.]], dtype=torch.float64)
    """
    rows, labels = with_labels(features, labels)
    counts, sums, squares = _of_classes(unit_rows(rows), labels, classes)
    pairs = counts.outer(counts) - counts.diag()
    # Σ_ij ‖z_i − z_j‖² over ordered pairs; a sample's distance to itself is 0 and counted in neither
    totals = squares.outer(counts) + counts.outer(squares) - 2 * sums @ sums.T
    return (totals.clamp(min=0) / pairs).where(pairs > 0, torch.nan)


def _of_classes(units: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of samples of each class, their sum, and the sum of their squared lengths, 0 for a zero row."""
    counts = torch.bincount(labels, minlength=classes).double()
    sums = torch.zeros(classes, units.shape[1], dtype=units.dtype).index_add_(0, labels, units)
    return counts, sums, torch.zeros(classes, dtype=units.dtype).index_add_(0, labels, units.square().sum(1))


def uniformity(features: Float[Array, "n d"]) -> float:
    """Return the uniformity of samples on the sphere: the logarithm of their mean Gaussian potential.

        log E_{i≠j} exp(-2·‖z_i - z_j‖²),   ‖z_i‖ = 1

    Returns:
        The uniformity, at most 0, its value if all samples are one point; less is more uniform. NaN for one sample.

    Memory:
        O(N·D) and one tile of 2²⁰ similarities at a time.

    Source:
        T. Wang and P. Isola, 2020 (see alignment), equation 8 with t = 2.

    Example:
        >>> round(uniformity(torch.eye(3)), 6)
        -4.0
    """
    units = unit_rows(features)
    if len(units) < 2:
        return math.nan
    squares = units.square().sum(1)
    total = torch.zeros((), dtype=units.dtype)
    for start, tile in similarity_tiles(units):
        distances = squares[start : start + len(tile), None] + squares - 2 * tile
        total += torch.exp(-2 * distances.clamp(min=0)).sum()
    n = len(units)
    return math.log(max(float(total) - n, torch.finfo(units.dtype).tiny) / (n * (n - 1)))


def similarity_histogram(
    features: Float[Array, "n d"], labels: Int[Array, "n"], bins: int = 80
) -> tuple[Float[Tensor, "edges"], Float[Tensor, "bins"], Float[Tensor, "bins"]]:
    """Count the cosine similarities of pairs within a class and of pairs from two classes.

    Returns:
        The edges of bins from -1 to 1, (bins + 1,), and the share of each bin among positive pairs and among negative
        pairs, (bins,) each.

    Memory:
        O(N·D) and one tile of 2²⁰ similarities at a time.

    Example:
        >>> edges, positive, negative = similarity_histogram(torch.eye(2).repeat(2, 1), torch.tensor([0, 1, 0, 1]), 4)
        >>> positive.tolist(), negative.tolist()
        ([0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0])
    """
    rows, labels = with_labels(features, labels)
    units = unit_rows(rows)
    positive, negative = torch.zeros(bins, dtype=units.dtype), torch.zeros(bins, dtype=units.dtype)
    for start, tile in similarity_tiles(units):
        same = labels[start : start + len(tile), None] == labels
        inside = tile.clamp(-1, 1)
        negative += torch.histc(inside[~same], bins, -1, 1)
        same.diagonal(start).fill_(value=False)
        positive += torch.histc(inside[same], bins, -1, 1)
    shares = [counts / counts.sum().clamp(min=1) for counts in (positive, negative)]
    return torch.linspace(-1, 1, bins + 1, dtype=units.dtype), shares[0], shares[1]


@final
@dataclass(frozen=True)
class Hubness:
    """Counts of each sample among the `k` nearest neighbours of others: `occurrences`, N_k, (N,), k on average."""

    occurrences: Int[Tensor, " n"]
    k: int

    @property
    def skewness(self) -> float:
        """E[(N_k − k)³] / σ³: 0 without hubs, above 1 with strong ones; 0 if all occur equally often."""
        deviations = self.occurrences.double() - self.occurrences.double().mean()
        variance = float(deviations.square().mean()) if len(deviations) else 0.0
        return float(deviations.pow(3).mean()) / variance**1.5 if variance else 0.0

    @property
    def never(self) -> float:
        """The share of samples that are nobody's neighbour, and that retrieval never finds."""
        return float((self.occurrences == 0).double().mean()) if len(self.occurrences) else 0.0


def hubness(features: Float[Array, "n d"], k: int = 10, *, progress: Bar = silent) -> Hubness:
    """Count how often each sample is among the k nearest neighbours of another, or all if fewer than k, by cosine.

    Memory:
        O(N·D) and one tile of similarities.

    Source:
        M. Radovanović, A. Nanopoulos and M. Ivanović, Hubs in Space: Popular Nearest Neighbors in High-Dimensional
        Data, 2010, section 2.

    Example:
        >>> star = torch.tensor([[1.0, 0.0], [1.0, 0.5], [1.0, -0.5], [0.2, 1.0]])
        >>> hubness(star, k=1).occurrences.tolist()
        [2, 2, 0, 0]
    """
    features = as_rows(features)
    if k < 1:
        raise ValueError(f"expected k of at least 1, got {k}: 10 is usual")
    occurrences = torch.zeros(len(features), dtype=torch.long)
    near = min(k, max(0, len(features) - 1))
    if near:
        for *_, indices in nearest(features, None, near, progress=progress, doing="hubs"):
            occurrences += torch.bincount(indices.flatten().cpu(), minlength=len(features))
    return Hubness(occurrences, near)


def grouped(similarity: Float[Tensor, "l l"]) -> Int[Tensor, " l"]:
    """Return an order of labels with similar ones next to each other, given their similarities from 0 to 1.

    It is from average linkage of 1 − similarity, with the leaves in optimal order.

    Source:
        Z. Bar-Joseph, D. Gifford and T. Jaakkola, Fast optimal leaf ordering for hierarchical clustering, 2001.

    Example:
        >>> blocks = torch.tensor([[1, 0, 0.9, 0], [0, 1, 0, 0.9], [0.9, 0, 1, 0], [0, 0.9, 0, 1]])
        >>> order = grouped(blocks).tolist()
        >>> {tuple(sorted(order[:2])), tuple(sorted(order[2:]))} == {(0, 2), (1, 3)}
        True
    """
    from scipy.cluster.hierarchy import leaves_list, linkage  # noqa: PLC0415 - optional dependency
    from scipy.spatial.distance import squareform  # noqa: PLC0415 - as above

    if len(similarity) < MIN_LABELS:
        return torch.arange(len(similarity))
    distance = (1 - similarity.double()).clamp(min=0)
    distance = ((distance + distance.T) / 2).fill_diagonal_(0)
    tree = linkage(squareform(distance.numpy(), checks=False), method="average", optimal_ordering=True)
    return torch.from_numpy(leaves_list(tree)).long()


def push_weights(
    sets: Bool[Tensor, "n l"], similarity: Float[Tensor, "l l"], aggregation: Literal["mean", "max"] = "mean"
) -> Float[Tensor, " p"]:
    """Return the weights 1 − sim(y_i, y_u) of pushes between samples in NWS, before the factor β.

    `sets` are label sets of samples, (N, L), and sim aggregates the `similarity`, (L, L), of two samples' labels.

    Returns:
        One weight for each ordered pair of samples without a common label, if the first has labels, as anchors do; all
        1 in MSC and MulSupCon.

    Memory:
        O(N²).

    Example:
        >>> similarity = torch.tensor([[1.0, 0.3], [0.3, 1.0]])
        >>> push_weights(torch.tensor([[True, False], [False, True]]), similarity)
        tensor([0.7000, 0.7000])
    """
    similarity_class = MeanSimilarity if aggregation == "mean" else MaxSimilarity
    pushes: PairWeight = ~SharesLabel(sets, sets)
    weights = 1 - similarity_class(sets, similarity, sets).dense()
    return weights[pushes.dense().bool() & sets.any(dim=1, keepdim=True)]


def two_dimensional_map(
    features: Float[Array, "n d"], method: Method = "tsne", seed: int = 0, *, start: Float[Tensor, "n 2"] | None = None
) -> Float[Tensor, "n 2"]:
    """Lay the samples out in the plane: neighbours stay neighbours under t-SNE and UMAP, large distances under PCA.

    Args:
        features: (N, D); L2-normalised here.
        method: "tsne", "pca" or "umap"; below 4 samples, always PCA, as the others make no sense.
        seed: Seed of t-SNE and UMAP; the same seed gives the same map.
        start: An initial layout, such as another encoder's map of the same samples, for comparing the two: t-SNE and
            UMAP start there, and the result is rotated and mirrored towards it. None: t-SNE starts from PCA.

    Returns:
        Coordinates (N, 2) without a unit: all 0 for collapsed features. Samples with equal features up to rounding have
        the same place.

    Raises:
        ImportError: UMAP isn't installed.
        ValueError: The shape is wrong, an entry is not finite, or the method is unknown.

    Memory:
        O(N·D + min(N, D)²).

    Source:
        L. van der Maaten and G. Hinton, Visualizing Data using t-SNE, 2008; L. McInnes, J. Healy and J. Melville,
        UMAP, 2018.

    Example:
        >>> two_dimensional_map(torch.eye(5), method="pca").shape
        torch.Size([5, 2])
    """
    if method not in Method.__args__:
        raise ValueError(f"expected a map by {', '.join(Method.__args__)}, got {method!r}: choose one of them")
    units = unit_rows(features)
    if collapsed(units):
        return torch.zeros(len(units), 2, dtype=units.dtype)
    if method == "pca" or len(units) < MIN_SAMPLES:
        return _turned(_components(units), start)
    # neighbour graphs would tear samples at one place apart
    different, places = (units / ROUNDING).round().unique(dim=0, return_inverse=True)
    if len(different) == len(units):
        return _turned(_of_neighbours(units, method, seed, start), start)
    first = torch.full((len(different),), len(units))
    first = first.scatter_reduce(0, places, torch.arange(len(units)), "amin")
    if len(first) < MIN_SAMPLES:
        return _turned(_components(units), start)
    return _turned(_of_neighbours(units[first], method, seed, None if start is None else start[first])[places], start)


def _components(units: Tensor) -> Tensor:
    """Return the first two principal components; axes point towards positive third moments."""
    centred = units - units.mean(dim=0)
    if centred.shape[1] > len(centred):  # pixels of photos: their D x D matrix would take minutes
        axes = torch.linalg.svd(centred, full_matrices=False).Vh[:2].T
    else:
        axes = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :2]
    places = centred @ axes
    signs = places.pow(3).sum(dim=0).sign()
    places = places * signs.where(signs != 0, 1)
    return functional.pad(places, (0, 2 - places.shape[1]))


def _turned(places: Tensor, towards: Tensor | None) -> Tensor:
    """Rotate and mirror a layout towards another one: the orthogonal Procrustes problem."""
    if towards is None:
        return places
    target = towards.to(places) - towards.to(places).mean(dim=0)
    u, _, v = torch.linalg.svd(places.T @ target)
    return places @ u @ v


def _of_neighbours(units: Tensor, method: Method, seed: int, start: Tensor | None) -> Tensor:
    first: Any = "pca" if units.shape[1] >= 2 else "random"
    if start is not None:
        centred = start.double() - start.double().mean(dim=0)
        first = (START_STD * centred / centred[:, 0].std().clamp(min=torch.finfo(torch.double).tiny)).float().numpy()
    if method == "tsne":
        from sklearn.manifold import TSNE  # noqa: PLC0415 - brings pandas, scipy.stats and joblib

        layout = TSNE(2, perplexity=min(30.0, (len(units) - 1) / 3), init=first, random_state=seed)
        return torch.from_numpy(layout.fit_transform(units.numpy())).double()
    near = min(15, len(units) - 1)
    begin = "spectral" if start is None else (first / START_STD * 5)
    layout = _umap()(n_neighbors=near, metric="cosine", random_state=seed, n_jobs=1, init=begin)
    return torch.from_numpy(layout.fit_transform(units.float().numpy())).double()


def _umap() -> Any:
    """Return the class UMAP, without the warnings of its import about optional libraries."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from umap import UMAP  # noqa: PLC0415 - optional dependency  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("UMAP needs umap-learn: pip install 'likewise[maps]'") from error
    return UMAP
