"""How MSC and NWS share a query's pull among its labels, and each label's among those that carry it."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from likewise.operator.precision import without_autocast
from likewise.pairs import Explicit, Jaccard, PairWeight


class Shares(NamedTuple):
    """A query's pull, in sections: instances, one section or more, and prototypes."""

    instances: tuple[PairWeight, ...]
    """w_ir / |y_i|, (N, R) for each section."""
    prototypes: PairWeight
    """w_ic / |y_i|, (N, L)."""
    positives: Int[Tensor, " n"]
    """How many references pull: instances that share a label, and prototypes of its labels."""


def label_shares(
    label_sets: Bool[Tensor, "n l"],
    sections: list[Bool[Tensor, "_ l"]],
    *,
    alpha: float,
    corrected: bool,
    dtype: torch.dtype,
) -> Shares:
    """Return the shares of references in the pull of each query, from label sets alone.

        M_irc = α y_ic y_rc / |y_i ∪ y_r|      w_ir = Σ_c M_irc / D_ic      w_ic = y_ic / D_ic
        D_ic = Σ_r M_irc + y_ic                if nothing is corrected: then Σ_r w_ir = |y_i|
        D_ic = Σ_r M_irc + y_ic (1 − α/|y_i|)  if the query itself, or its own key, is among the references

    The correction takes the query's own term, M_iic = α y_ic / |y_i|, out of the sum.

    Args:
        label_sets: y_i of the queries, (N, L).
        sections: y_r of the instances, (R, L) for each section.
        alpha: α, the pull of instances beside that of prototypes.
        corrected: Whether the query's own term is taken out of D.
        dtype: In which D is summed.
    """
    with without_autocast(label_sets.device):
        by_label = [Jaccard(label_sets, others).by_label(dtype, label_sets.device) for others in sections]
    sizes = label_sets.sum(dim=1, keepdim=True).clamp(min=1).to(dtype)
    prototype = 1 - alpha / sizes if corrected else torch.ones_like(sizes)
    totals = sum((alpha * sums for sums, _ in by_label), start=label_sets * prototype)
    share = torch.where(label_sets, 1 / (totals * sizes), 0)
    return Shares(
        tuple(Jaccard(label_sets, others, worth=alpha * share) for others in sections),
        Explicit(share),
        sum((count for _, count in by_label), start=label_sets.sum(dim=1)),
    )
