"""The closed form of a pair weight for a kernel: a sum of products of factors, evaluated within a tile."""

from collections.abc import Callable
from itertools import product
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.pairs.keys import Terms, joined

EVERYTHING: Terms = {None: 1}

Taken = Literal["as it is", "present", "absent"]
"""The function of a thin product x: x, [x > 0] or [x = 0]."""


class ThinProduct(NamedTuple):
    """A factor computed from a thin product over labels, x = a_i · b_r."""

    anchors: Float[Tensor, "n l"]
    references: Float[Tensor, "r l"]
    taken: Taken
    sizes: tuple[Float[Tensor, " n"], Float[Tensor, " r"]] | None = None
    """A divisor for each anchor and each reference, applied to x first."""


class Term(NamedTuple):
    """One term, f · u_i · v_r · (Σ coefficient · [key_i = key'_r]) · Π thin product · Π matrix."""

    keys: Terms
    factor: float = 1.0
    anchors: Float[Tensor, " n"] | None = None
    references: Float[Tensor, " r"] | None = None
    overlaps: tuple[ThinProduct, ...] = ()
    matrices: tuple[Callable[[], Tensor], ...] = ()
    """Functions that return a value for every pair, (N, R), and raise if the values have changed since."""

    @property
    def is_bare(self) -> bool:
        """Whether the term has only keys and a factor."""
        return not (self.overlaps or self.matrices) and self.anchors is self.references is None

    @property
    def is_a_test(self) -> bool:
        """Whether the term only tests whether shared labels are present or absent."""
        bare = self.anchors is None and self.references is None and self.factor == 1 and self.keys == EVERYTHING
        single = len(self.overlaps) == 1 and not self.matrices
        return bare and single and self.overlaps[0].taken in OPPOSITE

    def times(self, other: "Term") -> "Term":
        """Return the product of two terms."""
        return Term(
            joined(self.keys, other.keys),
            self.factor * other.factor,
            _scales(self.anchors, other.anchors),
            _scales(self.references, other.references),
            self.overlaps + other.overlaps,
            self.matrices + other.matrices,
        )


ClosedForm = tuple[Term, ...]
OPPOSITE: dict[str, Taken] = {"present": "absent", "absent": "present"}


def times(form: ClosedForm, other: ClosedForm) -> ClosedForm:
    """Return the product of two sums of terms."""
    return tuple(a.times(b) for a, b in product(form, other))


def complement(form: ClosedForm) -> ClosedForm:
    """Return 1 − a form: a single test of labels is negated, other terms are subtracted from 1."""
    if len(form) == 1 and form[0].is_a_test:
        (overlap,) = form[0].overlaps
        return (Term(EVERYTHING, overlaps=(overlap._replace(taken=OPPOSITE[overlap.taken]),)),)
    return Term(EVERYTHING), *(term._replace(factor=-term.factor) for term in form)


def _scales(scale: Tensor | None, other: Tensor | None) -> Tensor | None:
    if scale is None or other is None:
        return other if scale is None else scale
    wide = torch.promote_types(scale.dtype, other.dtype)
    return scale.to(wide) * other.to(scale.device, wide)
