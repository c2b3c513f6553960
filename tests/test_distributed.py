"""Several processes: losses and gradients are those of one process that holds everything."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from likewise.distributed import Shards, gather, total
from loss_table import LOSSES

WORKER = Path(__file__).parent / "distributed_worker.py"


def run(world, folder):
    """Run the worker on every rank, and return what each saved."""
    folder.mkdir()
    commands = [[sys.executable, str(WORKER), str(rank), str(world), str(folder)] for rank in range(world)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for process in processes:
        errors = process.communicate(timeout=240)[1]
        assert process.returncode == 0, errors
    return [torch.load(folder / f"{rank}.pt") for rank in range(world)]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return run(1, tmp_path_factory.mktemp("distributed") / "one")[0]


@pytest.fixture(scope="module", params=[2, 3])
def several(request, tmp_path_factory):
    return run(request.param, tmp_path_factory.mktemp("distributed") / "several")


CASES = [
    *(f"{loss} {reduction}" for loss in LOSSES for reduction in ("mean", "sum", "none")),
    *("tiled", "no labels", "mask", "all different", "references", "references, mask"),
]


@pytest.mark.parametrize("case", CASES)
def test_several_processes_are_one(case, one, several):
    """DDP's gradient is the single-process gradient, in size and direction, and every rank shows the global loss."""
    loss, gradients = one[case]
    for result in several:
        if case.endswith("none"):
            break
        torch.testing.assert_close(result[case][0], loss, rtol=1e-12, atol=1e-12)
    if case.endswith("none"):
        assert torch.allclose(sum(result[case][0].sum() for result in several), loss.sum(), rtol=1e-12)
    for result in several:
        for mine, theirs in zip(result[case][1], gradients, strict=True):
            factor = (mine * theirs).sum() / theirs.square().sum().clamp(min=1e-300)
            assert theirs.abs().sum() == 0 or abs(factor - 1) < 1e-12
            torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-13)


def test_no_case_is_empty(one):
    """The cases are those of the worker, and all but the one without positives have a gradient."""
    assert set(one) == set(CASES)
    assert all(gradients[0].abs().sum() > 0 for name, (_, gradients) in one.items() if name != "all different")


def test_bad_input_on_one_rank_is_an_error_on_all(several):
    """Nobody is left waiting: rank 1 says what is wrong, the others that it was rank 1."""
    for rank, result in enumerate(several):
        told = result["refusals"]
        assert set(told) == {"labels", "nan", "features", "kind", "queue", "list", "temperature", "mask"}
        assert "on all ranks" in told["features"]
        assert "on all ranks" in told["kind"]
        assert "on all ranks" in told["queue"]
        if rank == 1:
            assert "got 1" in told["labels"]
            assert "finite" in told["nan"]
            assert "mask says" in told["mask"]
        else:
            assert all("rank 1" in told[name] for name in ("labels", "nan", "list", "temperature", "mask"))


def test_one_process_gathers_nothing():
    """Without a process group, gathering and totals are the identity."""
    rows = torch.randn(3, 2)
    assert gather(rows, Shards((3,), 0)) is rows
    assert total(torch.tensor(3.0)) == 3
