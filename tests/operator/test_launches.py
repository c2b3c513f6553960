"""The number of kernel launches of a step on a GPU, and its memory, counted on tensors without values."""

import gc
import itertools
import weakref
from collections import Counter
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from operator_checks import Held, outcome_of
from test_no_synchronisation import DEVICE, Watch
from torch._subclasses.fake_tensor import FakeTensorMode

import likewise as lw
from likewise import pairs
from likewise.operator import backends
from likewise.operator.spec import LocalAnchors

pytest.importorskip("triton", reason="Triton is not installed: it has no wheel for this platform")

from triton.backends.compiler import GPUTarget
from triton.runtime import jit

from likewise.operator.triton import fused, launches, tuning, weights
from likewise.operator.triton.operands import precision


@pytest.fixture(autouse=True)
def _autocast_knows_no_such_device(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)


class Count(Watch):
    """Count launches and the bytes that tensors hold."""

    def __init__(self):
        super().__init__()
        self.held = Held()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        self.held.add(result, DEVICE)
        return result


def launch_by(kernel, monkeypatch):
    """Choose the kernels where there is no GPU, and launch them by this function."""
    monkeypatch.setattr(backends, "no_triton", lambda _: None)
    monkeypatch.setattr(launches, "_kernel", kernel)
    monkeypatch.setattr(fused, "precision", lambda half, _: precision(half, torch.device("cuda")))


@contextmanager
def counting(monkeypatch):
    """Select the kernels for fake tensors, and count each launch as one operation."""
    launch_by(lambda kernel, _grid: lambda *_, **__: watch.launched.append(kernel.__name__), monkeypatch)
    with FakeTensorMode(), Count() as watch:
        yield watch


@pytest.mark.parametrize(("n", "most"), [(4096, 12), (weights.MIN_ROWS_TO_SORT, 15)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_step_of_sup_con(dtype, n, most, monkeypatch):
    """SupCon with class labels, forward and backward: at most twelve launches, and no separate sum over classes.

    Many rows are sorted, by three operations more.
    """
    for name in ("known_row_sum", "known_support"):
        monkeypatch.setattr(pairs.PairWeight, name, lambda *_: pytest.fail("a sum over classes was asked for"))
    torch.utils.deterministic.fill_uninitialized_memory = False
    with counting(monkeypatch) as watch:
        z = torch.empty(n, 128, dtype=dtype, device=DEVICE, requires_grad=True)
        labels = torch.empty(n, dtype=torch.int64, device=DEVICE)
        loss = lw.SupConLoss(backend="triton")
        value = loss(z, labels)
        torch.autograd.grad(value, z)
        assert loss.last["positives_per_anchor"].shape == (n,)
    launched = Counter(name for name in watch.launched if "empty" not in name)  # but fills of memory, as tests have
    assert sum(launched.values()) <= most, launched
    assert (launched["aten::sort"], launched["aten::searchsorted"]) == (
        (1, 2) if n == weights.MIN_ROWS_TO_SORT else (0, 0)
    )
    assert launched["forward_kernel"] == launched["backward_kernel"] == 1


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_graph_has_no_reference_cycle(reduction, monkeypatch):
    """A step's tensors are freed with its loss, without the garbage collector."""
    gc.disable()
    try:
        with counting(monkeypatch):
            z = torch.empty(64, 20, device=DEVICE, requires_grad=True)
            labels = torch.empty(64, dtype=torch.int64, device=DEVICE)
            value = lw.SupConLoss(backend="triton", reduction=reduction)(z, labels)
            node = weakref.ref(value.grad_fn)
            torch.autograd.grad(value.sum(), z)
            assert node() is not None
            del value
            assert node() is None
    finally:
        gc.enable()


def test_counts_that_the_caller_changes_before_the_backward_are_noticed(monkeypatch):
    """Kernels read the number of positives again, and a wrong gradient would be silent."""
    with counting(monkeypatch):
        z = torch.empty(64, 20, device=DEVICE, requires_grad=True)
        loss = lw.SupConLoss(backend="triton")
        value = loss(z, torch.empty(64, dtype=torch.int64, device=DEVICE))
        loss.last["active_anchors"].mul_(10)
        torch.autograd.grad(value, z, retain_graph=True)
        loss.last["positives_per_anchor"].mul_(10)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(value, z)


@pytest.mark.parametrize("learned", [False, True], ids=["a number", "learned"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_shape_of_contrast_waits(dtype, learned, monkeypatch):
    """Queues, both directions, two pushes, label sets and weights in tiles: no value is read."""
    with counting(monkeypatch):
        z, k, queue = (torch.empty(64, 20, dtype=dtype, device=DEVICE) for _ in range(3))
        labels = torch.empty(64, dtype=torch.int64, device=DEVICE)
        sets = torch.empty(64, 9, dtype=torch.bool, device=DEVICE)
        not_self, everything = pairs.NotSelf(64), pairs.AllPairs(64, 64)
        same = pairs.SameClass(labels) & not_self
        explicit = pairs.Explicit(torch.empty(64, 64, dtype=torch.bool, device=DEVICE))
        for sections, push, pull, both_ways in (
            ((z,), not_self, same.mean_over_row(), False),
            ((z,), not_self, pairs.Overlap(sets) * not_self, False),
            ((z,), not_self, pairs.Jaccard(sets) * not_self, False),
            ((k,), everything, ~not_self, True),
            ((z, queue), pairs.concat([not_self, everything]), None, False),
            ((z, k), pairs.concat([not_self, explicit]), None, False),
        ):
            tau = torch.empty((), device=DEVICE, requires_grad=True) if learned else 0.1
            wanted = [v.requires_grad_() for v in (z, k)] + ([tau] if learned else [])
            outcome = outcome_of(z, sections, push, pull, temperature=tau, both_ways=both_ways)
            torch.autograd.grad(outcome.logsums[0].sum(), wanted, allow_unused=True)


@pytest.mark.parametrize(
    ("capability", "kib"), [(80, 163), (86, 99), (89, 99), (90, 227), (100, 227), (103, 227), (110, 227), (120, 99)]
)
def test_tiles_have_room(capability, kib, monkeypatch):
    """Whatever a kernel multiplies: its own rows and those of the stages it loads ahead fit into shared memory."""
    monkeypatch.setattr(tuning, "capability", lambda _: capability)
    monkeypatch.setattr(tuning, "room", lambda _: kib << 10)
    every = itertools.product(("sums", "average", "backward"), (16, 64, 128, 256), *[(False, True)] * 3, (0, 1, 2))
    for kernel, chunk, two, whole, busy, overlaps in every:
        if chunk == 256 and (two or not whole):  # such rows are read in chunks of 128
            continue
        size = tuning.tiles(kernel, chunk, two=two, whole=whole, overlaps=overlaps, busy=busy, device=DEVICE)
        own, other = (rows * chunk * 2 * (1 + two) for rows in (size.own, size.other))
        # in chunks, the own rows are loaded anew with each tile
        held = own + size.stages * other if whole else size.stages * (own + other)
        assert held <= kib << 10, (kernel, chunk, two, whole, busy, overlaps, size)


MULTIPROCESSORS = [1, 132, 148]
"""Of a GPU that is not there, of an H100 and of a B200."""


@pytest.mark.parametrize("count", MULTIPROCESSORS)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 1.2e9), (torch.float32, 1.7e9)])
def test_a_million_rows(dtype, limit, count, monkeypatch):
    """1,048,576 rows of 128 features: in addition to the inputs, the rows as multiplied and two gradients at most."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    monkeypatch.setattr(tuning, "multiprocessors", lambda _: count)
    with counting(monkeypatch) as watch:
        z = torch.empty(1 << 20, 128, dtype=dtype, device=DEVICE, requires_grad=True)
        labels = torch.empty(1 << 20, dtype=torch.int64, device=DEVICE)
        inputs = watch.held.bytes
        value = lw.SupConLoss(backend="triton")(z, labels)
        (gradient,) = torch.autograd.grad(value, z)
        assert gradient.dtype == dtype
    assert inputs == (1 << 20) * (128 * dtype.itemsize + 8)
    assert watch.held.peak - inputs <= limit, watch.held.peak - inputs


@pytest.mark.parametrize("count", MULTIPROCESSORS)
@pytest.mark.parametrize(("products", "at_once", "rows", "stored"), [(False, 2, 128, 0.1), (True, 1, 128, 3.0)])
def test_a_loop_is_split_no_further_than_it_pays(products, at_once, rows, stored, count, monkeypatch):
    """Within 5 % of the shortest of all splits, counted wave by wave; one part where programs fill a GPU 20 times."""
    monkeypatch.setattr(tuning, "multiprocessors", lambda _: count)
    room = count * at_once
    for n in (1, 100, 4096, 16_384, 65_536, 77_935, 136_875, 285_870, 1 << 20):
        programs = walked = -(-n // rows)

        def time(parts, programs=programs, walked=walked):
            waves, rest = divmod(programs * parts, room)
            return (waves + (rest > 0)) * (walked / parts + stored)

        parts = tuning.splits(programs, walked, DEVICE, at_once=at_once, products=products)
        most = max(1, min(16 if products else 256, walked // 2))
        assert 1 <= parts <= most
        assert time(parts) <= 1.0501 * min(map(time, range(1, most + 1)))
        assert parts == 1 or programs < 20 * room


@pytest.fixture
def compiled(monkeypatch):
    """Launch nothing, and collect what Triton would compile for an H100: its own keys, of tensors in memory.

    What is told apart without Triton, where a launch is known, is at least what Triton tells apart.
    """
    driver = mock.Mock(**{"get_current_target.return_value": GPUTarget("cuda", 90, 32)})
    monkeypatch.setattr(jit, "driver", mock.Mock(active=driver))
    torch.utils.deterministic.fill_uninitialized_memory = False
    binders, keys, known = {}, set(), {}

    def kernel(kernel, _grid):
        def launch(*values, **keywords):
            if kernel.__name__ not in binders:
                made = jit.JITFunction(kernel.fn, **getattr(kernel, "kwargs", {}))
                binders[kernel.__name__] = made.create_binder()[-1]
            _, specialization, options = binders[kernel.__name__](*values, **keywords)
            key = kernel.__name__, str(specialization), str(options)
            keys.add(key)
            ours = kernel.__name__, launches._kinds(values), str(keywords)  # noqa: SLF001 - what launches are known by
            assert known.setdefault(ours, key) == key

        return launch

    launch_by(kernel, monkeypatch)
    return keys


def an_epoch(name, dtype):
    """Yield steps of a loss: two batches and an odd rest of odd parts of memory, with a constant that is annealed."""
    for turn in range(9):
        beta, tau = 0.31 + 0.05 * turn, 0.1 + 0.001 * turn
        for n in (256, 256, 77):
            labels = torch.arange(n + turn)[turn:] % 7
            z, k = (torch.randn(n * 20 + turn, dtype=dtype)[turn:].view(n, 20) for _ in range(2))
            queue = torch.randn(n + 33, 20, dtype=dtype)
            not_self, everything = pairs.NotSelf(n), pairs.AllPairs(n, len(queue))
            same = pairs.SameClass(labels) & not_self
            z.requires_grad_()
            if name == "SupCon":
                lw.SupConLoss(temperature=tau, backend="triton")(z, labels).backward()
            elif name == "learned":
                learned = torch.full((turn + 1,), tau).requires_grad_()
                lw.SupConLoss(temperature=learned[turn], backend="triton", normalize=False)(z, labels).backward()
            elif name == "hard negatives":
                lw.HardNegativeLoss(temperature=tau, beta=beta, backend="triton")(z, k.requires_grad_()).backward()
            elif name == "InfoNCE":
                lw.InfoNCELoss(temperature=tau, symmetric=True, backend="triton")(z, k.requires_grad_()).backward()
            elif name == "queue":
                push = pairs.concat([not_self * beta, everything * (1 - beta / 2), everything])
                sections = z, queue, k[:1].expand(n + 33, 20)
                outcome_of(z, sections, push, temperature=tau).logsums[0].sum().backward()
            elif name == "scaled":
                scale = torch.rand(n + turn)[turn:]
                push, pull = not_self.scale(references=scale) * beta, same.scale(anchors=scale) * beta
                outcome_of(z, (z,), push, pull, temperature=tau, coefficients=(scale,)).losses.sum().backward()
            elif name == "part":
                push = pairs.NotSelf(n, n + 33, 33)
                everyone = torch.cat([torch.arange(33) % 7, labels])
                pull = (pairs.SameClass(everyone[33:], everyone, offset=33) & push).mean_over_row()
                part = LocalAnchors(33, lambda x, n=n: torch.zeros(n + 33, *x.shape[1:]))
                found = outcome_of(z, (queue,), push, pull, temperature=tau, part=part, coefficients=(None,))
                found.losses.sum().backward()
            yield turn, n


EPOCHS = "SupCon", "learned", "hard negatives", "InfoNCE", "queue", "scaled", "part"


def test_launches_are_told_apart_as_triton_tells_them(compiled):
    """Steps of all kinds, in all dtypes, by one table; and integers that need 64 bits."""
    for name in EPOCHS:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            next(an_epoch(name, dtype))
    torch.set_float32_matmul_precision("medium")  # float32 where all else is as in bfloat16
    try:
        next(an_epoch("SupCon", torch.float32))
    finally:
        torch.set_float32_matmul_precision("highest")
    for start in (0, 1):  # rows that are passed as they are, at an odd place in memory
        z = torch.randn(64 * 32 + 1).bfloat16()[start : start + 64 * 32].view(64, 32).requires_grad_()
        lw.SupConLoss(backend="triton", normalize=False)(z, torch.arange(64) % 7).backward()
    assert len(compiled) > 40
    assert launches._kinds((1,)) != launches._kinds((1 << 31,))  # noqa: SLF001 - what launches are known by


@pytest.mark.parametrize(("name", "dtype"), list(zip(EPOCHS, [torch.bfloat16, torch.float32] * 4, strict=False)))
def test_an_epoch_compiles_what_its_first_step_does(name, dtype, compiled):
    """Neither an odd last batch, nor where rows lie in memory, nor an annealed number compiles anything anew."""
    first = None
    for _ in an_epoch(name, dtype):
        first = first or set(compiled)
        assert compiled == first
    assert {name for name, *_ in first} >= {"forward_kernel", "backward_kernel", "merge_kernel"}
