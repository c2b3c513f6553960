"""The summary of a run is said before its first step, kept in run.json, and shown on its page; so are warnings."""

import html
import json
import warnings

import numpy as np
import pytest
from in_use import Listener, write_rows
from PIL import Image
from sklearn.datasets import load_digits

import likewise as lw
from likewise.report import RunView, write_page
from likewise.report.elements import part_words
from likewise.report.run_summary import INDENT, WIDTH, summary_lines, summary_table, training_warnings

pytestmark = pytest.mark.slow
FEW = {"epochs": 1, "batch_size": 32, "device": "cpu", "evaluations": [], "report": False}
PIXELS, DIGITS = load_digits(return_X_y=True)
LABELS = np.array([0] * 70 + [1] * 50 + [2] * 30)  # a tail


class Record(Listener):
    """Reads the table in what is said."""

    @property
    def table(self):
        lines = (line.removeprefix(INDENT) for line in self.said if line.startswith(INDENT))
        return {line[:WIDTH].strip(): line[WIDTH:] for line in lines}


def trained(folder, **options):
    record = Record()
    run = lw.train(FEW | {"runs": str(folder / "runs")} | options, progress=record)
    return run, record


def digits(folder, **more):
    file = folder / "digits.npz"
    np.savez(file, images=PIXELS[:160].reshape(-1, 8, 8) / 16, labels=DIGITS[:160], **more)
    return str(file)


def vectors(folder, **more):
    file = folder / "vectors.npz"
    np.savez(file, vectors=PIXELS[:150], labels=LABELS, **more)
    return str(file)


def parameters_of(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return trained(folder, data=digits(folder), epochs=2, **{"encoder.width": 4, "evaluations": "KNN"})


def test_facts_are_said_before_the_first_step(run):
    made, record = run
    assert np.bincount(DIGITS[:160]).tolist() == [16] * 10
    sizes = made.metadata["samples"]
    steps = 2 * (sizes["train"] // 32)
    expected = {
        "samples": "160 images",
        "inputs": "images 1 x 8 x 8",
        "classes": "10",
        "parts": ", ".join(f"{sizes[part]} {part}" for part in ("train", "validation", "test")),
        "split": "Stratified(test=0.25, validation=0.1, seed=0)",
        "encoder": f"ConvNet(width=4, depth=3), {parameters_of(made.encoder()):,} parameters",
        "loss": "SupConLoss(temperature=0.1, form=out)",
        "batch": "32 samples, 2 views",
        "steps": str(steps),
        "epochs": "2",
        "device": made.metadata["device"],
    }
    assert expected.items() <= record.table.items()
    assert {record.table[name].partition(" ")[0] for name in ("most frequent", "least frequent")} == {"16"}
    assert record.table["augmentation"].startswith("RandomAffine(degrees=12.0, ")
    assert f"only {steps} steps" in record.table["few steps"]
    count = len(record.table)
    assert all(line.startswith(INDENT) and "\n" not in line for line in record.said[:count])


def test_the_page_and_run_json_have_the_same_table(run):
    made, record = run
    facts = json.loads((made.folder / "run.json").read_text())
    few_steps = {name: value for name, value in record.table.items() if name == "few steps"}
    assert dict(summary_table(facts)) | few_steps == record.table
    write_page(made.report, [RunView(made)])
    top, _, below = html.unescape(made.report.read_text()).partition("95 % interval")
    for name, value in summary_table(facts):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in top
    assert below
    (warned,) = (line for line in record.said if line.startswith("warning: "))
    assert top.count(warned.removeprefix("warning: ")) == 1
    del facts["run_summary"]  # as of a run that trained nothing
    assert summary_table(facts) == training_warnings(facts, {}) == []


def test_a_network_of_others_is_told_by_its_name_and_not_by_its_whole_configuration(run):
    """A transformer's has 1,300 characters; the page's list of parts has none of them either."""
    facts = json.loads(json.dumps(run[0].metadata))
    config, special = {f"option_{number}": number for number in range(60)}, {"before": [101], "mask": 103}
    given = {"input_shape": [], "name": "bert", "pooling": "mean", "config": config, "special": special}
    facts["parts"]["encoder"] = {"class_path": "likewise.models.PretrainedTransformer", "init_args": given}
    assert dict(summary_table(facts))["encoder"].startswith("PretrainedTransformer(name=bert, pooling=mean), ")
    assert "option" not in part_words(facts["parts"]["encoder"])
    nested = {"class_path": "likewise.models.Projected", "init_args": facts["parts"] | {"data": None}}
    assert "encoder=PretrainedTransformer(input_shape=none, name=bert, pooling=mean)" in part_words(nested)


def test_parts_that_the_data_gives_are_told_from_those_that_are_cut(tmp_path):
    given = np.tile(["train", "train", "test"], 50)
    for splits, named, cut in (
        (given, "test", True),
        (np.where(np.arange(150) % 5 == 0, "validation", given), "validation, test", False),
    ):
        _, record = trained(tmp_path, data=vectors(tmp_path, parts=splits), encoder="MLP")
        assert record.table["given"] == named
        assert ("split" in record.table) is cut
    told = {"samples": "150 vectors", "inputs": "vectors 64", "most frequent": "70 (0)", "least frequent": "30 (2)"}
    assert told.items() <= record.table.items()
    options = {"split.refit": True, "subset": "Fraction", "subset.fraction": 0.5}
    _, record = trained(tmp_path, data=vectors(tmp_path), encoder="MLP", **options)
    assert record.table["subset"].startswith("Fraction(fraction=0.5")
    assert "refit=True" in record.table["split"]


def test_episodes_are_counted_as_steps_and_classes_are_those_of_all_parts(tmp_path):
    sizes = {"batches.ways": 3, "batches.shots": 1, "batches.queries": 2, "batches.episodes": 2, "batches.steps": 7}
    split = {"split": "ByClass", "split.train": 5, "split.validation": 2, "split.test": 3}
    options = {name: value for name, value in FEW.items() if name != "batch_size"}
    record = Record()
    lw.train(
        options | {"batches": "Episodes"} | sizes | split,
        data=digits(tmp_path), loss="prototypical", runs=str(tmp_path / "runs"), progress=record,
    )  # fmt: skip
    assert {"2 episodes", "3 ways", "1 shots", "2 queries"} <= set(record.table["batch"].split(", "))
    assert (record.table["steps"], record.table["epochs"], record.table["classes"]) == ("7", "1", "10")
    assert record.table["split"].startswith("ByClass(train=5")
    assert "head" not in record.table


def test_label_sets_are_labels_and_texts_are_texts(tmp_path):
    labels = [["oil"], ["oil", "wheat"], [], ["gas"]]
    lines = [{"text": f"story {row}", "labels": labels[row % 4]} for row in range(120)]
    file = write_rows(tmp_path / "stories.jsonl", lines)
    with warnings.catch_warnings(action="ignore"):
        _, record = trained(tmp_path, data=str(file), encoder="BagOfTokens", loss="NWSLoss")
    told = {"samples": "120 texts", "label sets": "3", "most frequent": "60 (oil)", "without labels": "30"}
    assert told.items() <= record.table.items()
    assert record.table["least frequent"] in {"30 (wheat)", "30 (gas)"}
    assert record.table["augmentation"] == "TokenDropout(probability=0.1, mask_id=1)"


def photos(folder):
    """Sixty photos of three classes, of two sizes and many kinds, and a file that is none."""
    kinds = ["RGB"] * 12 + ["L"] * 3 + ["CMYK"] * 2 + ["RGBA", "P", "I;16"]
    for label, name in enumerate(("ash", "elm", "oak")):
        (folder / name).mkdir(parents=True)
        for number, kind in enumerate(kinds):
            image = Image.new(kind, (40, 30) if number else (90, 70 + label), 4000 if kind == "I;16" else 9)
            image.save(folder / name / f"{number:02}.{'tif' if kind in {'CMYK', 'I;16'} else 'png'}")
    (folder / "oak" / "none.png").write_bytes(b"no image")
    return str(folder)


SQUASHED = {"data.resize": "squash", "data.size": "[12, 20]", "data.memory": 0}


@pytest.mark.parametrize(("options", "resized"), [({}, "crop, 16 x 16"), (SQUASHED, "squash, 12 x 20")])
def test_images_say_what_they_were_in_their_files_and_what_was_made_of_them(options, resized, tmp_path):
    given = {"data.size": 16, "encoder": "ConvNet", "encoder.width": 4, "workers": 0, "batch_size": 8}
    with pytest.warns(UserWarning, match="left out 1 of 61 images"):
        run, record = trained(tmp_path, data=photos(tmp_path / "photos"), **given | options)
    colours = {"36 RGB", "9 grey", "6 CMYK", "3 with alpha", "3 with a palette", "3 grey of 12 bits"}
    assert set(record.table["colours"].split(", ")) == colours
    told = {"samples": "60 images", "files": "4 sizes, 30 x 40 to 72 x 90", "resized": resized}
    assert told.items() <= record.table.items()
    assert dict(summary_table(run.metadata)).items() <= record.table.items()


def test_a_subset_is_counted_beside_its_files(tmp_path):
    for name in "ab":
        (tmp_path / "grey" / name).mkdir(parents=True)
        for number in range(40):
            Image.new("L", (9, 8), number).save(tmp_path / "grey" / name / f"{number}.png")
    options = {"data": str(tmp_path / "grey"), "encoder": "ConvNet", "encoder.width": 4, "batch_size": 8}
    options |= {"data.size": None, "batches.augmentation": "RandomAffine"}
    _, record = trained(tmp_path, **options, **{"subset": "Fraction", "subset.fraction": 0.5})
    told = {"samples": "50 images", "inputs": "images 1 x 8 x 9", "colours": "80 grey", "least frequent": "25 (b)"}
    assert told.items() <= record.table.items()


def test_an_encoder_that_is_frozen_in_part_says_how_many_parameters_are_trained(tmp_path, monkeypatch):
    """Also of data that has no labels."""
    (tmp_path / "frozen.py").write_text(
        "from torch import nn\nfrom likewise.models import Encoder\n"
        "class Frozen(Encoder):\n"
        "    feature_dim = 5\n"
        "    def __init__(self, input_shape):\n"
        "        super().__init__(input_shape)\n"
        "        self.first = nn.Linear(64, 7).requires_grad_(False)\n"
        "        self.last = nn.Linear(7, 5)\n"
        "    def forward(self, inputs):\n"
        "        return self.last(self.first(self.standardized(inputs)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    np.save(tmp_path / "plain.npy", PIXELS[:80].astype(np.float32))
    _, record = trained(tmp_path, data=str(tmp_path / "plain.npy"), encoder="frozen.Frozen", loss="simclr")
    assert {"samples": "80 vectors", "labels": "none"}.items() <= record.table.items()
    assert record.table["encoder"] == f"Frozen, {64 * 7 + 7 + 7 * 5 + 5} parameters, {7 * 5 + 5} trained"


def test_steps_are_counted_as_the_trainer_takes_them(tmp_path):
    given = {"split.test": 0.05, "split.validation": 0.1, "batch_size": 32}
    for options, steps, epochs, longer in (
        ({"steps": 3}, "3", "0.75", "--steps 300"),
        ({"epochs": 25}, "100", "25", ""),
        ({"trainer.accumulate_grad_batches": 2, "epochs": 3}, "6", "3", "--epochs 150"),
        ({"epochs": -1, "trainer.max_time": "00:00:00:01"}, "as time allows", None, ""),
    ):
        _, record = trained(tmp_path, data=vectors(tmp_path), encoder="MLP", **given | options)
        assert (record.table["steps"], record.table.get("epochs")) == (steps, epochs)
        assert ("few steps" in record.table) == bool(longer)
        assert record.table.get("few steps", "").endswith(longer)
        assert len([line for line in record.said if line.startswith("warning: ")]) == bool(longer)


def test_a_loss_that_rises_only_since_its_queue_fills_is_no_reason_for_doubt(tmp_path):
    """And of many short epochs the first, every second, and the last have a line."""
    run, record = trained(tmp_path, data=vectors(tmp_path), encoder="MLP", loss="moco", epochs=61)
    assert run.metadata["run_summary"]["queue"] > 32 * 183 / 2
    assert not [line for line in record.said if line.startswith("warning: ")]
    lines = [line.partition(" steps")[0] for line in record.said if line.startswith("training: ")]
    assert len(lines) == 1 + 30 + 1
    assert lines[-2:] == ["training: 180/183", "training: 183/183"]


@pytest.mark.parametrize(
    ("loss", "rate", "told"), [("supcon", 1e-9, True), ("moco", 1e-9, True), ("TripletLoss", 0.002, False)]
)
def test_a_loss_that_stays_where_it_began_is_told(loss, rate, told, tmp_path):
    queue = {"inputs.size": 256} if loss == "moco" else {}
    run, record = trained(tmp_path, data=vectors(tmp_path), encoder="MLP", loss=loss, lr=rate, epochs=40, **queue)
    found = [line for line in record.said if line.startswith("warning: ")]
    assert bool(found) is told, found
    if told:
        assert found == [f"warning: {words}" for words in training_warnings(run.metadata, run.metrics)]
        assert f": change --lr, which was at most {rate:g}" in found[0]


def test_a_short_training_whose_loss_stays_is_told_both():
    """Few steps alone are no reason for doubt that hides the other."""
    went = {"steps": 40, "steps_per_epoch": 2, "max_steps": None, "encoder": {"trained": 1}, "queue": 0}
    facts = {"run_summary": went | {"batch": {"samples": 8}}}
    stays, falls = ([(step, value) for step, value in enumerate(of)] for of in ([4.8, 4.9] * 20, np.linspace(5, 1, 40)))
    few = "only 40 steps, while encoders learn over hundreds"
    assert [line[:23] for line in training_warnings(facts, {"loss": stays})] == [few[:23], "the loss did not come d"]
    assert [line[:23] for line in training_warnings(facts, {"loss": falls})] == [few[:23]]
    tuned = facts | {"begins_with": "weights of others"}  # which tens of steps tune
    assert not training_warnings(tuned, {"loss": falls})


def test_a_sweep_says_once_what_goes_into_several_runs(tmp_path):
    record = Record()
    settings = {"SupCon": {"loss": "supcon"}, "SimCLR": {"loss": "simclr"}}
    options = FEW | {"evaluations": "KNN"}
    options |= {"data": vectors(tmp_path), "encoder": "MLP"}
    lw.sweep(settings, seeds=2, output=tmp_path / "sweep", progress=record, **options)
    said = [line[len(INDENT) : len(INDENT) + WIDTH].strip() for line in record.said if line.startswith(INDENT)]
    runs = [json.loads(file.read_text()) for file in (tmp_path / "sweep").rglob("run.json")]
    assert len(runs) == 4
    assert said.count("loss") == 2
    assert len(said) == len({line for facts in runs for line in summary_lines(facts)})
    assert sum(line.startswith("evaluating") for line in record.said) == 4
    assert not [line for line in record.told if "next: " in line]  # which is of one run alone
