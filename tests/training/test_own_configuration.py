"""What a run is made of stands in its config.yaml and in what is said, and a run made anew from it equals it."""

import numpy as np
import pytest
import yaml
from trainings import save_pairs

from likewise.report.run_summary import summary_table
from likewise.workflows import Silent, train

pytestmark = pytest.mark.slow
FEW = {"epochs": 1, "evaluations": [], "report": False, "device": "cpu"}
SHARED = {"data.second": "other", "inputs": "SecondTower", "inputs.shared": True}


def save(folder):
    """Images with classes, vectors with label sets, and pairs of texts, and of texts and vectors."""
    rng = np.random.default_rng(0)
    np.savez(folder / "images.npz", images=rng.random((60, 8, 8), dtype=np.float32), labels=np.arange(60) % 3)
    sets = rng.random((60, 3)) < 0.5
    sets[:, 0] |= ~sets.any(axis=1)
    np.savez(folder / "sets.npz", vectors=rng.random((60, 5), dtype=np.float32), labels=sets)
    return {
        "images": {"data": str(folder / "images.npz"), "encoder.width": 4},
        "sets": {"data": str(folder / "sets.npz"), "encoder": "MLP", "encoder.width": 4},
        "pairs": save_pairs(folder, 60)
        | {"encoder": "BagOfTokens", "encoder.width": 4, "encoder.vocabulary": 50, "head.out_dim": 4},
    }


@pytest.mark.parametrize(
    ("data", "options", "inputs", "changes"),
    [
        ("images", {}, None, ["RandomAffine"]),
        ("images", {"loss": "BYOLLoss"}, ["Momentum", "Predictor"], ["RandomAffine"]),
        ("images", {"loss": "PrototypicalLoss"}, ["EpisodeMeans"], []),
        ("sets", {"loss": "NWSLoss"}, ["Momentum", "KeyQueue", "LabelPrototypes"], ["FeatureDropout"]),
        ("sets", {"loss": "BCELoss"}, ["Classifier"], ["FeatureDropout"]),
        ("sets", {"loss": "NWSLoss", "inputs": []}, ["LabelPrototypes"], ["FeatureDropout"]),
        ("pairs", SHARED, ["SecondTower"], ["TokenDropout"]),
        ("pairs", {"data.second": "counts"}, ["SecondTower"], ["TokenDropout", "FeatureDropout"]),
    ],
    ids=str,
)
def test_a_run_made_anew_from_its_configuration_equals_it(data, options, inputs, changes, tmp_path):
    first = train(FEW | save(tmp_path)[data] | options, runs=tmp_path / "first", progress=Silent())
    said = yaml.safe_load(first.configuration.read_text())
    again = train(said, runs=tmp_path / "again", progress=Silent())
    named = None if said.get("inputs") is None else [spec["class_path"].rpartition(".")[2] for spec in said["inputs"]]
    assert named == inputs
    assert all("init_args" in spec for spec in said.get("inputs") or [])
    table = dict(summary_table(first.metadata))
    assert all(name in table["loss inputs"] for name in inputs or [])
    assert all(name in table["augmentation"] for name in changes)
    expected = yaml.safe_load(again.configuration.read_text())
    assert {**said, "runs": None} == {**expected, "runs": None}
    assert first.metadata["parts"] == again.metadata["parts"]
    for name in ("encoder.safetensors", "metrics.csv"):
        assert (first.folder / name).read_bytes() == (again.folder / name).read_bytes(), name
    assert summary_table(first.metadata) == summary_table(again.metadata)
