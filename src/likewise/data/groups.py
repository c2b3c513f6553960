"""Groups of pairs: what shares an input, directly or through others, is in one part, and is never pushed apart."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data import columns
from likewise.data.samples import Samples
from likewise.data.sides import numbered
from likewise.files.formats import PARTS


def never_apart(samples: Samples) -> Int[Tensor, " n"]:
    """Number pairs, (N,), alike where they share a first, a second, a label or a group, directly or through others.

    What has the same number is not to be pushed apart.

    Example:
        >>> items = torch.tensor([0, 0, 1, 2, 3])
        >>> captions = Samples(torch.zeros(5, 2), items=torch.tensor([5, 6, 6, 7, 8]))
        >>> never_apart(Samples(torch.zeros(5, 3), items=items, counterparts=captions))
        tensor([0, 0, 0, 1, 2])
    """
    counterparts = samples.counterparts
    shared = [samples.items, None if counterparts is None else counterparts.items, samples.groups, samples.labels]
    return components(len(samples), [numbers for numbers in shared if numbers is not None])


def components(count: int, shared: Sequence[Tensor]) -> Int[Tensor, " n"]:
    """Number what has a number in common, (N,), or a column that is set, (N, L), directly or through others."""
    from scipy.sparse import coo_array  # noqa: PLC0415 - only pairs need it
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 - likewise

    rows, nodes, total = [torch.arange(0)], [torch.arange(0)], count
    for numbers in shared:
        row, node = (torch.arange(count), numbers) if numbers.ndim == 1 else numbers.nonzero().unbind(1)
        rows, nodes = [*rows, row], [*nodes, node + total]
        total += int(node.max()) + 1 if len(node) else 0
    edges = torch.cat(rows).numpy(), torch.cat(nodes).numpy()
    graph: Any = coo_array((np.ones(len(edges[0]), dtype=np.int8), edges), shape=(total, total))
    return torch.from_numpy(connected_components(graph, directed=False)[1][:count].astype(np.int64))


def grouped(samples: Samples) -> Int[Tensor, " n"]:
    """Number the pairs that have a first or a second in common, directly or through others, (N,)."""
    return never_apart(replace(samples, groups=None, labels=None))


def groups_in(where: str, splits: Sequence[Any], column: str) -> Int[Tensor, " n"]:
    """Number the values of a column, (N,)."""
    values = [value for split in splits for value in columns.values_of(split, column)]
    odd = sum(value is None or value != value or isinstance(value, list | dict) for value in values)  # noqa: PLR0124 - NaN
    if odd:
        got = f"none in {odd:,} of {len(values):,} of column {column!r}"
        raise ValueError(f"expected a group, a number or a string, in every row of {where}, got {got}")
    return numbered(values)[0]


def without_bound(where: str, samples: Samples) -> Samples:
    """Leave out pairs whose group is in a later part too, where the source gives the parts."""
    if samples.parts is None or samples.groups is None:
        return samples
    last = torch.zeros(int(samples.groups.max()) + 1, dtype=torch.int64)
    for part in range(3):
        last[samples.groups[samples.parts == part]] = part
    kept = samples.parts == last[samples.groups]
    left, all_of = (torch.bincount(samples.parts[some], minlength=3).tolist() for some in (~kept, kept | True))
    if left[0] == all_of[0]:
        got = f"none of {all_of[0]:,}: name a column of what belongs together in --data.group"
        raise ValueError(f"expected training pairs of {where} that share nothing with later parts, got {got}")
    each = zip(left, all_of, PARTS, strict=True)
    if counts := [f"{count:,} of {total:,} {part} pairs" for count, total, part in each if count]:
        some = f"{' and '.join(counts)} of {where}"
        warnings.warn(f"left out {some}, which share a first, a second or a group with later parts", stacklevel=4)
    return samples[kept]


def without_held_out(parts: Sequence[Samples]) -> Sequence[Samples]:
    """Leave out each part's hard negatives that are counterparts in later parts alone; a warning counts them."""
    sides = [None if part.counterparts is None else part.counterparts.items for part in parts]
    items, kept = [side for side in sides if side is not None], list[Samples]()
    for end, (samples, name) in enumerate(zip(parts, PARTS, strict=True), 1):
        negatives = samples.negatives
        if negatives is None or len(items) < len(parts) or end == len(parts):
            kept.append(samples)
            continue
        later, earlier = torch.cat(items[end:]), torch.cat(items[:end])
        held_out = torch.isin(negatives.items, later) & ~torch.isin(negatives.items, earlier)
        lost = torch.isin(negatives.places, held_out.nonzero().flatten())
        if bool(lost.any()):
            some = f"{int(lost.sum()):,} of {int((negatives.places >= 0).sum()):,} hard negatives of {name} pairs"
            warnings.warn(f"left out {some}, which are counterparts of later parts", stacklevel=4)
        kept.append(replace(samples, negatives=replace(negatives, places=negatives.places.masked_fill(lost, -1))))
    return kept
