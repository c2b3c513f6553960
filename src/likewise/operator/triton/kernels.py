"""The two visits of a tile: the forward, which adds up push and pull, and the backward, which applies both together.

A program owns BLOCK_N rows of one side and loops over the rows of the other, BLOCK_R at a time, so that no two programs
add to the same row and every run adds in the same order. "Own" is the side whose rows it keeps, "other" the side it
loops over: queries and references in the forward, either way round in the backward. With s the similarities over τ,

    forward     total_ki = Σ_j push_k,ij e^{p_k s_ij − o_ki}      attraction_i = Σ_j pull_ij s_ij     mass_i = Σ_j w_ij
                average_i = Σ_j push_ij e^{s_ij − o_i} y_j / total_i
    backward    out_i = Σ_j W_ij y_j
                W_ij = Σ_k push_k,ij (a_ki e^{p_k s_ij − o_ki} + a'_kj e^{p_k s_ij − o'_kj}) + pull_ij (h_i + h'_j)

where lse = o + log total, a is the gradient of the own rows' lse over their totals and h that of their attraction, a'
and h' are those of the other rows; each may be omitted. A row's offset o is the largest of its exponents. If a bound of
|s| keeps all exponents within range, the bound is the offset of all rows, and W has a single exponential,
e^{s_ij − o} (a_i + a'_j). Offset and total are kept as two numbers, since their sum would round the total away.

On tight clusters push and pull almost cancel. W is their difference pair by pair, and is rounded once.

Exponents are in base 2, with s · scale − o rounded once. Rows have one part in half precision, or two halves for
float32. Sums are compensated. Tiles without special pairs, all inside and off the diagonal, run in a loop without
masks. If a block extends beyond the last row, it repeats that row: other rows then have weight 0, and own rows are not
stored.
"""

import triton
import triton.language as tl

from likewise.operator.triton.tile_kernels import (
    EVERYTHING,
    FIXED,
    LOOK,
    NOTHING,
    RUNNING,
    SAFE,
    SOME,
    _at,
    _exponents,
    _first_key,
    _kind,
    _load,
    _numbers,
    _overlaps,
    _plus,
    _similarities,
    _tiles,
    _weighted,
    _weights,
)


@triton.jit
def _add_push(
    highest, total, lost, s, w, scale, bound,
    K: tl.constexpr, OFFSET: tl.constexpr, MASKED: tl.constexpr, AVERAGE: tl.constexpr, PLAN: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """Add a tile to the k-th push's sums; return these, its exponentials, the factor of earlier ones, and weight sums."""
    KIND: tl.constexpr = _kind(PLAN, K, MASKED)
    SET: tl.constexpr = _at(PLAN.sets, K)
    e = tl.zeros_like(s)
    fading = tl.full((HOW.BLOCK_N,), 1.0, tl.float32)
    counted = tl.full((HOW.BLOCK_N,), HOW.BLOCK_R if KIND == EVERYTHING else 0, tl.float32)
    if KIND != NOTHING:
        if OFFSET == FIXED:
            e = tl.exp2(_exponents(s, scale, bound, HOW.INTERPRETED))
            if KIND == SOME:
                e = tl.where(w > 0, e, 0.0)
        else:
            if KIND == SOME:
                s = tl.where(w > 0, s, -float("inf"))
            if SET or not AVERAGE:
                tallest = tl.max(s, axis=1) * scale
            else:  # includes the weight, so that no product with it exceeds 1, which float16 could not hold
                tallest = tl.max(s * scale + tl.log2(tl.where(w > 0, w, 1.0)), axis=1)
            higher = tl.maximum(highest, tallest)
            fallback = tl.where(higher == -float("inf"), 0.0, higher)  # for a row without any pair so far
            fading = tl.exp2(highest - fallback)
            e = tl.exp2(_exponents(s, scale, fallback[:, None], HOW.INTERPRETED))
            if not SET:
                e *= w
            total *= fading
            lost *= fading
            highest = higher
        if PLAN.counted == K and KIND == SOME:
            new, counted = _sums(e, w, HOW.INTERPRETED)
        else:
            new = tl.sum(e, axis=1)
        total, lost = _plus(total, lost, new)
    return highest, total, lost, e, fading, counted


@triton.jit
def _sum_tile(
    state, tile, given,
    OFFSET: tl.constexpr, MASKED: tl.constexpr, AVERAGE: tl.constexpr, PLAN: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """Add a tile to the running sums, and the product of its exponentials with y to the running average."""
    highest, total, lost, highest1, total1, lost1, drawn, drawn_lost, mass, average = state
    x, y, x0, x1, rows, weight, here, n, r, shift, scale, bound, lift, equal, chunk = given
    places = tile * HOW.BLOCK_R + tl.arange(0, HOW.BLOCK_R)
    others = places
    if MASKED:
        others = tl.minimum(places, r - 1)
    there = _first_key(weight[1], others, PLAN)
    s, y0, y1 = _similarities(given, others, HOW)
    first, second = _overlaps(given, others, MASKED, PLAN, HOW)
    w = s
    if _kind(PLAN, 0, MASKED) == SOME:
        w = _weights(given, places, others, there, first, second, 0, MASKED, PLAN, HOW)
    power = weight[7][0]
    highest, total, lost, e, fading, counted = _add_push(
        highest, total, lost, s, w, scale * power, bound * power, 0, OFFSET, MASKED, AVERAGE, PLAN, HOW
    )
    if PLAN.counted == 0:
        mass += counted
    if PLAN.pushes > 1:
        if _kind(PLAN, 1, MASKED) == SOME:
            w = _weights(given, places, others, there, first, second, 1, MASKED, PLAN, HOW)
        power = weight[7][1]
        highest1, total1, lost1, _, _, counted = _add_push(
            highest1, total1, lost1, s, w, scale * power, bound * power, 1, OFFSET, MASKED, False, PLAN, HOW
        )
        if PLAN.counted == 1:
            mass += counted
    PULL: tl.constexpr = PLAN.pushes
    if PLAN.pulls:
        if _kind(PLAN, PULL, MASKED) == SOME:
            w = _weights(given, places, others, there, first, second, PULL, MASKED, PLAN, HOW)
            pulled = tl.where(w != 0, s, 0.0)
            if not _at(PLAN.sets, PULL):
                pulled *= w
            new, counted = _sums(pulled, w, HOW.INTERPRETED)
            drawn, drawn_lost = _plus(drawn, drawn_lost, new)
            if PLAN.counted == PULL:
                mass += counted
        elif _kind(PLAN, PULL, MASKED) == EVERYTHING:
            drawn, drawn_lost = _plus(drawn, drawn_lost, tl.sum(s, axis=1))
            if PLAN.counted == PULL:
                mass += HOW.BLOCK_R
    if AVERAGE:
        if OFFSET != FIXED:
            average *= fading[:, None]
        average = _weighted(average, e * lift, y, others, y0, y1, r, chunk, HOW)
    return highest, total, lost, highest1, total1, lost1, drawn, drawn_lost, mass, average


@triton.jit
def _pairwise(a, b, c, d):
    """Return the pairwise sums a + c and b + d."""
    return a + c, b + d


@triton.jit
def _sums(values, w, INTERPRETED: tl.constexpr):
    """Return the row sums of two tiles, in one reduction, so that both keep the layout of the product of rows."""
    if INTERPRETED:
        one, other = tl.sum(values, axis=1), tl.sum(w, axis=1)
    else:
        one, other = tl.reduce((values, w), 1, _pairwise)
    return one, other


@triton.jit
def _sum_tiles(
    start, stop, given, first_row, OFFSET: tl.constexpr, AVERAGE: tl.constexpr, PLAN: tl.constexpr, HOW: tl.constexpr
):
    """Return the sums over tiles [start, stop): first the tiles without masks, then the others."""
    x, y, x0, x1, rows, weight, here, n, r, shift, scale, bound, lift, equal, chunk = given
    none, zero = tl.full((HOW.BLOCK_N,), -float("inf"), tl.float32), tl.full((HOW.BLOCK_N,), 0.0, tl.float32)
    average = tl.full((HOW.BLOCK_N, HOW.CHUNK if AVERAGE else 1), 0.0, tl.float32)
    state = none, zero, zero, none, zero, zero, zero, zero, zero, average
    first, last, full = _tiles(start, stop, r, first_row, shift, HOW.BLOCK_N, HOW.BLOCK_R, PLAN.of_self)
    met = last - first
    for step in range(0, 0 if PLAN.of_self == 2 else full - start - met):
        tile = start + step
        tile += tl.where(tile >= first, met, 0)
        state = _sum_tile(state, tile, given, OFFSET, False, AVERAGE, PLAN, HOW)
    for step in range(0, met + stop - full):
        tile = tl.where(step < met, first + step, full + step - met)
        state = _sum_tile(state, tile, given, OFFSET, True, AVERAGE, PLAN, HOW)
    highest, total, lost, highest1, total1, lost1, drawn, drawn_lost, mass, average = state
    if OFFSET == FIXED:
        highest = zero + bound * weight[7][0]
        highest1 = zero + bound * weight[7][PLAN.pushes - 1]
    return highest, total, highest1, total1, drawn, mass, average / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit(
    do_not_specialize=["n", "r", "shift", "tiles", "rows_of_sums"],
    do_not_specialize_on_alignment=["offsets", "totals", "drawns", "masses"],
)
def forward_kernel(
    x, y, numbers, weight, offsets, totals, drawns, masses, product, n, r, shift, tiles, rows_of_sums,
    AVERAGE: tl.constexpr, PLAN: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """Store the sums of some rows over one split of the other rows, and a chunk of the average.

    Offsets and totals of the k-th push start k · ``rows_of_sums`` numbers after those of the first.
    """
    block, split, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = block * HOW.BLOCK_N
    places = first_row + tl.arange(0, HOW.BLOCK_N)
    rows = tl.minimum(places, n - 1)
    start = split * tiles
    stop = tl.minimum(start + tiles, tl.cdiv(r, HOW.BLOCK_R))
    scale, bound, unscale, equal = _numbers(numbers, HOW)
    x0 = _load(x, rows, tl.arange(0, HOW.CHUNK), HOW.D)
    x1 = x0
    if HOW.TWO:
        x1 = _load(x + n.to(tl.int64) * HOW.D, rows, tl.arange(0, HOW.CHUNK), HOW.D)
    here = _first_key(weight[0], rows, PLAN)
    given = x, y, x0, x1, rows, weight, here, n, r, shift, scale, bound, HOW.LARGEST, equal, chunk
    if HOW.OFFSET == LOOK:
        if bound * tl.maximum(weight[7][0], weight[7][PLAN.pushes - 1]) <= SAFE:
            highest, total, highest1, total1, drawn, mass, average = _sum_tiles(
                start, stop, given, first_row, FIXED, AVERAGE, PLAN, HOW
            )
        else:
            highest, total, highest1, total1, drawn, mass, average = _sum_tiles(
                start, stop, given, first_row, RUNNING, AVERAGE, PLAN, HOW
            )
    else:
        highest, total, highest1, total1, drawn, mass, average = _sum_tiles(
            start, stop, given, first_row, HOW.OFFSET, AVERAGE, PLAN, HOW
        )
    at = split * n.to(tl.int64) + places
    if chunk == 0:
        tl.store(offsets + at, highest, mask=places < n)
        tl.store(totals + at, total, mask=places < n)
        if PLAN.pushes > 1:
            tl.store(offsets + rows_of_sums.to(tl.int64) + at, highest1, mask=places < n)
            tl.store(totals + rows_of_sums.to(tl.int64) + at, total1, mask=places < n)
        if PLAN.pulls:
            tl.store(drawns + at, drawn * scale, mask=places < n)
        if PLAN.counted >= 0:
            tl.store(masses + at, mass, mask=places < n)
    if AVERAGE:
        columns = chunk * HOW.CHUNK + tl.arange(0, HOW.CHUNK)
        average *= (1.0 / HOW.LARGEST) * unscale
        tl.store(product + at[:, None] * HOW.D + columns[None, :], average, mask=(places < n)[:, None])


@triton.jit
def _push(
    s, w, own, other, rows, others, n, r, scale, bound, lift,
    K: tl.constexpr, OFFSET: tl.constexpr, KIND: tl.constexpr, SIDES: tl.constexpr, PLAN: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """Return push (a_i e^{s − o_i} + a'_j e^{s − o'_j}) of a tile for the k-th push."""
    offsets, shares, forces = own
    other_offsets, other_shares, other_forces = other
    a = tl.full((HOW.BLOCK_N,), 0.0, tl.float32)
    b = tl.full((HOW.BLOCK_R,), 0.0, tl.float32)
    if SIDES.own:
        a = tl.load(shares + K * n.to(tl.int64) + rows) * lift
    if SIDES.other:
        b = tl.load(other_shares + K * r.to(tl.int64) + others) * lift
    if OFFSET == FIXED:
        drawn = tl.exp2(_exponents(s, scale, bound, HOW.INTERPRETED)) * (a[:, None] + b[None, :])
        if KIND == SOME:
            drawn = tl.where(w > 0, drawn, 0.0)
        return drawn
    if KIND == SOME:
        s = tl.where(w > 0, s, -float("inf"))
    drawn = tl.zeros_like(s)
    if SIDES.own:
        o = tl.load(offsets + K * n.to(tl.int64) + rows)
        drawn += a[:, None] * tl.exp2(_exponents(s, scale, o[:, None], HOW.INTERPRETED))
    if SIDES.other:
        o = tl.load(other_offsets + K * r.to(tl.int64) + others)
        drawn += b[None, :] * tl.exp2(_exponents(s, scale, o[None, :], HOW.INTERPRETED))
    if KIND == SOME and not _at(PLAN.sets, K):
        drawn *= w
    return drawn


@triton.jit
def _draw_tile(
    state, tile, given, own, other,
    OFFSET: tl.constexpr, MASKED: tl.constexpr, SIDES: tl.constexpr, PLAN: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """Add a tile's part of the gradient of the own rows, and of Σ W (s − s of equal rows)."""
    total, slope, slope_lost = state
    x, y, x0, x1, rows, weight, here, n, r, shift, scale, bound, lift, equal, chunk = given
    places = tile * HOW.BLOCK_R + tl.arange(0, HOW.BLOCK_R)
    others = places
    if MASKED:
        others = tl.minimum(places, r - 1)
    there = _first_key(weight[1], others, PLAN)
    s, y0, y1 = _similarities(given, others, HOW)
    first, second = _overlaps(given, others, MASKED, PLAN, HOW)
    w = s
    drawn = tl.zeros_like(s)
    for k in tl.static_range(len(weight[7])):
        if _kind(PLAN, k, MASKED) == SOME:
            w = _weights(given, places, others, there, first, second, k, MASKED, PLAN, HOW)
        if _kind(PLAN, k, MASKED) != NOTHING and (SIDES.own or SIDES.other):
            drawn += _push(
                s, w, own, other, rows, others, n, r, scale * weight[7][k], bound * weight[7][k], lift,
                k, OFFSET, _kind(PLAN, k, MASKED), SIDES, PLAN, HOW,
            )  # fmt: skip
    PULL: tl.constexpr = PLAN.pushes
    if SIDES.own_pull or SIDES.other_pull:
        if _kind(PLAN, PULL, MASKED) != NOTHING:
            h = tl.full((HOW.BLOCK_N, HOW.BLOCK_R), 0.0, tl.float32)
            if SIDES.own_pull:
                h += (tl.load(own[2] + rows) * lift)[:, None]
            if SIDES.other_pull:
                h += (tl.load(other[2] + others) * lift)[None, :]
            if _kind(PLAN, PULL, MASKED) == SOME:
                w = _weights(given, places, others, there, first, second, PULL, MASKED, PLAN, HOW)
                if _at(PLAN.sets, PULL):
                    h = tl.where(w > 0, h, 0.0)
                else:
                    h *= w
            drawn += h
    if SIDES.slope:
        slope, slope_lost = _plus(
            slope, slope_lost, tl.sum(drawn * _exponents(s, scale, equal, HOW.INTERPRETED), axis=1)
        )
    return _weighted(total, drawn, y, others, y0, y1, r, chunk, HOW), slope, slope_lost


@triton.jit
def _draw_tiles(
    start, stop, given, own, other, first_row,
    OFFSET: tl.constexpr, SIDES: tl.constexpr, PLAN: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """Return the gradient of the own rows over tiles [start, stop), and their part of the temperature's."""
    x, y, x0, x1, rows, weight, here, n, r, shift, scale, bound, lift, equal, chunk = given
    zero = tl.full((HOW.BLOCK_N,), 0.0, tl.float32)
    state = tl.full((HOW.BLOCK_N, HOW.CHUNK), 0.0, tl.float32), zero, zero
    first, last, full = _tiles(start, stop, r, first_row, shift, HOW.BLOCK_N, HOW.BLOCK_R, PLAN.of_self)
    met = last - first
    for step in range(0, 0 if PLAN.of_self == 2 else full - start - met):
        tile = start + step
        tile += tl.where(tile >= first, met, 0)
        state = _draw_tile(state, tile, given, own, other, OFFSET, False, SIDES, PLAN, HOW)
    for step in range(0, met + stop - full):
        tile = tl.where(step < met, first + step, full + step - met)
        state = _draw_tile(state, tile, given, own, other, OFFSET, True, SIDES, PLAN, HOW)
    total, slope, slope_lost = state
    return total, slope


@triton.jit(do_not_specialize=["n", "r", "shift", "tiles"])
def backward_kernel(
    x, y, numbers, strongest, weight, own, other, out, slopes, n, r, shift, tiles,
    SIDES: tl.constexpr, PLAN: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """Store a chunk of the gradient of some rows over one split of the other rows, times τ."""
    block, split, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = block * HOW.BLOCK_N
    places = first_row + tl.arange(0, HOW.BLOCK_N)
    rows = tl.minimum(places, n - 1)
    start = split * tiles
    stop = tl.minimum(start + tiles, tl.cdiv(r, HOW.BLOCK_R))
    scale, bound, unscale, equal = _numbers(numbers, HOW)
    upstream = tl.load(strongest)  # the lift scales the largest weight close to LARGEST
    lift = tl.floor(tl.log2(HOW.LARGEST / tl.where(upstream == 0, HOW.LARGEST, upstream)))
    lift = tl.exp2(tl.minimum(tl.maximum(lift, -60.0), 60.0))
    x0 = _load(x, rows, tl.arange(0, HOW.CHUNK), HOW.D)
    x1 = x0
    if HOW.TWO:
        x1 = _load(x + n.to(tl.int64) * HOW.D, rows, tl.arange(0, HOW.CHUNK), HOW.D)
    here = _first_key(weight[0], rows, PLAN)
    given = x, y, x0, x1, rows, weight, here, n, r, shift, scale, bound, lift, equal, chunk
    if HOW.OFFSET == LOOK:
        if bound * tl.maximum(weight[7][0], weight[7][PLAN.pushes - 1]) <= SAFE:
            total, slope = _draw_tiles(start, stop, given, own, other, first_row, FIXED, SIDES, PLAN, HOW)
        else:
            total, slope = _draw_tiles(start, stop, given, own, other, first_row, RUNNING, SIDES, PLAN, HOW)
    else:
        total, slope = _draw_tiles(start, stop, given, own, other, first_row, HOW.OFFSET, SIDES, PLAN, HOW)
    columns = chunk * HOW.CHUNK + tl.arange(0, HOW.CHUNK)
    at = split * n.to(tl.int64) + places
    tl.store(out + at[:, None] * HOW.D + columns[None, :], total * ((1.0 / lift) * unscale), mask=(places < n)[:, None])
    if SIDES.slope:
        if chunk == 0:
            tl.store(slopes + at, slope / lift, mask=places < n)
