"""Several processes: losses and gradients are those of one process that holds everything."""

import math
from pathlib import Path

import pytest
import torch
from command_worker import workers

from likewise.distributed import RankSizes, gather, total
from loss_table import LOSSES

pytestmark = pytest.mark.process

WORKER = Path(__file__).parent / "processes" / "distributed_worker.py"
SHARDED = Path(__file__).parent / "processes" / "sharded_worker.py"
DISAGREEING = Path(__file__).parent / "processes" / "disagreement_worker.py"


def run(shards, folder):
    """Run the worker on every rank, with so many samples each, and return what each saved."""
    folder.mkdir()
    world = len(shards.split(","))
    workers(WORKER, *((rank, shards, folder) for rank in range(world)), folder=folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(world)]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return run("7", tmp_path_factory.mktemp("distributed") / "one")[0]


@pytest.fixture(scope="module", params=["6,1", "3,0,4"])
def several(request, tmp_path_factory):
    return run(request.param, tmp_path_factory.mktemp("distributed") / "several")


CASES = {
    *(f"{loss} {reduction}" for loss in LOSSES for reduction in ("mean", "sum", "none")),
    *("tiled", "no labels", "learned temperature", "learned weights", "mask", "all different", "references"),
    *("references, mask", "batch normalisation", "cold", "cold, two pushes", "long rows on one rank"),
    "no positives on a rank",
    "batch normalisation of timm",
}


def test_several_processes_are_one(one, several):
    """DDP's gradient is the single-process gradient, in size and direction, and every rank shows the global loss."""
    for case, (loss, gradients, _) in one.items():
        losses = [result[case][0] for result in several]
        if loss.ndim:
            assert torch.allclose(sum(of.sum() for of in losses), loss.sum(), rtol=1e-12), case
        else:
            torch.testing.assert_close(torch.stack(losses), loss.expand(len(several)), rtol=1e-12, atol=1e-12, msg=case)
        rounding = 1e-12 * max(float(theirs.abs().max()) for theirs in gradients if theirs.numel())
        for result in several:
            for mine, theirs in zip(result[case][1], gradients, strict=True):
                if theirs.abs().sum() <= rounding:  # distances don't change with what is added to all features
                    assert mine.abs().sum() <= rounding, case
                    continue
                factor = (mine * theirs).sum() / theirs.square().sum().clamp(min=1e-300)
                assert abs(factor - 1) < 1e-12, case
                torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-13, msg=case)


def test_a_learned_temperature_is_sharded(tmp_path):
    """FSDP2, which takes no 0-d parameter, takes one of shape (1,): two steps on two ranks are those of one.

    What is sharded stays in its range, too, however far steps drive it, and not only what a step makes of it.
    """
    results = {}
    for world in (1, 2):
        folder = tmp_path / str(world)
        folder.mkdir()
        workers(SHARDED, *((rank, world, folder) for rank in range(world)), folder=folder)
        results[world] = [torch.load(folder / f"{rank}.pt") for rank in range(world)]
    for _, limits in results[1] + results[2]:
        assert limits == [(pytest.approx(0.01), pytest.approx(math.log(0.01)))] * 4
    ((expected, _),) = results[1]
    assert expected[0][1].shape != expected[0][2].shape
    assert any(of.shape == (1,) and float(of) != 0.3 for of in expected[0])
    for mine, _ in results[2]:
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)


def test_batch_normalisation_follows_the_whole_batch(one, several):
    """Running statistics, of vectors and maps, with a shard of no samples too."""
    expected = one["batch normalisation"][2]
    assert len(expected) == 6
    for result in several:
        for mine, theirs in zip(result["batch normalisation"][2], expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


def test_no_case_is_empty(one):
    """The cases are those of the worker, and all except the one without positives have a gradient."""
    assert set(one) == CASES
    assert all(gradients[0].abs().sum() > 0 for name, (_, gradients, _) in one.items() if name != "all different")


def test_bad_input_on_one_rank_is_an_error_on_all(several):
    """No rank is left waiting: rank 1 says what is wrong, the others name rank 1."""
    for rank, result in enumerate(several):
        told = result["refusals"]
        assert set(told) == {"labels", "nan", "features", "kind", "queue", "list", "temperature", "mask", "widths"}
        assert "on all ranks" in told["features"]
        assert "on all ranks" in told["kind"]
        assert "on all ranks" in told["queue"]
        if rank == 1:
            assert "got 1" in told["labels"]
            assert "finite" in told["nan"]
            assert "mask to have one row" in told["mask"]
            assert "at least the 3 of the widest, got 2" in told["widths"]
        else:
            assert all("rank 1" in told[name] for name in ("labels", "nan", "list", "temperature", "mask", "widths"))


DIFFERENCES = {
    "queue, or none": "queue none on rank 0 and of shape (4, 6) in float32 on rank 1",
    "a longer queue": "queue of shape (3, 6) in float32 on rank 0 and of shape (4, 6) in float32 on rank 1",
    "symmetric": "symmetric False on rank 0 and True on rank 1",
    "weighted": "weighted False on rank 0 and True on rank 1",
    "reduction": "reduction 'mean' on rank 0 and 'none' on rank 1",
    "normalize": "normalize False on rank 0 and True on rank 1",
    "form": "form 'out' on rank 0 and 'in' on rank 1",
    "temperature": "temperature 0.1 on rank 0 and 0.2 on rank 1",
    "a learned temperature": "temperature 0.1 on rank 0 and a tensor of 0.1",
    "learned temperatures": "temperature a tensor of 0.10000000149011612 on rank 0 and a tensor of 0.20000000",
    "the loss itself": "loss NTXentLoss on rank 0 and DCLLoss on rank 1",
    "gathered, or local": "loss InfoNCELoss on rank 0 and TripletLoss on rank 1",
    "k": "k 1 on rank 0 and 2 on rank 1",
    "alpha": "alpha 1.0 on rank 0 and 2.0 on rank 1",
    "beta": "beta 1.0 on rank 0 and 2.0 on rank 1",
    "views": "embeddings of shape (N, 2, 6) in float32 on rank 0 and of shape (N, 3, 6) in float32 on rank 1",
    "features": "embeddings of shape (N, 2, 5) in float32 on rank 0 and of shape (N, 2, 6) in float32 on rank 1",
    "dtype": "anchors of shape (N, 6) in float32 on rank 0 and of shape (N, 6) in float64 on rank 1",
    "gradient": "of shape (N, 6) in float32 on rank 0 and of shape (N, 6) in float32, with gradient on rank 1",
    "kind of labels": "labels classes on rank 0 and sets over 3 labels on rank 1",
    "number of labels": "labels sets over 3 labels on rank 0 and sets over 4 labels on rank 1",
    "a mask": "mask none on rank 0 and given on rank 1",
    "keys, or none": "keys none on rank 0 and of shape (N, 6) in float32 on rank 1",
    "references, or none": "references none on rank 0 and of shape (N, 6) in float32 on rank 1",
    "prototypes": "prototypes of shape (2, 6) in float32 on rank 0 and of shape (3, 6) in float32 on rank 1",
    "values of prototypes": "values of prototypes ",
    "values of a wrapper's prototypes": "values of prototypes ",
    "values of a learned bias": "values of bias 3f000000 on rank 0 and 3fc00000 on rank 1",
    "values of a queue": "values of queue ",
    "classes": "class_logits of shape (N, 2) in float32 on rank 0 and of shape (N, 3) in float32 on rank 1",
    "training": "training False on rank 0 and True on rank 1",
    "cache": "cache of shape (8, 6) on rank 0 and of shape (9, 6) on rank 1",
}


@pytest.fixture(scope="module")
def disagreeing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disagreement")
    workers(DISAGREEING, *((rank, folder) for rank in range(2)), folder=folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_ranks_that_differ_raise_with_the_difference(disagreeing):
    """Losses built or called differently are an error on every rank, with each rank's value; no rank waits."""
    for told, _, _ in disagreeing:
        assert set(told) == set(DIFFERENCES)
        for case, difference in DIFFERENCES.items():
            assert "on all ranks" in told[case]
            assert difference in told[case]
            assert "\n" not in told[case]


def test_what_ranks_need_not_share_may_differ(disagreeing):
    """One view, half precision, dtypes of labels, backends, numbers of samples; ranks stay in step after all errors."""
    alike = [of for _, of, _ in disagreeing]
    assert alike[0] == alike[1]
    assert len(alike[0]) == 8


def test_a_step_takes_two_exchanges_at_most(disagreeing):
    """Apart from rows, ranks exchange at most two small messages, and one where nothing is gathered."""
    for _, _, counts in disagreeing:
        assert {name: of for name, of in counts.items() if isinstance(of, int)} == {
            "SupCon": 2,
            "InfoNCE, queue": 1,
            "MSC": 2,
        }


def test_a_step_sends_its_rows_once_in_their_precision(disagreeing):
    """Here 4 rows of 6 features: embeddings, labels, two numbers of each row's backward, and small messages."""
    sizes = {"torch.float32": 4, "torch.bfloat16": 2}
    for dtype, size, counts in ((dtype, size, of) for dtype, size in sizes.items() for *_, of in disagreeing):
        assert counts[dtype]["all_gather_into_tensor"] == 4 * 6 * size + 4 * 8 + 4 * 2 * 4
        assert counts[dtype]["reduce_scatter_tensor"] == 0  # the gradient of its own rows a rank works out itself
        assert counts[dtype]["all_gather"] == 2 * 8 + 4 * 8  # two messages: whether all agree, and the sizes
        assert counts[dtype]["all_reduce"] <= 16  # how many anchors, and the value


def test_one_process_gathers_nothing():
    """Without a process group, gathering and totals are the identity."""
    rows = torch.randn(3, 2)
    assert gather(rows, RankSizes((3,), 0)) is rows
    assert total(torch.tensor(3.0)) == 3
