"""Recipes and studies: their names, what wins over them, and that every method trains from the command."""

import csv
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from test_resume import save_few
from test_sources import write_fashion

import likewise as lw
from likewise.cli import main
from likewise.configuration import read
from likewise.configuration.recipes import names, recipe, studies, study
from likewise.data import LongTail, parts_of
from likewise.runs import Run

pytestmark = pytest.mark.slow

METHODS = ("simclr", "supcon", "moco", "byol", "rascal", "cross-entropy")
DATA = (
    *("digits", "omniglot", "cifar10", "cifar100", "cifar100-lt", "image-folder", "stl10", "cifar10-fast"),
    *("cifar100-fast", "cifar100-20", "cifar100-20-lt50", "omniglot-few-shot", "cifar-fs", "cifar-fs-resnet12"),
    "mini-imagenet",
)
FEW = ("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2", "--trainer.accelerator", "cpu")
FEW += ("--report", "false")
SMALL = ("--encoder", "ResNet", "--encoder.depth", "8", "--encoder.width", "4")


def parsed(*words):
    return read(words)


def class_names(*specs):
    return [spec["class_path"].rpartition(".")[2] for spec in specs]


def test_there_is_a_recipe_of_every_method_for_every_data_set():
    assert {f"{method}-{data}" for method in METHODS for data in DATA} <= set(names())
    assert all(recipe(name)["loss"]["class_path"].startswith("likewise.losses.") for name in names())


def within(given, said):
    """Whether everything given is also said."""
    if isinstance(given, dict):
        return all(within(value, said.get(name)) for name, value in given.items())
    if isinstance(given, list):
        return len(given) == len(said) and all(map(within, given, said))
    return given == said


def test_every_value_of_a_recipe_is_an_option_that_is_understood():
    for name in (f"{method}-{data}" for data in DATA for method in METHODS):
        path = ["--data.path", "photos"] if name.endswith(("image-folder", "mini-imagenet")) else []
        said = parsed("--recipe", name, *path)
        assert said.recipe == name
        assert within(recipe(name), vars(said)), name


def test_options_win_over_a_recipe_wherever_they_stand():
    before = parsed("--loss.temperature", "0.3", "--recipe", "supcon-cifar10", "--trainer.max_epochs", "7")
    assert before.loss["init_args"]["temperature"] == 0.3
    assert before.trainer["max_epochs"] == 7
    assert before.batches["init_args"]["batch_size"] == 1024
    other = parsed("--recipe", "supcon-cifar10", "--encoder", "ConvNet", "--recipe", "simclr-cifar10")
    assert other.recipe == "simclr-cifar10"
    assert other.loss == {**other.loss, "class_path": "likewise.losses.NTXentLoss"}
    assert other.encoder == parsed("--encoder", "ConvNet").encoder  # and not with the depth of a ResNet


def test_another_class_of_a_part_does_not_take_over_the_recipes_arguments(tmp_path):
    """Arguments of one name mean other things in another class: a crop's scale is no affine map's."""
    plain = parsed("--batches.augmentation", "RandomAffine").batches["init_args"]["augmentation"]
    said = parsed("--recipe", "simclr-cifar10", "--batches.augmentation=RandomAffine")
    assert said.batches["init_args"]["augmentation"] == plain
    assert said.batches["init_args"]["batch_size"] == 1024
    file = tmp_path / "mine.yaml"
    file.write_text("recipe: simclr-cifar10\nencoder:\n  class_path: likewise.models.ConvNet\n")
    assert parsed("--config", str(file)).encoder == parsed("--encoder", "ConvNet").encoder
    same = parsed("--recipe", "simclr-cifar10", "--encoder", "ResNet", "--encoder.width", "8")
    assert same.encoder["init_args"]["depth"] == 50


def test_what_is_added_to_a_list_of_a_recipe_leaves_the_others_there():
    said = parsed("--recipe", "supcon-cifar100-lt", "--subset+", "Classes", "--subset.count", "20").subset
    assert class_names(*said) == ["LongTail", "Classes"]
    assert said[0]["init_args"]["imbalance"] == 100
    said = parsed("--recipe", "supcon-cifar100-20-lt10", "--subset", "Fraction", "--subset.fraction", "0.5").subset
    assert said["class_path"] == "likewise.data.Fraction"
    assert recipe("moco-cifar100-20-lt50")["inputs"][1]["init_args"] == {"size": 512}  # that of its likeness


def test_a_file_of_options_may_name_a_recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("recipe: byol-digits\ntrainer:\n  max_epochs: 3\n")
    said = parsed("--config", str(file))
    assert class_names(said.loss, *said.inputs) == ["BYOLLoss", "Momentum", "Predictor"]
    assert said.trainer["max_epochs"] == 3
    said = parsed("--recipe", "simclr-digits", "--config", str(file))  # the one that is used is recorded
    assert (said.recipe, said.loss["class_path"]) == ("simclr-digits", "likewise.losses.NTXentLoss")


def test_the_recipe_of_supcontrast_is_that_of_its_authors():
    """Khosla et al.'s code: the numbers of its README and argument parser."""
    whole = recipe("supcon-cifar100")
    assert whole["encoder"]["init_args"] == {"depth": 50, "stem": "small"}
    scaled = whole["optimizer"]["init_args"]
    assert scaled["lr"] * 0.07 / 0.1 == pytest.approx(0.5, rel=1e-5)  # their loss is multiplied by τ / 0.07
    assert scaled["lr"] * scaled["weight_decay"] == pytest.approx(0.5 * 1e-4, rel=1e-5)
    assert scaled["momentum"] == 0.9
    assert whole["trainer"]["max_epochs"] == 1000
    assert whole["schedule"]["init_args"]["warmup_start"] * 0.5 == pytest.approx(0.01)
    assert whole["loss"]["init_args"]["temperature"] == 0.1
    assert recipe("simclr-cifar100")["loss"]["init_args"]["temperature"] == 0.5


REFUSED = [
    ("train --recipe nothing", "METHOD-DATA, with a method of asymmetric, bce"),
    ("train --recipe methods-digits", "likewise sweep --recipe methods-digits"),
    ("train --config five.yaml", "--recipe: expected a text, got 5"),
    ("train --recipe simclr-image-folder", "data"),
    ("sweep --grid seed=1,2", "which a sweep sets itself"),
    ("train --recipe", "expected --recipe, got none: see likewise train --help"),
    ("sweep --recipe rascal-ablation-digit", "did you mean rascal-ablation-digits"),
    ("train --recipe supcon-omniglot --data Digits", "lower batch_size, or raise samples_per_class"),
    ("train --recipe rascal-cifar100-20 --data Digits", "expected count of at most 10, got 20"),
    ("train --recipe supcon-cifar10 --data.root nowhere", "add --data.download true"),
    ("train --recipe supcon-image-folder --data.path points.csv --data.size null", "images"),
]


def test_a_recipe_that_is_unknown_or_does_not_fit_is_refused_with_the_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "five.yaml").write_text("recipe: 5\n")
    (tmp_path / "points.csv").write_text("x,y,class\n" + "".join(f"{row},1.5,{'ab'[row % 2]}\n" for row in range(40)))
    for words, expected in REFUSED:
        assert main(words.split()) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1, words
        assert expected in said, words
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_from_the_command_on_images_in_files_and_in_arrays(method, tmp_path):
    """A few steps on files of torchvision's, by the recipe of another data set."""
    write_fashion(tmp_path, train=80, test=20)
    words = ["--recipe", f"{method}-cifar10", "--data.name", "FashionMNIST", "--data.root", str(tmp_path), *SMALL, *FEW]
    words += ["--batches.augmentation", "RandomAffine", "--batches.batch_size", "16", "--evaluations", "KNN"]
    assert main(["train", *words, "--runs", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert Run(run).metadata["recipe"] == f"{method}-cifar10"
    assert "recipe" not in yaml.safe_load(Run(run).configuration.read_text())
    assert len(Run(run).metrics["loss"]) == 2
    assert Run(run).encoder() is not None


def test_the_fast_recipe_compiles_and_trains_in_bfloat16(tmp_path):
    """On a CPU as on a GPU; the weights are float32 and named as those of a network that is not compiled."""
    write_fashion(tmp_path, train=64, test=20)
    words = ["--recipe", "supcon-cifar10-fast", "--data.name", "FashionMNIST", "--data.root", str(tmp_path), *FEW]
    words += ["--encoder", "ConvNet", "--encoder.width", "4", "--batches.augmentation", "RandomAffine"]
    words += ["--batches.batch_size", "16", "--evaluations", "[]", "--runs", str(tmp_path / "runs")]
    assert main(["train", *words, "--trainer.log_every_n_steps", "1"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    said = yaml.safe_load(Run(run).configuration.read_text())
    assert (said["compile"], said["trainer"]["precision"]) == (True, "bf16-mixed")
    assert len(Run(run).metrics["loss"]) == 2
    assert {value.dtype for value in Run(run).encoder().parameters()} == {torch.float32}


def test_compiling_is_for_the_networks_and_not_for_the_loss(tmp_path, monkeypatch):
    """Encoder, head and momentum encoder, each by itself; the loss is called outside of what is compiled."""
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda part: compiled.append(part))
    monkeypatch.setattr(torch, "compile", lambda function: compiled.append(function.__self__) or function)
    words = ["--data", "Digits", "--loss", "moco", "--encoder.width", "4", "--evaluations", "[]", *FEW, "--compile"]
    assert main(["train", *words, "--runs", str(tmp_path)]) == 0
    assert [type(part).__name__ for part in compiled] == ["ConvNet", "ProjectionHead", "MomentumEncoder", "ConvNet"]
    assert not any(isinstance(inner, lw.losses.Loss) for part in compiled for inner in part.modules())


def test_uniform_ranks_follow_supcons_curve_bit_for_bit(tmp_path):
    few = ["--trainer.max_epochs", "2", "--trainer.accelerator", "cpu", "--evaluations", "[]", "--report", "false"]
    curves, weights = [], []
    for level in (None, "view", "sample"):
        words = ["--recipe", "supcon-digits"]
        if level is not None:
            words = ["--recipe", "rascal-digits", "--loss.ranking", "uniform", "--loss.rank_level", level]
        assert main(["train", *words, *few, "--encoder.width", "4", "--runs", str(tmp_path / str(level))]) == 0
        (run,) = map(Run, (tmp_path / str(level)).iterdir())
        curves.append(run.metrics["loss"])
        weights.append(run.weights.read_bytes())
    assert len(curves[0]) > 10
    assert curves[0] == curves[1] == curves[2]
    assert weights[0] == weights[1] == weights[2]


ROWS = {"image": "photos/1.JPG", "bytes": {"bytes": "", "path": None}, "caption": "a red bus"}
ROWS |= {"captions": ["a red bus", "a bus"], "sizes": [0.5, 2.0], "price": 3}


@pytest.mark.parametrize(
    ("first", "second", "encoder", "size", "suffix"),
    [
        ("image", "captions", "ResNet", 224, ".jsonl"),
        ("bytes", "caption", "ResNet", 224, ".parquet"),
        ("caption", "image", "Transformer", 224, ".parquet"),
        ("caption", "captions", "Transformer", None, ".jsonl"),
        ("sizes", "caption", "MLP", None, ".parquet"),
        ("price", "caption", "MLP", None, ".jsonl"),
    ],
)
def test_pairs_have_the_encoder_of_their_first_side_and_a_loss(first, second, encoder, size, suffix, tmp_path):
    table = tmp_path / f"train{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([ROWS]), table)
    else:
        table.write_text(json.dumps(ROWS) + "\n")
    words = ["--data.first", first, "--data.second", second]
    for path, recipe_of in ((table, []), (tmp_path, []), (table, ["--recipe", "clip"])):
        said = parsed("--data", "Pairs", "--data.path", str(path), *words, *recipe_of)
        # texts with texts begin with a language model
        learned = encoder == "Transformer" and not size and not recipe_of
        assert said.encoder["class_path"] == f"likewise.models.{'Pretrained' * learned}{encoder}"
        assert said.data["init_args"].get("size") == size
        expected = {"symmetric": True, "temperature": 0.05 if learned else "learned"}
        assert said.loss["init_args"] | expected == said.loss["init_args"]
        assert said.inputs["class_path"] == "likewise.training.inputs.SecondTower"
        assert said.recipe == (f"{recipe_of[-1]}-pairs" if recipe_of else None)
    mine = parsed("--data", "Pairs", "--data.path", str(table), *words, "--encoder", "BagOfTokens", "--data.size", "32")
    assert (mine.encoder["class_path"], mine.data["init_args"]["size"]) == ("likewise.models.BagOfTokens", 32)


@pytest.mark.parametrize(("more", "lacks"), [([], "first"), (["--data.first", "file"], "second")])
def test_pairs_without_a_column_are_told_the_columns_of_their_table(more, lacks, tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"file": "0.png", "caption": "a"}) + "\n")
    for path in (tmp_path, tmp_path / "train.jsonl"):
        with pytest.raises(ValueError, match=rf"expected --data\.{lacks}, got none: choose from file, caption$"):
            parsed("--data", "Pairs", "--data.path", str(path), *more)
    with pytest.raises(ValueError, match=rf"expected --data\.{lacks}, got none: see likewise train --data\.help"):
        parsed("--data", "Pairs", *more)


def test_pairs_of_two_files_have_the_encoder_of_the_first(tmp_path):
    (tmp_path / "train.en.gz").touch()
    of_folder = ["--data.path", str(tmp_path), "--data.first", "en", "--data.second", "de"]
    for words, encoder in (
        (["--data.first", "a.en.gz", "--data.second", "b.txt"], "PretrainedTransformer"),
        (["--data.first", "a.npy", "--data.second", "b.txt"], "MLP"),
        (of_folder, "PretrainedTransformer"),
    ):
        assert class_names(parsed("--data", "Pairs", *words).encoder) == [encoder]


@pytest.mark.parametrize("name", ["pairs-texts", "pairs-multi30k"])
def test_recipes_of_pairs_train_what_their_files_say(name, tmp_path, capsys):
    """Two files of lines, few steps: one tower for one language, two for two."""
    for side, word in (("first", "colour"), ("second", "Farbe")):
        (tmp_path / side).write_text("".join(f"{word} {row} of {row % 7}\n" for row in range(60)))
    files = ["--data.first", str(tmp_path / "first"), "--data.second", str(tmp_path / "second")]
    small = ["--batch-size", "16", "--encoder.width", "8", "--evaluations", "CrossModalRetrieval"]
    assert main(["train", "--recipe", name, *files, *FEW, *small, "--runs", str(tmp_path / "runs")]) == 0
    (line,) = (of for of in capsys.readouterr().err.splitlines() if of.startswith("validation after"))
    assert re.fullmatch(r"[\w ]+: cross-modal retrieval, recall@1, first to second [\d.]+ % \[[^]]*\]", line)
    (folder,) = (tmp_path / "runs").iterdir()
    facts = Run(folder).metadata
    assert (facts["second"]["encoder"] is None) == (name == "pairs-texts")
    assert facts["recipe"] == name
    assert class_names(facts["parts"]["batches"]["init_args"]["augmentation"]) == ["TokenDropout"]


def test_every_setting_of_every_study_is_a_recipe_that_exists():
    for name in studies():
        for setting in study(name).values():
            words = setting.split()
            assert words[words.index("--recipe") + 1] in names(), (name, setting)


def test_rascals_ablation_is_one_command_that_ends_in_a_table_a_page_and_a_verdict(tmp_path, capsys):
    save_few(tmp_path, 200)
    few = ["--data", "Arrays", "--data.path", str(tmp_path / "few.npz"), "--batches.batch_size", "32"]
    few += ["--trainer.max_epochs", "2", "--trainer.accelerator", "cpu", "--encoder.width", "4", "--evaluations", "KNN"]
    few += ["--report", "false"]  # the pages of runs, which others test
    words = ["sweep", "--recipe", "rascal-ablation-digits", "--seeds", "2", "--split_seeds", *few]
    assert main([*words, "--output", str(tmp_path / "sweep")]) == 0
    told = capsys.readouterr().out
    assert "kNN, accuracy" in told
    assert "No difference from SupCon larger than chance" in told
    with (tmp_path / "sweep" / "compare.csv").open() as file:
        rows = {row["setting"]: row for row in csv.DictReader(file)}
    assert list(rows) == list(study("rascal-ablation-digits"))
    assert rows["SupCon"]["value"] == rows["RASCAL, uniform"]["value"]
    runs = [Run(path) for path in (tmp_path / "sweep").glob("*/*/*") if path.is_dir()]
    assert len(runs) == 16
    splits = {(run.metadata["seed"], run.metadata["parts"]["split"]["init_args"]["seed"]) for run in runs}
    assert splits == {(0, 0), (1, 1)}
    steps = {len(run.metrics["loss"]) for run in runs}
    assert len(steps) == 1  # matched
    page = (tmp_path / "sweep" / "compare.html").read_text()
    assert "Recorded by the loss, by class" in page
    assert "rank drift" in page
    agreement = next(run for run in runs if "agreement-view" in str(run.folder))
    for name in ("rank_drift_mean", "rank_drift_std", "weight_entropy", "cache_hit_rate", "positives_per_anchor"):
        assert len(agreement.metrics[name]) == len(agreement.metrics["loss"])
    assert agreement.metrics["cache_hit_rate"][0][1] == 0  # a cold cache
    assert agreement.metrics["cache_hit_rate"][-1][1] > 0.9
    assert {mean.epoch for mean in agreement.class_means} == {2}  # nothing moves in the first


def test_subsets_are_taken_in_turn_and_those_of_every_part_first():
    specs = {
        "data": {"class_path": "likewise.data.Digits"},
        "split": {"class_path": "likewise.data.Stratified", "init_args": {}},
        "subset": [
            {"class_path": "likewise.data.LongTail", "init_args": {"imbalance": 5}},
            {"class_path": "likewise.data.Classes", "init_args": {"count": 4}},
        ],
    }
    parts, _ = parts_of(specs)
    assert parts.train.names == parts.test.names == ("0", "1", "2", "3")
    rest = parts.refitted().train
    alone, _ = parts_of(specs | {"subset": specs["subset"][1:]})
    everything = alone.refitted().train
    kept = LongTail(5)(everything[everything.rows.argsort()])
    assert torch.equal(rest.rows.sort().values, everything.rows.sort().values[kept])
    assert rest.counts[0] // rest.counts[3] == 5
