"""What somebody gives as one mapping: first guesses, slips and what is suggested, defaults; and nothing imported."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import yaml

from likewise.configuration import read, resolve, written
from likewise.configuration.classes import CATALOGUE, SECTION_NAMES, Class, kinds
from likewise.configuration.command_line import completions, requested_help
from likewise.configuration.values import parse

SLIPS = {
    # a name with a letter wrong
    "--loss SupConLos": "did you mean SupConLoss or MulSupConLoss?",
    "--loss supcom": "did you mean SupConLoss",
    "--loss NWSLoss --loss.agg max": "did you mean --loss.aggregation?",
    "--loss RASCALLoss --loss.base_temperature 1": "of RASCALLoss: see likewise train --loss.help",
    "--batches Episodes --batches.n_way 5": "did you mean --batches.ways?",
    "--encoder resnet19": "--encoder.depth: expected one of 8, 18, 20, 32, 34, 50, got 19",
    "--data Digit": "did you mean Digits?",
    "--evaluations KNNN": "did you mean KNN?",
    "--batches.sampler Balancd": "did you mean Balanced?",
    "--recipe supcn-digits": "did you mean supcon-digits?",
    "--recipe nws --data Digits": "expected data that nws is for, image-folder, texts, vectors, got digits: for digits",
    "--recipe clip --data SVHN": "expected data that clip is for, pairs, got image-folder: for image-folder there are",
    # an option with a letter wrong
    "--epoch 3": "did you mean --epochs?",
    "--loss.temprature 3": "did you mean --loss.temperature?",
    "--bach-size 3": "did you mean --batch-size?",
    "--trainer.max_epoch 3": "did you mean --trainer.max_epochs?",
    "--sed 1": "did you mean --seed?",
    # other people's names
    "--learning-rate 1": "did you mean --lr?",
    "--gpu 1": "did you mean --device?",
    "--data_dir x": "did you mean --data?",
    "--wd 0.1": "did you mean --weight-decay?",
    "--loss protonet": "did you mean PrototypicalLoss?",
    "--augmentations SimCLRViews": "did you mean --augmentation?",
    # an option in the wrong place
    "--data.batch_size 3": "did you mean --batches.batch_size?",
    "--data.path x.npz": "did you mean --data Arrays or --data Folder?",
    "--loss NTXentLoss --loss.form in": "did you mean --loss SupConLoss?",
    "--batch_size.size 3": "unknown option --batches.batch_size.size",
    # a value of another kind
    "--batches.batch_size ten": "--batches.batch_size: expected a whole number, got ten",
    "--loss.temperature abc": "--loss.temperature: expected a number or one of 'learned', got abc",
    "--loss.form inn": "--loss.form: expected one of 'out', 'in', 'pairs', got inn",
    "--seed": "expected --seed, got none",
    "--batches.augmentation.scale 1": "expected --batches.augmentation before --batches.augmentation.scale, got none",
    "--evaluations.k 3": "expected --evaluations before --evaluations.k, got none",
    # what is not there
    "nowhere/": "got nowhere/, which does not exist",
    "--data notes.md": "got notes.md, which does not exist",
    "--data CIFAR1O": "did you mean CIFAR10",
    "--data Arrays": "expected --data.path, got none: see likewise train --data.help Arrays",
    "--data Arrays --data.path nowhere.npz": "got nowhere.npz, which does not exist",
    "--config nowhere.yaml": "got nowhere.yaml, which does not exist",
    "--resume nowhere": "got nowhere, which does not exist",
    "--loss nowhere.Loss": "expected a class of kind Loss, got nowhere.Loss, which is not found",
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("words", SLIPS)
def test_a_slip_is_told_with_what_was_meant(words):
    with pytest.raises(ValueError, match=r"expected|unknown") as told:
        read(words.split())
    assert SLIPS[words] in str(told.value)
    assert "\n" not in str(told.value)


def name_of(spec):
    return spec["class_path"].rpartition(".")[2]


GUESSES = {
    "--loss sup-con-loss": ("loss", "SupConLoss", {}),
    "--loss SIMCLR": ("loss", "NTXentLoss", {"temperature": 0.5}),
    "--loss clip": ("loss", "InfoNCELoss", {"symmetric": True}),
    "--loss moco": ("loss", "InfoNCELoss", {"temperature": 0.2}),
    "--encoder ResNet-50": ("encoder", "ResNet", {"depth": 50}),
    "--encoder resnet12": ("encoder", "ResNet12", {}),
    "--optimizer sgd": ("optimizer", "SGD", {"lr": 0.001}),
    "--data CIFAR10": ("data", "Torchvision", {"name": "CIFAR10"}),
    "--data fashion-mnist": ("data", "Torchvision", {"name": "FashionMNIST"}),
    "--lr 0.1": ("optimizer", "AdamW", {"lr": 0.1}),
    "--batches.batch-size 32": ("batches", "Views", {"batch_size": 32}),
    "--temperature learned": ("loss", "SupConLoss", {"temperature": "learned"}),
    "--loss infonce --loss.symmetric joint": ("loss", "InfoNCELoss", {"symmetric": "joint"}),
    "--loss infonce --loss.symmetric true": ("loss", "InfoNCELoss", {"symmetric": True}),
    "--loss siglip --loss.guide-margin 0.05": ("loss", "SigLIPLoss", {"guide_margin": 0.05}),
    "--augmentation SimCLRViews --augmentation.flip 0": ("batches", "Views", {}),
    "--recipe simclr": ("loss", "NTXentLoss", {"temperature": 0.5}),
    "--recipe simclr --data CIFAR10": ("encoder", "ResNet", {"depth": 50}),
}


@pytest.mark.parametrize("words", GUESSES)
def test_a_first_guess_is_understood(words):
    part, name, arguments = GUESSES[words]
    found = getattr(read(words.split()), part)
    assert name_of(found) == name
    assert arguments.items() <= found.get("init_args", {}).items()


def test_what_brings_others_gives_way_to_those_that_are_named(tmp_path):
    assert [name_of(one) for one in read(["--loss", "moco"]).inputs] == ["Momentum", "KeyQueue"]
    assert name_of(read(["--inputs", "KeyQueue", "--loss", "moco"]).inputs) == "KeyQueue"
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN" / "run.json").touch()
    for word in ("RUN", "encoder.onnx"):  # alone it is not what is embedded
        with pytest.raises(ValueError, match="expected DATA, got none: see likewise embed --help"):
            read([word, "--output", "x.npz"], verb="embed")


@pytest.mark.parametrize(
    ("words", "where", "value"),
    [
        ("--loss NTXentLoss", ("loss", "init_args", "temperature"), 0.5),
        ("--steps 3", ("trainer", "max_epochs"), -1),
        ("--recipe supcon-digits --steps 3", ("trainer", "max_epochs"), -1),
        ("--epochs 3 --steps 9", ("trainer", "max_epochs"), 3),
        ("--device cuda:1", ("trainer", "accelerator"), "cuda"),
        ("--device cuda:1", ("trainer", "devices"), [1]),
        ("--runs x", ("runs",), Path("x")),
        ("--widths 256,128,64", ("widths",), [256, 128, 64]),
        ("--compile", ("compile",), True),
        ("--compile no", ("compile",), False),
        ("--log [wandb,csv] --log+ mlflow", ("log",), ["wandb", "csv", "mlflow"]),
        ("--evaluations []", ("evaluations",), []),
        ("--optimizer.lr 1e-3", ("optimizer", "init_args", "lr"), 0.001),
        ("--schedule Steps --schedule.epochs 10,20", ("schedule", "init_args", "epochs"), [10.0, 20.0]),
        ("--loss PatchLoss", ("batches", "class_path"), "likewise.data.Episodes"),
        ("--loss NWSLoss", ("loss", "init_args", "label_similarity"), "npmi"),
        ("--loss NTXentLoss", ("loss", "init_args", "gather_distributed"), True),
    ],
)
def test_an_option_sets_a_value(words, where, value):
    found = read(words.split())
    for step in where:
        found = found[step] if isinstance(found, dict) else getattr(found, step)
    assert found == value


def test_data_is_read_by_what_is_there(tmp_path):
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photos" / "cats" / "1.png").touch()
    (tmp_path / "stories.jsonl").write_text('{"text": "a story", "label": "x"}\n')
    (tmp_path / "flowers.csv").write_text("x,y,label\n1,2,rose\n")
    (tmp_path / "tags.csv").write_text("file,sky,animal\n1.png,1,0\n")
    sources = {}
    for path in ("photos", "stories.jsonl", "flowers.csv", "tags.csv"):
        found = read([path])
        sources[path] = [name_of(getattr(found, part)) for part in ("data", "encoder")]
        assert found.data["init_args"]["path"] == path
    assert sources == {
        "photos": ["Folder", "Timm"],
        "stories.jsonl": ["Text", "PretrainedTransformer"],
        "flowers.csv": ["Table", "MLP"],
        "tags.csv": ["Table", "Timm"],
    }
    assert read(["tags.csv", "--data.label", "[sky, animal]"]).data["init_args"]["label"] == ["sky", "animal"]
    assert name_of(read(["photos", "--encoder", "ConvNet"]).encoder) == "ConvNet"
    assert name_of(read(["--data", "Folder", "--data.path", "photos"]).encoder) == "Timm"
    assert read(["photos", "--recipe", "simclr"]).recipe == "simclr-image-folder"
    assert read(["stories.jsonl", "--recipe", "supcon"]).recipe == "supcon-texts"


def test_arrays_are_vectors_unless_they_are_images(tmp_path):
    np.savez(tmp_path / "features.npz", vectors=np.ones((4, 3)), labels=np.arange(4))
    np.savez(tmp_path / "images.npz", images=np.ones((4, 8, 8)), labels=np.arange(4))
    assert [name_of(getattr(read(["features.npz"]), part)) for part in ("data", "encoder")] == ["Arrays", "MLP"]
    assert [name_of(getattr(read(["images.npz"]), part)) for part in ("data", "encoder")] == ["Arrays", "ConvNet"]
    pairs = product((["images.npz"], ["features.npz"], ["--data", "SVHN"]), ("simclr", "nws"))
    of_images, of_vectors = ["simclr-digits", "nws-image-folder"], ["simclr-vectors", "nws-vectors"]
    named = [read([*data, "--recipe", method]).recipe for data, method in pairs]
    assert named == [*of_images, *of_vectors, *of_images]
    assert name_of(read(["images.npz", "--recipe", "nws"]).encoder) == "ResNet"


def test_layers_win_in_turn_defaults_recipe_configurations_words(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "recipe: supcon-cifar10\nloss:\n  init_args: {temperature: 0.2, form: in}\nseed: 1\n"
    )
    (tmp_path / "b.yaml").write_text("seed: 2\ntrainer: {max_epochs: 7}\n")
    found = read(["--loss.temperature", "0.3", "--config", "a.yaml", "--config", "b.yaml"])
    assert (found.seed, found.trainer["max_epochs"], found.batches["init_args"]["batch_size"]) == (2, 7, 1024)
    assert {"temperature": 0.3, "form": "in"}.items() <= found.loss["init_args"].items()
    kept = read(["--config", "a.yaml", "--loss", "NTXentLoss"]).loss["init_args"]
    assert kept == {"temperature": 0.2, "gather_distributed": True}  # of the file, what both classes have


def test_what_is_written_is_read_as_the_same():
    words = ["--loss", "moco", "--subset", "Fraction", "--subset.fraction", "0.5", "--trainer.callbacks", "Timer"]
    found = read([*words, "--trainer.enable_model_summary", "null", "--recipe", "supcon-cifar10"])
    again = read(["--config", json.dumps(yaml.safe_load(written(found)))])
    assert again == replace(found, recipe=None)  # also null where the usual value is another
    assert again.trainer["enable_model_summary"] is None
    assert re.findall(r"class_path: (?!likewise\.|torch\.optim\.|lightning\.)", written(again)) == []


def test_options_are_given_in_python_as_on_the_command_line():
    class_ = {"class_path": "likewise.losses.NTXentLoss", "init_args": {"temperature": 0.2}}
    nested = resolve({"loss": class_, "trainer": {"max_epochs": 3}, "batches": {"batch_size": 9}, "inputs": []})
    assert nested == resolve({"loss": "simclr", "temperature": 0.2, "epochs": 3, "batch-size": 9, "inputs": []})
    assert resolve({"evaluations": ["KNN", "Retrieval"], "source": "."}, verb="evaluate").evaluations[1] == {
        "class_path": "likewise.evaluation.Retrieval",
        "init_args": {"gallery": "test", "gallery_includes_queries": False},
    }


MINE = """
from torch import nn
from likewise.losses import NTXentLoss
from likewise.losses.base import Loss
class Mine(NTXentLoss):
    '''My own.

    Args:
        warmth: How warm.
    '''
    def __init__(self, warmth: float, *, cold: bool = False, **options):
        super().__init__(**options)
class Net(nn.Module): ...
Made = type("Made", (NTXentLoss,), {})
"""


def test_classes_of_ones_own_are_read_as_ours(tmp_path):
    (tmp_path / "own_parts.py").write_text(MINE)
    (tmp_path / "own_broken.py").write_text("x = 1\nclass Mine(:\n")
    found = read(["--loss", "own_parts.Mine", "--loss.warmth", "3", "--loss.temperature", "1"]).loss
    assert found["init_args"] == {"warmth": 3.0, "cold": False, "temperature": 1.0, "gather_distributed": True}
    made = read(["--loss", "own_parts.Made", "--loss.temperature", "3"]).loss["init_args"]  # by running the file alone
    assert made == {"temperature": 3.0, "gather_distributed": True}
    for words, told in (
        (["--loss", "own_parts.Mine"], "expected --loss.warmth, got none: see likewise train --loss.help Mine"),
        (["--loss", "own_parts.Mne"], "one of Made, Mine, NTXentLoss, got own_parts.Mne, did you mean Mine"),
        (["--encoder", "own_parts.Net"], "--encoder Wrapped --encoder.module own_parts.Net makes it one"),
        (["--loss", "own_broken.Mine"], "own_broken.py, got invalid syntax in line 2: correct it"),
    ):
        with pytest.raises(ValueError, match=r"expected|unknown") as error:
            read(words)
        assert told in str(error.value)
    assert "How warm." in requested_help(["--loss.help", "own_parts.Mine"], "train")


def test_kinds_are_the_classes_that_have_no_abstract_parts():
    assert list(kinds(Class("likewise.data.samplers.Sampler"))) == ["Balanced", "Shuffled", "SimilarLength"]
    losses = kinds(Class("likewise.losses.base.Loss"))
    assert "SupConLoss" in losses
    assert not {"Loss", "ContrastiveLoss", "LossOptions"} & losses.keys()


def test_the_catalogue_has_the_classes_that_the_packages_hold():
    """Each under the outermost package that exports it, but for the whole; sections in the order of a page."""
    import inspect  # noqa: PLC0415 - with the rooms below, which import torch
    from importlib import import_module  # noqa: PLC0415

    from likewise.report.sections import SECTIONS  # noqa: PLC0415

    always = {f"likewise.training.{name}" for name in ("BatchInputs", "inputs.ViewPairs", "inputs.BatchInputs")}
    for base, rooms in CATALOGUE.items():
        kind, exported = getattr(import_module(base.rpartition(".")[0]), base.rpartition(".")[2]), {}
        for room, module in ((room, import_module(room)) for room in rooms):
            for name in {*dir(module), *getattr(module, "__all__", ())} - {"_"}:
                one = getattr(module, name)
                own = inspect.isclass(one) and issubclass(one, kind) and one is not kind and not inspect.isabstract(one)
                if own and f"{room}.{name}" not in always and not name.startswith("_"):
                    exported.setdefault(name, f"{room}.{name}")
        assert kinds(Class(base)) == dict(sorted(exported.items())), base
    assert [section.__name__ for section in SECTIONS] == SECTION_NAMES.split()


SHOWN = {"batches": "Views", "optimizer": "AdamW"}


@pytest.mark.parametrize(
    ("words", "current", "expected"),
    [
        ([], "--batch-", ["--batch-size"]),
        (["--loss"], "Sup", ["SupConLoss"]),
        (["--loss.form"], "", []),
        ([], "--trainer.max_e", ["--trainer.max_epochs"]),
        (["--trainer.deterministic"], "", ["false", "null", "true", "warn"]),
    ],
)
def test_a_word_is_completed(words, current, expected):
    assert completions(words, current, "train") == expected


def test_a_part_of_the_usual_part_has_its_help():
    """As the guides write it, without the part above. To embed, data is required, and there is no usual encoder."""
    for name in ("batches.augmentation", "augmentation"):
        assert "  SimCLRViews\n" in requested_help([f"--{name}.help"], "train")
        assert "--batches.augmentation.flip float" in requested_help([f"--{name}.help", "SimCLRViews"], "train")
    told = {verb: " ".join(requested_help(["--help"], verb).split()) for verb in ("train", "embed")}
    for default in ("Default: Digits.", "the default, for photos and texts a published one", "For digits: ConvNet."):
        assert default in told["train"]
        assert default not in told["embed"]


def test_help_tells_the_defaults_that_the_command_has_for_data_of_a_kind(tmp_path):
    (tmp_path / "texts.csv").write_text("text,label\none,x\n")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").touch()
    told = {name: " ".join(requested_help([f"--{name}.help", cls], "train").split()) for name, cls in SHOWN.items()}
    for data, kind in (("photos", "image-folder"), ("texts.csv", "texts")):
        config = read([data])
        for part, argument in (("batches", "batch_size"), ("batches", "views"), ("optimizer", "lr")):
            (block,) = re.findall(rf"--{part}\.{argument} .*?(?= --{part}\.|$)", told[part])
            found = re.search(rf"For (?:[\w-]+, )*{kind}(?:, [\w-]+)*: (\S+)\.(?: |$)", block)
            found = found or re.search(r"Default: (\S+)\.(?: |$)", block)
            assert parse(found[1]) == getattr(config, part)["init_args"][argument], (kind, block)
    assert "Where --optimizer is not named: 0.002." in told["optimizer"]
    assert "Where" not in requested_help(["--optimizer.help", "SGD"], "train")
    assert " For " not in requested_help(["--data.help", "Folder"], "embed")


@pytest.mark.process
def test_mistakes_and_help_import_nothing_heavy(tmp_path):
    """Neither torch nor Lightning, nor what they bring: each is told within a second."""
    script = """
import contextlib, io, sys
from likewise.cli import main
for line in sys.argv[1:]:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            assert main(line.split()) == 2 * ("print" not in line), line
        except SystemExit as ended:
            assert not ended.code, line
print(sorted({"torch", "lightning", "numpy", "sklearn", "plotly", "tqdm"} & set(sys.modules)))
"""
    lines = ["trian", "train --los x", "train --loss SupConLos", "train --data nowhere/", "train --seed x"]
    lines += ["evaluate", "evaluate nowhere", "evaluate x --evaluations KNNN", "train --help"]
    lines += ["train --loss.temperature x --epoch 3", "--help", "sweep --help", "sweep --loss supcn", "sweep --grid x"]
    told = subprocess.run(
        [sys.executable, "-c", script, *lines], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert told.stdout == "[]\n", told.stderr


def test_a_section_is_added_below_those_of_every_page_or_stands_alone(tmp_path):
    (tmp_path / "own_sections.py").write_text(
        "from likewise.report import Section\nclass Mine(Section):\n    def content(self, views): ...\n"
    )
    for verb, words in (("train", []), ("evaluate", ["."])):
        added = read([*words, "--sections+", "own_sections.Mine"], verb=verb).sections
        assert [one["class_path"] for one in (added[0], added[-1])] == [
            "likewise.report.sections.ComparisonSection",
            "own_sections.Mine",
        ]
        assert len(added) > 20
    alone = read(["--sections", "ScoresSection", "--sections+", "own_sections.Mine"]).sections
    assert [name_of(one) for one in alone] == ["ScoresSection", "Mine"]


def test_a_run_that_has_been_finished_is_found_by_the_name_that_it_had(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("seed: 5\nloss: NTXentLoss\n")
    (tmp_path / "run" / "run.json").write_text("{}")
    for name in ("run", "run.partial"):
        found = read(["--resume", name, "--epochs", "7"])
        assert (found.seed, found.resume, found.trainer["max_epochs"]) == (5, Path(name), 7)
    given = {
        "report": False,
        "log": "csv",
        "workers": 3,
        "checkpoint_minutes": 2.0,
        "keep_checkpoints": True,
        "timeout_minutes": 9.0,
    }
    found = read(["--resume", "run", *(word for name, of in given.items() for word in (f"--{name}", str(of)))])
    assert {name: getattr(found, name) for name in given} == given
    assert found.loss["class_path"].endswith("NTXentLoss")
    for words in (["--loss", "supcon"], ["--compile"], ["--logs", "csv"]):
        with pytest.raises(ValueError, match=rf"with --resume no option but --report, .*trainer.\*, got {words[0]}: "):
            read(["--resume", "run", *words])
