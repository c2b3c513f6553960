"""Pair weights for kernels: a plan, which is known at compile time, and the values that it refers to."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator.triton.operands import aligned, halves
from likewise.pairs import PairWeight
from likewise.pairs.form import ClosedForm, ThinProduct
from likewise.pairs.keys import Keys

TAKEN = {"as it is": 0, "present": 1, "absent": 2}
SELF = -1
"""Stands for the identity of rows as a key: indices are compared, not keys."""

OVERLAPS = 2
"""The maximum number of thin products in a plan."""

LABELS = 64
"""How many labels of a thin product are multiplied at a time."""

Terms = tuple[tuple[int, tuple[tuple[int, int], ...], tuple[tuple[int, int], ...], int, int, int], ...]
"""Each (constant, ((coefficient, key), …), ((overlap, function), …), own scale, other scale, factor); −1: none."""


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for: w = Σ over terms of factor · u · v · Σ coefficient·[key = key'] · Π overlap."""

    terms: tuple[Terms, ...]
    """The terms of each push, and of the pull after them."""
    sets: tuple[bool, ...]
    """Which of the weights are sets of pairs."""
    pushes: int
    """How many pushes there are."""
    pulls: bool
    counted: int
    """The index of the weight whose row sums are wanted; −1: none."""
    keys: int
    thin: tuple[tuple[int, ...], ...]
    """For each thin product: its labels, the labels per chunk, whether either side has two parts, and its divisors."""

    @property
    def of_self(self) -> int:
        """Whether a row with itself is treated differently (1), or is the only kind of pair (2); 0 if neither."""
        every = [term for terms in self.terms for term in terms]
        if not any(key == SELF for term in every for _, key in term[1]):
            return 0 if every else 2
        return 2 if all(term[0] == 0 and all(key == SELF for _, key in term[1]) for term in every) else 1


class Side(NamedTuple):
    """The values of the rows of one side."""

    keys: tuple[Tensor, ...]
    """Each (N,), integers."""
    scales: tuple[Tensor, ...]
    """Each (N,), float32."""
    overlaps: tuple[Tensor, ...]
    """Each (parts, N, L), float16, L padded with zeros."""


class Plan(NamedTuple):
    """The weights of one section: the pushes and, if there is one, the pull."""

    shape: Shape
    anchors: Side
    references: Side
    factors: Float[Tensor, " t"] | None
    powers: tuple[float, ...]
    """The power of each push: a number at run time, so that one that changes in training compiles nothing anew."""
    shift: int
    """Anchor i is reference i + shift, where the plan tells rows from each other."""
    is_symmetric: bool

    @property
    def is_set(self) -> bool:
        """Whether every push is a set of pairs, so that its exponentials can have one offset."""
        return all(self.shape.sets[: self.shape.pushes])

    @property
    def pulls(self) -> bool:
        """Whether any pair of the section has a pull."""
        return self.shape.pulls and bool(self.shape.terms[-1])

    @property
    def transposed(self) -> "Plan":
        """The plan with anchors and references swapped."""
        terms = tuple(tuple((*t[:3], t[4], t[3], t[5]) for t in weight) for weight in self.shape.terms)
        thin = tuple((size, step, two, one, b, a) for size, step, one, two, a, b in self.shape.thin)
        shape = Shape(terms, self.shape.sets, self.shape.pushes, self.shape.pulls, -1, self.shape.keys, thin)
        return self._replace(shape=shape, anchors=self.references, references=self.anchors, shift=-self.shift)


class Weighing(NamedTuple):
    """The requirements on the plans of all sections."""

    powers: tuple[float, ...]
    pulls: bool
    counted: int


class _Known:
    """The distinct keys, thin products and scales that the weights of a section refer to."""

    def __init__(self) -> None:
        self.keys: list[Keys] = []
        self.overlaps: list[ThinProduct] = []
        self.scales: tuple[list[Tensor], list[Tensor]] = [], []
        self.shifts: set[int] = set()
        self.factors: list[tuple[float, tuple[int, ...]]] = []
        """Numbers, each with the thin products whose scales it is divided by."""

    def terms(self, form: ClosedForm) -> Terms:
        """Return the structure of a form, for which a kernel is compiled."""
        return tuple(self._term(term) for term in form if term.keys)

    def _term(self, term: Any) -> Any:
        tests = []
        for key, coefficient in term.keys.items():
            if key is None:
                continue
            if key.shift is not None:
                self.shifts.add(key.shift)
                tests.append((coefficient, SELF))
            else:
                tests.append((coefficient, _index(self.keys, key)))
        taken = tuple((self._overlap(overlap), TAKEN[overlap.taken]) for overlap in term.overlaps)
        own, other = (
            -1 if scale is None else _index(known, scale)
            for known, scale in zip(self.scales, (term.anchors, term.references), strict=True)
        )
        multiplied = tuple(k for k, what in taken if what == TAKEN["as it is"])
        factor = -1
        if term.factor != 1 or any(self.overlaps[k].anchors.dtype != torch.bool for k in multiplied):
            factor = len(self.factors)
            self.factors.append((term.factor, multiplied))
        return term.keys.get(None, 0), tuple(tests), taken, own, other, factor

    def _overlap(self, item: ThinProduct) -> int:
        for k, one in enumerate(self.overlaps):
            if one.anchors is item.anchors and one.references is item.references:
                return k
        self.overlaps.append(item)
        return len(self.overlaps) - 1


def plan(weights: tuple[PairWeight, ...], asked: Weighing, device: torch.device) -> Plan | None:
    """Return the plan of the pushes and the pull of a section, on a device; None if kernels cannot evaluate one."""
    forms = [weight.form() for weight in weights]
    known = _Known()
    terms = tuple(known.terms(form) for form in forms if form is not None)
    if len(terms) < len(forms) or len(known.overlaps) > OVERLAPS or len(known.shifts) > 1:
        return None
    divisors = [
        (-1, -1)
        if overlap.sizes is None
        else (_index(known.scales[0], overlap.sizes[0]), _index(known.scales[1], overlap.sizes[1]))
        for overlap in known.overlaps
    ]
    own, others = (
        [_parts(side, device) for side in of]
        for of in ([x.anchors for x in known.overlaps], [x.references for x in known.overlaps])
    )
    thin = tuple(
        (a.shape[2], min(LABELS, a.shape[2]), int(len(a) > 1), int(len(r) > 1), *sizes)
        for (a, _), (r, _), sizes in zip(own, others, divisors, strict=True)
    )
    sets = tuple(weight.is_set for weight in weights)
    keys = [key.to(device) for key in known.keys]
    scales = [tuple(aligned(scale.to(device, torch.float32)) for scale in side) for side in known.scales]
    return Plan(
        Shape(terms, sets, len(asked.powers), asked.pulls, asked.counted, len(keys), thin),
        Side(tuple(aligned(key.anchors) for key in keys), scales[0], tuple(parts for parts, _ in own)),
        Side(tuple(aligned(key.references) for key in keys), scales[1], tuple(parts for parts, _ in others)),
        _factors(known.factors, [(a, b) for (_, a), (_, b) in zip(own, others, strict=True)], device),
        asked.powers,
        next(iter(known.shifts), 0),
        all(weight.is_symmetric for weight in weights),
    )


def _index(known: list[Any], item: object) -> int:
    """Return the position of an item in a list, by identity, appending it if it is new."""
    for k, one in enumerate(known):
        if one is item:
            return k
    known.append(item)
    return len(known) - 1


def _factors(
    given: list[tuple[float, tuple[int, ...]]], scales: list[tuple[Tensor | None, Tensor | None]], device: torch.device
) -> Tensor | None:
    """Return the factors of terms, (T,), without a copy from the host that would wait for the GPU."""
    if not given:
        return None
    factors = []
    for number, overlaps in given:
        factor = torch.full((), number, dtype=torch.float32, device=device)
        for scale in (scale for k in overlaps for scale in scales[k]):
            factor = factor if scale is None else factor / scale
        factors.append(factor)
    return torch.stack(factors)


def _parts(values: Tensor, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return one side of a thin product, (parts, N, L), and the power of two it is scaled by.

    Zeros and ones are exact in one half; other values take two, with 22 bits of float32.
    """
    labels = values.shape[1]
    padded = -(-labels // LABELS) * LABELS if labels > LABELS else max(16, 1 << max(labels - 1, 0).bit_length())
    values = torch.nn.functional.pad(values.to(device), (0, padded - labels)).contiguous()  # as kernels read it
    if values.dtype == torch.bool:
        return values.to(torch.float16)[None], None
    return halves(values)
