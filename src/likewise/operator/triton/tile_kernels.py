"""What both visits compute of a tile: products, exponents, weights and their kinds, and which tiles need masks."""

import triton
import triton.language as tl

SAFE = tl.constexpr(44.0)
"""The largest bound o of |s|, in base 2, that is used as a fixed offset: a total is then at least 2^−88, and the
gradient of a row's log-sum-exp over it stays within float32's range up to 2^39."""

SMALLER = tl.constexpr(2048.0)
"""The extra factor of the second half of a weight, so that float16 keeps its bits as well."""

STATIC = tl.constexpr(2)
"""A loop over up to this many chunks of features, or twice as many of labels, is unrolled, so that the loop over tiles
around it is pipelined; more would not fit into shared memory at once."""

RUNNING, FIXED, LOOK = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""Offsets: each row's largest exponent, a bound for all rows, or whichever the bound on the device allows."""

NOTHING, EVERYTHING, SOME = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""The kind of a weight in a tile: 0 for every pair, 1 for every pair, or to be evaluated."""

_static = getattr(triton, "constexpr_function", None) or tl.constexpr_function  # its place in Triton 3.4


@_static
def _at(nested, *path):
    """Return an item of a nested constant; Triton 3.6 cannot index a tuple to get a tuple."""
    for k in path:
        nested = nested[k]
    return nested


@_static
def _count(nested, *path):
    """Return the length of an item of a nested constant."""
    for k in path:
        nested = nested[k]
    return len(nested)


@_static
def _kind(plan, k, masked):
    """Return the kind of a plan's k-th weight in a tile; masked tiles contain the diagonal or the edge."""
    terms = plan.terms[k]
    if masked:
        return 2 if terms else 0
    plain = all(not overlaps and own < 0 and other < 0 and factor < 0 for _, _, overlaps, own, other, factor in terms)
    if not plain or any(key >= 0 for _, tests, *_ in terms for _, key in tests):
        return 2
    constant = sum(term[0] for term in terms)
    return constant if constant in (0, 1) else 2


@_static
def _evaluates_overlaps(plan, masked):
    """Return whether any weight of a tile needs the thin products."""
    return bool(plan.thin) and (masked or any(term[2] for terms in plan.terms for term in terms))


@triton.jit
def _load(pointer, rows, columns, D: tl.constexpr):
    """Return some columns of some rows of a matrix (_, D)."""
    return tl.load(pointer + rows.to(tl.int64)[:, None] * D + columns[None, :])


@triton.jit
def _rounded(values, HALF: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return values in half precision; the interpreter, which has no bfloat16, emulates it in float32."""
    if INTERPRETED and tl.bfloat16 == HALF:
        bits = values.to(tl.float32).to(tl.int32, bitcast=True)  # host numbers are float64 there
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        return bits.to(tl.float32, bitcast=True)
    return values.to(HALF)


@triton.jit
def _exponents(s, scale, offset, INTERPRETED: tl.constexpr):
    """Return s · scale − offset, rounded once; the interpreter's own multiply-add rounds twice."""
    if INTERPRETED:
        return (s.to(tl.float64) * scale - offset).to(tl.float32)
    return tl.fma(s, scale, -offset)


@triton.jit
def _plus(total, lost, new):
    """Return a compensated sum, and its lost part, with a number added."""
    new -= lost
    sums = total + new
    return sums, (sums - total) - new


@triton.jit
def _dot(a0, a1, b0, b1, total, A2: tl.constexpr, B2: tl.constexpr, ALL4: tl.constexpr):
    """Return total + a b, for one part or two each, the small products first.

    The smallest is below rounding error, but adds up in similarities of equal rows: it is omitted only without ALL4.
    """
    if ALL4:
        total = tl.dot(a1, b1, total, input_precision="ieee")
    if A2:
        total = tl.dot(a1, b0, total, input_precision="ieee")
    if B2:
        total = tl.dot(a0, b1, total, input_precision="ieee")
    return tl.dot(a0, b0, total, input_precision="ieee")


@triton.jit
def _weighted(total, w, y, others, y0, y1, r, chunk, HOW: tl.constexpr):
    """Return total + w y for a chunk of the features; with two parts the product of the small ones is omitted."""
    if HOW.D != HOW.CHUNK:
        columns = chunk * HOW.CHUNK + tl.arange(0, HOW.CHUNK)
        y0 = _load(y, others, columns, HOW.D)
        y1 = y0
        if HOW.TWO:
            y1 = _load(y + r.to(tl.int64) * HOW.D, others, columns, HOW.D)
    w0 = _rounded(w, HOW.HALF, HOW.INTERPRETED)
    if HOW.TWO:  # tensor cores truncate their sums instead of rounding: limit these to one tile
        w1 = ((w - w0.to(tl.float32)) * SMALLER).to(HOW.HALF)
        new = tl.dot(w1, y0, input_precision="ieee") * (1.0 / SMALLER)
        new = tl.dot(w0, y1, new, input_precision="ieee")
        return total + tl.dot(w0, y0, new, input_precision="ieee")
    return tl.dot(w0, y0, total, input_precision="ieee")


@triton.jit
def _chunk(given, others, s, start, HOW: tl.constexpr):
    """Return s with the products of a chunk of the features added."""
    x, y, x0, x1, rows, weight, here, n, r, shift, scale, bound, lift, equal, chunk = given
    columns = start + tl.arange(0, HOW.CHUNK)
    a0 = _load(x, rows, columns, HOW.D)
    b0 = _load(y, others, columns, HOW.D)
    a1, b1 = a0, b0
    if HOW.TWO:
        a1 = _load(x + n.to(tl.int64) * HOW.D, rows, columns, HOW.D)
        b1 = _load(y + r.to(tl.int64) * HOW.D, others, columns, HOW.D)
    return _dot(a0, a1, tl.trans(b0), tl.trans(b1), s, HOW.TWO, HOW.TWO, HOW.ALL4)


@triton.jit
def _similarities(given, others, HOW: tl.constexpr):
    """Return x yᵀ of a tile, and the two parts of y if a tile holds all features."""
    x, y, x0, x1, rows, weight, here, n, r, shift, scale, bound, lift, equal, chunk = given
    D: tl.constexpr = HOW.D
    CHUNK: tl.constexpr = HOW.CHUNK
    columns = tl.arange(0, CHUNK)
    s = tl.full((HOW.BLOCK_N, HOW.BLOCK_R), 0.0, tl.float32)
    y0 = _load(y, others, columns, HOW.D)
    y1 = y0
    if HOW.D == HOW.CHUNK:
        if HOW.TWO:
            y1 = _load(y + r.to(tl.int64) * HOW.D, others, columns, HOW.D)
        s = _dot(x0, x1, tl.trans(y0), tl.trans(y1), s, HOW.TWO, HOW.TWO, HOW.ALL4)
    elif HOW.D <= STATIC * HOW.CHUNK:
        for start in tl.static_range(0, D, CHUNK):
            s = _chunk(given, others, s, start, HOW)
    else:
        for start in range(0, HOW.D, HOW.CHUNK):
            s = _chunk(given, others, s, start, HOW)
    return s, y0, y1


@triton.jit
def _labels(given, others, total, start, K: tl.constexpr, PLAN: tl.constexpr):
    """Return the total with the products of a chunk of the labels added."""
    x, y, x0, x1, rows, weight, here, n, r, shift, scale, bound, lift, equal, chunk = given
    own_keys, other_keys, own_scales, other_scales, own_sets, other_sets, factors, powers = weight
    L: tl.constexpr = _at(PLAN.thin, K, 0)
    labels = start + tl.arange(0, _at(PLAN.thin, K, 1))
    a0, b0 = _load(own_sets[K], rows, labels, L), _load(other_sets[K], others, labels, L)
    a1, b1 = a0, b0
    if _at(PLAN.thin, K, 2):
        a1 = _load(own_sets[K] + n.to(tl.int64) * L, rows, labels, L)
    if _at(PLAN.thin, K, 3):
        b1 = _load(other_sets[K] + r.to(tl.int64) * L, others, labels, L)
    return _dot(a0, a1, tl.trans(b0), tl.trans(b1), total, _at(PLAN.thin, K, 2), _at(PLAN.thin, K, 3), False)


@triton.jit
def _overlap(given, others, K: tl.constexpr, PLAN: tl.constexpr, HOW: tl.constexpr):
    """Return a bᵀ of a tile, a thin product over labels in one part or two; over the sizes of the sets if planned."""
    x, y, x0, x1, rows, weight, here, n, r, shift, scale, bound, lift, equal, chunk = given
    own_keys, other_keys, own_scales, other_scales, own_sets, other_sets, factors, powers = weight
    L: tl.constexpr = _at(PLAN.thin, K, 0)
    CHUNK: tl.constexpr = _at(PLAN.thin, K, 1)
    total = tl.full((HOW.BLOCK_N, HOW.BLOCK_R), 0.0, tl.float32)
    if L <= 2 * STATIC * CHUNK:
        for start in tl.static_range(0, L, CHUNK):
            total = _labels(given, others, total, start, K, PLAN)
    else:
        for start in range(0, L, CHUNK):
            total = _labels(given, others, total, start, K, PLAN)
    if _at(PLAN.thin, K, 4) >= 0:  # the same division as in tiles, so that a weight of 1 there is 1 here
        size = tl.load(own_scales[_at(PLAN.thin, K, 4)] + rows)
        total = tl.div_rn(total, size[:, None] + tl.zeros_like(total))
    if _at(PLAN.thin, K, 5) >= 0:
        size = tl.load(other_scales[_at(PLAN.thin, K, 5)] + others)
        total = tl.div_rn(total, size[None, :] + tl.zeros_like(total))
    return total


@triton.jit
def _overlaps(given, others, MASKED: tl.constexpr, PLAN: tl.constexpr, HOW: tl.constexpr):
    """Return the thin products of a tile, which all of its weights share."""
    first = tl.full((HOW.BLOCK_N, HOW.BLOCK_R), 0.0, tl.float32)
    second = first
    if _evaluates_overlaps(PLAN, MASKED):
        first = _overlap(given, others, 0, PLAN, HOW)
        if len(PLAN.thin) > 1:
            second = _overlap(given, others, 1, PLAN, HOW)
    return first, second


@triton.jit
def _first_key(pointers, rows, PLAN: tl.constexpr):
    """Return the first key of each row: loaded before the product, so that nothing waits for it afterwards."""
    keys = rows
    if PLAN.keys > 0:
        keys = tl.load(pointers[0] + rows)
    return keys


@triton.jit
def _weights(
    given, places, others, there, first, second,
    K: tl.constexpr, MASKED: tl.constexpr, PLAN: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """Return the k-th weight in a tile: a sum of terms, each a product of key comparisons, thin products and scales.

    At places beyond the last of the other rows it is 0.
    """
    x, y, x0, x1, rows, weight, here, n, r, shift, scale, bound, lift, equal, chunk = given
    own_keys, other_keys, own_scales, other_scales, own_sets, other_sets, factors, powers = weight
    total = tl.full((HOW.BLOCK_N, HOW.BLOCK_R), 0.0, tl.float32)
    for t in tl.static_range(_count(PLAN.terms, K)):
        value = tl.full((HOW.BLOCK_N, HOW.BLOCK_R), _at(PLAN.terms, K, t, 0), tl.float32)
        for k in tl.static_range(_count(PLAN.terms, K, t, 1)):
            # A key of −1 marks pairs of a row with itself, which only tiles on the diagonal have.
            if _at(PLAN.terms, K, t, 1, k, 1) < 0:
                if MASKED:
                    equal_keys = (rows + shift)[:, None] == others[None, :]
                    value += tl.where(equal_keys, _at(PLAN.terms, K, t, 1, k, 0), 0).to(tl.float32)
            elif _at(PLAN.terms, K, t, 1, k, 1) == 0:
                equal_keys = here[:, None] == there[None, :]
                value += tl.where(equal_keys, _at(PLAN.terms, K, t, 1, k, 0), 0).to(tl.float32)
            else:
                own = tl.load(own_keys[_at(PLAN.terms, K, t, 1, k, 1)] + rows)
                other = tl.load(other_keys[_at(PLAN.terms, K, t, 1, k, 1)] + others)
                value += tl.where(own[:, None] == other[None, :], _at(PLAN.terms, K, t, 1, k, 0), 0).to(tl.float32)
        for k in tl.static_range(_count(PLAN.terms, K, t, 2)):
            overlap = first if _at(PLAN.terms, K, t, 2, k, 0) == 0 else second
            if _at(PLAN.terms, K, t, 2, k, 1) == 0:
                value *= overlap
            elif _at(PLAN.terms, K, t, 2, k, 1) == 1:
                value = tl.where(overlap > 0, value, 0.0)
            else:
                value = tl.where(overlap > 0, 0.0, value)
        if _at(PLAN.terms, K, t, 3) >= 0:
            value *= tl.load(own_scales[_at(PLAN.terms, K, t, 3)] + rows)[:, None]
        if _at(PLAN.terms, K, t, 4) >= 0:
            value *= tl.load(other_scales[_at(PLAN.terms, K, t, 4)] + others)[None, :]
        if _at(PLAN.terms, K, t, 5) >= 0:
            value *= tl.load(factors + _at(PLAN.terms, K, t, 5))
        total += value
    if MASKED:
        total = tl.where((places < r)[None, :], total, 0.0)
    return total


@triton.jit
def _tiles(start, stop, r, first_row, shift, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, SELF: tl.constexpr):
    """Return which of the tiles [start, stop) need masks: [first, last) on the diagonal, and [full, stop).

    SELF: whether a row with itself is treated differently (1), or is the only kind of pair (2).
    """
    full = tl.minimum(tl.maximum(r // BLOCK_R, start), stop)
    first, last = start, start
    if SELF:
        first = tl.minimum(tl.maximum((first_row + shift) // BLOCK_R, start), full)
        last = tl.minimum(tl.maximum((first_row + shift + BLOCK_N - 1) // BLOCK_R + 1, first), full)
    return first, last, full


@triton.jit
def _numbers(numbers, HOW: tl.constexpr):
    """Return the scale and the bound of products, 1 over the scale of y, and the exponent of equal rows."""
    scalars, scale, bound, unscale, equal = numbers
    if not HOW.KNOWN:
        scale, bound, equal = tl.load(scalars), tl.load(scalars + 1), tl.load(scalars + 2)
        unscale = tl.load(scalars + (3 if HOW.SWAPPED else 4))
    return scale, bound, unscale, equal
