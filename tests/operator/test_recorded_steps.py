"""Steps on Triton's own launcher and a stub of the driver: how they are launched, and what a CUDA graph would hold."""

import json

import pytest
from operator_checks import ROOT, run_python

from benchmarks import stub_driver

pytestmark = [
    pytest.mark.process,
    pytest.mark.triton,
    pytest.mark.slow,
    pytest.mark.skipif(stub_driver.missing() is not None, reason=f"no stub driver: {stub_driver.missing()}"),
]

LOSSES = "SupCon", "SupCon, sorted", "float32, every row, τ learned", "InfoNCE with a queue", "hard negatives"


@pytest.fixture(scope="module")
def steps():
    """Return what a process without the interpreter found of each loss's steps."""
    return json.loads(run_python(ROOT / "tests" / "processes" / "recorded_steps.py"))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_launched_as_by_triton_and_a_graph_of_it_is_one_of_the_next(loss, steps):
    """The same compiled functions and arguments, on the current stream, seen by whoever hooks into launches.

    Whatever a step reads was given to it or made in it. A τ or a β that is annealed needs another graph, a number of
    the host being part of it; values that change in place, such as a τ that is learned, do not.
    """
    found = steps[loss]
    assert found["launches"] == found["reached the driver"] == found["seen by a hook"] > 5
    assert found["as Triton finds them"]
    assert found["same though watched"]
    assert found["streams"] == [stub_driver.STREAM]
    assert found["foreign"] == []
    assert found["same after values changed"]
    assert found["same after a number changed"] == ("learned" in loss)


def test_the_hosts_side_is_measured(tmp_path):
    """Steps of both losses, their parts as shares of the whole; how long they take is no test's matter."""
    run_python("-m", "benchmarks", "host", "--sizes", "64", "--repeats", "3", "--out", tmp_path)
    (file,) = tmp_path.glob("*.json")
    found = json.loads(file.read_text(encoding="utf-8"))["results"]
    for loss, launches in (("SupConLoss", 7), ("InfoNCELoss", 10)):
        figures = {each["contender"]: each["figures"] for each in found if each["loss"] == loss}
        assert figures["step"]["launches"] == launches
        assert figures["step"]["calls"] > 100
        assert sum(each.get("share", 0) for each in figures.values()) == pytest.approx(1, abs=0.01)
