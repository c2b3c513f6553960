"""Compile every launch of some steps for a GPU that need not be here; print what each needs, as lines of JSON.

PYTHONPATH=. python tests/processes/compiled_launches.py 86 bfloat16,128 float32,256

"fully" at the end asks for all forms of weights, not a few.
"""

import json
import sys
from unittest import mock

import torch

import likewise as lw
from benchmarks import compiled
from likewise import pairs
from likewise.operator import ContrastSpec, Push, backends, evaluate
from likewise.operator.triton import fused
from likewise.operator.triton.operands import precision

N = 64
LABELS = torch.arange(N) % 5
TENSOR_MEMORY = 512
"""Columns, on GPUs that have it."""


class OnDevice(torch.Tensor):
    """A tensor whose value the library does not read, as it reads no value from a GPU."""


def rows(d, dtype):
    return torch.randn(N, d, dtype=dtype).requires_grad_()


def forms():
    """Return for each form how many sections it has beside the queries, its push and its pull."""
    not_self, every = pairs.NotSelf(N), pairs.AllPairs(N, N)
    sets, many = torch.rand(N, 9) < 0.3, torch.rand(N, 300) < 0.3
    shares, similarity = pairs.SharesLabel(many), 0.5 + 0.5 * torch.eye(300)
    same, scale = pairs.SameClass(LABELS), torch.rand(N)
    return {
        "300 labels": (0, not_self, (shares & not_self).mean_over_row()),
        "two products of labels": (0, ~shares * (1 - pairs.MeanSimilarity(many, similarity)), None),
        "Jaccard": (0, pairs.Jaccard(sets) * not_self, None),
        "weighted": (0, (~same).scale(references=scale) + same.scale(anchors=scale), same.mean_over_row()),
        "a queue": (1, pairs.concat([not_self, every]), None),
        "a matrix": (1, pairs.concat([not_self, pairs.Explicit(torch.rand(N, N) < 0.5)]), None),
    }


def step(form, d, dtype, tau, *, normalize=True):
    """Run a form forward and backward."""
    others, push, pull = form
    z = rows(d, dtype)
    outcome = evaluate(
        ContrastSpec((Push(push),), pull, normalize=normalize),
        z,
        (z, *(rows(d, dtype).detach() for _ in range(others))),
        temperature=tau,
        backend="triton",
    )
    attraction = 0 if outcome.attraction is None else outcome.attraction.sum()
    (outcome.logsums[0].sum() - attraction).backward()


def steps(d, dtype, *, fully):
    """Launch what a few losses and, fully, all forms of weights launch."""
    learned = torch.tensor(0.1).as_subclass(OnDevice).requires_grad_()
    lw.SupConLoss(temperature=learned, backend="triton")(rows(d, dtype), LABELS).backward()
    step(forms()["300 labels"], d, dtype, 0.1)
    lw.InfoNCELoss(backend="triton")(rows(d, dtype), rows(d, dtype), queue=rows(d, dtype).detach()).backward()
    if fully:
        lw.SupConLoss(backend="triton")(rows(d, dtype), LABELS).backward()
        lw.SupConLoss(form="in", backend="triton")(rows(d, dtype), LABELS).backward()
        lw.InfoNCELoss(symmetric=True, backend="triton")(rows(d, dtype), rows(d, dtype)).backward()
        for form in forms().values():
            for tau, normalize in ((0.1, True), (learned, True), (0.1, False)):
                step(form, d, dtype, tau, normalize=normalize)


if __name__ == "__main__":
    capability, *asked = sys.argv[1:]
    with (
        compiled.compiling(int(capability)) as kept,
        mock.patch.object(backends, "no_triton", return_value=None),
        mock.patch.object(fused, "precision", lambda half, _: precision(half, torch.device("cuda"))),
    ):
        for of in asked:
            if of != "fully":
                kind, width = of.split(",")
                steps(int(width), getattr(torch, kind), fully="fully" in asked)
    for binary, keywords in {id(binary): (binary, keywords) for binary, keywords in kept}.values():
        of = binary.metadata
        how = keywords.get("HOW")
        shape = [] if how is None else [how.N, how.R, keywords["num_stages"]]
        offset = None if how is None else "fixed" if how.FIXED else "running"
        tensor_memory = getattr(of, "tmem_size", 0) or 0
        fits = of.shared <= compiled.SHARED[int(capability)] and tensor_memory <= TENSOR_MEMORY
        needs = {"tiles": shape, "offset": offset, "shared": of.shared, "tmem": tensor_memory}
        print(json.dumps({"kernel": of.name, **needs, "fits": fits}))
