"""The kernels: one forward, that also gives the product where references are constant, and one backward.

A program owns BLOCK_N rows of one side and walks the rows of the other, BLOCK_R at a time, so that nothing is added by
two programs and every run adds in the same order. "Own" is the side whose rows it keeps, "other" the one it walks:
queries and references in the forward, and in the backward either way round. With s the similarities over τ,

    forward     total_i = Σ_j w_ij e^{s_ij − o_i},      average_i = Σ_j w_ij e^{s_ij − o_i} y_j / total_i
    backward    out_i = Σ_j w_ij (a_i e^{s_ij − o_i} + b_j e^{s_ij − o'_j}) y_j

where lse = o + log total, a is the gradient of the own rows' lse over their totals, b that of the other rows; either
part may be left out. A row's offset o is the largest of its exponents, unless all stay within range of a bound of |s|,
which is read from the device: then it is that bound for all, and the backward of both has one exponential,
e^{s_ij − o} (a_i + b_j). Offset and total stay two numbers, since their sum would round away what the total says.

Exponents are of base 2, s · scale − o rounded once. Rows hold one part in half precision, or float32 as two halves.
Sums of exponentials are compensated. Tiles whose pairs need no look, all inside and off the diagonal, run in a loop
without masks. Where a block reaches beyond the last row, it holds that row again: other rows then weigh nothing, and
own rows are not stored.
"""

import triton
import triton.language as tl

SAFE = tl.constexpr(44.0)
"""The largest bound o of |s|, in base 2, that is a fixed offset: a total is 2^−88 at least, and the gradient of a row's
log-sum-exp over it stays within float32's range up to 2^39."""

SMALLER = tl.constexpr(2048.0)
"""What the second half of a weight is lifted by once more, so that float16 keeps its bits, too."""

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load(pointer, rows, columns, D: tl.constexpr):
    """Return some columns of some rows of a matrix (_, D)."""
    return tl.load(pointer + rows.to(tl.int64)[:, None] * D + columns[None, :])


@triton.jit
def _rounded(values, HALF: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return values in half precision; bfloat16 is emulated in float32 where the interpreter has none."""
    if INTERPRETED and tl.bfloat16 == HALF:
        bits = values.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        return bits.to(tl.float32, bitcast=True)
    return values.to(HALF)


@triton.jit
def _exponents(s, scale, offset, INTERPRETED: tl.constexpr):
    """Return s · scale − offset, rounded once: the interpreter's own multiply-add rounds twice."""
    if INTERPRETED:
        return (s.to(tl.float64) * scale - offset).to(tl.float32)
    return tl.fma(s, scale, -offset)


@triton.jit
def _dot(a0, a1, b0, b1, total, A2: tl.constexpr, B2: tl.constexpr, ALL4: tl.constexpr):
    """Return total + a b of one part or two each, the small products first.

    The smallest is below rounding, but adds up in similarities of equal rows: there it is left out only if asked.
    """
    if ALL4:
        total = tl.dot(a1, b1, total, input_precision="ieee")
    if A2:
        total = tl.dot(a1, b0, total, input_precision="ieee")
    if B2:
        total = tl.dot(a0, b1, total, input_precision="ieee")
    return tl.dot(a0, b0, total, input_precision="ieee")


@triton.jit
def _weighted(w0, w1, y0, y1):
    """Return w y of two parts each, the second of w lifted once more; the product of the small ones is left out."""
    total = tl.dot(w1, y0, input_precision="ieee") * (1.0 / SMALLER)
    total = tl.dot(w0, y1, total, input_precision="ieee")
    return tl.dot(w0, y0, total, input_precision="ieee")


@triton.jit
def _similarities(
    x, y, x0, x1, rows, others, n, r,
    N: tl.constexpr, R: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, ALL4: tl.constexpr,
):  # fmt: skip
    """Return x yᵀ of a tile, and y's two parts where a tile holds all features."""
    columns = tl.arange(0, CHUNK)
    s = tl.zeros((N, R), tl.float32)
    y0 = _load(y, others, columns, D)
    y1 = y0
    if D == CHUNK:
        if TWO:
            y1 = _load(y + r.to(tl.int64) * D, others, columns, D)
        s = _dot(x0, x1, tl.trans(y0), tl.trans(y1), s, TWO, TWO, ALL4)
    else:
        for start in range(0, D, CHUNK):
            a0 = _load(x, rows, start + columns, D)
            b0 = _load(y, others, start + columns, D)
            a1, b1 = a0, b0
            if TWO:
                a1 = _load(x + n.to(tl.int64) * D, rows, start + columns, D)
                b1 = _load(y + r.to(tl.int64) * D, others, start + columns, D)
            s = _dot(a0, a1, tl.trans(b0), tl.trans(b1), s, TWO, TWO, ALL4)
    return s, y0, y1


_static = getattr(triton, "constexpr_function", None) or tl.constexpr_function  # where it is in Triton 3.4


@_static
def _at(nested, *path):
    """Return what stands in a nested constant; Triton 3.6 takes no tuple out of a tuple."""
    for k in path:
        nested = nested[k]
    return nested


@_static
def _count(nested, *path):
    """Return how many things stand there."""
    for k in path:
        nested = nested[k]
    return len(nested)


@triton.jit
def _overlap(
    own, other, own_scales, other_scales, rows, others, n, r,
    N: tl.constexpr, R: tl.constexpr, THIN: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Return a bᵀ of a tile, over the sizes of the sets if asked: a thin product over labels, in one part or two."""
    L: tl.constexpr = _at(THIN, K, 0)
    CHUNK: tl.constexpr = _at(THIN, K, 1)
    labels = tl.arange(0, CHUNK)
    total = tl.zeros((N, R), tl.float32)
    for start in range(0, L, CHUNK):
        a0 = _load(own, rows, start + labels, L)
        b0 = _load(other, others, start + labels, L)
        a1, b1 = a0, b0
        if _at(THIN, K, 2):
            a1 = _load(own + n.to(tl.int64) * L, rows, start + labels, L)
        if _at(THIN, K, 3):
            b1 = _load(other + r.to(tl.int64) * L, others, start + labels, L)
        total = _dot(a0, a1, tl.trans(b0), tl.trans(b1), total, _at(THIN, K, 2), _at(THIN, K, 3), False)
    if _at(THIN, K, 4) >= 0:  # divided as tiles divide, so that a weight that is 1 there is 1
        size = tl.load(own_scales + _at(THIN, K, 4) * n.to(tl.int64) + rows)
        total = tl.div_rn(total, size[:, None] + tl.zeros((N, R), tl.float32))
    if _at(THIN, K, 5) >= 0:
        size = tl.load(other_scales + _at(THIN, K, 5) * r.to(tl.int64) + others)
        total = tl.div_rn(total, size[None, :] + tl.zeros((N, R), tl.float32))
    return total


@triton.jit
def _weights(
    weight, rows, others, inside, n, r, shift,
    MASKED: tl.constexpr, N: tl.constexpr, R: tl.constexpr, PLAN: tl.constexpr, THIN: tl.constexpr,
):  # fmt: skip
    """Return the weights of a tile: a sum of terms, each a product of tests of keys, thin products and scales."""
    own_keys, other_keys, own_scales, other_scales, own_sets, other_sets, factors = weight
    first = tl.zeros((N, R), tl.float32)
    second = first
    if len(THIN) > 0:
        first = _overlap(own_sets[0], other_sets[0], own_scales, other_scales, rows, others, n, r, N, R, THIN, 0)
    if len(THIN) > 1:
        second = _overlap(own_sets[1], other_sets[1], own_scales, other_scales, rows, others, n, r, N, R, THIN, 1)
    total = tl.zeros((N, R), tl.float32)
    for t in tl.static_range(len(PLAN)):
        value = tl.zeros((N, R), tl.float32) + _at(PLAN, t, 0)
        for k in tl.static_range(_count(PLAN, t, 1)):
            if _at(PLAN, t, 1, k, 1) < 0:  # the pair of a row with itself, which only tiles on the diagonal have
                if MASKED:
                    equal = (rows + shift)[:, None] == others[None, :]
                    value += tl.where(equal, _at(PLAN, t, 1, k, 0), 0).to(tl.float32)
            else:
                at = _at(PLAN, t, 1, k, 1)
                here = tl.load(own_keys + at * n.to(tl.int64) + rows)
                there = tl.load(other_keys + at * r.to(tl.int64) + others)
                value += tl.where(here[:, None] == there[None, :], _at(PLAN, t, 1, k, 0), 0).to(tl.float32)
        for k in tl.static_range(_count(PLAN, t, 2)):
            product = first if _at(PLAN, t, 2, k, 0) == 0 else second
            if _at(PLAN, t, 2, k, 1) == 0:
                value *= product
            elif _at(PLAN, t, 2, k, 1) == 1:
                value = tl.where(product > 0, value, 0.0)
            else:
                value = tl.where(product > 0, 0.0, value)
        if _at(PLAN, t, 3) >= 0:
            scale = tl.load(own_scales + _at(PLAN, t, 3) * n.to(tl.int64) + rows)
            value *= scale[:, None]
        if _at(PLAN, t, 4) >= 0:
            scale = tl.load(other_scales + _at(PLAN, t, 4) * r.to(tl.int64) + others)
            value *= scale[None, :]
        if _at(PLAN, t, 5):
            value *= tl.load(factors + t)
        total += value
    return tl.where(inside[None, :], total, 0.0) if MASKED else total


@triton.jit
def _tiles(start, stop, r, first_row, shift, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, SELF: tl.constexpr):
    """Return of the tiles [start, stop) where those to be masked lie: [first, last) on the diagonal, [full, stop).

    SELF says whether a row with itself stands out (1), or is all there is (2).
    """
    full = tl.minimum(tl.maximum(r // BLOCK_R, start), stop)
    first, last = start, start
    if SELF:
        first = tl.minimum(tl.maximum((first_row + shift) // BLOCK_R, start), full)
        last = tl.minimum(tl.maximum((first_row + shift + BLOCK_N - 1) // BLOCK_R + 1, first), full)
    return first, last, full


@triton.jit
def _sum_tile(
    state, tile, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk,
    FIXED: tl.constexpr, MASKED: tl.constexpr, AVERAGE: tl.constexpr,
    PLAN: tl.constexpr, THIN: tl.constexpr, ALL: tl.constexpr, SET: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, ALL4: tl.constexpr, HALF: tl.constexpr, INTERPRETED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Add a tile's exponentials to the running sums, and their products with y to the running average."""
    highest, total, lost, average = state
    others = tile * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = others < r
    if MASKED:
        others = tl.minimum(others, r - 1)
    s, y0, y1 = _similarities(x, y, x0, x1, rows, others, n, r, BLOCK_N, BLOCK_R, D, CHUNK, TWO, ALL4)
    w = tl.full((BLOCK_N, BLOCK_R), 1.0, tl.float32)
    if MASKED or not ALL:
        w = _weights(weight, rows, others, inside, n, r, shift, MASKED, BLOCK_N, BLOCK_R, PLAN, THIN)
    if FIXED:
        e = tl.exp2(_exponents(s, scale, bound, INTERPRETED))
        if MASKED or not ALL:
            e *= w
    else:
        if MASKED or not ALL:
            s = tl.where(w > 0, s, -float("inf"))
        if SET or not AVERAGE:
            tallest = tl.max(s, axis=1) * scale
        else:  # with the weight, so that no product with it is above 1, which float16 could not hold
            tallest = tl.max(s * scale + tl.log2(tl.where(w > 0, w, 1.0)), axis=1)
        higher = tl.maximum(highest, tallest)
        fallback = tl.where(higher == -float("inf"), 0.0, higher)  # of a row that has met no pair yet
        fading = tl.exp2(highest - fallback)
        e = tl.exp2(_exponents(s, scale, fallback[:, None], INTERPRETED))
        if not SET:
            e *= w
        total *= fading
        lost *= fading
        highest = higher
        if AVERAGE:
            average *= fading[:, None]
    new = tl.sum(e, axis=1) - lost
    sums = total + new
    lost = (sums - total) - new
    total = sums
    if AVERAGE:
        if D != CHUNK:
            columns = chunk * CHUNK + tl.arange(0, CHUNK)
            y0 = _load(y, others, columns, D)
            y1 = y0
            if TWO:
                y1 = _load(y + r.to(tl.int64) * D, others, columns, D)
        e *= lift
        e0 = _rounded(e, HALF, INTERPRETED)
        e1 = e0
        if TWO:
            e1 = ((e - e0.to(tl.float32)) * SMALLER).to(HALF)
            average += _weighted(e0, e1, y0, y1)
        else:
            average = _dot(e0, e1, y0, y1, average, False, False, False)
    return highest, total, lost, average


@triton.jit
def _sum_tiles(
    start, stop, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk, first_row,
    FIXED: tl.constexpr, AVERAGE: tl.constexpr,
    PLAN: tl.constexpr, THIN: tl.constexpr, ALL: tl.constexpr, SELF: tl.constexpr, SET: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, ALL4: tl.constexpr, HALF: tl.constexpr, INTERPRETED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Return the offset, the sum and the average of tiles [start, stop): first the tiles without masks, then the others."""
    highest = tl.full((BLOCK_N,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_N,), tl.float32)
    lost = tl.zeros((BLOCK_N,), tl.float32)
    average = tl.zeros((BLOCK_N, CHUNK if AVERAGE else 1), tl.float32)
    state = highest, total, lost, average
    first, last, full = _tiles(start, stop, r, first_row, shift, BLOCK_N, BLOCK_R, SELF)
    met = last - first
    for step in range(0, 0 if SELF == 2 else full - start - met):
        tile = start + step
        tile += tl.where(tile >= first, met, 0)
        state = _sum_tile(
            state, tile, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk,
            FIXED, False, AVERAGE, PLAN, THIN, ALL, SET, D, CHUNK, TWO, ALL4, HALF, INTERPRETED, BLOCK_N, BLOCK_R,
        )  # fmt: skip
    for step in range(0, met + stop - full):
        tile = tl.where(step < met, first + step, full + step - met)
        state = _sum_tile(
            state, tile, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk,
            FIXED, True, AVERAGE, PLAN, THIN, ALL, SET, D, CHUNK, TWO, ALL4, HALF, INTERPRETED, BLOCK_N, BLOCK_R,
        )  # fmt: skip
    highest, total, lost, average = state
    if FIXED:
        highest = tl.zeros_like(total) + bound
    return highest, total, average / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit
def scalars_kernel(
    temperature, own_scale, other_scale, own_longest, other_longest, strongest, scalars,
    LARGEST: tl.constexpr, BACKWARD: tl.constexpr, TWO: tl.constexpr,
):  # fmt: skip
    """Store what products of rows are scaled by, the bound of that, lift, 1/(lift · scale), 1/τ, and how far off it is.

    The lift brings the largest weight close to LARGEST: 1 in the forward, the strongest upstream in the backward. The
    last number is by how much 1/(τ · scale) is above ln 2, relatively, since the scale is rounded.
    """
    tau = tl.load(temperature).to(tl.float32)
    scale = LOG2E / tau
    own, other = 1.0, 1.0
    if TWO:
        own, other = tl.load(own_scale), tl.load(other_scale)
    lift = LARGEST
    if BACKWARD:
        upstream = tl.load(strongest)
        wanted = tl.floor(tl.log2(LARGEST / tl.where(upstream == 0, LARGEST, upstream)))
        lift = tl.exp2(tl.minimum(tl.maximum(wanted, -60.0), 60.0))
    tl.store(scalars, scale / own / other)
    tl.store(scalars + 1, scale * (tl.load(own_longest) * tl.load(other_longest)) * 1.0001)
    tl.store(scalars + 2, lift)
    tl.store(scalars + 3, (1.0 / lift) * (1.0 / other))
    tl.store(scalars + 4, 1.0 / tau)
    tl.store(scalars + 5, (1.4426950408889634 / (tau.to(tl.float64) * scale.to(tl.float64)) - 1.0).to(tl.float32))


@triton.jit(do_not_specialize=["parts", "n"])
def merge_kernel(offsets, totals, scalars, offset, total, lse, parts, n, BLOCK: tl.constexpr):
    """Store the offset and the total of rows over all parts, and the log-sum-exp: in float64, far below the offset."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < n
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    for part in range(parts):
        highest = tl.maximum(highest, tl.load(offsets + part * n.to(tl.int64) + rows, mask=inside, other=0.0))
    base = tl.where(highest == -float("inf"), 0.0, highest)
    together = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        at = part * n.to(tl.int64) + rows
        fading = tl.exp2(tl.load(offsets + at, mask=inside, other=0.0) - base)
        together += tl.load(totals + at, mask=inside, other=0.0) * fading
    empty = together == 0
    unit = 0.6931471805599453 * (1.0 + tl.load(scalars + 5).to(tl.float64))
    value = base.to(tl.float64) * unit + tl.log(tl.where(empty, 1.0, together).to(tl.float64))
    tl.store(offset + rows, tl.where(empty, float("inf"), highest), mask=inside)
    tl.store(total + rows, together, mask=inside)
    tl.store(lse + rows, tl.where(empty, -float("inf"), value.to(tl.float32)), mask=inside)


@triton.jit(do_not_specialize=["n"])
def shares_kernel(total, upstream, share, strongest, n, BLOCK: tl.constexpr):
    """Store the upstream of rows over their totals, 0 where these are, and the largest upstream of the block."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < n
    sums = tl.load(total + rows, mask=inside, other=0.0)
    given = tl.where(sums == 0, 0.0, tl.load(upstream + rows, mask=inside, other=0.0))
    tl.store(share + rows, given / tl.where(sums == 0, 1.0, sums), mask=inside)
    tl.store(strongest + tl.program_id(0), tl.max(tl.abs(given), axis=0))


@triton.jit(do_not_specialize=["n", "r", "shift", "tiles"])
def forward_kernel(
    x, y, scalars, weight, offsets, totals, product, n, r, shift, tiles,
    PLAN: tl.constexpr, THIN: tl.constexpr, ALL: tl.constexpr, SELF: tl.constexpr, SET: tl.constexpr,
    AVERAGE: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, ALL4: tl.constexpr, HALF: tl.constexpr, INTERPRETED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Store the sums Σ w 2^{s − offset} of some rows over one split of the others, and a chunk of the average."""
    block, split, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = block * BLOCK_N
    places = first_row + tl.arange(0, BLOCK_N)
    rows = tl.minimum(places, n - 1)
    start = split * tiles
    stop = tl.minimum(start + tiles, tl.cdiv(r, BLOCK_R))
    scale, bound, lift = tl.load(scalars), tl.load(scalars + 1), tl.load(scalars + 2)
    x0 = _load(x, rows, tl.arange(0, CHUNK), D)
    x1 = x0
    if TWO:
        x1 = _load(x + n.to(tl.int64) * D, rows, tl.arange(0, CHUNK), D)
    if SET and not AVERAGE:
        if bound <= SAFE:
            highest, total, average = _sum_tiles(
                start, stop, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk,
                first_row, True, AVERAGE, PLAN, THIN, ALL, SELF, SET, D, CHUNK, TWO, ALL4, HALF, INTERPRETED, BLOCK_N, BLOCK_R,
            )  # fmt: skip
        else:
            highest, total, average = _sum_tiles(
                start, stop, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk,
                first_row, False, AVERAGE, PLAN, THIN, ALL, SELF, SET, D, CHUNK, TWO, ALL4, HALF, INTERPRETED, BLOCK_N, BLOCK_R,
            )  # fmt: skip
    else:
        highest, total, average = _sum_tiles(
            start, stop, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk,
            first_row, False, AVERAGE, PLAN, THIN, ALL, SELF, SET, D, CHUNK, TWO, ALL4, HALF, INTERPRETED, BLOCK_N, BLOCK_R,
        )  # fmt: skip
    at = split * n.to(tl.int64) + places
    if chunk == 0:
        tl.store(offsets + at, highest, mask=places < n)
        tl.store(totals + at, total, mask=places < n)
    if AVERAGE:
        columns = chunk * CHUNK + tl.arange(0, CHUNK)
        average *= tl.load(scalars + 3)
        tl.store(product + at[:, None] * D + columns[None, :], average, mask=(places < n)[:, None])


@triton.jit
def _draw_tile(
    total, tile, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk,
    own_offset, own_share, offsets, shares,
    FIXED: tl.constexpr, MASKED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
    PLAN: tl.constexpr, THIN: tl.constexpr, ALL: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, ALL4: tl.constexpr, HALF: tl.constexpr, INTERPRETED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Add a tile's part of the gradient of the own rows."""
    others = tile * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = others < r
    if MASKED:
        others = tl.minimum(others, r - 1)
    s, y0, y1 = _similarities(x, y, x0, x1, rows, others, n, r, BLOCK_N, BLOCK_R, D, CHUNK, TWO, ALL4)
    other_offset, other_share = own_offset, own_share
    if OTHER:
        other_offset = tl.load(offsets + others)
        other_share = tl.load(shares + others) * lift
    w = tl.full((BLOCK_N, BLOCK_R), 1.0, tl.float32)
    if MASKED or not ALL:
        w = _weights(weight, rows, others, inside, n, r, shift, MASKED, BLOCK_N, BLOCK_R, PLAN, THIN)
    if FIXED:
        drawn = tl.exp2(_exponents(s, scale, bound, INTERPRETED)) * (own_share[:, None] + other_share[None, :])
    else:
        if MASKED or not ALL:
            s = tl.where(w > 0, s, -float("inf"))
        drawn = tl.zeros((BLOCK_N, BLOCK_R), tl.float32)
        if OWN:
            drawn += own_share[:, None] * tl.exp2(_exponents(s, scale, own_offset[:, None], INTERPRETED))
        if OTHER:
            drawn += other_share[None, :] * tl.exp2(_exponents(s, scale, other_offset[None, :], INTERPRETED))
    if MASKED or not ALL:
        drawn *= w
    if D != CHUNK:
        columns = chunk * CHUNK + tl.arange(0, CHUNK)
        y0 = _load(y, others, columns, D)
        y1 = y0
        if TWO:
            y1 = _load(y + r.to(tl.int64) * D, others, columns, D)
    d0 = _rounded(drawn, HALF, INTERPRETED)
    d1 = d0
    if TWO:  # the tensor cores' own sums are cut, not rounded: they span one tile
        d1 = ((drawn - d0.to(tl.float32)) * SMALLER).to(HALF)
        return total + _weighted(d0, d1, y0, y1)
    return _dot(d0, d1, y0, y1, total, False, False, False)


@triton.jit
def _draw_tiles(
    start, stop, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk, first_row,
    own_offset, own_share, offsets, shares,
    FIXED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
    PLAN: tl.constexpr, THIN: tl.constexpr, ALL: tl.constexpr, SELF: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, ALL4: tl.constexpr, HALF: tl.constexpr, INTERPRETED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Return the gradient of the own rows over tiles [start, stop)."""
    total = tl.zeros((BLOCK_N, CHUNK), tl.float32)
    first, last, full = _tiles(start, stop, r, first_row, shift, BLOCK_N, BLOCK_R, SELF)
    met = last - first
    for step in range(0, 0 if SELF == 2 else full - start - met):
        tile = start + step
        tile += tl.where(tile >= first, met, 0)
        total = _draw_tile(
            total, tile, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk,
            own_offset, own_share, offsets, shares,
            FIXED, False, OWN, OTHER, PLAN, THIN, ALL, D, CHUNK, TWO, ALL4, HALF, INTERPRETED, BLOCK_N, BLOCK_R,
        )  # fmt: skip
    for step in range(0, met + stop - full):
        tile = tl.where(step < met, first + step, full + step - met)
        total = _draw_tile(
            total, tile, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk,
            own_offset, own_share, offsets, shares,
            FIXED, True, OWN, OTHER, PLAN, THIN, ALL, D, CHUNK, TWO, ALL4, HALF, INTERPRETED, BLOCK_N, BLOCK_R,
        )  # fmt: skip
    return total


@triton.jit(do_not_specialize=["n", "r", "shift", "tiles"])
def backward_kernel(
    x, y, scalars, weight, own_offsets, own_shares, offsets, shares, out, n, r, shift, tiles,
    PLAN: tl.constexpr, THIN: tl.constexpr, ALL: tl.constexpr, SELF: tl.constexpr, FIXABLE: tl.constexpr,
    OWN: tl.constexpr, OTHER: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, ALL4: tl.constexpr, HALF: tl.constexpr, INTERPRETED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Store a chunk of the gradient of some rows over one split of the others."""
    block, split, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = block * BLOCK_N
    places = first_row + tl.arange(0, BLOCK_N)
    rows = tl.minimum(places, n - 1)
    start = split * tiles
    stop = tl.minimum(start + tiles, tl.cdiv(r, BLOCK_R))
    scale, bound, lift = tl.load(scalars), tl.load(scalars + 1), tl.load(scalars + 2)
    x0 = _load(x, rows, tl.arange(0, CHUNK), D)
    x1 = x0
    if TWO:
        x1 = _load(x + n.to(tl.int64) * D, rows, tl.arange(0, CHUNK), D)
    own_offset = tl.full((BLOCK_N,), float("inf"), tl.float32)
    own_share = tl.zeros((BLOCK_N,), tl.float32)
    if OWN:
        own_offset = tl.load(own_offsets + rows)
        own_share = tl.load(own_shares + rows) * lift
    if FIXABLE:
        if bound <= SAFE:
            total = _draw_tiles(
                start, stop, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk,
                first_row, own_offset, own_share, offsets, shares, True, OWN, OTHER,
                PLAN, THIN, ALL, SELF, D, CHUNK, TWO, ALL4, HALF, INTERPRETED, BLOCK_N, BLOCK_R,
            )  # fmt: skip
        else:
            total = _draw_tiles(
                start, stop, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk,
                first_row, own_offset, own_share, offsets, shares, False, OWN, OTHER,
                PLAN, THIN, ALL, SELF, D, CHUNK, TWO, ALL4, HALF, INTERPRETED, BLOCK_N, BLOCK_R,
            )  # fmt: skip
    else:
        total = _draw_tiles(
            start, stop, x, y, x0, x1, rows, weight, n, r, shift, scale, bound, lift, chunk,
            first_row, own_offset, own_share, offsets, shares, False, OWN, OTHER,
            PLAN, THIN, ALL, SELF, D, CHUNK, TWO, ALL4, HALF, INTERPRETED, BLOCK_N, BLOCK_R,
        )  # fmt: skip
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    at = (split * n.to(tl.int64) + places)[:, None] * D + columns[None, :]
    total *= tl.load(scalars + 3) * tl.load(scalars + 4)
    tl.store(out + at, total, mask=(places < n)[:, None])
