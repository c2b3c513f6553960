"""A pair weight as the kernels evaluate it: a plan, known when they are compiled, and the values that it refers to."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator.triton.operands import halves
from likewise.pairs import PairWeight
from likewise.pairs.form import Form, ThinProduct
from likewise.pairs.keys import Keys

TAKEN = {"as it is": 0, "present": 1, "absent": 2}
SELF = -1
"""Stands for the key that tells rows from each other: a comparison of indices, not of keys."""

OVERLAPS = 2
"""How many thin products a plan has at most."""

LABELS = 64
"""The labels of a thin product that are multiplied at a time."""


class Side(NamedTuple):
    """What the rows of one side bring."""

    keys: Tensor
    """(K, N), int32."""
    scales: Tensor
    """(U, N), float32."""
    overlaps: tuple[Tensor, ...]
    """Each (parts, N, L), float16, L padded with zeros."""


class Plan(NamedTuple):
    """A weight of one section: w = Σ over terms of factor · u · v · Σ coefficient·[key = key'] · Π overlap."""

    terms: tuple[tuple[int, tuple[tuple[int, int], ...], tuple[tuple[int, int], ...], int, int, bool], ...]
    """Each (constant, ((coefficient, key), …), ((overlap, what is taken), …), own scale, other scale, has a factor)."""
    anchors: Side
    references: Side
    factors: Float[Tensor, " t"] | None
    divisors: tuple[tuple[int, int], ...]
    """Of each thin product, which scale of anchors and of references it is divided by; −1 for none."""
    shift: int
    """Anchor i is reference i + shift, where the plan tells rows from each other."""
    is_set: bool
    is_symmetric: bool

    @property
    def of_self(self) -> int:
        """Whether pairs of a row with itself stand out (1), or are all there are (2); 0 if neither."""
        if not any(key == SELF for term in self.terms for _, key in term[1]):
            return 0
        return 2 if all(term[0] == 0 and all(key == SELF for _, key in term[1]) for term in self.terms) else 1

    @property
    def is_all(self) -> bool:
        """Whether every pair has weight 1 but those of a row with itself."""
        return len(self.terms) == 1 and self.terms[0] in (PLAIN, NOT_SELF)

    @property
    def thin(self) -> tuple[tuple[int, ...], ...]:
        """Of each thin product: its labels, those at a time, whether either side has two parts, and its divisors."""
        return tuple(
            (a.shape[2], min(LABELS, a.shape[2]), int(len(a) > 1), int(len(r) > 1), *sizes)
            for a, r, sizes in zip(self.anchors.overlaps, self.references.overlaps, self.divisors, strict=True)
        )

    @property
    def transposed(self) -> "Plan":
        """The plan with anchors and references exchanged."""
        terms = tuple((*term[:3], term[4], term[3], term[5]) for term in self.terms)
        divisors = tuple((references, anchors) for anchors, references in self.divisors)
        return self._replace(
            terms=terms, anchors=self.references, references=self.anchors, divisors=divisors, shift=-self.shift
        )


PLAIN = (1, (), (), -1, -1, False)
NOT_SELF = (1, ((-1, SELF),), (), -1, -1, False)


def plan(weight: PairWeight, device: torch.device) -> Plan | None:
    """Return the plan of a weight, its values on a device; None if kernels cannot evaluate it."""
    form = weight.form()
    return None if form is None else _plan(weight, form, device)


def _plan(weight: PairWeight, form: Form, device: torch.device) -> Plan | None:
    keys: list[Keys] = []
    overlaps: list[ThinProduct] = []
    scales: tuple[list[Tensor], list[Tensor]] = [], []
    shifts: set[int] = set()
    terms = []
    for term in form:
        tests = []
        for key, coefficient in term.keys.items():
            if key is None:
                continue
            if key.shift is not None:
                shifts.add(key.shift)
                tests.append((coefficient, SELF))
            else:
                tests.append((coefficient, _index(keys, key)))
        taken = tuple((_overlap_index(overlaps, overlap), TAKEN[overlap.taken]) for overlap in term.overlaps)
        own, other = (
            -1 if scale is None else _index(known, scale)
            for known, scale in zip(scales, (term.anchors, term.references), strict=True)
        )
        terms.append((term.keys.get(None, 0), tuple(tests), taken, own, other, term.factor != 1 or bool(taken)))
    if len(overlaps) > OVERLAPS or len(shifts) > 1:
        return None
    divisors = tuple(
        (-1, -1)
        if overlap.sizes is None
        else (_index(scales[0], overlap.sizes[0]), _index(scales[1], overlap.sizes[1]))
        for overlap in overlaps
    )
    n, r = weight.shape
    parts = [(_parts(overlap.anchors, device), _parts(overlap.references, device)) for overlap in overlaps]
    compact = [key.to(device).compact for key in keys]
    return Plan(
        tuple(terms),
        Side(
            _stacked([anchors for anchors, _, _ in compact], n, torch.int32, device),
            _stacked(scales[0], n, torch.float32, device),
            tuple(own for (own, _), _ in parts),
        ),
        Side(
            _stacked([references for _, references, _ in compact], r, torch.int32, device),
            _stacked(scales[1], r, torch.float32, device),
            tuple(others for _, (others, _) in parts),
        ),
        _factors(form, terms, [(own, other) for (_, own), (_, other) in parts], device),
        divisors,
        next(iter(shifts), 0),
        weight.is_set,
        weight.is_symmetric,
    )


def _index(known: list[Any], item: object) -> int:
    """Return where an item stands in a list, by identity, adding it where it is new."""
    for k, one in enumerate(known):
        if one is item:
            return k
    known.append(item)
    return len(known) - 1


def _overlap_index(known: list[ThinProduct], overlap: ThinProduct) -> int:
    for k, one in enumerate(known):
        if one.anchors is overlap.anchors and one.references is overlap.references:
            return k
    known.append(overlap)
    return len(known) - 1


def _stacked(values: list[Tensor], length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if not values:
        return torch.empty(0, length, dtype=dtype, device=device)
    return torch.stack([value.to(device, dtype) for value in values])


def _factors(form: Form, terms: list[Any], scales: list[tuple[Tensor, Tensor]], device: torch.device) -> Tensor | None:
    """Return what each term is multiplied by, (T,), without a copy of numbers from the host that a GPU waits for."""
    if not any(multiplied for *_, multiplied in terms):
        return None
    factors = [torch.full((), term.factor, dtype=torch.float32, device=device) for term in form]
    for t, (_, _, overlaps, *_) in enumerate(terms):
        for k, taken in overlaps:
            if taken != TAKEN["as it is"]:
                continue
            factors[t] = (factors[t] / scales[k][0] / scales[k][1]).to(torch.float32)
    return torch.stack(factors)


def _parts(values: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return one side of a thin product, (parts, N, L), and the power of two by which it is scaled.

    Zeros and ones are exact in a half; other values take two, which are float32 to 22 bits.
    """
    labels = values.shape[1]
    padded = -(-labels // LABELS) * LABELS if labels > LABELS else max(16, 1 << max(labels - 1, 0).bit_length())
    values = torch.nn.functional.pad(values.to(device), (0, padded - labels)).contiguous()  # as kernels read it
    if values.dtype == torch.bool:
        return values.to(torch.float16)[None], torch.ones((), device=device)
    return halves(values)
