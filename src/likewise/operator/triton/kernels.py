"""The two kernels that visit tiles: the forward adds up push and pull, and the backward applies both together.

A program owns N rows of one side and loops over the rows of the other, R at a time: no two programs add to the same
row, and every run adds in the same order. It keeps its "own" rows, and loops over the "other" ones: queries and
references in the forward, either way round in the backward. With s the similarities over τ,

    forward     total_ki = Σ_j push_k,ij e^{p_k s_ij − o_ki}      attraction_i = Σ_j pull_ij s_ij     mass_i = Σ_j w_ij
    backward    out_i = Σ_j W_ij y_j
                W_ij = Σ_k push_k,ij (a_ki e^{p_k s_ij − o_ki} + a'_kj e^{p_k s_ij − o'_kj}) + pull_ij (h_i + h'_j)

where lse = o + log total, a is the gradient of the own rows' lse over their totals, h the gradient of their attraction,
and a' and h' are the same for the other rows; each may be omitted. A row's offset o is the largest of its exponents. If
a bound of |s| keeps all exponents within range, the bound is the offset of all rows, and W has a single exponential,
e^{s_ij − o} (a_i + a'_j). Offset and total are kept as two numbers, since their sum would round the total away.

On tight clusters push and pull almost cancel. W is their difference pair by pair, and is rounded once.

Exponents are in base 2, with s · scale − o rounded once. Rows have one part in half precision, or two halves for
float32. Sums are compensated. Tiles without special pairs, all inside and off the diagonal, run in a loop without
masks, and tiles of sorted rows without a common key in one without key comparisons, too. If a block extends beyond the
last row, it repeats that row: other rows then have weight 0, and own rows are not stored.

The weights of a section are a function, WEIGHTS (see `likewise.operator.triton.weights`), of the values that they read
and the indices of rows; it returns the k-th push, or the pull after them: booleans if SETS, else numbers.
"""

import triton
import triton.language as tl

from likewise.operator.triton import operands

MAX_SCALED = tl.constexpr(operands.MAX_SCALED)
LOW_HALF_FACTOR = tl.constexpr(2048.0)
"""The extra factor of the second half of a weight, so that float16 keeps its bits as well."""

MAX_UNROLLED = tl.constexpr(256)
"""Largest number of columns whose loop over chunks is unrolled, to pipeline the loop over tiles around it; more would
not fit into shared memory at once."""


@triton.jit
def rounded(values, HALF: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return values in half precision; the interpreter, which has no bfloat16, emulates it in float32."""
    if INTERPRETED and tl.bfloat16 == HALF:
        bits = values.to(tl.float32).to(tl.int32, bitcast=True)  # host numbers are float64 there
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        return bits.to(tl.float32, bitcast=True)
    return values.to(HALF)


@triton.jit
def exponent_scale(tau):
    """Return the factor from a similarity to its exponent in base 2, the same in every kernel."""
    return 1.4426950408889634 / tl.load(tau).to(tl.float32)


@triton.jit
def _scales(tau, x_scale, y_scale, HOW: tl.constexpr):
    """Return the factors from a product of stored rows, and from one of rows of length 1, to exponents; 1 / y's scale.

    Scales are powers of two: constant, or loaded if they depend on the rows.
    """
    equal = exponent_scale(tau)
    own_scale, other = equal * 0.0 + HOW.SCALE, equal * 0.0 + HOW.SCALE
    if x_scale is not None:
        own_scale, other = tl.load(x_scale), tl.load(y_scale)
    scale = equal / own_scale / other
    return scale, equal if HOW.NORMALIZED else equal * 0.0, 1.0 / other


@triton.jit
def _exponents(s, scale, offset, HOW: tl.constexpr):
    """Return s · scale − offset, rounded once; the interpreter's own multiply-add rounds twice."""
    if HOW.INTERPRETED:
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
    """Return total + a bᵀ, for one part or two each, the small products first.

    The smallest is below rounding error, but adds up in similarities of equal rows: it is omitted only without ALL4.
    """
    if ALL4:
        total = tl.dot(a1, tl.trans(b1), total, input_precision="ieee")
    if A2:
        total = tl.dot(a1, tl.trans(b0), total, input_precision="ieee")
    if B2:
        total = tl.dot(a0, tl.trans(b1), total, input_precision="ieee")
    return tl.dot(a0, tl.trans(b0), total, input_precision="ieee")


@triton.jit
def _load_parts(pointer, rows, columns, count, D: tl.constexpr, TWO: tl.constexpr):
    """Return some columns of some of ``count`` rows in two parts, or the only part twice."""
    places = pointer + rows.to(tl.int64)[:, None] * D + columns[None, :]
    high = tl.load(places)
    low = high
    if TWO:
        low = tl.load(places + count.to(tl.int64) * D)
    return high, low


@triton.jit
def _chunk(
    total, x, y, rows, other_rows, n, r, start,
    D: tl.constexpr, CHUNK: tl.constexpr, X2: tl.constexpr, Y2: tl.constexpr, ALL4: tl.constexpr,
):  # fmt: skip
    """Return the total with the products of a chunk of the columns added."""
    columns = start + tl.arange(0, CHUNK)
    a0, a1 = _load_parts(x, rows, columns, n, D, X2)
    b0, b1 = _load_parts(y, other_rows, columns, r, D, Y2)
    return _dot(a0, a1, b0, b1, total, X2, Y2, ALL4)


@triton.jit
def product(
    x, y, rows, other_rows, n, r,
    D: tl.constexpr, CHUNK: tl.constexpr, X2: tl.constexpr, Y2: tl.constexpr, ALL4: tl.constexpr,
    N: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Return x yᵀ of a tile, for rows of D columns in one part or two, a chunk at a time."""
    total = tl.full((N, R), 0.0, tl.float32)
    if D <= MAX_UNROLLED:
        for start in tl.static_range(0, D, CHUNK):
            total = _chunk(total, x, y, rows, other_rows, n, r, start, D, CHUNK, X2, Y2, ALL4)
    else:
        for start in range(0, D, CHUNK):
            total = _chunk(total, x, y, rows, other_rows, n, r, start, D, CHUNK, X2, Y2, ALL4)
    return total


@triton.jit
def _similarities(x, y, x0, x1, rows, other_rows, n, r, HOW: tl.constexpr):
    """Return x yᵀ of a tile, and the two parts of y if a tile holds all features."""
    if HOW.D == HOW.CHUNK:
        y0, y1 = _load_parts(y, other_rows, tl.arange(0, HOW.CHUNK), r, HOW.D, HOW.TWO)
        s = tl.full((HOW.N, HOW.R), 0.0, tl.float32)
        s = _dot(x0, x1, y0, y1, s, HOW.TWO, HOW.TWO, HOW.ALL4)
    else:
        y0, y1 = x0, x1  # not read
        s = product(x, y, rows, other_rows, n, r, HOW.D, HOW.CHUNK, HOW.TWO, HOW.TWO, HOW.ALL4, HOW.N, HOW.R)
    return s, y0, y1


@triton.jit
def _walk(start, stop, n, r, first_row, shift, bounds, KIND: tl.constexpr, HOW: tl.constexpr):
    """Return a kind's first tile in [start, stop), its number of tiles, and the start and length of a gap in them.

    See `likewise.operator.triton.weights` for kinds. The last one covers the diagonal, and the edge from r // R on.
    """
    full = tl.minimum(tl.maximum(r // HOW.R, start), stop)
    low, high = start, start
    if HOW.SELF:
        low = tl.minimum(tl.maximum((first_row + shift) // HOW.R, start), full)
        high = tl.minimum(tl.maximum((first_row + shift + HOW.N - 1) // HOW.R + 1, low), full)
    first, end, gap, skipped = start, full, low, high - low
    if KIND == 2:
        first, end, gap, skipped = low, stop, high, full - high
    elif bounds is not None:
        meet, apart = tl.load(bounds[0] + first_row), tl.load(bounds[1] + tl.minimum(first_row + HOW.N, n) - 1)
        meet = tl.minimum(tl.maximum(meet // HOW.R, start), full)
        apart = tl.minimum(tl.maximum(tl.cdiv(apart, HOW.R), meet), full)
        if KIND == 1:
            first, end = meet, apart
        else:
            gap, skipped = meet, apart - meet
    return first, end - first - skipped, gap, skipped


@triton.jit
def _columns(first, step, gap, skipped, r, KIND: tl.constexpr, HOW: tl.constexpr):
    """Return the indices of other rows in a tile of a loop, and the mask of existing ones."""
    tile = first + step
    at = (tile + tl.where(tile >= gap, skipped, 0)) * HOW.R + tl.arange(0, HOW.R)
    return tl.minimum(at, r - 1) if KIND == 2 else at, (at < r)[None, :]


@triton.jit
def _pairwise(a, b, c, d):
    """Return the pairwise sums a + c and b + d."""
    return a + c, b + d


@triton.jit
def _sums(values, w, COUNTS: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return the row sums of a tile and of its weights, in one reduction, so that both keep the layout of the product."""
    if not COUNTS:
        row_sums, other = tl.sum(values, axis=1), 0.0
    elif INTERPRETED:
        row_sums, other = tl.sum(values, axis=1), tl.sum(w.to(tl.float32), axis=1)
    else:
        row_sums, other = tl.reduce((values, w.to(tl.float32)), 1, _pairwise)
    return row_sums, other


@triton.jit
def _add_push(highest, total, lost, s, w, scale, bound, COUNTS: tl.constexpr, HOW: tl.constexpr):
    """Return the offset and the sum of a push with a tile added, and the sum of its weights if it is counted."""
    s = tl.where(w != 0, s, -float("inf"))
    if HOW.FIXED:
        e = tl.exp2(_exponents(s, scale, bound, HOW))
    else:
        higher = tl.maximum(highest, tl.max(s, axis=1) * scale)
        base = tl.where(higher == -float("inf"), 0.0, higher)  # for a row without any pair so far
        fading = tl.exp2(highest - base)
        total *= fading
        lost *= fading
        highest = higher
        e = tl.exp2(_exponents(s, scale, base[:, None], HOW))
        if not HOW.SETS:
            e *= w
    new, counted = _sums(e, w, COUNTS, HOW.INTERPRETED)
    total, lost = _plus(total, lost, new)
    return highest, total, lost, counted


@triton.jit(do_not_specialize=["n", "r", "shift", "tiles", "stride"], do_not_specialize_on_alignment=["tau", "sums"])
def forward_kernel(
    x, y, x_scale, y_scale, tau, v, bounds, sums, n, r, shift, tiles, stride, WEIGHTS: tl.constexpr, HOW: tl.constexpr
):
    """Store the sums of some rows over one split of the other rows, each ``stride`` numbers after the one before.

    The sums are the offsets and totals of pushes, and mass and attraction if wanted.
    """
    first_row, start = tl.program_id(0) * HOW.N, tl.program_id(1) * tiles
    places = first_row + tl.arange(0, HOW.N)
    rows = tl.minimum(places, n - 1)
    stop = tl.minimum(start + tiles, tl.cdiv(r, HOW.R))
    scale, equal, unscale = _scales(tau, x_scale, y_scale, HOW)
    bound = equal * HOW.SLACK
    x0, x1 = _load_parts(x, rows, tl.arange(0, HOW.CHUNK), n, HOW.D, HOW.TWO)
    zero = tl.full((HOW.N,), 0.0, tl.float32)
    highest, total, lost = zero - float("inf"), zero, zero
    highest1, total1, lost1 = highest, zero, zero
    drawn, drawn_lost, mass = zero, zero, zero
    FIRST: tl.constexpr = HOW.FIRST
    STRIDE: tl.constexpr = HOW.STRIDE
    for KIND in tl.static_range(FIRST, 3, STRIDE):
        first, count, gap, skipped = _walk(start, stop, n, r, first_row, shift, bounds, KIND, HOW)
        for step in range(0, count):
            other_rows, inside = _columns(first, step, gap, skipped, r, KIND, HOW)
            s, y0, y1 = _similarities(x, y, x0, x1, rows, other_rows, n, r, HOW)
            w = WEIGHTS(v, rows, other_rows, inside, n, r, shift, 0, KIND, HOW.N, HOW.R)
            highest, total, lost, counted = _add_push(
                highest, total, lost, s, w, scale * v[0], bound * v[0], HOW.COUNTED == 0, HOW
            )
            mass += counted
            if KIND >= HOW.SECOND:
                w = WEIGHTS(v, rows, other_rows, inside, n, r, shift, 1, KIND, HOW.N, HOW.R)
                highest1, total1, lost1, counted = _add_push(
                    highest1, total1, lost1, s, w, scale * v[1], bound * v[1], HOW.COUNTED == 1, HOW
                )
                mass += counted
            if KIND >= HOW.PULLS:
                w = WEIGHTS(v, rows, other_rows, inside, n, r, shift, HOW.PUSHES, KIND, HOW.N, HOW.R)
                new = tl.where(w != 0, s, 0.0)
                if not HOW.PULL_SET:
                    new *= w
                new, counted = _sums(new, w, True, HOW.INTERPRETED)
                drawn, drawn_lost = _plus(drawn, drawn_lost, new)
                mass += counted
    if HOW.FIXED:
        highest = zero + bound * v[0]
        highest1 = zero + bound * v[HOW.PUSHES - 1]
    inside = places < n
    at, stride = sums + tl.program_id(1) * n.to(tl.int64) + places, stride.to(tl.int64)
    tl.store(at, highest, mask=inside)
    tl.store(at + HOW.PUSHES * stride, total, mask=inside)
    if HOW.PUSHES > 1:
        tl.store(at + stride, highest1, mask=inside)
        tl.store(at + 3 * stride, total1, mask=inside)
    if HOW.COUNTED >= 0:
        tl.store(at + 2 * HOW.PUSHES * stride, mass, mask=inside)
    if HOW.COUNTED == HOW.PUSHES:
        tl.store(at + (2 * HOW.PUSHES + 1) * stride, drawn * scale, mask=inside)


@triton.jit
def _draw(s, w, own_args, other, rows, other_rows, n, r, scale, bound, lift, K: tl.constexpr, HOW: tl.constexpr):
    """Return push (a_i e^{s − o_i} + a'_j e^{s − o'_j}) of a tile for the k-th push."""
    s = tl.where(w != 0, s, -float("inf"))
    first, second = K * n.to(tl.int64) + rows, K * r.to(tl.int64) + other_rows
    a = tl.full((HOW.N, 1), 0.0, tl.float32)
    b = tl.full((1, HOW.R), 0.0, tl.float32)
    if own_args is not None:
        a = (tl.load(own_args[1] + first) * lift)[:, None]
    if other is not None:
        b = (tl.load(other[1] + second) * lift)[None, :]
    drawn = tl.zeros_like(s)
    if HOW.FIXED:
        drawn += tl.exp2(_exponents(s, scale, bound, HOW)) * (a + b)
    else:
        if own_args is not None:
            drawn += a * tl.exp2(_exponents(s, scale, tl.load(own_args[0] + first)[:, None], HOW))
        if other is not None:
            drawn += b * tl.exp2(_exponents(s, scale, tl.load(other[0] + second)[None, :], HOW))
        if not HOW.SETS:
            drawn *= w
    return drawn


@triton.jit
def _multiplied(total, w, y, other_rows, y0, y1, r, chunk, HOW: tl.constexpr):
    """Return total + w y for a chunk of the features; with two parts the product of the small ones is omitted."""
    if HOW.D != HOW.CHUNK:
        y0, y1 = _load_parts(y, other_rows, chunk * HOW.CHUNK + tl.arange(0, HOW.CHUNK), r, HOW.D, HOW.TWO)
    w0 = rounded(w, HOW.HALF, HOW.INTERPRETED)
    if HOW.TWO:  # tensor cores truncate their sums instead of rounding: limit these to one tile
        w1 = ((w - w0.to(tl.float32)) * LOW_HALF_FACTOR).to(HOW.HALF)
        new = tl.dot(w1, y0, input_precision="ieee") * (1.0 / LOW_HALF_FACTOR)
        new = tl.dot(w0, y1, new, input_precision="ieee")
        return total + tl.dot(w0, y0, new, input_precision="ieee")
    return tl.dot(w0, y0, total, input_precision="ieee")


@triton.jit(do_not_specialize=["n", "r", "shift", "tiles"], do_not_specialize_on_alignment=["tau"])
def backward_kernel(
    x, y, x_scale, y_scale, tau, strongest, v, bounds, own_args, other, out, slopes, n, r, shift, tiles,
    WEIGHTS: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """Store a chunk of the gradient of some rows over one split of the other rows, times τ.

    `own_args` and `other` hold rows' offsets, a and h; h or all are optional. ``slopes`` are Σ W (s − s of equal rows).
    """
    first_row, start, chunk = tl.program_id(0) * HOW.N, tl.program_id(1) * tiles, tl.program_id(2)
    places = first_row + tl.arange(0, HOW.N)
    rows = tl.minimum(places, n - 1)
    stop = tl.minimum(start + tiles, tl.cdiv(r, HOW.R))
    scale, equal, unscale = _scales(tau, x_scale, y_scale, HOW)
    bound = equal * HOW.SLACK
    upstream = tl.load(strongest)  # the lift scales the largest weight close to MAX_SCALED
    lift = tl.floor(tl.log2((1.0 / tl.where(upstream == 0, MAX_SCALED, upstream)) * MAX_SCALED))
    lift = tl.exp2(tl.minimum(tl.maximum(lift, -60.0), 60.0))
    x0, x1 = _load_parts(x, rows, tl.arange(0, HOW.CHUNK), n, HOW.D, HOW.TWO)
    slope = tl.full((HOW.N,), 0.0, tl.float32)
    total, slope_lost = tl.full((HOW.N, HOW.CHUNK), 0.0, tl.float32), slope
    PUSHES: tl.constexpr = HOW.PUSHES
    FIRST: tl.constexpr = HOW.FIRST
    STRIDE: tl.constexpr = HOW.STRIDE
    for KIND in tl.static_range(FIRST, 3, STRIDE):
        first, count, gap, skipped = _walk(start, stop, n, r, first_row, shift, bounds, KIND, HOW)
        for step in range(0, count):
            other_rows, inside = _columns(first, step, gap, skipped, r, KIND, HOW)
            s, y0, y1 = _similarities(x, y, x0, x1, rows, other_rows, n, r, HOW)
            drawn = tl.zeros_like(s)
            for k in tl.static_range(PUSHES):
                if k == 0 or KIND >= HOW.SECOND:
                    w = WEIGHTS(v, rows, other_rows, inside, n, r, shift, k, KIND, HOW.N, HOW.R)
                    drawn += _draw(
                        s, w, own_args, other, rows, other_rows, n, r, scale * v[k], bound * v[k], lift, k, HOW
                    )
            if KIND >= HOW.PULLS:
                w = WEIGHTS(v, rows, other_rows, inside, n, r, shift, HOW.PUSHES, KIND, HOW.N, HOW.R)
                h = tl.zeros_like(s)
                if own_args is not None and own_args[2] is not None:
                    h += (tl.load(own_args[2] + rows) * lift)[:, None]
                if other is not None and other[2] is not None:
                    h += (tl.load(other[2] + other_rows) * lift)[None, :]
                h = tl.where(w != 0, h, 0.0)
                if not HOW.PULL_SET:
                    h *= w
                drawn += h
            if slopes is not None:
                new = tl.sum(drawn * _exponents(s, scale, equal, HOW), axis=1)
                slope, slope_lost = _plus(slope, slope_lost, new)
            total = _multiplied(total, drawn, y, other_rows, y0, y1, r, chunk, HOW)
    columns = chunk * HOW.CHUNK + tl.arange(0, HOW.CHUNK)
    at = tl.program_id(1) * n.to(tl.int64) + places
    tl.store(out + at[:, None] * HOW.D + columns[None, :], total * ((1.0 / lift) * unscale), mask=(places < n)[:, None])
    if slopes is not None:
        if chunk == 0:
            tl.store(slopes + at, slope / lift, mask=places < n)
