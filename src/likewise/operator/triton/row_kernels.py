"""The kernels around the two visits: they prepare rows, propagate gradients, combine sums and split gradients.

    u = x / ‖x‖        ∂x = (g − u (u·g)) / (‖x‖ τ)

Squares are summed in float64, so that none of a float32 row overflows or vanishes; a row of zeros stays zero.
"""

import triton
import triton.language as tl

from likewise.operator.triton.tile_kernels import _at, _rounded


@triton.jit(do_not_specialize=["n", "d", "stride"], do_not_specialize_on_alignment=["x"])
def unit_kernel(
    x, parts, lengths, n, d, stride,
    D: tl.constexpr, CHUNK: tl.constexpr, SCALE: tl.constexpr, TWO: tl.constexpr, HALF: tl.constexpr,
    INTERPRETED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store rows over their lengths, in one half or as two halves times a scale, and the lengths, ∞ for zero rows."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = rows.to(tl.int64)
    inside = (rows < n)[:, None]
    squares = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, D, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        values = tl.load(x + at[:, None] * stride + columns[None, :], mask=inside & (columns < d)[None, :], other=0.0)
        values = values.to(tl.float32).to(tl.float64)
        squares += tl.sum(values * values, axis=1)
    length = tl.sqrt(squares)
    inverse = SCALE / tl.where(length == 0, float("inf"), length)
    tl.store(lengths + rows, tl.where(length == 0, float("inf"), length).to(tl.float32), mask=rows < n)
    for start in range(0, D, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        values = tl.load(x + at[:, None] * stride + columns[None, :], mask=inside & (columns < d)[None, :], other=0.0)
        values = values.to(tl.float32).to(tl.float64) * inverse[:, None]
        place = at[:, None] * D + columns[None, :]
        high = _rounded(values.to(tl.float32), HALF, INTERPRETED)
        tl.store(parts + place, high, mask=inside)
        if TWO:
            low = (values - high.to(tl.float32).to(tl.float64)).to(tl.float32).to(HALF)
            tl.store(parts + n.to(tl.int64) * D + place, low, mask=inside)


@triton.jit
def _gradient(parts, x, at, columns, splits, n, d, stride, inside, D: tl.constexpr, NORMALIZE: tl.constexpr):
    """Return some columns of the gradient of rows, summed over all splits, and of the rows."""
    place = at[:, None] * D + columns[None, :]
    g = tl.load(parts + place, mask=inside, other=0.0)
    for split in range(1, splits):
        g += tl.load(parts + split * n.to(tl.int64) * D + place, mask=inside, other=0.0)
    u = g
    if NORMALIZE:
        u = tl.load(x + at[:, None] * stride + columns[None, :], mask=inside & (columns < d)[None, :], other=0.0)
        u = u.to(tl.float32)
    return g, u


@triton.jit(do_not_specialize=["splits", "n", "d", "stride"], do_not_specialize_on_alignment=["x", "temperature"])
def project_kernel(
    parts, x, lengths, temperature, inverse, out, splits, n, d, stride,
    NORMALIZE: tl.constexpr, KNOWN: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr, OUT: tl.constexpr,
    INTERPRETED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the gradient of input rows from the parts of the gradient, without its component along each row."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = rows.to(tl.int64)
    inside = (rows < n)[:, None]
    if not KNOWN:
        inverse = 1.0 / tl.load(temperature).to(tl.float32)
    length = tl.full((BLOCK,), 1.0, tl.float32)
    along = tl.zeros((BLOCK,), tl.float32)
    if NORMALIZE:
        length = tl.load(lengths + rows, mask=rows < n, other=1.0)
    columns = tl.arange(0, CHUNK)
    g, u = _gradient(parts, x, at, columns, splits, n, d, stride, inside, D, NORMALIZE)
    if NORMALIZE:
        u = u / length[:, None]
        along = tl.sum(g * u, axis=1)
        for start in range(CHUNK, D, CHUNK):
            g1, u1 = _gradient(parts, x, at, start + columns, splits, n, d, stride, inside, D, NORMALIZE)
            along += tl.sum(g1 * (u1 / length[:, None]), axis=1)
        g -= u * along[:, None]
    g = _rounded(g * inverse / length[:, None], OUT, INTERPRETED)
    tl.store(out + at[:, None] * d + columns[None, :], g, mask=inside & (columns < d)[None, :])
    for start in range(CHUNK, D, CHUNK):
        g, u = _gradient(parts, x, at, start + columns, splits, n, d, stride, inside, D, NORMALIZE)
        if NORMALIZE:
            g -= u / length[:, None] * along[:, None]
        g = _rounded(g * inverse / length[:, None], OUT, INTERPRETED)
        tl.store(out + at[:, None] * d + (start + columns)[None, :], g, mask=inside & (start + columns < d)[None, :])


@triton.jit(do_not_specialize_on_alignment=["temperature"])
def scalars_kernel(
    temperature, own_scale, other_scale, own_longest, other_longest, scalars, same, slack, NORMALIZED: tl.constexpr
):
    """Store the numbers for kernels if τ or the rows' lengths are known only on the device.

    These are: the scale of products of rows, the bound of scaled products, the exponent of equal rows of length 1 (0 if
    rows have any length), 1 over the scales of own and other rows, 1/τ, and the relative amount by which 1/(τ · scale)
    exceeds ln 2, since the scale is rounded.
    """
    tau = tl.load(temperature).to(tl.float32)
    scale = 1.4426950408889634 / tau
    own, other = same, same
    if own_scale is not None:
        own, other = tl.load(own_scale), tl.load(other_scale)
    longest = 1.0
    if own_longest is not None:
        longest = tl.load(own_longest) * tl.load(other_longest)
    tl.store(scalars, scale / own / other)
    tl.store(scalars + 1, scale * longest * slack)
    tl.store(scalars + 2, scale if NORMALIZED else 0.0)
    tl.store(scalars + 3, 1.0 / own)
    tl.store(scalars + 4, 1.0 / other)
    tl.store(scalars + 5, 1.0 / tau)
    tl.store(scalars + 6, (1.4426950408889634 / (tau.to(tl.float64) * scale.to(tl.float64)) - 1.0).to(tl.float32))


@triton.jit
def _merged(offsets, totals, log2, parts, n, rows, inside, BLOCK: tl.constexpr):
    """Return the largest offset of rows over all parts, the total relative to it, and the log-sum-exp."""
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    for part in range(parts):
        highest = tl.maximum(highest, tl.load(offsets + part * n.to(tl.int64) + rows, mask=inside, other=0.0))
    base = tl.where(highest == -float("inf"), 0.0, highest)
    together = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        at = part * n.to(tl.int64) + rows
        fading = tl.exp2(tl.load(offsets + at, mask=inside, other=0.0) - base)
        together += tl.load(totals + at, mask=inside, other=0.0) * fading
    lse = base.to(tl.float64) * log2 + tl.log(tl.where(together == 0, 1.0, together).to(tl.float64))
    return tl.where(together == 0, float("inf"), highest), together, lse


@triton.jit
def _added(values, parts, n, rows, inside, BLOCK: tl.constexpr):
    """Return the sum of rows over all parts."""
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        total += tl.load(values + part * n.to(tl.int64) + rows, mask=inside, other=0.0)
    return total


@triton.jit
def _coefficient(given, mass, anchors, MEAN: tl.constexpr, SCALED: tl.constexpr, rows, inside):
    """Return c of rows, which is given or the row sums of the pull."""
    c = mass
    if given is not None:
        c = tl.load(given + rows, mask=inside, other=0.0).to(tl.float32)
    elif MEAN:
        c = tl.where(mass > 0, 1.0, 0.0)
    elif SCALED:
        c = mass * anchors
    return c


@triton.jit(do_not_specialize=["parts", "n"])
def merge_kernel(
    offsets, totals, drawns, masses, scalars, off,
    push_anchors, pull_anchors, coefficients,
    offset, total, logsums, attraction, mass, losses, active, block_losses, block_counts,
    parts, n,
    PUSHES: tl.constexpr, MEANS: tl.constexpr, PULL_MEAN: tl.constexpr, KNOWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Combine the sums of rows over all parts into log-sum-exps, in float64, as they may be far below the offset.

    Store the losses, Σ_k c_k lse_k − attraction, or 0 if all weights of the pull or of a push are zero, and their sums
    over a block.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < n
    if not KNOWN:
        off = tl.load(scalars + 6)
    log2 = 0.6931471805599453 * (1.0 + (tl.zeros((BLOCK,), tl.float64) + off))  # converts an exponent to s
    weight = tl.zeros((BLOCK,), tl.float32)
    alive = inside
    if masses is not None:
        weight = _added(masses, parts, n, rows, inside, BLOCK)
        tl.store(mass + rows, weight, mask=inside)
    anchors = weight
    if pull_anchors is not None:
        anchors = tl.load(pull_anchors + rows, mask=inside, other=0.0)
    loss = tl.zeros((BLOCK,), tl.float64)
    for k in tl.static_range(PUSHES):
        first = k * parts.to(tl.int64) * n
        highest, together, lse = _merged(offsets + first, totals + first, log2, parts, n, rows, inside, BLOCK)
        empty = together == 0
        if _at(MEANS, k):
            lse -= tl.log(tl.where(weight == 0, 1.0, weight).to(tl.float64))
        if push_anchors[k] is not None:
            factor = tl.load(push_anchors[k] + rows, mask=inside, other=1.0)
            empty |= factor == 0
            lse += tl.log(tl.where(factor == 0, 1.0, factor).to(tl.float64))
        lse = tl.where(empty, -float("inf"), lse)
        tl.store(offset + k * n.to(tl.int64) + rows, tl.where(empty, float("inf"), highest), mask=inside)
        tl.store(total + k * n.to(tl.int64) + rows, tl.where(empty, 0.0, together), mask=inside)
        tl.store(logsums[k] + rows, lse.to(tl.float32), mask=inside)
        if losses is not None:
            alive &= lse != -float("inf")
            c = _coefficient(coefficients[k], weight, anchors, PULL_MEAN, pull_anchors is not None, rows, inside)
            loss += tl.where(empty, 0.0, lse) * c.to(tl.float64)
    if drawns is not None:
        drawn = _added(drawns, parts, n, rows, inside, BLOCK).to(tl.float64) * log2
        if PULL_MEAN:
            drawn /= tl.where(weight == 0, 1.0, weight)
        if pull_anchors is not None:
            drawn *= anchors
        tl.store(attraction + rows, drawn.to(tl.float32), mask=inside)
        loss -= drawn
    if losses is not None:
        if drawns is not None:
            alive &= weight > 0
            if pull_anchors is not None:
                alive &= anchors != 0
        loss = tl.where(alive, loss, 0.0)
        tl.store(losses + rows, loss.to(tl.float32), mask=inside)
        tl.store(active + rows, alive.to(tl.int8), mask=inside)
        tl.store(block_losses + tl.program_id(0), tl.sum(loss, axis=0))
        tl.store(block_counts + tl.program_id(0), tl.sum(alive.to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["blocks"])
def finish_kernel(block_losses, block_counts, loss, count, blocks, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    """Store the sum or mean of the losses of all blocks, and the number of active rows."""
    total = tl.zeros((BLOCK,), tl.float64)
    number = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, blocks, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(block_losses + at, mask=at < blocks, other=0.0)
        number += tl.load(block_counts + at, mask=at < blocks, other=0).to(tl.int64)
    value = tl.sum(total, axis=0)
    rows = tl.sum(number, axis=0)
    if MEAN:
        value /= tl.maximum(rows, 1).to(tl.float64)
    if loss is not None:
        tl.store(loss, value.to(tl.float32))
    tl.store(count, rows)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["strongest", "weights"])
def shares_kernel(
    total, mass, upstreams, of_attraction, of_losses, active, count, coefficients, pull_anchors,
    share, force, strongest, weights, powers, n,
    PUSHES: tl.constexpr, REDUCED: tl.constexpr, DIVIDED: tl.constexpr, PULLS: tl.constexpr, PULL_MEAN: tl.constexpr,
    PULL_SET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store p g / total of rows for each push and h for the pull, and the largest of them and Σ W for each block.

    If there are losses, g and h include their gradients. Empty rows are excluded, whatever their upstream gradient.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < n
    weight = tl.zeros((BLOCK,), tl.float32)
    if mass is not None:
        weight = tl.load(mass + rows, mask=inside, other=0.0)
    anchors = weight
    if pull_anchors is not None:
        anchors = tl.load(pull_anchors + rows, mask=inside, other=0.0)
    given = tl.zeros((BLOCK,), tl.float32)
    if of_losses is not None:
        if REDUCED:
            given += tl.load(of_losses).to(tl.float32)
        else:
            given = tl.load(of_losses + rows, mask=inside, other=0.0).to(tl.float32)
        if DIVIDED:
            given /= tl.maximum(tl.load(count), 1).to(tl.float32)
        given = tl.where(tl.load(active + rows, mask=inside, other=0) != 0, given, 0.0)
    size = tl.zeros((BLOCK,), tl.float32)
    drawn = tl.zeros((BLOCK,), tl.float64)
    for k in tl.static_range(PUSHES):
        g = tl.zeros((BLOCK,), tl.float32)
        if of_losses is not None:
            g += given * _coefficient(
                coefficients[k], weight, anchors, PULL_MEAN, pull_anchors is not None, rows, inside
            )
        if upstreams[k] is not None:
            g += tl.load(upstreams[k] + rows, mask=inside, other=0.0).to(tl.float32)
        sums = tl.load(total + k * n.to(tl.int64) + rows, mask=inside, other=0.0)
        g = tl.where(sums == 0, 0.0, g) * powers[k]
        tl.store(share + k * n.to(tl.int64) + rows, g / tl.where(sums == 0, 1.0, sums), mask=inside)
        size += tl.abs(g)
        drawn += g.to(tl.float64)
    if PULLS:
        h = -given
        if of_attraction is not None:
            h += tl.load(of_attraction + rows, mask=inside, other=0.0).to(tl.float32)
        if pull_anchors is not None:
            h *= anchors
        if PULL_MEAN:
            h /= tl.where(weight == 0, 1.0, weight)
        h = tl.where(weight == 0, 0.0, h)
        tl.store(force + rows, h, mask=inside)
        size += tl.abs(h) * (tl.minimum(weight, 1.0) if PULL_SET else weight)
        drawn += h.to(tl.float64) * weight.to(tl.float64)
    tl.store(strongest + tl.program_id(0), tl.max(size, axis=0))
    tl.store(weights + tl.program_id(0), tl.sum(drawn, axis=0))
