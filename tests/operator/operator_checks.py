"""What tests of the operator, of weights and of losses share: rows, comparisons, memory that is held, processes."""

import os
import subprocess
import sys
import weakref
from pathlib import Path
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_leaves

from likewise import pairs
from likewise.operator import ContrastSpec, Push, evaluate

BACKENDS = ["dense", "tiled", "auto"]
DOUBLE = torch.float64
ROOT = Path(__file__).parents[2]


def unit(n, d, dtype=DOUBLE):
    """Return random rows of length 1."""
    return torch.nn.functional.normalize(torch.randn(n, d, dtype=DOUBLE), dim=1).to(dtype)


def sup_con_pairs(labels):
    """Return SupCon's pull and push."""
    push = pairs.NotSelf(len(labels))
    return (pairs.SameClass(labels) & push).mean_over_row(), push


def check_same(found, expected, leaves, upstream=None, **tolerances):
    """Compare two values, and their gradients to leaves, for an upstream gradient or of their sums."""
    torch.testing.assert_close(found, expected, **tolerances)
    mine, theirs = (
        torch.autograd.grad(value, leaves, torch.ones_like(value) if upstream is None else upstream)
        for value in (found, expected)
    )
    torch.testing.assert_close(mine, theirs, **tolerances)


def outcome_of(z, sections, push, pull=None, *, temperature=0.1, backend="triton", **options):
    """Return the outcome of a contrast with one push of normalised rows, of the kernels if not of another backend."""
    problem = ContrastSpec((Push(push),), pull, **{"normalize": True} | options)
    return evaluate(problem, z, sections, temperature=temperature, backend=backend)


def passed_weights(criterion, *batch, **inputs):
    """Return a loss, and by name the weights that it evaluates."""
    weights, evaluate = {}, criterion.evaluate
    with patch.object(criterion, "evaluate", lambda rows, **given: weights.update(given) or evaluate(rows, **given)):
        return criterion(*batch, **inputs), weights


def run_python(*words):
    """Run Python where Triton compiles instead of interpreting, and return what it printed."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True, text=True, check=False, timeout=3600, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


class Held:
    """The bytes that results of operations hold, and the most that they held at once."""

    def __init__(self):
        self.bytes = self.peak = 0
        self._known = set()

    def add(self, result, device):
        for value in tree_leaves(result):
            if not isinstance(value, torch.Tensor) or value.device != device:
                continue
            storage = value.untyped_storage()
            name, size = storage._cdata, storage.nbytes()  # noqa: SLF001 - what tells storages from each other
            if name not in self._known:
                self._known.add(name)
                self.bytes += size
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(storage, self._free, name, size)

    def _free(self, name, size):
        self._known.discard(name)
        self.bytes -= size
