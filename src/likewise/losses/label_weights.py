"""Label weights of MSC and NWS: a query's pull is shared by its labels, and each label's by the references with it."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.operator.inputs import without_autocast
from likewise.pairs import Explicit, Jaccard, PairWeight
from likewise.pairs.sets import Sets


class LabelWeights(NamedTuple):
    """A query's pull, in sections: one or more of instances, and the prototypes."""

    instances: tuple[PairWeight, ...]
    """w_ir / |y_i|, (N, R) for each section."""
    prototypes: PairWeight
    """w_ic / |y_i|, (N, L)."""
    totals: Float[Tensor, " n"]
    """Σ_r w_ir / |y_i|, (N,)."""
    positives: Int[Tensor, " n"]
    """Number of references that pull: instances that share a label, and prototypes of the query's labels."""


def label_weights(
    sets: Sets,
    sections: Sequence[Sets],
    *,
    alpha: float,
    self_term: Literal["left out", "corrected", "none"],
    dtype: torch.dtype,
) -> LabelWeights:
    """Return the shares of the references in each query's pull, which depend only on label sets.

        M_irc = α y_ic y_rc / |y_i ∪ y_r|      w_ir = Σ_c M_irc / D_ic      w_ic = y_ic / D_ic
        D_ic = Σ_r M_irc + y_ic                if nothing is excluded
        D_ic = Σ_r M_irc + y_ic (1 − α/|y_i|)  if the query's own term, M_iic = α y_ic / |y_i|, is excluded from the sum

    Σ_r w_ir = |y_i|, unless the own term is excluded from the sum but not from the pull.

    ``self_term`` says how the query's own term is treated: "left out" of sum and pull (the query itself is among the
    instances), "corrected", excluded only from the sum (its own key is among them), or "none".
    """
    label_sets = sets.rows
    with without_autocast(label_sets.device):
        by_label = [Jaccard(sets, section).by_label(dtype, label_sets.device) for section in sections]
    sizes = sets.sizes[:, None].clamp(min=1).to(dtype)
    prototype = torch.ones_like(sizes) if self_term == "none" else 1 - alpha / sizes
    share = sum((alpha * sums for sums, _ in by_label), start=label_sets * prototype)
    share = torch.where(label_sets, 1 / (share * sizes), 0)
    labelled = label_sets.any(dim=1)
    return LabelWeights(
        tuple(Jaccard(sets, section, worth=alpha * share) for section in sections),
        Explicit(share),
        labelled + (alpha / sizes * share).sum(dim=1) if self_term == "corrected" else labelled.to(dtype),
        sum((count for _, count in by_label), start=sets.sizes - labelled.long() * (self_term == "left out")),
    )
