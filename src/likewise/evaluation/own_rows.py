"""Queries that are rows of the gallery, up to rounding: found in linear memory, and reported or left out."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.evaluation.features import CHECK_BATCH, Features
from likewise.runs.scores import ENCODER

PROJECTIONS = 8
ROUNDING = 1e-5  # of a row's norm; what float32 makes of one input in batches of other sizes is nearer
WINDOW = 64  # rows of the gallery, nearest by their first projection, that a query is compared with


@final
@dataclass(frozen=True)
class RowFingerprints:
    """Fingerprints of rows, which tell whether they are the same, on the CPU."""

    keys: Int[Tensor, " n"]  # a hash of each row's bits and label
    labels: Int[Tensor, " n"]  # a hash of each label; 0 where labels don't count
    projections: Float[Tensor, "n p"]  # inner products with random directions, float64
    norms: Float[Tensor, " n"]  # float64

    @classmethod
    def of(cls, pieces: Iterable[Float[Tensor, "n d"]], labels: Float[Tensor, "n l"] | None = None) -> Self:
        """Read rows, some at a time."""
        fingerprints: list[tuple[Tensor, Tensor, Tensor]] = []
        for some in (some for piece in pieces for some in piece.detach().split(CHECK_BATCH)):
            directions = torch.randn(some.shape[1], PROJECTIONS, generator=torch.Generator().manual_seed(0))
            wide = some.double()
            projections = wide @ directions.to(wide.device, wide.dtype)
            fingerprints.append((row_keys(some), projections.cpu(), wide.norm(dim=1).cpu()))
        keys, projections, norms = (torch.cat(tensors) for tensors in zip(*fingerprints, strict=True))
        hashed = torch.zeros_like(keys) if labels is None else row_keys(labels)
        return cls(keys + 3 * hashed, hashed, projections, norms)


def row_keys(vectors: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
    """Return a number of 64 bits for each row, the same for rows that are equal bit for bit, on the CPU."""
    drawn = torch.randint(-(2**62), 2**62, (vectors.shape[1],), generator=torch.Generator().manual_seed(0))
    mixed = (vectors.float() + 0.0).view(torch.int32).long() * (2 * drawn + 1).to(vectors.device)  # −0 becomes 0
    return (mixed ^ (mixed >> 29)).sum(dim=1).cpu()


def places_of_equal(queries: Int[Tensor, " m"], gallery: Int[Tensor, " r"]) -> Int[Tensor, " m"]:
    """Return the place of each query's equal in the gallery, by their keys, or -1; duplicates are matched in order."""
    ordered, order = gallery.sort(stable=True)
    first, end = (torch.searchsorted(ordered, queries, right=right) for right in (False, True))
    known, by_key = queries.sort(stable=True)
    turn = torch.empty_like(by_key)
    turn[by_key] = torch.arange(len(known)) - torch.searchsorted(known, known)
    position = torch.minimum(first + turn, end - 1).clamp(min=0)
    return torch.full_like(queries, -1) if not len(order) else order[position].where(end > first, -1)


def places_of_close(queries: RowFingerprints, gallery: RowFingerprints) -> Int[Tensor, " m"]:
    """Return the place of a gallery row that equals each query up to rounding, and in its label, or -1.

    Rows x and y whose difference is of norm ε differ by about ε in every projection. So the rows nearest by the first
    projection are the candidates, and the other projections decide. Memory is O(M + R).
    """
    ordered, order = gallery.projections[:, 0].sort(stable=True)
    matches = torch.full_like(queries.keys, -1)
    if not len(order):
        return matches
    around = torch.arange(min(WINDOW, len(order)))
    for rows in torch.arange(len(matches)).split(CHECK_BATCH // 4):
        middle = torch.searchsorted(ordered, queries.projections[rows, 0].contiguous())
        first = (middle - WINDOW // 2).clamp(max=len(order) - len(around)).clamp(min=0)
        places = order[first.unsqueeze(1) + around]
        away = (gallery.projections[places] - queries.projections[rows].unsqueeze(1)).abs().amax(dim=2)
        away = away.where(gallery.labels[places] == queries.labels[rows].unsqueeze(1), torch.inf)
        least, nearest = away.min(dim=1)
        close = least <= ROUNDING * queries.norms[rows]
        matches[rows] = places.gather(1, nearest.unsqueeze(1)).squeeze(1).where(close, -1)
    return matches


def classes_among(queries: Features, gallery: Features) -> Int[Tensor, " m"]:
    """Return the queries' classes in the gallery's numbering, which may differ; -1 for a class that it lacks."""
    numbers = {name: number for number, name in enumerate(gallery.names)}
    return torch.tensor([numbers.get(name, -1) for name in queries.names], dtype=torch.int64)[queries.classes]


def label_sets_among(queries: Features, gallery: Features) -> tuple[Bool[Tensor, "m l"], Bool[Tensor, "r l"]]:
    """Return the label sets of both in the same columns, one for each label of either."""
    columns = {name: column for column, name in enumerate(dict.fromkeys((*gallery.names, *queries.names)))}

    def in_columns(part: Features) -> Bool[Tensor, "n l"]:
        sets = torch.zeros(len(part), len(columns), dtype=torch.bool)
        sets[:, [columns[name] for name in part.names]] = part.sets
        return sets

    return in_columns(queries), in_columns(gallery)


def own_places(
    queries: RowFingerprints, gallery: RowFingerprints, *, included: bool
) -> tuple[Int[Tensor, " m"] | None, tuple[str, ...]]:
    """Return the place of each query's own row in a gallery that includes them, or None, and notes on equal rows.

    Where half of the queries or more are rows of a gallery that is not said to include them, there is a warning, too.
    """
    own_index = places_of_equal(queries.keys, gallery.keys)
    own_index = own_index.where(own_index >= 0, places_of_close(queries, gallery))
    if included and (missing := int((own_index < 0).sum())):
        error = f"expected each query's own row in the gallery, got {missing:,} of {len(own_index):,} queries without"
        raise ValueError(f"{error}: leave out gallery_includes_queries, or add their rows, with their labels")
    match_count = int(((own_index >= 0) & (queries.norms > 0)).sum())  # zeros are similar to nothing
    if included or not match_count:
        return own_index if included else None, ()
    note = f"{match_count:,} of {len(own_index):,} queries are rows of the gallery, too"
    if 2 * match_count >= len(own_index):
        remedy = "gallery_includes_queries leaves each query's own row out, or drop these rows"
        warnings.warn(f"{note}, and find themselves: {remedy}", stacklevel=6)
    return None, (note,)


def own_rows(
    queries: Features, gallery: Features, *, included: bool
) -> tuple[Int[Tensor, " m"] | None, tuple[str, ...]]:
    """Return what `own_places` does, for features: a query's own row has its label; raw inputs get no notes."""
    if not included and (queries.part, queries.kind) != ("test", ENCODER):
        return None, ()
    labels: tuple[Tensor | None, Tensor | None] = (None, None)
    if included and queries.labels is not None and gallery.labels is not None:
        of_sets = queries.label_kind == "label sets"
        labels = (queries.sets, gallery.sets) if of_sets else (classes_among(queries, gallery), gallery.classes)
    fingerprints = (
        RowFingerprints.of([features.vectors], None if marks is None else marks.float().reshape(len(marks), -1))
        for features, marks in zip((queries, gallery), labels, strict=True)
    )
    return own_places(*fingerprints, included=included)
