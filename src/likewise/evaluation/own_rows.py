"""Queries that are rows of the gallery: found by a number of each row, in linear memory; told, or left out."""

import warnings

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.evaluation.features import CHECKED, Features
from likewise.scores import ENCODER


def row_keys(vectors: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
    """Return a number of 64 bits for each row, the same for equal rows, on the CPU.

    Example:
        >>> one, other, again = row_keys(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -0.0]])).tolist()
        >>> one == again, one == other
        (True, False)
    """
    drawn = torch.randint(-(2**62), 2**62, (vectors.shape[1],), generator=torch.Generator().manual_seed(0))
    weights, found = (2 * drawn + 1).to(vectors.device), [torch.zeros(0, dtype=torch.int64)]
    for some in vectors.detach().split(CHECKED):
        mixed = (some.float() + 0.0).view(torch.int32).long() * weights  # of the two zeros one
        found.append((mixed ^ (mixed >> 29)).sum(dim=1).cpu())
    return torch.cat(found)


def places_of_equal(queries: Int[Tensor, " m"], gallery: Int[Tensor, " r"]) -> Int[Tensor, " m"]:
    """Return the place of each query's equal in the gallery, by their keys, or -1: of equal ones first by first.

    Example:
        >>> places_of_equal(torch.tensor([5, 7, 5, 9]), torch.tensor([9, 5, 5]))
        tensor([ 1, -1,  2,  0])
    """
    ordered, order = gallery.sort(stable=True)
    first, end = (torch.searchsorted(ordered, queries, right=right) for right in (False, True))
    known, by_key = queries.sort(stable=True)
    turn = torch.empty_like(by_key)
    turn[by_key] = torch.arange(len(known)) - torch.searchsorted(known, known)
    place = torch.minimum(first + turn, end - 1).clamp(min=0)
    return torch.full_like(queries, -1) if not len(order) else order[place].where(end > first, -1)


def classes_among(queries: Features, gallery: Features) -> Int[Tensor, " m"]:
    """Return the queries' classes by the gallery's numbers, which may be others; -1 for one that it lacks."""
    numbers = {name: number for number, name in enumerate(gallery.names)}
    return torch.tensor([numbers.get(name, -1) for name in queries.names], dtype=torch.int64)[queries.classes]


def own_places(
    queries: Int[Tensor, " m"], gallery: Int[Tensor, " r"], *, included: bool
) -> tuple[Int[Tensor, " m"] | None, tuple[str, ...]]:
    """Return the place of each query's own row in a gallery that includes them, or None, and notes on equal rows.

    Queries and gallery are given by their keys. Where half of the queries or more are rows of a gallery which is not
    said to include them, there is a warning, too.

    Raises:
        ValueError: The gallery is said to include the queries, and lacks one.
    """
    own = places_of_equal(queries, gallery)
    if included and (missing := int((own < 0).sum())):
        raise ValueError(
            f"expected each query's own row in the gallery, got {missing:,} of {len(own):,} queries without: leave out "
            "gallery_includes_queries, or add their rows, bit for bit and with their labels"
        )
    found = int(((own >= 0) & (queries != 0)).sum())  # zeros, whose key is 0, are similar to nothing
    if included or not found:
        return own if included else None, ()
    told = f"{found:,} of {len(own):,} queries are rows of the gallery, too"
    if 2 * found >= len(own):
        remedy = "gallery_includes_queries leaves each query's own row out, or drop these rows"
        warnings.warn(f"{told}, and find themselves: {remedy}", stacklevel=6)
    return None, (told,)


def own_rows(
    queries: Features, gallery: Features, *, included: bool
) -> tuple[Int[Tensor, " m"] | None, tuple[str, ...]]:
    """Return what `own_places` does, of features: a query's own row has its label, and raw inputs are told nothing of.

    Raises:
        ValueError: As for `own_places`.
    """
    if not included and (queries.part, queries.kind) != ("test", ENCODER):
        return None, ()
    keys = [row_keys(queries.vectors), row_keys(gallery.vectors)]
    if included and queries.labels is not None and gallery.labels is not None:
        of_sets = queries.label_kind == "label sets"
        labels = (queries.sets, gallery.sets) if of_sets else (classes_among(queries, gallery), gallery.classes)
        keys = [key + 3 * row_keys(of.float().reshape(len(of), -1)) for key, of in zip(keys, labels, strict=True)]
    return own_places(*keys, included=included)
