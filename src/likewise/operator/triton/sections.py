"""A problem split by sections: which of them kernels evaluate, with which plans, and what is left to tiles."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator.problem import Problem, Push
from likewise.operator.triton.operands import aligned
from likewise.operator.triton.weights import Plan, Weighing, plan
from likewise.pairs import PairWeight, concat
from likewise.pairs.concat import Concat
from likewise.pairs.expressions import RowMean, Scaled


class Scale(NamedTuple):
    """The factors of a weight that are the same for all pairs of an anchor: they stay outside the tiles."""

    anchors: Float[Tensor, " n"] | None = None
    by_mass: bool = False
    """Whether weights are divided by the sum of their row, as counted by the kernels."""


class SplitProblem(NamedTuple):
    """A problem split by sections."""

    plans: tuple[Plan | None, ...]
    """The plan of each section; None: it is evaluated in tiles."""
    pushes: tuple[Scale, ...]
    pull: Scale
    counted: int
    """The index of the weight whose rows kernels sum: a push, or the pull, which comes after these; −1: none."""
    rest: Problem | None
    """The problem for tiles: the sections without a plan."""
    streamed: PairWeight | None
    """What is pulled as pull @ references."""
    losses: bool
    """Whether kernels compute the losses."""

    @property
    def whole(self) -> bool:
        """Whether kernels evaluate every section."""
        return self.rest is None


def taken_apart(problem: Problem, lengths: tuple[int, ...], device: torch.device) -> SplitProblem:
    """Split a problem by sections."""
    pull, streamed = problem.pulls
    if pull is not None and (pull.is_sparse or (streamed is not None and isinstance(pull, Concat))):
        pull, streamed = None, problem.pull  # a section whose pull has no plan would be left to tiles
    given = [push.weight for push in problem.pushes] + ([] if pull is None else [pull])
    peeled = [_peeled(weight, device) for weight in given]
    cut = [_sections(base, lengths) for base, _ in peeled]
    powers, pulls = tuple(push.power for push in problem.pushes), pull is not None
    counted = len(powers) if pulls else next((k for k, (_, scale) in enumerate(peeled) if scale.by_mass), -1)
    plans: list[Plan | None] = [None for _ in lengths]
    fit = len(powers) <= 2 and all(parts is not None for parts in cut) and (pull is None or pull.is_nonnegative)
    if fit:
        asked = Weighing(powers, pulls, counted)
        plans = [plan(tuple(parts[k] for parts in cut if parts), asked, device) for k in range(len(lengths))]
    known = [found is not None for found in plans]
    if not any(known) or (problem.both_ways and not all(known)):
        rest = problem._replace(coefficients=None, normalize=False, half=None)
        return SplitProblem((None,) * len(lengths), (), Scale(), -1, rest, None, losses=False)
    scales = [
        scale if scale.by_mass and all(known) and _is_counted(plans, k, counted) else _divided(scale, base, device)
        for k, (base, scale) in enumerate(peeled)
    ]
    rest = None
    if not all(known):
        left = [_left(parts, known, scale) for parts, scale in zip(cut, scales, strict=True) if parts]
        rest = problem._replace(
            pushes=tuple(Push(weight, power) for weight, power in zip(left, powers, strict=False)),
            pull=left[-1] if pulls else None,
            own=tuple(own for own, is_known in zip(problem.own, known, strict=True) if not is_known),
            coefficients=None,
            normalize=False,
            half=None,
        )
    losses = rest is None and streamed is None and problem.coefficients is not None
    return SplitProblem(
        tuple(plans), tuple(scales[: len(powers)]), scales[-1] if pulls else Scale(), counted, rest, streamed, losses
    )


def _peeled(weight: PairWeight, device: torch.device) -> tuple[PairWeight, Scale]:
    """Return a weight without the factors of its anchors, and these factors."""
    anchors: Tensor | None = None
    while isinstance(weight, Scaled) and weight.references is None:
        if weight.factor != 1:
            whole = torch.ones(weight.shape[0], device=device) if anchors is None else anchors
            anchors = whole * weight.factor
        if weight.anchors is not None:
            own = aligned(weight.anchors.to(device, torch.float32))
            anchors = own if anchors is None else anchors * own
        weight = weight.base
    if isinstance(weight, RowMean):
        return weight.base, Scale(anchors, by_mass=True)
    return weight, Scale(anchors)


def _divided(scale: Scale, base: PairWeight, device: torch.device) -> Scale:
    """Return a scale that divides by the row sums of the weight's base, for sums that kernels do not count."""
    if not scale.by_mass:
        return scale
    sums = base.known_row_sum(torch.float32, device)
    share = sums.reciprocal().masked_fill(sums == 0, 0)
    return Scale(share if scale.anchors is None else scale.anchors * share)


def _is_counted(plans: list[Plan | None], k: int, counted: int) -> bool:
    """Return whether kernels count the row sums of the k-th weight."""
    return k == counted or all(
        found is not None and found.shape.terms[k] == found.shape.terms[counted] for found in plans
    )


def _sections(weight: PairWeight, lengths: tuple[int, ...]) -> list[PairWeight] | None:
    """Return the weight of each section; None if its sections differ from those of the references."""
    if isinstance(weight, Concat):
        parts = list(weight.flat)
        return parts if [part.shape[1] for part in parts] == list(lengths) else None
    return [weight] if len(lengths) == 1 else None


def _left(parts: list[PairWeight], known: list[bool], scale: Scale) -> PairWeight:
    """Return the weight of the sections that no kernel evaluates."""
    weight = concat([part for part, is_known in zip(parts, known, strict=True) if not is_known])
    return weight if scale.anchors is None else weight.scale(anchors=scale.anchors)


def without_pull(found: Plan) -> Plan:
    """Return a plan with only the pushes, which counts no row sums."""
    pushes = found.shape.pushes
    shape = replace(
        found.shape, terms=found.shape.terms[:pushes], sets=found.shape.sets[:pushes], pulls=False, counted=-1
    )
    return found._replace(shape=shape)
