"""What training begins with: evaluated beside the trained encoder, and in the run as long as it is needed."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from likewise.data import parts_of_run
from likewise.evaluation import KNN, load_features
from likewise.models import ConvNet
from likewise.runs import Run
from likewise.scores import BEGUN, ENCODER
from likewise.workflows import Silent, evaluate, train

pytestmark = pytest.mark.slow
SHORT = {
    "encoder": "ConvNet",
    "encoder.width": 8,
    "epochs": 2,
    "validation_epochs": 1,
    "evaluations": "KNN",
    "evaluations.k": 5,
    "report": False,
}


def trained(given=None, **more):
    """Train without a word."""
    return train(given, progress=Silent(), **more)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of weights that somebody has trained."""
    torch.manual_seed(5)
    file = tmp_path_factory.mktemp("weights") / "theirs.safetensors"
    state = ConvNet((1, 8, 8), width=8).state_dict()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, file)
    return file


@pytest.fixture(scope="module")
def tuned(weights, tmp_path_factory):
    """A run that began with them."""
    return trained(SHORT, weights=str(weights), runs=str(tmp_path_factory.mktemp("runs")))


def final(run, kind):
    """Return the accuracy of all test samples by some features."""
    of = [one for one in run.scores if one.epoch is None and one.part == "test" and str(one.group) == "all"]
    return next(one for one in of if one.features == kind and one.metric.name == "accuracy")


def test_the_encoder_as_it_began_is_evaluated_too(tuned, weights):
    encoder = ConvNet((1, 8, 8), width=8)
    encoder.load_state_dict(load_file(weights))
    features = load_features(tuned.begun_embeddings)
    parts, _ = parts_of_run(tuned)
    torch.testing.assert_close(features.test.vectors, encoder.encode(parts.test.inputs))
    assert final(tuned, BEGUN).value == KNN(5)(*features).headline[0].value
    assert final(tuned, BEGUN).value != final(tuned, ENCODER).value
    paired = {one.features: one for one in tuned.outcomes if one.metric == "accuracy"}
    assert torch.equal(paired[BEGUN].rows, paired[ENCODER].rows)
    assert not tuned.begun_weights.exists()  # what only going on needs


def test_evaluating_again_gives_the_same(tuned, tmp_path):
    shutil.copytree(tuned.folder, tmp_path / tuned.folder.name)
    again = evaluate(
        tmp_path / tuned.folder.name, {"evaluations": "KNN", "evaluations.k": 5}, report=False, progress=Silent()
    )
    assert final(again, BEGUN) == final(tuned, BEGUN)


def test_random_weights_are_no_result_beside(tmp_path):
    run = trained(SHORT, runs=str(tmp_path))
    assert {score.features for score in run.scores} == {"encoder", "raw inputs"}
    assert not run.begun_embeddings.exists()


@pytest.mark.parametrize("stage", ["training", "evaluation"])
def test_a_run_goes_on_where_the_weights_are_no_longer_found(stage, weights, tuned, tmp_path, monkeypatch):
    theirs = tmp_path / "theirs.safetensors"
    shutil.copy(weights, theirs)
    place = "likewise.training.fitting.Checkpoints.save" if stage == "training" else "likewise.workflows.training.score"

    def end(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, end)
        with pytest.raises(KeyboardInterrupt):
            trained(SHORT, weights=str(theirs), runs=str(tmp_path / "runs"))
    theirs.unlink()
    (folder,) = (tmp_path / "runs").iterdir()
    run = trained(resume=folder)
    assert isinstance(run, Run)
    for name, tensor in load_file(run.weights).items():
        assert torch.equal(tensor, load_file(tuned.weights)[name]), name
    assert final(run, BEGUN) == final(tuned, BEGUN)


def test_the_better_of_both_is_kept(weights, tmp_path):
    """A training that only harms leaves the encoder as it began, weight for weight."""
    harmed = trained(SHORT, weights=str(weights), runs=str(tmp_path), optimizer="SGD", lr=1e4, keep="best")
    begun = load_file(weights)
    assert all(torch.equal(tensor, begun[name]) for name, tensor in load_file(harmed.weights).items())
