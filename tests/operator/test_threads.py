"""Tiles in threads: the same bits for any number, no other thread's settings changed, errors that stop the work."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from operator_checks import Held
from torch.utils._python_dispatch import TorchDispatchMode

import likewise as lw
from likewise.operator import threads, tiles
from likewise.operator.threads import Task

needs_openmp = pytest.mark.skipif(threads._torch() is None, reason="no OpenMP library is found")  # noqa: SLF001


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 32)


def in_threads(monkeypatch, count):
    monkeypatch.setattr(threads, "workers", lambda: count)


def steps():
    """Return losses that visit tiles in every way, and rows."""
    generator = torch.Generator().manual_seed(0)
    z, labels = torch.randn(300, 8, generator=generator), torch.arange(300) % 7
    sets = torch.nn.functional.one_hot(labels, 7) | torch.nn.functional.one_hot(labels // 2, 7)
    queue, keys = torch.randn(500, 8, generator=generator), torch.randn(300, 8, generator=generator)
    prototypes = torch.randn(7, 8, generator=generator)
    return {
        "triangle": lambda x: lw.SupConLoss()(x, labels),
        "in": lambda x: lw.SupConLoss(form="in")(x, labels),
        "label sets": lambda x: lw.SupConLoss()(x, sets),
        "a low temperature": lambda x: lw.SupConLoss(temperature=0.01)(x, labels),
        "rectangle": lambda x: lw.InfoNCELoss()(x, 2 * x + keys),
        "queue": lambda x: lw.InfoNCELoss()(x, keys, queue=queue),
        "labelled queue": lambda x: lw.SupConLoss()(x, labels, queue=queue, queue_labels=torch.arange(500) % 7),
        "both ways": lambda x: lw.InfoNCELoss(symmetric=True)(x, 2 * x + keys),
        "prototypes": lambda x: lw.MSCLoss()(x, sets, prototypes + x.mean()),
    }, z


@pytest.mark.parametrize("name", list(steps()[0]))
def test_the_same_bits_with_any_number_of_threads(name, monkeypatch):
    """Loss and gradient of one, two and four threads are equal, bit for bit."""
    step, z = steps()[0][name], steps()[1]
    results = []
    for count in (1, 2, 4, 2):
        in_threads(monkeypatch, count)
        leaf = z.clone().requires_grad_()
        loss = step(leaf)
        results.append((loss.detach(), torch.autograd.grad(loss, leaf)[0]))
    for loss, gradient in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_tasks_at_one_place_keep_their_order():
    """Whatever threads do, additions to a place happen in the order of the tasks."""
    met: dict[int, list[int]] = {place: [] for place in range(5)}

    def work(number, *places):
        time.sleep(0.001 * (number % 3))
        for place in places:
            met[place].append(number)

    tasks = [Task(pair, (k, *pair)) for k, pair in enumerate((i, j) for i in range(5) for j in range(5) if i != j)]
    threads.run(iter(tasks), lambda: work, count=4)
    assert all(order == sorted(order) and len(order) == 8 for order in met.values())


def test_nobody_elses_threads_change():
    """The number of threads of the caller and of other threads is unchanged, even after a failed step."""
    before, seen = torch.get_num_threads(), []
    step, z = steps()[0]["triangle"], steps()[1]
    step(z.requires_grad_()).backward()

    def fail():
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        threads.run([Task((0,), ())], lambda: fail, count=2)
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert torch.get_num_threads() == before == seen[0]


@needs_openmp
def test_alone_is_one_thread_and_is_restored():
    """Within the context a call takes one thread, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threads.single_threaded():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_first_error_is_raised_and_the_rest_is_left():
    """A failed task stops the work: its error reaches the caller, and no further task is started."""
    done = []

    def work(number):
        if number == 3:
            raise ValueError("the third")
        time.sleep(0.001)
        done.append(number)

    with pytest.raises(ValueError, match="the third"):
        threads.run((Task((k,), (k,)) for k in range(1000)), lambda: work, count=3)
    assert len(done) < 500
    threads.run((Task((k,), (k,)) for k in range(4, 9)), lambda: work, count=3)  # and the threads work on


def test_workers_have_the_callers_mode(monkeypatch):
    """Workers build no graph, and write to inference tensors if the caller does."""
    in_threads(monkeypatch, 3)
    step, z = steps()[0]["triangle"], steps()[1]
    expected = step(z)
    with torch.inference_mode():
        assert torch.equal(step(z.clone()), expected)
    modes = []
    threads.run([Task((k,), ()) for k in range(9)], lambda: lambda: modes.append(torch.is_grad_enabled()), count=3)
    assert len(modes) == 9


def test_several_callers_at_once(monkeypatch):
    """Steps run in several threads at the same time give the same as one at a time."""
    in_threads(monkeypatch, 2)
    step, z = steps()[0]["triangle"], steps()[1]
    expected, found = step(z), []
    callers = [threading.Thread(target=lambda: found.append(step(z))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert len(found) == 4
    assert all(torch.equal(loss, expected) for loss in found)


def test_without_openmp_everything_runs_in_the_callers_thread(monkeypatch):
    """If torch's OpenMP library is not found, there is one worker, with the same bits."""
    step, z = steps()[0]["triangle"], steps()[1]
    expected = step(z)
    monkeypatch.setattr(threads, "_torch", lambda: None)
    assert threads.workers() == 1
    with threads.single_threaded():
        assert torch.equal(step(z), expected)


def test_an_error_of_the_tasks_themselves_is_raised():
    """An error while iterating over tasks reaches the caller, whichever thread iterates."""

    def tasks():
        yield Task((0,), (0,))
        raise MemoryError("no list")

    for _ in range(20):
        with pytest.raises(MemoryError, match="no list"):
            threads.run(tasks(), lambda: lambda _: time.sleep(0.001), count=3)


@pytest.mark.process
@needs_openmp
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_torchs_own_openmp_is_configured_and_a_forked_process_has_threads_of_its_own():
    """Another library's OpenMP, loaded after torch's, is not touched; a fork's parent's threads are gone in it."""
    script = """
import os, torch, sklearn.cluster, likewise as lw
from likewise.operator import tiles, threads
with threads.single_threaded():
    assert torch.get_num_threads() == 1, torch.get_num_threads()
tiles.TILE = 32
threads.workers = lambda: 3
torch.set_num_threads(1)
z, labels = torch.randn(300, 8), torch.arange(300) % 7
expected = lw.SupConLoss()(z, labels)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(lw.SupConLoss()(z, labels), expected) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=600, check=False).returncode == 0


class Peak(TorchDispatchMode):
    """Add up what results of operations hold."""

    def __init__(self):
        super().__init__()
        self.held = Held()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self.held.add(result, torch.device("cpu"))
        return result


@pytest.mark.parametrize(
    ("rows", "learned", "limit"), [(256, False, 9.25), (256, True, 9.5), (512, False, 17.25), (512, True, 17.5)]
)
def test_a_small_step_holds_little_beside_its_rows(rows, learned, limit, monkeypatch):
    """2,048 features: rows, the same as multiplied, a gradient, one more to project it, and matrices of pairs."""
    in_threads(monkeypatch, 1)
    temperature = torch.tensor(0.1, requires_grad=True) if learned else 0.1
    z, labels = torch.randn(rows, 2048, requires_grad=True), torch.arange(rows) % 9
    with Peak() as mode:
        lw.SupConLoss(temperature=temperature)(z, labels).backward()
    assert mode.held.peak <= limit * 2**20, mode.held.peak / 2**20
