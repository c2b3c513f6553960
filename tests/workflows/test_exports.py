"""An encoder with its classifier as one file, and the page that runs it without this library."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from in_use import encoder_run
from PIL import Image
from test_model import pictures

import likewise as lw
from likewise.cli import main
from likewise.data import ImagePreprocessing
from likewise.evaluation import Features, LinearProbe, RunPredictors
from likewise.inference import Model
from likewise.models import ConvNet
from likewise.workflows import Silent

pytestmark = pytest.mark.slow  # the exporter takes seconds
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "onnx.md"
NAMES = ("dark", "mïddle", "light")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose encoder knows how bright images are, without a probe."""
    torch.manual_seed(0)
    rule = {"channels": 3, "height": 24, "width": 32, "resize": "crop"}
    facts = {"labels": {"kind": "classes", "names": NAMES}, "preprocessing": rule}
    arguments = {"input_shape": [3, 24, 32], "width": 4}
    return encoder_run(tmp_path_factory.mktemp("runs"), ConvNet((3, 24, 32), width=4), arguments, **facts).finalize()


def parts(encoder, *, sets):
    """Return features of images of three kinds that overlap, as training, validation and test part."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (150,), generator=generator)
    lightness = labels / 4 + torch.rand(150, generator=generator) / 2
    images = torch.rand(150, 3, 24, 32, generator=generator) * lightness.view(-1, 1, 1, 1)
    if sets:
        labels = torch.stack([lightness < 0.5, lightness > 0.3, labels == 2], dim=1)
    cuts = {"train": slice(90), "validation": slice(90, 120), "test": slice(120, None)}
    features = encoder.encode(images)
    return [Features(features[rows], labels[rows], NAMES, part=name) for name, rows in cuts.items()]


@pytest.fixture(scope="module", params=["classes", "label sets"])
def exported(request, run):
    """A file with a probe, its metadata, and the probe of the run."""
    run.add(LinearProbe()(*parts(run.encoder(), sets=request.param == "label sets")))
    path = run.folder.parent / f"{request.param}.onnx"
    assert main(["export", str(run.folder), "--classifier", "probe", "--output", str(path)]) == 0
    session = onnxruntime.InferenceSession(path)
    told = session.get_modelmeta().custom_metadata_map
    return session, {name: json.loads(value) for name, value in told.items()}, RunPredictors(run).predictor("probe")


def test_the_file_predicts_as_the_probe_of_the_run(run, exported):
    session, about, probe = exported
    assert [output.name for output in session.get_outputs()] == ["features", "logits", "probabilities"]
    images = torch.rand(40, 3, 24, 32, generator=torch.Generator().manual_seed(2)) * torch.rand(40, 1, 1, 1)
    expected = run.encoder().encode(images)
    features, logits, probabilities = session.run(None, {"inputs": images.numpy()})
    np.testing.assert_allclose(features, expected, atol=1e-5)
    np.testing.assert_allclose(logits, probe.logits(expected), atol=1e-4)
    np.testing.assert_allclose(probabilities, probe.scores(expected), atol=1e-5)
    assert about["names"] == list(NAMES)
    assert about["classifier"] == "linear probe"
    told = {name: about[name] for name in ("label_kind", "temperature", "thresholds") if name in about}
    if probe.thresholds is None:
        assert told == {"label_kind": "classes", "temperature": probe.temperature}
    else:
        assert told == {"label_kind": "label sets", "thresholds": probe.thresholds.tolist()}


def blocks():
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("resize", ["crop", "pad", "squash"])
def test_the_page_predicts_photos_as_the_model_does_without_this_library(
    run, exported, resize, tmp_path, monkeypatch, capsys
):
    session, about, probe = exported
    files = pictures(tmp_path / "photos")
    program, of_sets, _, of_model = blocks()
    assert set(re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE)) == {"json", "numpy", "onnxruntime", "PIL"}
    monkeypatch.chdir(tmp_path)
    file = onnx.load(session._model_path)  # noqa: SLF001 - where it was loaded from
    rule = ImagePreprocessing(3, 24, 32, resize)
    entries = {name: json.dumps(value) for name, value in (about | {"preprocessing": vars(rule)}).items()}
    onnx.helper.set_model_props(file, entries)
    onnx.save(file, "pets.onnx")
    (tmp_path / "photo.jpg").write_bytes((tmp_path / "photos" / "turned.jpg").read_bytes())
    (tmp_path / "other.png").write_bytes((tmp_path / "photos" / "deep.png").read_bytes())
    here = {}
    exec(program, here)  # noqa: S102 - our own page
    expected = torch.from_numpy(Model(run.encoder(), rule).encode(files))
    scores = probe.scores(expected)
    place = [file.name for file in files].index("turned.jpg")
    likeliest = int(scores[place].argmax())
    assert capsys.readouterr().out == f"{NAMES[likeliest]} {scores[place, likeliest]:.3f}\n"
    inputs = []
    for name in files:
        with Image.open(name) as image:
            inputs.append(here["preprocessed"](image, here["about"]["preprocessing"]))
    features, _, probabilities = here["session"].run(None, {"inputs": np.stack(inputs)})
    np.testing.assert_allclose(features, expected, atol=1e-5)
    np.testing.assert_allclose(probabilities, scores, atol=1e-5)
    if probe.thresholds is not None:
        exec(of_sets, here)  # noqa: S102 - likewise
        above = scores[place] > probe.thresholds
        assert here["labels"] == [name for name, has in zip(NAMES, above, strict=True) if has]
    exec(of_model, {"lw": lw})  # noqa: S102 - likewise
    found = lw.load("pets.onnx").predict(files)
    np.testing.assert_allclose(found.scores, scores, atol=1e-5)
    assert (found.names, found.unlike) == (NAMES, None)
    assert (found.sets is None) == (probe.thresholds is None)
    with pytest.raises(ValueError, match="expected a run to predict by, got an exported encoder with a probe alone"):
        lw.load("pets.onnx").predict(files, by="knn")
    assert main(["predict", "pets.onnx", "photos", "--output", "photos.csv"]) == 0
    lines = (tmp_path / "photos.csv").read_text(encoding="utf-8").splitlines()
    assert [line.partition(",")[0] for line in lines[1:]] == [file.name for file in files]


def test_what_cannot_be_exported_with_a_classifier_is_told_in_a_line(run, tmp_path):
    run.probe.unlink(missing_ok=True)
    for options, words in (
        ({"classifier": "probe"}, r"expected a run with a linear probe, got \S+, which has no probe\.safetensors"),
        ({"format": "zip"}, r"expected a format of safetensors, onnx, .*timm, got 'zip'"),
        ({"classifier": "forest"}, "expected probe as the classifier, got 'forest': name it, or none"),
        ({"classifier": "probe", "output": tmp_path / "a.safetensors"}, "expected the format onnx .* got safetensors"),
    ):
        with pytest.raises(ValueError, match=words):
            lw.export(run, **options, progress=Silent())
    assert not list(tmp_path.iterdir())


def test_a_run_of_features_has_no_encoder_to_export(tmp_path):
    vectors = torch.randn(60, 4).numpy()
    np.savez(tmp_path / "features.npz", features=vectors, labels=torch.arange(60).numpy() % 3)
    options = {"runs": str(tmp_path / "runs"), "report": False, "progress": Silent()}
    run = lw.evaluate(tmp_path / "features.npz", evaluations="LinearProbe", **options)
    for file_format in ("safetensors", "onnx", "timm"):
        with pytest.raises(ValueError, match=r"expected a run with an encoder, got \S+, evaluated from features alone"):
            lw.export(run, output=tmp_path / "a", format=file_format, progress=Silent())
    assert not (tmp_path / "a").exists()
