"""Pair weights for kernels: for each section, a function for Triton to compile, and the values that it reads.

A weight in closed form is w_ij = Σ_terms f · u_i · v_j · [test of keys] · Π thin product · Π matrix, where a thin
product may be tested, too. Its source in Triton's language is generated here, as if by hand for this weight: SupCon's
pull is `k0`, the comparison of two keys, and on the diagonal `k0 ^ own`.

There are three kinds of tiles. `SPECIAL` ones are on the diagonal or at the edge, and only they tell rows apart. If the
queries are sorted by the only key, the tiles with possibly equal keys are `EQUAL_KEYS`, and adjoin the diagonal;
`INTERIOR` ones have no common key and compare nothing. Otherwise, there are no `EQUAL_KEYS`, and keys are compared in
all tiles.
"""

import linecache
from collections.abc import Callable, Iterable
from functools import cache, partial, reduce
from hashlib import sha256
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Int
from torch import Tensor

from likewise.operator.spec import ContrastSpec
from likewise.operator.triton.kernels import product
from likewise.operator.triton.operands import aligned, halves
from likewise.pairs import PairWeight
from likewise.pairs.concat import Concat
from likewise.pairs.expressions import RowMean
from likewise.pairs.form import ClosedForm, Term, ThinProduct
from likewise.pairs.keys import Keys

MAX_THIN_PRODUCTS = 2
"""The maximum number of thin products in a section."""

LABEL_BLOCK = 64
"""Number of labels of a thin product multiplied at a time."""

MAX_CACHED_TESTS = 256
"""Largest number of cached combinations of key tests."""

MIN_ROWS_TO_SORT = 1 << 14
"""Smallest number of queries to sort by key: sorting fewer takes as long as comparing their keys."""

INTERIOR, EQUAL_KEYS, SPECIAL, NO_TILE = range(4)
"""The kinds of tiles, as kernels number them."""

CONSTANTS = ", ".join(f"{name}: tl.constexpr" for name in ("K", "KIND", "N", "R"))
FULL = "tl.full((N, R), {}, tl.{})"
ZERO, ONE = FULL.format(0.0, "float32"), FULL.format(1.0, "float32")


class Ordered(NamedTuple):
    """The queries sorted by key."""

    order: Int[Tensor, " n"]
    """Index of the query at each position."""
    first: Int[Tensor, " n"]
    """The first position with the same key, by which keys are compared."""
    end: Int[Tensor, " n"]
    """The first position after those with the same key."""


class Plan(NamedTuple):
    """The weights of one section: the pushes and, if there is one, the pull."""

    function: Callable[[bool], Any]
    """Returns the weights' function for a tile of anchors and references, or swapped: see `_compile`."""
    values: tuple[Any, ...]
    """The values that it reads: powers of the pushes, tensors, and numbers, which may change without a compilation."""
    shift: int
    """Anchor i is reference i + shift, where weights tell rows apart; launches negate it when the roles are swapped."""
    has_diagonal: bool
    """Whether weights tell rows apart."""
    first_kinds: tuple[int, int, int]
    """The first kinds of tiles with any weight, with a second push and with a pull; `NO_TILE` where there is none."""
    thin: int
    """Number of thin products."""
    is_busy: bool
    """Whether a tile compares keys or has several weights."""
    is_empty: bool
    """Whether no pair pushes or pulls."""
    is_symmetric: bool
    ordered: Ordered | None


class Plans(NamedTuple):
    """The weights of all sections."""

    sections: tuple[Plan, ...]
    powers: tuple[float, ...]
    pulls: bool
    sets: bool
    """Whether every push is a set of pairs, so that its exponentials can have one offset."""
    pull_set: bool
    mean: bool
    """Whether the last weight, the pull or the last push, is divided by the sum of its row, which kernels count."""
    streamed: PairWeight | None
    """The pull evaluated as pull @ references, if there is one."""

    @property
    def order(self) -> Int[Tensor, " n"] | None:
        """Index of the query at each sorted position, in the only section; None: queries are not sorted."""
        ordered = self.sections[0].ordered
        return None if ordered is None else ordered.order

    @property
    def counted(self) -> int:
        """The index of the weight with wanted row sums, among the pushes and the pull after them; −1: none."""
        return len(self.powers) if self.pulls else len(self.powers) - 1 if self.mean else -1

    @property
    def counts_pairs(self) -> bool:
        """Whether the counted weight is a set."""
        return self.pull_set if self.pulls else self.mean and self.sets


def plans(problem: ContrastSpec, lengths: tuple[int, ...], device: torch.device) -> Plans | None:
    """Return the weights of a contrast over sections of these lengths; None if kernels cannot evaluate one of them."""
    pull, streamed = problem.pulls
    if pull is not None and (pull.is_sparse or (streamed is not None and isinstance(pull, Concat))):
        pull, streamed = None, problem.pull  # if a section's pull has no form, tiles would evaluate all
    weights, powers = [push.weight for push in problem.pushes], tuple(float(push.power) for push in problem.pushes)
    weights += [] if pull is None else [pull]
    last = weights[-1]
    mean = type(last) is RowMean  # a test of exact types is much faster than of abstract classes
    weights[-1] = last.base if type(last) is RowMean else last
    cut = [list(weight.flat) if type(weight) is Concat else [weight] for weight in weights]
    if (
        problem.is_pairwise
        or len(powers) > 2
        or min(powers) < 0
        or not all(weight.is_nonnegative for weight in weights)
        or any([part.shape[1] for part in parts] != list(lengths) for parts in cut)
        or (problem.part is not None and any(weight.symmetric_at != problem.part.place for weight in weights))
    ):
        return None
    sets, pull_set = all(weight.is_set for weight in weights[: len(powers)]), pull is not None and weights[-1].is_set
    are_sets = [sets] * len(powers) + [pull_set]
    sorts = problem.own == (True,) and problem.normalize and problem.part is None and not problem.both_ways
    sorts = sorts and streamed is None and lengths[0] >= MIN_ROWS_TO_SORT
    section_plans = [
        _plan_section(list(parts), are_sets, powers, device, sorts=sorts) for parts in zip(*cut, strict=True)
    ]
    known = tuple(plan for plan in section_plans if plan is not None)
    return (
        Plans(known, powers, pull is not None, sets, pull_set, mean, streamed)
        if len(known) == len(section_plans)
        else None
    )


def _plan_section(
    weights: list[PairWeight], are_sets: list[bool], powers: tuple[float, ...], device: torch.device, *, sorts: bool
) -> Plan | None:
    """Return the plan of the pushes and the pull of a section; None if a kernel cannot evaluate one of them."""
    forms = [form for form in (weight.form() for weight in weights) if form is not None]
    keys, shifts, bare, tests = _collect_tests(forms)
    thin = {(id(each.anchors), id(each.references)) for form in forms for term in form for each in term.overlaps}
    if len(forms) < len(weights) or len(thin) > MAX_THIN_PRODUCTS or len(shifts) > 1:
        return None
    is_sorted = sorts and bare and shifts <= {0} and len(keys) == 1 and next(iter(keys)).is_symmetric
    ordered = _sort_by_key(next(iter(keys)).anchors.to(device)) if is_sorted else None
    is_symmetric = all(weight.is_symmetric for weight in weights)
    known = None if tests is None else _known.get((tests, len(powers), *are_sets, is_sorted))
    if known is not None:
        values = known.values(keys, device) if ordered is None else [ordered.first] * len(known.read)
        return known.plan._replace(values=(*powers, *values), is_symmetric=is_symmetric, ordered=ordered)
    section = _Section(powers, device, ordered)
    function = cache(lambda swapped: _compile(section.source(forms, are_sets, swapped=swapped)))
    function(False)  # noqa: FBT003 - not swapped; this collects the values
    plan = Plan(
        function,
        tuple(section.values),
        next(iter(shifts), 0),
        bool(shifts),
        (section.first(forms), section.first(forms[1 : len(powers)]), section.first(forms[len(powers) :])),
        len(thin),
        sum(map(any, forms)) > 1 or bool(keys),
        not any(term.keys for form in forms for term in form),
        is_symmetric,
        ordered,
    )
    if tests is not None:
        if len(_known) >= MAX_CACHED_TESTS:
            _known.clear()
        functions = tuple(map(function, (False, True)))
        shared_plan = plan._replace(function=functions.__getitem__, values=(), ordered=None)
        _known[tests, len(powers), *are_sets, is_sorted] = _Known(shared_plan, section.read(keys))
    return plan


class _Known(NamedTuple):
    """The plan shared by all weights with the same tests of keys; it holds no tensor."""

    plan: Plan
    read: list[tuple[int, bool]]
    """The index of each key that its functions read after the powers, and whether they read it for references."""

    def values(self, keys: Iterable[Keys], device: torch.device) -> list[Tensor]:
        """Return the values that the functions read for these keys."""
        moved = [key.to(device) for key in keys]
        return [
            aligned(moved[index].references if of_references else moved[index].anchors)
            for index, of_references in self.read
        ]


_known: dict[Any, _Known] = {}


def _collect_tests(forms: list[ClosedForm]) -> tuple[dict[Keys, int], set[int], bool, Any]:
    """Return the compared keys; shifts; whether terms have only factors; the tests, or None if there is more."""
    keys, shifts, tests, bare, whole = dict[Keys, int](), set[int](), list[Any](), True, True
    for form in forms:
        for term in form:
            bare, whole = bare and term.is_bare, whole and term.factor == 1
            for key, coefficient in term.keys.items():
                if key is None:
                    tests.append((coefficient,))
                elif key.shift is None:
                    tests.append((coefficient, keys.setdefault(key, len(keys))))
                else:
                    shifts.add(key.shift)
                    tests.append((coefficient, "shift", key.shift))
            tests.append(None)
        tests.append(())
    return keys, shifts, bare, tuple(tests) if bare and whole else None


def _sort_by_key(keys: Tensor) -> Ordered:
    """Sort rows by key, without reading a value."""
    values, order = keys.sort(stable=True)
    first, end = (torch.searchsorted(values, values, right=right, out_int32=True) for right in (False, True))
    return Ordered(order, first, end)


@cache
def _compile(body: str) -> Any:
    """Return the function for Triton to compile with this body.

    It takes the values, the indices of own and other rows, the mask of other rows inside, the numbers of both, the
    shift, the index of the wanted weight, the kind of the tile, and the sizes of a tile. Triton caches compiled
    functions by source, which it reads from `linecache`, as tracebacks do.
    """
    name = f"weights_{sha256(body.encode()).hexdigest()[:16]}"
    source, file = f"def {name}(v, rows, other_rows, inside, n, r, shift, {CONSTANTS}):\n{body}\n", f"<{name}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    namespace: dict[str, Any] = {"tl": tl, "product": product, "__name__": __name__}
    exec(compile(source, file, "exec"), namespace)  # noqa: S102 - the source is written below, from no input
    return triton.jit(namespace[name])


class _Section:
    """The source of the weights of a section, and the values that it refers to."""

    def __init__(self, powers: tuple[float, ...], device: torch.device, ordered: Ordered | None) -> None:
        self.values: list[Any] = [*powers]
        self._device, self._ordered, self._swapped = device, ordered, False
        self._places: dict[Any, int] = {}
        self._parts: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._names: dict[str, str] = {}
        """The names in a weight's expression, with their values."""

    def read(self, keys: dict[Keys, int]) -> list[tuple[int, bool]]:
        """Return the index of each key that is read, in the order of values, and whether for the references."""
        return [(keys[key[0]], True) if isinstance(key, tuple) else (keys[key], False) for key in self._places]

    def _since(self, key: Keys | None) -> int:
        """Return the first kind of tiles where keys may be equal."""
        if key is None:
            return INTERIOR
        if key.shift is not None:
            return SPECIAL
        return INTERIOR if self._ordered is None else EQUAL_KEYS

    def first(self, forms: Iterable[ClosedForm]) -> int:
        return min((self._since(key) for form in forms for term in form for key in term.keys), default=NO_TILE)

    def source(self, forms: list[ClosedForm], are_sets: list[bool], *, swapped: bool) -> str:
        """Return the body of the function of a tile of anchors and references, or swapped."""
        self._swapped = swapped
        lines = [
            "    i, j = {}, {}".format(
                *("other_rows[None, :]", "rows[:, None]") if swapped else ("rows[:, None]", "other_rows[None, :]")
            )
        ]
        for k, (form, is_set) in enumerate(zip(forms, are_sets, strict=False)):
            lines.append(f"    if K == {k}:")
            for tile_kind in (INTERIOR, SPECIAL) if self._ordered is None else (INTERIOR, EQUAL_KEYS, SPECIAL):
                self._names = {}
                weight = self._weight(form, tile_kind, is_set=is_set)
                lines.append(f"        if KIND == {tile_kind}:")
                lines += [f"            {name} = {value}" for name, value in (self._names | {"w": weight}).items()]
        return "\n".join([*lines, "    return w"])

    def _weight(self, form: ClosedForm, tile_kind: int, *, is_set: bool) -> str:
        """Return the expression of a weight in a tile, booleans for a set, else numbers."""
        terms = [self._term(term, tile_kind) for term in form if self.first([(term,)]) <= tile_kind]
        if is_set and len(form) == 1 and terms and not terms[0][1]:
            weight = " & ".join(terms[0][0]) or FULL.format(1, "int1")
        else:
            numbers = [ZERO]
            for tests, factors in terms:
                number = " * ".join([ONE, *factors])
                numbers.append(f"tl.where({' & '.join(tests)}, {number}, 0.0)" if tests else number)
            weight = f"({' + '.join(numbers)})" + " > 0" * is_set
        if tile_kind != SPECIAL:
            return weight
        return f"inside & ({weight})" if is_set else f"tl.where(inside, {weight}, 0.0)"

    def _term(self, term: Term, tile_kind: int) -> tuple[list[str], list[str]]:
        """Return the tests of a term and its factors. A sum of tests that is 0 or 1 is their exclusive or."""
        tests = [
            self._key(key)
            for key, c in term.keys.items()
            if key is not None and self._since(key) <= tile_kind and c % 2
        ]
        conditions = [("~" if term.keys.get(None, 0) % 2 else "") + f"({' ^ '.join(tests)})"] if tests else []
        factors = [] if term.factor == 1 else [self._value(id(term), lambda: float(term.factor))]
        for thin in term.overlaps:
            overlap = self._overlap(thin)
            if thin.taken == "as it is":
                factors.append(overlap)
            else:
                conditions.append(f"({overlap} {'>' if thin.taken == 'present' else '=='} 0)")
        for scale, index in ((term.anchors, "i"), (term.references, "j")):
            factors += [] if scale is None else [self._load(id(scale), scale.float, index)]
        for matrix in term.matrices:
            value = self._value(id(matrix), lambda matrix=matrix: matrix)
            factors.append(f"tl.load({value} + i.to(tl.int64) * {'n' if self._swapped else 'r'} + j).to(tl.float32)")
        return conditions, factors

    def _key(self, key: Keys) -> str:
        if key.shift is not None:
            self._names["own"] = "j + shift == i" if self._swapped else "i + shift == j"
            return "own"
        moved = key.to(self._device)
        sides = (moved.anchors, moved.references) if self._ordered is None else (self._ordered.first,) * 2
        row_key, other = self._load(key, lambda: sides[0], "i"), self._load((key, 1), lambda: sides[1], "j")
        name = f"k{self._places[key]}"
        self._names[name] = f"{row_key} == {other}"
        return name

    def _overlap(self, thin: ThinProduct) -> str:
        """Return the name of a thin product; it is divided as in tiles, so that a weight of 1 there is 1 here."""
        sides = [(thin.anchors, "i"), (thin.references, "j")]
        for values, _ in sides:
            if id(values) not in self._parts:
                self._parts[id(values)] = _parts(values.to(self._device))
        (a, _), (b, _) = sides[::-1] if self._swapped else sides
        pointers = [self._value(id(matrix), lambda matrix=matrix: self._parts[id(matrix)][0]) for matrix in (a, b)]
        labels, halved = self._parts[id(a)][0].shape[2], [len(self._parts[id(matrix)][0]) - 1 for matrix in (a, b)]
        arguments = (*pointers, "rows", "other_rows", "n", "r", labels, min(LABEL_BLOCK, labels), *halved, 0, "N", "R")
        text = f"product({', '.join(map(str, arguments))})"
        for (values, index), size in zip(sides, thin.sizes or (None, None), strict=True):
            by = [x for x in (size, self._parts[id(values)][1]) if x is not None]
            if by:
                divisor = partial(_product, by, len(values))
                text = f"tl.div_rn({text}, {self._load((id(values), id(size)), divisor, index)} + {ZERO})"
        name = "x" + "_".join(str(self._places[id(matrix)]) for matrix, _ in sides) + "s" * (thin.sizes is not None)
        self._names[name] = text
        return name

    def _load(self, key: Any, make: Callable[[], Tensor], index: str) -> str:
        return f"tl.load({self._value(key, lambda: aligned(make().to(self._device)))} + {index})"

    def _value(self, key: Any, make: Callable[[], Any]) -> str:
        """Return the expression of a value, which is made at its first use."""
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(make())
        return f"v[{self._places[key]}]"


def _product(factors: list[Tensor], count: int) -> Tensor:
    """Return the product of factors, each per row or for all rows, (N,)."""
    return reduce(torch.mul, [factor.float() for factor in factors]).expand(count)


def _parts(values: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return one side of a thin product, (parts, N, L), and its power of two; all but 0 and 1 take two parts."""
    labels = values.shape[1]
    padded = max(16, 1 << max(labels - 1, 0).bit_length())
    if labels > LABEL_BLOCK:
        padded = -(-labels // LABEL_BLOCK) * LABEL_BLOCK
    values = torch.nn.functional.pad(values, (0, padded - labels)).contiguous()  # as kernels read it
    return (values.to(torch.float16)[None], None) if values.dtype == torch.bool else halves(values)
