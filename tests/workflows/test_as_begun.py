"""What training begins with: evaluated beside the trained encoder, and in the run as long as it is needed."""

import shutil

import pytest
import torch
from in_use import write_rows
from safetensors.torch import load_file, save_file
from test_texts import small_bert

from likewise.data import parts_of_run
from likewise.evaluation import KNN, load_features
from likewise.models import ConvNet
from likewise.runs import Run
from likewise.runs.scores import BEGUN, ENCODER
from likewise.workflows import Printed, Silent, evaluate, train

pytestmark = pytest.mark.slow
STAGES = ("training.fitting.Checkpoints.save", "workflows.execution.evaluate_features")
SHORT = {"encoder": "ConvNet", "encoder.width": 8, "epochs": 2, "validation_epochs": 1, "report": False}
SHORT |= {"evaluations": "KNN", "evaluations.k": 5}


def trained(given=None, **more):
    """Train without a word."""
    return train(given, progress=Silent(), **more)


def end(*_, **__):
    raise KeyboardInterrupt


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
    features = load_features(tuned.initial_embeddings)
    parts, _ = parts_of_run(tuned)
    torch.testing.assert_close(features.test.vectors, encoder.encode(parts.test.inputs))
    assert final(tuned, BEGUN).value == KNN(5)(*features).headline[0].value
    assert final(tuned, BEGUN).value != final(tuned, ENCODER).value
    paired = {one.features: one for one in tuned.outcomes if one.metric == "accuracy"}
    assert torch.equal(paired[BEGUN].rows, paired[ENCODER].rows)
    assert not tuned.initial_weights.exists()  # what only going on needs


def test_evaluating_again_gives_the_same(tuned, tmp_path):
    shutil.copytree(tuned.folder, tmp_path / tuned.folder.name)
    given = {"source": tmp_path / tuned.folder.name, "evaluations": "KNN", "evaluations.k": 5, "report": False}
    again = evaluate(given, progress=Silent())
    assert final(again, BEGUN) == final(tuned, BEGUN)


def test_a_run_goes_on_where_the_weights_are_no_longer_found(weights, tuned, tmp_path, monkeypatch):
    """It is ended before its first checkpoint, and again before it is evaluated."""
    theirs = tmp_path / "theirs.safetensors"
    shutil.copy(weights, theirs)
    words = SHORT | {"weights": str(theirs), "runs": str(tmp_path / "runs")}
    for stage in STAGES:
        with monkeypatch.context() as patch:
            patch.setattr(f"likewise.{stage}", end)
            with pytest.raises(KeyboardInterrupt):
                trained(words)
        theirs.unlink(missing_ok=True)
        (folder,) = (tmp_path / "runs").iterdir()
        words = {"resume": folder}
    run = trained(words)
    assert isinstance(run, Run)
    for name, tensor in load_file(run.weights).items():
        assert torch.equal(tensor, load_file(tuned.weights)[name]), name
    assert final(run, BEGUN) == final(tuned, BEGUN)


@pytest.mark.parametrize("shared", [False, True])
def test_pairs_go_on_where_the_model_is_no_longer_found(shared, tmp_path, monkeypatch):
    rows = [{"one": f"{number % 7} cat", "other": f"dog {number % 7} {number}"} for number in range(48)]
    words = {"data": str(write_rows(tmp_path / "pairs.jsonl", rows)), "data.first": "one", "data.second": "other"}
    words |= {"encoder": "PretrainedTransformer", "loss": "InfoNCELoss", "batch_size": 8, "report": False}
    words |= {"epochs": 2, "inputs": "SecondTower", "inputs.shared": shared}
    weights, left = [], tmp_path
    for stage in ("whole", "ended"):
        folder = tmp_path / stage
        folder.mkdir()
        small_bert(folder / "model")
        words |= {"encoder.name": str(folder / "model"), "runs": str(folder / "runs")}
        with monkeypatch.context() as patch:
            if stage == "ended":
                patch.setattr("likewise.training.fitting.Checkpoints.save", end)
                with pytest.raises(KeyboardInterrupt):
                    trained(words)
                shutil.rmtree(folder / "model")
                (left,) = (folder / "runs").iterdir()
                towers = [load_file(of) for of in sorted(left.glob("*begun.safetensors"))]
                assert len(towers) == (1 if shared else 2)
                for name, tensor in towers[0].items():  # the model's weights are those of both sides
                    assert name.startswith("head.") or torch.equal(tensor, towers[-1][name]), name
        run = trained(words) if stage == "whole" else trained(resume=left)
        assert isinstance(run, Run)
        assert not run.initial_weights.exists()
        assert not run.second_initial_weights.exists()
        weights.append([load_file(run.weights_of(side)) for side in ("first", "second")])
    for one, other in zip(*weights, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(tensor, other[tower]) for tower, tensor in one.items())


def test_the_better_of_both_is_kept(weights, tmp_path):
    """A training that only harms leaves the encoder as it began, weight for weight."""
    harmed = trained(SHORT, weights=str(weights), runs=str(tmp_path), optimizer="SGD", lr=1e4, keep="best")
    begun = load_file(weights)
    assert all(torch.equal(tensor, begun[name]) for name, tensor in load_file(harmed.weights).items())


def test_an_epoch_that_is_level_with_the_encoder_as_it_began_is_kept_and_said_to_be(weights, tmp_path, capsys):
    """Of an encoder that is frozen, all epochs are level."""
    train(SHORT, progress=Printed(), weights=str(weights), runs=str(tmp_path), freeze="all", keep="best")
    told = capsys.readouterr()
    assert "kept epoch 1 of 2, level with the encoder as it began on validation: accuracy" in told.out + told.err
