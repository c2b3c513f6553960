"""Objects in the place of names: a training takes them as they are, and its run records what can be made again."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from in_use import write_rows
from safetensors.torch import load_file
from torch import nn

import likewise as lw
from likewise.configuration import resolve
from likewise.data import Balanced, FeatureDropout, NoAugmentation, Views
from likewise.evaluation import KNN
from likewise.instantiate import Described, instantiate, recorded_spec
from likewise.models import MLP, ConvNet, NoHead
from likewise.training import Cosine
from likewise.workflows import Silent
from likewise.workflows.arguments import named_objects

pytestmark = pytest.mark.slow  # trains
DATA = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32), np.arange(60) % 3
COMMON = {"data": DATA, "epochs": 2, "report": False, "evaluations": "KNN", "progress": Silent()}


class Network(nn.Module):
    """A network that can't be made without an argument."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, inputs):
        return self.layers(inputs)


def test_a_network_of_ones_own_is_trained_and_loaded(tmp_path):
    network = Network(6)
    before = network.layers[0].weight.clone()
    loss, rate = lw.SupConLoss(temperature=0.2), partial(torch.optim.SGD, lr=0.3, momentum=0.5)
    run = lw.train(**COMMON, encoder=network, loss=loss, optimizer=rate, runs=str(tmp_path))
    assert not torch.equal(network.layers[0].weight, before)
    expected = network.eval()(torch.from_numpy((DATA[0] - DATA[0].mean()) * 0)).detach()  # on zeros
    parts = run.metadata["parts"]
    assert parts["loss"]["init_args"]["temperature"] == 0.2
    assert parts["optimizer"]["class_path"] == "torch.optim.SGD"
    assert (parts["optimizer"]["init_args"]["lr"], parts["optimizer"]["init_args"]["momentum"]) == (0.3, 0.5)
    model = lw.load(run, module=Network(6))
    encoder = model.encoder
    assert torch.equal(encoder.module(torch.zeros(60, 5)), expected)
    with pytest.raises(ValueError, match=r"arguments of .*Network, got no width: .* module=\.\.\. to likewise.load"):
        lw.load(run)


def test_widths_are_an_option(tmp_path):
    """The run has them in its configuration, trains by them, and a Matryoshka in the place of a loss is told of it."""
    loss, common = lw.SupConLoss(), {**COMMON, "encoder": "MLP", "runs": str(tmp_path)}
    run, other = (lw.train(**common, loss=loss, name=str(widths), widths=widths) for widths in ([4, 2], None))
    assert yaml.safe_load(run.configuration.read_text(encoding="utf-8"))["widths"] == [4, 2]
    assert run.metrics["loss"] != other.metrics["loss"]
    with pytest.raises(ValueError, match=r"a loss by itself as loss, got Matryoshka: .*SupConLoss.* and widths=\[4"):
        lw.train(**COMMON, loss=lw.Matryoshka(loss, (4, 2)))


def test_a_run_with_objects_goes_on_with_them(tmp_path, monkeypatch):
    def ended(name):
        torch.manual_seed(3)
        return lw.train(**COMMON, encoder=Network(6), loss=lw.SupConLoss(temperature=0.2), runs=str(tmp_path / name))

    whole = ended("whole")

    def end(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("likewise.workflows.execution.evaluate_features", end)
        with pytest.raises(KeyboardInterrupt):
            ended("cut")
    (left,) = (tmp_path / "cut").glob("*.partial")
    with pytest.raises(ValueError, match=r"expected the network .* given as an object, got none: give it, encoder="):
        lw.train(resume=left, progress=Silent())
    run = lw.train(resume=left, encoder=Network(6), progress=Silent())
    assert [score.value for score in run.scores] == [score.value for score in whole.scores]


def test_parts_of_ours_are_recorded_whole(tmp_path):
    made = {
        "encoder": ConvNet((1, 8, 8), width=8),
        "head": NoHead(32),
        "batches": Views(batch_size=6, sampler=Balanced(samples_per_class=2)),
        "schedule": Cosine(warmup_epochs=0),
        "evaluations": [KNN(7)],
        "loss": lw.SupConLoss(temperature=0.3),
    }
    images = np.random.default_rng(0).random((60, 8, 8)).astype(np.float32)
    run = lw.train(**{**COMMON, **made, "data": (images, DATA[1])}, runs=str(tmp_path))
    parts = run.metadata["parts"]
    assert parts["encoder"]["init_args"]["width"] == 8
    assert parts["batches"]["init_args"]["sampler"]["init_args"]["samples_per_class"] == 2
    assert run.options["evaluations"][0]["init_args"]["k"] == 7
    assert lw.load(run).encode(images).shape == (60, 32)
    again = lw.train({"config": str(run.configuration)}, runs=str(tmp_path), progress=Silent())
    assert again.metadata["parts"] == parts


def test_an_object_may_be_given_by_a_dotted_name_or_another():
    for name in ("batches.augmentation", "augmentation"):
        options, network = named_objects({name: NoAugmentation()})
        assert network is None
        batches = resolve(options).batches
        assert batches["init_args"]["augmentation"]["class_path"].endswith(".NoAugmentation")


def test_what_is_described_is_made_again():
    """With numbers of other libraries, and parts within parts."""
    for number in (np.float32(0.25), torch.tensor(0.25), "learned"):
        loss = lw.InfoNCELoss(temperature=number, symmetric=True)
        spec, again = recorded_spec(loss)
        assert again
        assert json.loads(json.dumps(spec)) == spec
        made = instantiate(spec, lw.losses.Loss)
        assert (made.symmetric, made.temperature) == (loss.symmetric, loss.temperature)
    spec, again = recorded_spec(Views(batch_size=6, augmentation=FeatureDropout(probability=0.9, noise=3.0)))
    assert again
    assert instantiate(spec, Views).augmentation.noise == 3.0

    class Several(Described):
        def __init__(self, *sizes):
            self.sizes = sizes

    assert not recorded_spec(Several(8, 4))[1]


def test_the_other_side_of_pairs_is_not_the_network_that_was_given(tmp_path):
    rows = [{"one": [number, 1.0, 2.0], "other": [number, 3.0, 4.0]} for number in range(24)]
    file = write_rows(tmp_path / "pairs.jsonl", rows)
    given = {"data": str(file), "data.first": "one", "data.second": "other", "epochs": 1}
    given |= {"batch_size": 8, "report": False, "runs": str(tmp_path), "progress": Silent()}
    run = lw.train(**given, encoder=MLP((3,), width=4))
    first, second = (load_file(run.weights_of(side)) for side in ("first", "second"))
    assert first.keys() == second.keys()
    assert not any(torch.equal(tensor, second[name]) for name, tensor in first.items() if name.endswith("weight"))
    with pytest.raises(ValueError, match=r"expected the network that .* given as an object, got none: .*shared"):
        lw.train(**given, encoder=nn.Linear(3, 4))


LEARNED = lw.SupConLoss(temperature=nn.Parameter(torch.tensor(0.2)))
WRONG = [
    ({"loss": nn.CrossEntropyLoss()}, "got torch.*CrossEntropyLoss: take likewise.losses.CrossEntropyLoss, or let it"),
    ({"loss": nn.TripletMarginLoss()}, "TripletMarginLoss: name a class of likewise, or let it inherit from .*Loss"),
    ({"loss": [lw.SupConLoss(), lw.InfoNCELoss()]}, "one object as loss, got a list of 2: call each in the forward"),
    ({"loss": LEARNED}, "a SupConLoss that was made with plain values as loss, as a run records them, got others"),
    ({"augmentation": nn.Identity()}, "augmentation made by .* inherit from likewise.data.Augmentation"),
    ({"split": object()}, "expected split made by a class of likewise, got builtins.object: name a class of likewise"),
    ({"optimizer": len}, r"got builtin_function_or_method: give functools.partial\(torch.optim.SGD, lr=0.1\)"),
    ({"encoder": Network}, "a torch.nn.Module as encoder, got the class Network: call it"),
    ({"encoder": nn.Linear(7, 2)}, r"expected Linear to take inputs of shape \(5,\)"),
]


def test_objects_that_an_option_does_not_take_are_told(tmp_path):
    for given, words in WRONG:
        with pytest.raises(ValueError, match=words):
            lw.train(**COMMON, **given, runs=str(tmp_path))


def test_data_may_be_a_path(tmp_path, monkeypatch):
    """The path of a file is that of its name, and so is that of the runs; one to nothing is no class of its name."""
    file, options = tmp_path / "rows.npz", {name: value for name, value in COMMON.items() if name != "data"}
    np.savez(file, vectors=DATA[0], labels=DATA[1])
    run = lw.train(file, runs=tmp_path, **options)
    assert run.options["data"] == resolve({"data": str(file)}).data
    features = lw.embed(run, file, output=tmp_path / "features.npz", progress=Silent())
    assert len(np.load(features)["features"]) == 60
    monkeypatch.chdir(tmp_path)
    for work in (lw.train, partial(lw.embed, None)):
        with pytest.raises(ValueError, match=r"got \./digits, which does not exist"):
            work(Path("digits"))


def test_data_alone_and_records_stand_first(tmp_path):
    """A record is trained as it is; options beside it win over what it says."""
    options = {name: value for name, value in COMMON.items() if name not in {"data", "progress"}}
    run = lw.train(DATA, loss="supcon", temperature=0.2, runs=str(tmp_path), progress=Silent(), **options)
    record = resolve({"config": str(run.configuration)})
    assert lw.train(record, progress=Silent()).scores == run.scores
    other = lw.train(record, temperature=0.3, seed=1, progress=Silent()).options
    assert (other["loss"]["init_args"]["temperature"], other["seed"], other["data"]) == (0.3, 1, run.options["data"])
    record = resolve({"source": run.folder, "evaluations": "Retrieval"}, verb="evaluate")
    assert "retrieval" in {score.evaluation for score in lw.evaluate(record, progress=Silent()).scores}
