"""The command on several processes: one run, which trains as a single process would."""

import numpy as np
import pytest
import torch
from command_worker import end_of, free_port, start_script, start_together
from PIL import Image
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from likewise.evaluation import load_features
from likewise.runs import Run

pytestmark = [pytest.mark.process, pytest.mark.slow]

MINE = """
import torch
from likewise.models import Encoder

class Small(Encoder):
    def __init__(self, input_shape: tuple[int, ...], width: int = 8):
        super().__init__(input_shape)
        self.layer = torch.nn.Linear(input_shape[1] * input_shape[2], width)
        self.norm = torch.nn.BatchNorm1d(width)
    @property
    def feature_dim(self):
        return self.layer.out_features
    def forward(self, inputs):
        return torch.relu(self.norm(self.layer(self.standardized(inputs).flatten(1))))
"""
FOUND_BY_THE_FIRST = """
import os, sys
from likewise.cli import main
from likewise.configuration import recipes

def find(*_):
    if os.environ["RANK"] != "0":
        raise LookupError("they are not in the cache")

recipes.find, recipes.find_spec = find, lambda _: True
raise SystemExit(main(sys.argv[1:]))
"""
COMMON = ["--encoder", "mine.Small", "--keep", "last", "--keep_checkpoints", "true", "--batches.batch_size", "120"]
COMMON += ["--trainer.max_epochs", "2", "--trainer.accelerator", "cpu", "--optimizer", "SGD", "--optimizer.lr", "0.5"]
COMMON += ["--evaluations", "KNN", "--report", "false"]


def _train(folder, arguments, processes):
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    started = start_together(["train", *COMMON, *arguments], folder, processes)
    assert [end_of(process) for process in started] == [0] * processes
    (run,) = (folder / "runs").iterdir()
    return Run.open(run)


def test_two_processes_end_together_when_validation_is_no_better(tmp_path):
    """Only the first of them evaluates; with so low a rate, equal scores end the training after the second epoch."""
    arguments = ["--loss", "SupConLoss", "--patience", "1", "--validation_epochs", "1", "--trainer.max_epochs", "6"]
    run = _train(tmp_path / "two", [*arguments, "--optimizer.lr", "1e-30"], 2)
    assert {score.epoch for score in run.scores if score.epoch} == {1, 2}
    assert run.stage == "finished"


def test_three_processes_of_which_one_sees_published_weights_refuse_together(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(FOUND_BY_THE_FIRST)
    for name in ("ash", "elm"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / "photos" / name / f"{number}.png")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "test"}
    place |= {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    words = ["train", tmp_path / "photos", "--trainer.accelerator", "cpu", "--runs", tmp_path / "runs"]
    started = [
        start_script(script, *words, errors=tmp_path / f"{rank}.err", RANK=str(rank), LOCAL_RANK=str(rank), **place)
        for rank in range(3)
    ]
    assert [end_of(process) for process in started] == [2, 2, 2]
    said = [(tmp_path / f"{rank}.err").read_text() for rank in range(3)]
    assert all("error: expected the same options on all ranks, got " in words for words in said)
    assert "no weights of tf_efficientnet_lite0 were found, they are not in the cache" in said[1]
    assert not any("Traceback" in words for words in said)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--loss", "RASCALLoss"],
        [
            *("--loss", "InfoNCELoss", "--inputs", "Momentum", "--inputs+", "KeyQueue", "--inputs.size", "200"),
            *("--log", "tensorboard", "--freeze", "layer", "--unfreeze_epoch", "2", "--validation_epochs", "1"),
        ],
        ["--loss", "SupConLoss", "--trainer.accumulate_grad_batches", "2", "--trainer.precision", "64-true"],
    ],
    ids=["RASCAL", "MoCo, unfrozen in the second epoch", "SupCon, accumulated, in float64"],
)
def test_two_processes_leave_one_run_with_the_weights_state_and_curves_of_a_single_one(arguments, tmp_path):
    """Views are sampled for the global batch, rows are gathered, and logs are averaged over all processes."""
    one, two = (_train(tmp_path / str(processes), arguments, processes) for processes in (1, 2))
    weights, others = (load_file(run.weights) for run in (one, two))
    assert weights.keys() == others.keys()
    of_weights, of_state = (1e-12, 1e-10) if "64-true" in arguments else (2e-5, 1e-4)
    for name, value in weights.items():
        assert torch.allclose(value, others[name], rtol=of_weights, atol=of_weights), name
    states = [torch.load(run.checkpoint, weights_only=True)["state_dict"] for run in (one, two)]
    for name, value in states[0].items():
        assert torch.allclose(value.double(), states[1][name].double(), atol=of_state), name
    for name, curve in one.metrics.items():
        assert [value for _, value in two.metrics[name]] == pytest.approx([value for _, value in curve], abs=1e-3), name
    for mean, other in zip(one.class_means, two.class_means, strict=True):
        assert (mean.epoch, mean.label, mean.count) == (other.epoch, other.label, other.count)
        assert mean.mean == pytest.approx(other.mean, abs=1e-3)
    assert bool(one.class_means) == ("RASCALLoss" in arguments)
    if "--log" in arguments:
        (_events,) = (two.folder / "tensorboard").glob("events.*")  # the first process alone writes
        read = EventAccumulator(str(two.folder / "tensorboard"))
        read.Reload()
        assert [(of.step, of.value) for of in read.Scalars("loss")] == two.metrics["loss"]


COUNTING = """
import os
import torch
from mine import Small

class Counting(Small):
    def encode(self, inputs, batch_size=None, *, progress=None):
        found = super().encode(inputs, batch_size, progress=progress)
        with open(f"encoded-{os.environ.get('RANK', '0')}", "a") as file:
            file.write(f"{len(inputs)}\\n")
        return found
"""
ENCODED = ["train", "--encoder", "counting.Counting", "--loss", "SupConLoss", "--batches.batch_size", "60"]
ENCODED += ["--trainer.max_epochs", "1", "--trainer.accelerator", "cpu", "--validation_epochs", "0"]
ENCODED += ["--workers", "0", "--evaluations", "KNN", "--report", "false"]
ENCODED += ["--data", "Folder", "--data.path", "photos", "--data.size", "8"]
DAMAGED = ("train/dark/007.png", "train/dark/290.png", "train/light/140.png", "test/light/100.png")


def _photos(folder, parts):
    """Write grey images of two classes, 300 of each in every part, some of which are cut short."""
    chance = np.random.default_rng(0)
    for part in parts:
        for name, low in (("dark", 0), ("light", 120)):
            (folder / part / name).mkdir(parents=True)
            for number in range(300):
                pixels = chance.integers(low, low + 130, (8, 8), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number:03}.png")
    for name in DAMAGED:
        (folder / name).write_bytes((folder / name).read_bytes()[:50])


@pytest.mark.parametrize(
    ("memory", "cut"), [("0", False), ("4", True)], ids=["read on demand", "in memory, at most 512 of each part"]
)
def test_two_processes_share_what_is_encoded_by_the_weights_of_the_first(memory, cut, tmp_path):
    """The features are those of the saved encoder, sample by sample; what the second could not read is named."""
    _photos(tmp_path / "photos", ["train", "test"])
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "counting.py").write_text(COUNTING)
    words = [*ENCODED, "--data.memory", memory, *(["--evaluation_samples", "512"] if cut else [])]
    started = start_together(words, tmp_path, 2)
    assert [end_of(process) for process in started] == [0, 0]
    (folder,) = (tmp_path / "runs").iterdir()
    run = Run.open(folder)
    counts = [sum(map(int, (tmp_path / f"encoded-{rank}").read_text().split())) for rank in (0, 1)]
    features = load_features(run.embeddings)
    assert sum(map(len, features)) <= sum(counts) < sum(map(len, features)) + 10  # a few when it is put together
    assert min(counts) > 0.3 * sum(counts)
    assert len(features.train) < 600
    state = load_file(run.weights)
    checked = 0
    for part in features:
        for vector, name in zip(part.vectors, part.ids, strict=True):
            with Image.open(tmp_path / "photos" / name) as image:
                pixels = np.asarray(image.convert("L"), dtype=np.float64) / 255
            whitened = (pixels - state["mean"].double().item()) / state["std"].double().item()
            linear = state["layer.weight"].double() @ torch.from_numpy(whitened).flatten() + state["layer.bias"]
            scaled = (linear - state["norm.running_mean"]) / (state["norm.running_var"].double() + 1e-5).sqrt()
            expected = (scaled * state["norm.weight"] + state["norm.bias"]).clamp(min=0)
            assert torch.allclose(vector.double(), expected, atol=1e-5)
            checked += 1
    assert checked == sum(map(len, features))
    if memory == "0":  # in memory it is left out when it is read, at the start
        assert all(name in str(run.metadata["undecodable"]) for name in DAMAGED)
        assert sum(map(len, features)) == 1200 - len(DAMAGED)
