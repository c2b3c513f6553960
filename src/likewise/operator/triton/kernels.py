"""The kernels: one forward, that also gives the product where references are constant, and one backward.

A program owns BLOCK_N rows of one side and walks the rows of the other, BLOCK_R at a time, so that nothing is added by
two programs and every run adds in the same order. "Own" is the side whose rows it keeps, "other" the one it walks:
queries and references in the forward, and in the backward either way round. With s the similarities over τ,

    forward     lse_i = log Σ_j w_ij e^{s_ij},      average_i = Σ_j w_ij e^{s_ij − lse_i} y_j
    backward    out_i = Σ_j w_ij (g_i e^{s_ij − lse_i} + h_j e^{s_ij − lse'_j}) y_j

where g and lse belong to the own rows, h and lse' to the other; either part may be left out. With both, and as long as
e^{s − o} stays within range (o a bound of |s|), the exponential is computed once: e^{s_ij − o} (a_i + b_j) with
a_i = g_i e^{o − lse_i} and b_j = h_j e^{o − lse'_j}. Whether it stays in range is read from the device.

Exponents are of base 2. Rows hold one part, in half precision, or two halves, whose three products of any weight are
those of float32 to 22 bits. Sums of exponentials are compensated. Tiles whose pairs need no look, all inside and off
the diagonal, run in a loop without masks.
"""

import triton
import triton.language as tl

SAFE = tl.constexpr(57.0)
"""The largest bound o of |s|, about 40 in base 2, for which e^{s − o} stays in float32's range."""

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load(pointer, rows, inside, columns, D: tl.constexpr, MASKED: tl.constexpr):
    """Return some columns of some rows of a matrix (_, D); zeros for rows that are not inside."""
    at = pointer + rows.to(tl.int64)[:, None] * D + columns[None, :]
    return tl.load(at, mask=inside[:, None], other=0.0) if MASKED else tl.load(at)


@triton.jit
def _rounded(values, HALF: tl.constexpr, EMULATED: tl.constexpr):
    """Return values in half precision; bfloat16 is emulated in float32 where the interpreter has none."""
    if EMULATED:
        bits = values.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        return bits.to(tl.float32, bitcast=True)
    return values.to(HALF)


@triton.jit
def _dot(a0, a1, b0, b1, total, A2: tl.constexpr, B2: tl.constexpr):
    """Return total + a b of one part or two each, the small products first; the smallest is below rounding."""
    if A2:
        total = tl.dot(a1, b0, total, input_precision="ieee")
    if B2:
        total = tl.dot(a0, b1, total, input_precision="ieee")
    return tl.dot(a0, b0, total, input_precision="ieee")


@triton.jit
def _similarities(
    x, y, x0, x1, rows, rows_inside, others, others_inside, n, r,
    MASKED: tl.constexpr, N: tl.constexpr, R: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr,
):  # fmt: skip
    """Return x yᵀ of a tile, and y's two parts where a tile holds all features."""
    columns = tl.arange(0, CHUNK)
    s = tl.zeros((N, R), tl.float32)
    y0 = _load(y, others, others_inside, columns, D, MASKED)
    y1 = y0
    if D == CHUNK:
        if TWO:
            y1 = _load(y + r.to(tl.int64) * D, others, others_inside, columns, D, MASKED)
        s = _dot(x0, x1, tl.trans(y0), tl.trans(y1), s, TWO, TWO)
    else:
        for start in range(0, D, CHUNK):
            a0 = _load(x, rows, rows_inside, start + columns, D, True)
            b0 = _load(y, others, others_inside, start + columns, D, MASKED)
            a1, b1 = a0, b0
            if TWO:
                a1 = _load(x + n.to(tl.int64) * D, rows, rows_inside, start + columns, D, True)
                b1 = _load(y + r.to(tl.int64) * D, others, others_inside, start + columns, D, MASKED)
            s = _dot(a0, a1, tl.trans(b0), tl.trans(b1), s, TWO, TWO)
    return s, y0, y1


@triton.jit
def _overlap(
    own, other, rows, rows_inside, others, others_inside, n, r,
    MASKED: tl.constexpr, N: tl.constexpr, R: tl.constexpr, THIN: tl.constexpr,
):  # fmt: skip
    """Return a bᵀ of a tile: a thin product over labels, of one part or two on either side."""
    L: tl.constexpr = THIN[0]
    CHUNK: tl.constexpr = THIN[1]
    labels = tl.arange(0, CHUNK)
    total = tl.zeros((N, R), tl.float32)
    for start in range(0, L, CHUNK):
        a0 = _load(own, rows, rows_inside, start + labels, L, True)
        b0 = _load(other, others, others_inside, start + labels, L, MASKED)
        a1, b1 = a0, b0
        if THIN[2]:
            a1 = _load(own + n.to(tl.int64) * L, rows, rows_inside, start + labels, L, True)
        if THIN[3]:
            b1 = _load(other + r.to(tl.int64) * L, others, others_inside, start + labels, L, MASKED)
        total = _dot(a0, a1, tl.trans(b0), tl.trans(b1), total, THIN[2], THIN[3])
    return total


@triton.jit
def _weights(
    weight, rows, rows_inside, others, others_inside, n, r, shift,
    MASKED: tl.constexpr, N: tl.constexpr, R: tl.constexpr, PLAN: tl.constexpr, THIN: tl.constexpr,
):  # fmt: skip
    """Return the weights of a tile: a sum of terms, each a product of tests of keys, thin products and scales."""
    own_keys, other_keys, own_scales, other_scales, own_sets, other_sets, factors = weight
    first = tl.zeros((N, R), tl.float32)
    second = first
    if len(THIN) > 0:
        first = _overlap(
            own_sets[0], other_sets[0], rows, rows_inside, others, others_inside, n, r, MASKED, N, R, THIN[0]
        )
    if len(THIN) > 1:
        second = _overlap(
            own_sets[1], other_sets[1], rows, rows_inside, others, others_inside, n, r, MASKED, N, R, THIN[1]
        )
    total = tl.zeros((N, R), tl.float32)
    for t in tl.static_range(len(PLAN)):
        value = tl.zeros((N, R), tl.float32) + PLAN[t][0]
        for k in tl.static_range(len(PLAN[t][1])):
            if PLAN[t][1][k][1] < 0:  # the pair of a row with itself, which only tiles on the diagonal have
                if MASKED:
                    equal = (rows + shift)[:, None] == others[None, :]
                    value += tl.where(equal, PLAN[t][1][k][0], 0).to(tl.float32)
            else:
                at = PLAN[t][1][k][1]
                here = tl.load(own_keys + at * n.to(tl.int64) + rows, mask=rows_inside, other=-1)
                if MASKED:
                    there = tl.load(other_keys + at * r.to(tl.int64) + others, mask=others_inside, other=-2)
                else:
                    there = tl.load(other_keys + at * r.to(tl.int64) + others)
                value += tl.where(here[:, None] == there[None, :], PLAN[t][1][k][0], 0).to(tl.float32)
        for k in tl.static_range(len(PLAN[t][2])):
            product = first if PLAN[t][2][k][0] == 0 else second
            if PLAN[t][2][k][1] == 0:
                value *= product
            elif PLAN[t][2][k][1] == 1:
                value = tl.where(product > 0, value, 0.0)
            else:
                value = tl.where(product > 0, 0.0, value)
        if PLAN[t][3] >= 0:
            scale = tl.load(own_scales + PLAN[t][3] * n.to(tl.int64) + rows, mask=rows_inside, other=0.0)
            value *= scale[:, None]
        if PLAN[t][4] >= 0:
            scale = tl.load(other_scales + PLAN[t][4] * r.to(tl.int64) + others, mask=others_inside, other=0.0)
            value *= scale[None, :]
        if PLAN[t][5]:
            value *= tl.load(factors + t)
        total += value
    return tl.where(others_inside[None, :], total, 0.0) if MASKED else total


@triton.jit
def _tiles(start, stop, r, first_row, shift, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, SELF: tl.constexpr):
    """Return of the tiles [start, stop) where those to be masked lie: [first, last) on the diagonal, [full, stop)."""
    full = tl.minimum(tl.maximum(r // BLOCK_R, start), stop)
    first, last = start, start
    if SELF:
        first = tl.minimum(tl.maximum((first_row + shift) // BLOCK_R, start), full)
        last = tl.minimum(tl.maximum((first_row + shift + BLOCK_N - 1) // BLOCK_R + 1, first), full)
    return first, last, full


@triton.jit
def _sum_tile(
    state, tile, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk,
    FIXED: tl.constexpr, MASKED: tl.constexpr, AVERAGE: tl.constexpr,
    PLAN: tl.constexpr, THIN: tl.constexpr, ALL: tl.constexpr, SET: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, HALF: tl.constexpr, EMULATED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Add a tile's exponentials to the running sums, and their products with y to the running average."""
    highest, total, lost, average = state
    others = tile * BLOCK_R + tl.arange(0, BLOCK_R)
    others_inside = others < r
    s, y0, y1 = _similarities(
        x, y, x0, x1, rows, rows_inside, others, others_inside, n, r, MASKED, BLOCK_N, BLOCK_R, D, CHUNK, TWO
    )
    s *= scale
    w = tl.full((BLOCK_N, BLOCK_R), 1.0, tl.float32)
    if MASKED or not ALL:
        w = _weights(
            weight, rows, rows_inside, others, others_inside, n, r, shift, MASKED, BLOCK_N, BLOCK_R, PLAN, THIN
        )
    if FIXED:
        e = tl.exp2(s - bound)
        if MASKED or not ALL:
            e *= w
    else:
        if MASKED or not ALL:
            if AVERAGE and not SET:
                s += tl.log2(tl.where(w > 0, w, 1.0))
            s = tl.where(w > 0, s, -float("inf"))
        higher = tl.maximum(highest, tl.max(s, axis=1))
        fallback = tl.where(higher == -float("inf"), 0.0, higher)  # of a row that has met no pair yet
        fading = tl.exp2(highest - fallback)
        e = tl.exp2(s - fallback[:, None])
        if not SET and not AVERAGE:
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
            y0 = _load(y, others, others_inside, columns, D, MASKED)
            y1 = y0
            if TWO:
                y1 = _load(y + r.to(tl.int64) * D, others, others_inside, columns, D, MASKED)
        e *= lift
        e0 = _rounded(e, HALF, EMULATED)
        e1 = e0
        if TWO:
            e1 = (e - e0.to(tl.float32)).to(HALF)
            average += _dot(e0, e1, y0, y1, tl.zeros((BLOCK_N, CHUNK), tl.float32), True, True)
        else:
            average = _dot(e0, e1, y0, y1, average, False, False)
    return highest, total, lost, average


@triton.jit
def _sum_tiles(
    start, stop, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk, first_row,
    FIXED: tl.constexpr, AVERAGE: tl.constexpr,
    PLAN: tl.constexpr, THIN: tl.constexpr, ALL: tl.constexpr, SELF: tl.constexpr, SET: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, HALF: tl.constexpr, EMULATED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Return the log-sum of tiles [start, stop) and their average: first the tiles without masks, then the others."""
    highest = tl.full((BLOCK_N,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_N,), tl.float32)
    lost = tl.zeros((BLOCK_N,), tl.float32)
    average = tl.zeros((BLOCK_N, CHUNK if AVERAGE else 1), tl.float32)
    state = highest, total, lost, average
    first, last, full = _tiles(start, stop, r, first_row, shift, BLOCK_N, BLOCK_R, SELF)
    met = last - first
    for step in range(full - start - met):
        tile = start + step
        tile += tl.where(tile >= first, met, 0)
        state = _sum_tile(
            state, tile, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk,
            FIXED, False, AVERAGE, PLAN, THIN, ALL, SET, D, CHUNK, TWO, HALF, EMULATED, BLOCK_N, BLOCK_R,
        )  # fmt: skip
    for step in range(met + stop - full):
        tile = tl.where(step < met, first + step, full + step - met)
        state = _sum_tile(
            state, tile, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk,
            FIXED, True, AVERAGE, PLAN, THIN, ALL, SET, D, CHUNK, TWO, HALF, EMULATED, BLOCK_N, BLOCK_R,
        )  # fmt: skip
    highest, total, lost, average = state
    if FIXED:
        highest = tl.zeros_like(total) + bound
    present = tl.where(total > 0, total, 1.0)
    return tl.where(total > 0, (tl.log2(present) + highest) * LN2, -float("inf")), average / present[:, None]


@triton.jit
def scalars_kernel(temperature, own_scale, other_scale, own_longest, other_longest, lift, scalars):
    """Store what products of rows are scaled by, the bound of that, and what weights are lifted by and lowered."""
    tau, other = tl.load(temperature).to(tl.float32), tl.load(other_scale)
    scale = LOG2E / tau
    tl.store(scalars, scale / tl.load(own_scale) / other)
    tl.store(scalars + 1, scale * tl.load(own_longest) * tl.load(other_longest) * 1.0001)
    power = tl.exp2(tl.minimum(tl.maximum(tl.floor(tl.log2(tl.load(lift))), -100.0), 100.0))
    tl.store(scalars + 2, power)
    tl.store(scalars + 3, 1.0 / (tau * power * other))


@triton.jit(do_not_specialize=["n", "r", "shift", "tiles"])
def forward_kernel(
    x, y, scalars, weight, lse, product, n, r, shift, tiles,
    PLAN: tl.constexpr, THIN: tl.constexpr, ALL: tl.constexpr, SELF: tl.constexpr, SET: tl.constexpr,
    AVERAGE: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, HALF: tl.constexpr, EMULATED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Store the log-sum-exp of some rows over one split of the others, and a chunk of the average."""
    block, split, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = block * BLOCK_N
    rows = first_row + tl.arange(0, BLOCK_N)
    rows_inside = rows < n
    start = split * tiles
    stop = tl.minimum(start + tiles, tl.cdiv(r, BLOCK_R))
    scale, bound, lift = tl.load(scalars), tl.load(scalars + 1), tl.load(scalars + 2)
    x0 = _load(x, rows, rows_inside, tl.arange(0, CHUNK), D, True)
    x1 = x0
    if TWO:
        x1 = _load(x + n.to(tl.int64) * D, rows, rows_inside, tl.arange(0, CHUNK), D, True)
    if SET and not AVERAGE:
        if bound <= SAFE:
            value, average = _sum_tiles(
                start, stop, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk,
                first_row, True, AVERAGE, PLAN, THIN, ALL, SELF, SET, D, CHUNK, TWO, HALF, EMULATED, BLOCK_N, BLOCK_R,
            )  # fmt: skip
        else:
            value, average = _sum_tiles(
                start, stop, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk,
                first_row, False, AVERAGE, PLAN, THIN, ALL, SELF, SET, D, CHUNK, TWO, HALF, EMULATED, BLOCK_N, BLOCK_R,
            )  # fmt: skip
    else:
        value, average = _sum_tiles(
            start, stop, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk,
            first_row, False, AVERAGE, PLAN, THIN, ALL, SELF, SET, D, CHUNK, TWO, HALF, EMULATED, BLOCK_N, BLOCK_R,
        )  # fmt: skip
    at = split * n.to(tl.int64) + rows
    if chunk == 0:
        tl.store(lse + at, value, mask=rows_inside)
    if AVERAGE:
        columns = chunk * CHUNK + tl.arange(0, CHUNK)
        tl.store(product + at[:, None] * D + columns[None, :], average, mask=rows_inside[:, None])


@triton.jit
def _draw_tile(
    total, tile, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk,
    own_lse, own_upstream, lse, upstream,
    FIXED: tl.constexpr, MASKED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
    PLAN: tl.constexpr, THIN: tl.constexpr, ALL: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, HALF: tl.constexpr, EMULATED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Add a tile's part of the gradient of the own rows."""
    others = tile * BLOCK_R + tl.arange(0, BLOCK_R)
    others_inside = others < r
    s, y0, y1 = _similarities(
        x, y, x0, x1, rows, rows_inside, others, others_inside, n, r, MASKED, BLOCK_N, BLOCK_R, D, CHUNK, TWO
    )
    s *= scale
    other_lse, other_upstream = own_lse, own_upstream
    if OTHER:
        if MASKED:
            other_lse = tl.load(lse + others, mask=others_inside, other=float("inf"))
            other_upstream = tl.load(upstream + others, mask=others_inside, other=0.0)
        else:
            other_lse = tl.load(lse + others)
            other_upstream = tl.load(upstream + others)
        other_lse *= LOG2E
    w = tl.full((BLOCK_N, BLOCK_R), 1.0, tl.float32)
    if MASKED or not ALL:
        w = _weights(
            weight, rows, rows_inside, others, others_inside, n, r, shift, MASKED, BLOCK_N, BLOCK_R, PLAN, THIN
        )
    if FIXED:
        # An empty row's lse stands as ∞ here, so that its a is 0.
        a = own_upstream * tl.exp2(bound - own_lse)
        b = other_upstream * tl.exp2(bound - other_lse)
        drawn = tl.exp2(s - bound) * (a[:, None] + b[None, :])
    else:
        if MASKED or not ALL:
            s = tl.where(w > 0, s, -float("inf"))
        drawn = tl.zeros((BLOCK_N, BLOCK_R), tl.float32)
        if OWN:
            drawn += own_upstream[:, None] * tl.exp2(s - own_lse[:, None])
        if OTHER:
            drawn += other_upstream[None, :] * tl.exp2(s - other_lse[None, :])
    if MASKED or not ALL:
        drawn *= w
    if D != CHUNK:
        columns = chunk * CHUNK + tl.arange(0, CHUNK)
        y0 = _load(y, others, others_inside, columns, D, MASKED)
        y1 = y0
        if TWO:
            y1 = _load(y + r.to(tl.int64) * D, others, others_inside, columns, D, MASKED)
    drawn *= lift
    d0 = _rounded(drawn, HALF, EMULATED)
    d1 = d0
    if TWO:  # the tensor cores' own sums are cut, not rounded: they span one tile
        d1 = (drawn - d0.to(tl.float32)).to(HALF)
        return total + _dot(d0, d1, y0, y1, tl.zeros((BLOCK_N, CHUNK), tl.float32), True, True)
    return _dot(d0, d1, y0, y1, total, False, False)


@triton.jit
def _draw_tiles(
    start, stop, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk, first_row,
    own_lse, own_upstream, lse, upstream,
    FIXED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
    PLAN: tl.constexpr, THIN: tl.constexpr, ALL: tl.constexpr, SELF: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, HALF: tl.constexpr, EMULATED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Return the gradient of the own rows over tiles [start, stop)."""
    total = tl.zeros((BLOCK_N, CHUNK), tl.float32)
    first, last, full = _tiles(start, stop, r, first_row, shift, BLOCK_N, BLOCK_R, SELF)
    met = last - first
    for step in range(full - start - met):
        tile = start + step
        tile += tl.where(tile >= first, met, 0)
        total = _draw_tile(
            total, tile, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk,
            own_lse, own_upstream, lse, upstream,
            FIXED, False, OWN, OTHER, PLAN, THIN, ALL, D, CHUNK, TWO, HALF, EMULATED, BLOCK_N, BLOCK_R,
        )  # fmt: skip
    for step in range(met + stop - full):
        tile = tl.where(step < met, first + step, full + step - met)
        total = _draw_tile(
            total, tile, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk,
            own_lse, own_upstream, lse, upstream,
            FIXED, True, OWN, OTHER, PLAN, THIN, ALL, D, CHUNK, TWO, HALF, EMULATED, BLOCK_N, BLOCK_R,
        )  # fmt: skip
    return total


@triton.jit(do_not_specialize=["n", "r", "shift", "tiles"])
def backward_kernel(
    x, y, scalars, weight, own_lses, own_upstreams, lse, upstream, out, n, r, shift, tiles,
    PLAN: tl.constexpr, THIN: tl.constexpr, ALL: tl.constexpr, SELF: tl.constexpr, FIXABLE: tl.constexpr,
    OWN: tl.constexpr, OTHER: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, TWO: tl.constexpr, HALF: tl.constexpr, EMULATED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Store a chunk of the gradient of some rows over one split of the others."""
    block, split, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = block * BLOCK_N
    rows = first_row + tl.arange(0, BLOCK_N)
    rows_inside = rows < n
    start = split * tiles
    stop = tl.minimum(start + tiles, tl.cdiv(r, BLOCK_R))
    scale, bound, lift, unlift = (
        tl.load(scalars), tl.load(scalars + 1), tl.load(scalars + 2), tl.load(scalars + 3)
    )  # fmt: skip
    x0 = _load(x, rows, rows_inside, tl.arange(0, CHUNK), D, True)
    x1 = x0
    if TWO:
        x1 = _load(x + n.to(tl.int64) * D, rows, rows_inside, tl.arange(0, CHUNK), D, True)
    own_lse = tl.full((BLOCK_N,), float("inf"), tl.float32)
    own_upstream = tl.zeros((BLOCK_N,), tl.float32)
    if OWN:
        own_lse = tl.load(own_lses + rows, mask=rows_inside, other=float("inf")) * LOG2E
        own_upstream = tl.load(own_upstreams + rows, mask=rows_inside, other=0.0)
    if FIXABLE:
        if bound <= SAFE:
            total = _draw_tiles(
                start, stop, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk,
                first_row, own_lse, own_upstream, lse, upstream, True, OWN, OTHER,
                PLAN, THIN, ALL, SELF, D, CHUNK, TWO, HALF, EMULATED, BLOCK_N, BLOCK_R,
            )  # fmt: skip
        else:
            total = _draw_tiles(
                start, stop, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk,
                first_row, own_lse, own_upstream, lse, upstream, False, OWN, OTHER,
                PLAN, THIN, ALL, SELF, D, CHUNK, TWO, HALF, EMULATED, BLOCK_N, BLOCK_R,
            )  # fmt: skip
    else:
        total = _draw_tiles(
            start, stop, x, y, x0, x1, rows, rows_inside, weight, n, r, shift, scale, bound, lift, chunk,
            first_row, own_lse, own_upstream, lse, upstream, False, OWN, OTHER,
            PLAN, THIN, ALL, SELF, D, CHUNK, TWO, HALF, EMULATED, BLOCK_N, BLOCK_R,
        )  # fmt: skip
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    at = (split * n.to(tl.int64) + rows)[:, None] * D + columns[None, :]
    tl.store(out + at, total * unlift, mask=rows_inside[:, None])
