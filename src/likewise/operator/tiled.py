"""The equation in tiles: exact, on any device, in O((N + R)·D + tile) memory, forward and backward.

A tile of similarities is visited once forward and once backward, by pull and push together. Forward it adds to

    lse_i = log Σ_u push_iu e^{s_iu}        attraction_i = Σ_r pull_ir s_ir

and backward, with g and h the gradients of these, W is formed within the tile, and multiplied once:

    W_iu = g_i push_iu e^{s_iu − lse_i} + h_i pull_iu      ∂z_i = 1/τ Σ_u W_iu v_u      ∂v_u = 1/τ Σ_i W_iu z_i

On tight clusters push and pull all but cancel: taken from each other pair by pair they leave the plain formula's
rounding, taken from each other as sums up to fifty times as much. Nothing is kept from the forward but sums, and each
tile of similarities is made again. Where the queries are the references and every push is symmetric, a tile serves
(i, j) and (j, i), so that the upper triangle of tiles is all,

    W_ij = push_ij e^{s_ij} (a_i + a_j) + h_i pull_ij + h_j pull_ji        a_i = g_i e^{−lse_i}

as long as no e^{s} nor the sum of them leaves the range. Likewise a tile serves the queries over the references and
the references over the queries, both ways. Sections without gradient and without pull need one visit: the forward sums
P_iu v_u over them as it sums e^{s}. The temperature's gradient is

    ∂τ = −1/τ Σ W_iu s_iu = −1/τ (Σ W_iu (s_iu − s₀) + s₀ Σ W_iu)

with s₀ the similarity of equal rows: the last sum is known, and what is left of the first on tight clusters is small.

A pull whose tiles are dear (`PairWeight.within_tiles`) comes as pull @ V instead, beside the visit.
"""

from contextlib import nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator import threads
from likewise.operator.adding import Adding
from likewise.operator.drawing import Drawing
from likewise.operator.normalization import Unit, prepared, projected
from likewise.operator.problem import Found, Gradients, Outcome, Problem, Wanted, put_together, taken_apart
from likewise.operator.scene import TILE, Scene
from likewise.operator.sums import Sums
from likewise.pairs import PairWeight
from likewise.pairs.weight import Factors


class _State(NamedTuple):
    """What the backward needs of the forward."""

    problem: Problem
    adding: Adding
    rows: list[Unit]
    """Queries and other sections as they are multiplied."""
    dtypes: list[torch.dtype]
    """In which they came."""
    drawn: Tensor | None
    """pull @ references, of a pull that comes so."""
    outcome: Outcome


def forward(
    problem: Problem,
    queries: Float[Tensor, "n d"],
    others: tuple[Tensor, ...],
    temperature: Float[Tensor, ""],
    wanted: Wanted,
) -> Found:
    """Visit every tile, and return the outcome of the contrast.

    Memory:
        O((N + R)·D + tile).
    """
    with threads.alone() if _is_small(queries, others) else nullcontext():
        rows = [prepared(v, temperature.dtype, normalize=problem.normalize) for v in (queries, *others)]
        z, *rest = (unit.rows for unit in rows)
        scene = Scene(problem, z, tuple(problem.placed(z, rest)), temperature)
        adding = Adding(scene, problem, wanted)
        adding.run()
        drawn, attraction = None, None
        if scene.streamed is not None:
            drawn = scene.streamed @ scene.sections
            attraction = torch.linalg.vecdot(z, drawn) / temperature
        elif scene.pull is not None and adding.attraction is not None:
            attraction = adding.attraction / scene.unit
            if scene.pull.anchors is not None:
                attraction *= scene.pull.anchors
        logsums = tuple(_logarithm(sums, push) for sums, push in zip(adding.forth, scene.pushes, strict=True))
        columns = tuple(sums.logarithms() for sums in adding.back)
        outcome = Outcome(logsums, columns, attraction, *put_together(problem, logsums, attraction))
    dtypes = [v.dtype for v in (queries, *others)]
    return Found(outcome, _State(problem, adding, rows, dtypes, drawn, outcome.detached()))


def backward(state: _State, upstream: Outcome, wanted: Wanted) -> Gradients:
    """Visit the tiles once more, and return the gradients that are wanted."""
    scene = state.adding.scene
    with threads.alone() if _is_small(scene.z, scene.sections) else nullcontext():
        upstream = taken_apart(state.problem, upstream, state.outcome.counts)
        drawing = Drawing(state.problem, state.adding, upstream, wanted)
        drawing.run()
        slope = drawing.slope()
        if scene.streamed is not None and upstream.attraction is not None:
            _stream(state, drawing, scene.streamed, upstream.attraction[:, None])
            if slope is not None:
                slope -= upstream.attraction @ state.outcome.attraction / scene.temperature
        others: list[Tensor | None] = []
        for v, of_section in zip(scene.sections, drawing.of_sections, strict=True):
            if v is not scene.z:
                others.append(of_section)
            elif drawing.of_z is not None and of_section is not None and of_section is not drawing.of_z:
                drawing.of_z += of_section
        given = [
            None if gradient is None else projected(gradient, unit, scene.temperature).to(dtype)
            for gradient, unit, dtype in zip((drawing.of_z, *others), state.rows, state.dtypes, strict=True)
        ]
    return Gradients(slope, given[0], tuple(given[1:]))


def _is_small(queries: Tensor, sections: tuple[Tensor, ...]) -> bool:
    """Say whether threads that share a call gain little, and wait for each other long where the machine is busy."""
    rows = queries.shape[0] + sum(v.shape[0] for v in sections if v is not queries)
    return queries.device.type == "cpu" and rows <= TILE // 2


def _stream(state: _State, drawing: Drawing, pull: PairWeight, force: Tensor) -> None:
    """Add what a pull draws that comes as pull @ references."""
    if drawing.of_z is not None and state.drawn is not None:
        drawing.of_z.addcmul_(state.drawn, force)
    scene, wanted = state.adding.scene, [v is not None for v in drawing.of_sections]
    parts = pull.transposed_products(scene.z * force, [len(v) for v in scene.sections], wanted)
    for of_section, part in zip(drawing.of_sections, parts, strict=True):
        if of_section is not None and part is not None:
            of_section.add_(part)


def _logarithm(sums: Sums, push: Factors) -> Tensor:
    logarithms = sums.logarithms()
    return logarithms if push.anchors is None else logarithms + push.anchors.log()
