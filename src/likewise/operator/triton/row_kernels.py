"""The kernels around the two visits, which prepare rows, propagate gradients, combine sums and split gradients.

    u = x / ‖x‖        ∂x = (g − u (u·g)) / (‖x‖ τ)

Squares of float32 rows are summed in float64, where none overflows or vanishes; a row of zeros stays zero.
"""

import triton
import triton.language as tl

from likewise.operator.triton.kernels import exponent_scale, rounded


@triton.jit
def _came_at(rows, order, n):
    """Return the positions of rows in the input, before they were sorted."""
    return rows if order is None else tl.load(order + rows, mask=rows < n, other=0)


@triton.jit(do_not_specialize=["n", "d", "stride"], do_not_specialize_on_alignment=["x"])
def unit_kernel(
    x, order, parts, lengths, n, d, stride,
    D: tl.constexpr, WIDE: tl.constexpr, SCALE: tl.constexpr, TWO: tl.constexpr, HALF: tl.constexpr,
    INTERPRETED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store rows divided by their lengths, as one half or two halves times a scale, and lengths, ∞ for zero rows."""
    rows, columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)
    at, inside = rows.to(tl.int64)[:, None], (rows < n)[:, None]
    came = _came_at(rows, order, n).to(tl.int64)[:, None]
    values = tl.load(x + came * stride + columns[None, :], mask=inside & (columns < d)[None, :], other=0.0)
    values = values.to(tl.float32).to(tl.float64)
    length = tl.sqrt(tl.sum(values * values, axis=1))
    length = tl.where(length == 0, float("inf"), length)
    tl.store(lengths + rows, length.to(tl.float32), mask=rows < n)
    values *= (SCALE / length)[:, None]
    offsets, inside = at * D + columns[None, :], inside & (columns < D)[None, :]
    high = rounded(values.to(tl.float32), HALF, INTERPRETED)
    tl.store(parts + offsets, high, mask=inside)
    if TWO:
        low = (values - high.to(tl.float32).to(tl.float64)).to(tl.float32).to(HALF)
        tl.store(parts + n.to(tl.int64) * D + offsets, low, mask=inside)


@triton.jit(do_not_specialize=["splits", "n", "d", "stride"], do_not_specialize_on_alignment=["x", "tau"])
def project_kernel(
    parts, x, order, lengths, tau, out, splits, n, d, stride,
    D: tl.constexpr, WIDE: tl.constexpr, OUT: tl.constexpr, INTERPRETED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the gradient of input rows, summed over its parts, without its component along each row."""
    rows, columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)
    at, inside = rows.to(tl.int64)[:, None], (rows < n)[:, None] & (columns < d)[None, :]
    g = tl.zeros((BLOCK, WIDE), tl.float32)
    for split in range(splits):
        g += tl.load(parts + (split * n.to(tl.int64) + at) * D + columns[None, :], mask=inside, other=0.0)
    at = _came_at(rows, order, n).to(tl.int64)[:, None]
    if lengths is not None:
        length = tl.load(lengths + rows, mask=rows < n, other=1.0)[:, None]
        u = tl.load(x + at * stride + columns[None, :], mask=inside, other=0.0).to(tl.float32) / length
        g = (g - u * tl.sum(g * u, axis=1)[:, None]) / length
    g = rounded(g / tl.load(tau).to(tl.float32), OUT, INTERPRETED)
    tl.store(out + at * d + columns[None, :], g, mask=inside)


@triton.jit
def _merged(offsets, totals, parts, n, rows, inside, BLOCK: tl.constexpr):
    """Return the largest offset of rows over all parts, and the total relative to it."""
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    for part in range(parts):
        highest = tl.maximum(highest, tl.load(offsets + part * n.to(tl.int64) + rows, mask=inside, other=0.0))
    base = tl.where(highest == -float("inf"), 0.0, highest)
    together = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        at = part * n.to(tl.int64) + rows
        fading = tl.exp2(tl.load(offsets + at, mask=inside, other=0.0) - base)
        together += tl.load(totals + at, mask=inside, other=0.0) * fading
    return base, together


@triton.jit
def _added(values, parts, n, rows, inside, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        total += tl.load(values + part * n.to(tl.int64) + rows, mask=inside, other=0.0)
    return total


@triton.jit
def _coefficient(coefficients, mass, rows, inside, MEAN: tl.constexpr):
    """Return c of rows: the given values, or the row sums of the pull."""
    c = tl.where(mass > 0, 1.0, 0.0) if MEAN else mass
    if coefficients is not None:
        c = tl.load(coefficients + rows, mask=inside, other=0.0).to(tl.float32)
    return c


@triton.jit(do_not_specialize=["parts", "n"], do_not_specialize_on_alignment=["tau"])
def merge_kernel(
    sums, order, tau, coefficients, offset, total, logsums, attraction, mass, losses, active, of_blocks, parts, n,
    PUSHES: tl.constexpr, MEAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Combine the sums of rows over all parts into log-sum-exps, in float64, as they may be far below the offset.

    Store the losses, Σ_k c_k lse_k − attraction, or 0 if all weights of the pull or of a push are zero, and for each
    block their sum and the number of active rows. MEAN: the last weight, a pull or push, is divided by its row's sum.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, stride, came = rows < n, parts.to(tl.int64) * n, _came_at(rows, order, n)
    log2 = 1.0 / (tl.load(tau).to(tl.float64) * exponent_scale(tau).to(tl.float64))  # converts an exponent to s
    weight = tl.zeros((BLOCK,), tl.float32)
    if mass is not None:
        weight = _added(sums + 2 * PUSHES * stride, parts, n, rows, inside, BLOCK)
        tl.store(mass + came, weight, mask=inside)
    alive, number = inside, tl.where(weight == 0, 1.0, weight).to(tl.float64)
    loss = tl.zeros((BLOCK,), tl.float64)
    for k in tl.static_range(PUSHES):
        highest, together = _merged(sums + k * stride, sums + (PUSHES + k) * stride, parts, n, rows, inside, BLOCK)
        empty = together == 0
        lse = highest.to(tl.float64) * log2 + tl.log(tl.where(empty, 1.0, together).to(tl.float64))
        if MEAN and attraction is None and k == PUSHES - 1:
            lse -= tl.log(number)
        tl.store(offset + k * n.to(tl.int64) + rows, tl.where(empty, float("inf"), highest), mask=inside)
        tl.store(total + k * n.to(tl.int64) + rows, together, mask=inside)
        tl.store(logsums[k] + came, tl.where(empty, -float("inf"), lse).to(tl.float32), mask=inside)
        alive &= together != 0
        c = _coefficient(coefficients[k], weight, came, inside, MEAN)
        loss += tl.where(empty, 0.0, lse) * c.to(tl.float64)
    if attraction is not None:
        drawn = _added(sums + (2 * PUSHES + 1) * stride, parts, n, rows, inside, BLOCK).to(tl.float64) * log2
        if MEAN:
            drawn /= number
        tl.store(attraction + came, drawn.to(tl.float32), mask=inside)
        loss -= drawn
        alive &= weight > 0
    if losses is not None:
        loss = tl.where(alive, loss, 0.0)
        tl.store(losses + came, loss.to(tl.float32), mask=inside)
        tl.store(active + came, alive.to(tl.int8), mask=inside)
        tl.store(of_blocks + tl.program_id(0), tl.sum(loss, axis=0))
        tl.store(of_blocks + tl.num_programs(0) + tl.program_id(0), tl.sum(alive.to(tl.float64), axis=0))


@triton.jit(do_not_specialize=["blocks"])
def finish_kernel(of_blocks, loss, count, blocks, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    """Store the sum or mean of the losses of all blocks, and the number of active rows."""
    total, number = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for start in range(0, blocks, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(of_blocks + at, mask=at < blocks, other=0.0)
        number += tl.load(of_blocks + blocks + at, mask=at < blocks, other=0.0)
    value, rows = tl.sum(total, axis=0), tl.sum(number, axis=0)
    if MEAN:
        value /= tl.maximum(rows, 1.0)
    if loss is not None:
        tl.store(loss, value.to(tl.float32))
    tl.store(count, rows.to(tl.int64))


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["strongest", "weights"])
def shares_kernel(
    total, order, mass, upstreams, of_attraction, of_losses, active, count, coefficients, powers,
    share, force, strongest, weights, n,
    PUSHES: tl.constexpr, REDUCTION: tl.constexpr, MEAN: tl.constexpr, PULL_SET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store p g / total of rows for each push and h for the pull, and the largest of them and Σ W for each block.

    If there are losses, g and h include their gradients. Empty rows are excluded, whatever their upstream gradient.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, came = rows < n, _came_at(rows, order, n)
    weight = tl.zeros((BLOCK,), tl.float32)
    if mass is not None:
        weight = tl.load(mass + came, mask=inside, other=0.0)
    loss_grad = tl.zeros((BLOCK,), tl.float32)
    if of_losses is not None:
        if REDUCTION == "none":
            loss_grad += tl.load(of_losses + came, mask=inside, other=0.0).to(tl.float32)
        else:
            loss_grad += tl.load(of_losses).to(tl.float32)
        if REDUCTION == "mean":
            loss_grad /= tl.maximum(tl.load(count), 1).to(tl.float32)
        loss_grad = tl.where(tl.load(active + came, mask=inside, other=0) != 0, loss_grad, 0.0)
    size = tl.zeros((BLOCK,), tl.float32)
    drawn = tl.zeros((BLOCK,), tl.float64)
    for k in tl.static_range(PUSHES):
        g = tl.zeros((BLOCK,), tl.float32)
        if of_losses is not None:
            g += loss_grad * _coefficient(coefficients[k], weight, came, inside, MEAN)
        if upstreams[k] is not None:
            g += tl.load(upstreams[k] + came, mask=inside, other=0.0).to(tl.float32)
        sums = tl.load(total + k * n.to(tl.int64) + rows, mask=inside, other=0.0)
        g = tl.where(sums == 0, 0.0, g) * powers[k]
        tl.store(share + k * n.to(tl.int64) + rows, g / tl.where(sums == 0, 1.0, sums), mask=inside)
        size += tl.abs(g)
        drawn += g.to(tl.float64)
    if force is not None:
        h = -loss_grad
        if of_attraction is not None:
            h += tl.load(of_attraction + came, mask=inside, other=0.0).to(tl.float32)
        if MEAN:
            h /= tl.where(weight == 0, 1.0, weight)
        h = tl.where(weight == 0, 0.0, h)
        tl.store(force + rows, h, mask=inside)
        size += tl.abs(h) * (tl.minimum(weight, 1.0) if PULL_SET else weight)
        drawn += h.to(tl.float64) * weight.to(tl.float64)
    tl.store(strongest + tl.program_id(0), tl.max(size, axis=0))
    tl.store(weights + tl.program_id(0), tl.sum(drawn, axis=0))
