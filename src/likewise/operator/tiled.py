"""The equation in tiles: exact, on any device, in O((N + R)·D + tile) memory, forward and backward.

A tile of similarities is visited once in the forward and once in the backward, for pull and push together. In the
forward it adds to

    lse_i = log Σ_u push_iu e^{s_iu}        attraction_i = Σ_r pull_ir s_ir

and in the backward, with g and h the gradients of these, W is formed within the tile and multiplied once:

    W_iu = g_i push_iu e^{s_iu − lse_i} + h_i pull_iu      ∂z_i = 1/τ Σ_u W_iu v_u      ∂v_u = 1/τ Σ_i W_iu z_i

On tight clusters push and pull almost cancel. Subtracted pair by pair they have the plain formula's rounding error,
subtracted as sums up to fifty times as much. Only sums are kept from the forward, and each tile of similarities is
recomputed. If the queries are the references and every push is symmetric, a tile is used for both (i, j) and (j, i), so
that the upper triangle of tiles is enough,

    W_ij = push_ij e^{s_ij} (a_i + a_j) + h_i pull_ij + h_j pull_ji        a_i = g_i e^{−lse_i}

as long as e^{s} and its sums stay within the dtype's range. In the same way a tile is used for the queries over the
references and for the references over the queries if both directions are wanted. Sections without gradient and without
pull need only one visit: the forward sums P_iu v_u over them along with e^{s}. The temperature's gradient is

    ∂τ = −1/τ Σ W_iu s_iu = −1/τ (Σ W_iu (s_iu − s₀) + s₀ Σ W_iu)

with s₀ the similarity of equal rows: the last sum is known, and on tight clusters the first is small.

If the queries are part of the references, and the others are queries of other processes (`LocalAnchors`), these send
their a_u and h_u, and the same W_iu gives the whole gradient of the queries.

What has expensive tiles in a pull (`PairWeight.split`) is evaluated as pull @ V instead, outside the visit.
"""

from contextlib import nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator import threads
from likewise.operator.backward import Backward
from likewise.operator.forward import Forward
from likewise.operator.normalization import Unit, prepared, projected
from likewise.operator.spec import ContrastSpec, ForwardResult, Gradients, NeedsGrad, Outcome
from likewise.operator.sums import Pairwise, Sums
from likewise.operator.tiles import TILE, TiledProblem
from likewise.pairs import PairWeight
from likewise.pairs.weight import Factors


class _State(NamedTuple):
    """The state of a forward that the backward needs."""

    problem: ContrastSpec
    forward: Forward
    rows: list[Unit]
    """Prepared queries and other sections, ready to be multiplied."""
    dtypes: list[torch.dtype]
    """The dtypes of the inputs."""
    drawn: Tensor | None
    """pull @ references, of what is pulled beside the tiles."""
    outcome: Outcome


def forward(
    problem: ContrastSpec,
    queries: Float[Tensor, "n d"],
    references: tuple[Tensor, ...],
    temperature: Float[Tensor, ""],
    wanted: NeedsGrad,
) -> ForwardResult:
    """Visit every tile and return the outcome of the contrast, in O((N + R)·D + tile) memory."""
    with threads.single_threaded() if _is_small(queries, references) else nullcontext():
        rows = [prepared(v, temperature.dtype, normalize=problem.normalize) for v in (queries, *references)]
        z, *rest = (unit.rows for unit in rows)
        tiles = TiledProblem(problem, z, problem.per_section(z, rest), temperature)
        sums = Forward(tiles, problem, wanted)
        sums.run()
        drawn, attraction = None, None
        if tiles.pull is not None and sums.attraction is not None:
            attraction = sums.attraction / tiles.unit
            if tiles.pull.anchors is not None:
                attraction *= tiles.pull.anchors
        if tiles.beside is not None:
            drawn = tiles.beside @ tiles.sections
            beside = torch.linalg.vecdot(z, drawn) / temperature
            attraction = beside if attraction is None else attraction + beside
        logsums = tuple(_logarithm(push_sums, push) for push_sums, push in zip(sums.forth, tiles.pushes, strict=True))
        columns = tuple(push_sums.logarithms() for push_sums in sums.back)
        losses, counts = problem.losses(logsums, attraction)
        counts += tuple(push_sums.slopes for push_sums in sums.forth if isinstance(push_sums, Pairwise))
        outcome = Outcome(logsums, columns, attraction, losses, counts)
    dtypes = [v.dtype for v in (queries, *references)]
    return ForwardResult(outcome, _State(problem, sums, rows, dtypes, drawn, outcome.detached()))


def backward(state: _State, upstream: Outcome, wanted: NeedsGrad) -> Gradients:
    """Visit the tiles once more and return the gradients that are wanted."""
    tiles = state.forward.tiled
    with threads.single_threaded() if _is_small(tiles.z, tiles.sections) else nullcontext():
        upstream = state.problem.split_upstream(upstream, state.outcome.counts)
        drawing = Backward(state.problem, state.forward, upstream, wanted)
        drawing.run()
        slope = drawing.slope()
        if tiles.beside is not None and upstream.attraction is not None:
            _pull_beside(state, drawing, tiles.beside, upstream.attraction)
            if slope is not None and state.drawn is not None:
                slope -= upstream.attraction @ torch.linalg.vecdot(tiles.z, state.drawn) / tiles.temperature.square()
        of_references: list[Tensor | None] = []
        for v, of_section in zip(tiles.sections, drawing.of_sections, strict=True):
            if v is not tiles.z:
                of_references.append(of_section)
            elif drawing.of_z is not None and of_section is not None and of_section is not drawing.of_z:
                drawing.of_z += of_section
        gradients = [
            None if gradient is None else projected(gradient, unit, tiles.temperature).to(dtype)
            for gradient, unit, dtype in zip((drawing.of_z, *of_references), state.rows, state.dtypes, strict=True)
        ]
    return Gradients(slope, gradients[0], tuple(gradients[1:]))


def _is_small(queries: Tensor, sections: tuple[Tensor, ...]) -> bool:
    """Return whether splitting a call among threads would gain little, and cost much waiting on a busy machine."""
    rows = queries.shape[0] + sum(v.shape[0] for v in sections if v is not queries)
    return queries.device.type == "cpu" and rows <= TILE // 2


def _pull_beside(state: _State, drawing: Backward, pull: PairWeight, force: Tensor) -> None:
    """Add the gradients of a pull that is evaluated as pull @ references."""
    if drawing.of_z is not None and state.drawn is not None:
        drawing.of_z.addcmul_(state.drawn, force[:, None])
    tiles, wanted = state.forward.tiled, [v is not None for v in drawing.of_sections]
    parts = pull.transposed_products(tiles.z * force[:, None], [len(v) for v in tiles.sections], wanted)
    for of_section, part in zip(drawing.of_sections, parts, strict=True):
        if of_section is not None and part is not None:
            of_section.add_(part)


def _logarithm(sums: Sums, push: Factors) -> Tensor:
    logarithms = sums.logarithms()
    return logarithms if push.anchors is None else logarithms + push.anchors.log()
