"""Maps: samples laid out in the plane."""

import warnings
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from likewise.diagnostics.unit_rows import ROUNDING, Array, collapsed, unit_rows

Method = Literal["tsne", "pca", "umap"]
MIN_SAMPLES = 4  # samples for which t-SNE and UMAP make sense
START_STD = 1e-4  # of t-SNE's first layout


def two_dimensional_map(
    features: Float[Array, "n d"],
    method: Method = "tsne",
    seed: int = 0,
    *,
    start: Float[Tensor, "n 2"] | None = None,
) -> Float[Tensor, "n 2"]:
    """Lay the samples out in the plane: neighbours stay neighbours under t-SNE and UMAP, large distances under PCA.

    Args:
        features: (N, D); L2-normalised here.
        method: "tsne", "pca" or "umap"; below 4 samples, where the others make no sense, PCA.
        seed: Seed of t-SNE and UMAP; the same seed gives the same map.
        start: A layout to begin with, such as another encoder's of the same samples, so that two maps can be compared:
            t-SNE and UMAP start there, and the result is turned and mirrored towards it. None: t-SNE starts at the PCA.

    Returns:
        Coordinates (N, 2) without a unit: all 0 where the features have collapsed. Samples whose features are the same
        up to rounding have the same place.

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
    # neighbour graphs would tear apart samples that share a place
    different, places = (units / ROUNDING).round().unique(dim=0, return_inverse=True)
    if len(different) == len(units):
        return _turned(_of_neighbours(units, method, seed, start), start)
    first = torch.full((len(different),), len(units))
    first = first.scatter_reduce(0, places, torch.arange(len(units)), "amin")
    if len(first) < MIN_SAMPLES:
        return _turned(_components(units), start)
    return _turned(_of_neighbours(units[first], method, seed, None if start is None else start[first])[places], start)


def _components(units: Tensor) -> Tensor:
    """Return the first two principal components; axes point to where the third moment is positive."""
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
    """Turn and mirror a layout towards another one: the orthogonal Procrustes problem."""
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
    """Return the class UMAP, whose import warns of libraries that it does without."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from umap import UMAP  # noqa: PLC0415 - of an extra  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("UMAP needs umap-learn: pip install 'likewise[maps]'") from error
    return UMAP
