"""An exported encoder in use: it says what its inputs are, and gives the features of the encoder that was exported."""

import json

import numpy as np
import onnx
import pytest
import torch
from in_use import encoder_run
from test_model import pictures

import likewise as lw
from likewise.data import ImagePreprocessing, read_image
from likewise.inference import Model
from likewise.models import MLP, ConvNet, FromRun, to_onnx
from likewise.models.onnx import _metadata
from likewise.workflows import Silent

pytestmark = pytest.mark.slow  # the exporter takes seconds
RULES = ["crop", "pad", "squash"]


def told(path):
    return {entry.key: json.loads(entry.value) for entry in onnx.load(path).metadata_props}


def retold(path, **facts):
    """Write the file again beside, with other metadata."""
    file = onnx.load(path)
    kept = {entry.key: entry.value for entry in file.metadata_props}
    onnx.helper.set_model_props(file, kept | {name: json.dumps(value) for name, value in facts.items()})
    beside = path.with_name("retold.onnx")
    onnx.save(file, beside)
    return beside


@pytest.fixture(scope="module")
def photographed(tmp_path_factory):
    """A run whose encoder has seen photos, its ONNX file, and the photos."""
    root = tmp_path_factory.mktemp("photographed")
    files = pictures(root / "photos")
    torch.manual_seed(0)
    encoder = ConvNet((3, 24, 32), width=4)
    rule = ImagePreprocessing(3, 24, 32)
    encoder.observe(Model(encoder, rule).rows(files))
    facts = {"labels": {"kind": "classes", "names": ["cat", "dög"]}, "preprocessing": vars(rule)}
    run = encoder_run(root, encoder, {"input_shape": [3, 24, 32], "width": 4}, **facts).finalize()
    return run, lw.export(run, format="onnx", progress=Silent()), files


def test_a_file_tells_what_its_inputs_and_classes_are(photographed):
    run, path, _ = photographed
    encoder = run.encoder()
    assert told(path) == {
        "likewise": lw.__version__,
        "run": run.name,
        "label_kind": "classes",
        "names": ["cat", "dög"],
        "input_shape": [3, 24, 32],
        "feature_dim": encoder.feature_dim,
        "preprocessing": {"channels": 3, "height": 24, "width": 32, "resize": "crop", "bits": None},
        "mean": encoder.mean.flatten().tolist(),
        "std": encoder.std.flatten().tolist(),
    }
    assert min(told(path)["std"]) > 0.05
    inner = Model(FromRun((3, 24, 32), run.folder)).encoder
    assert _metadata(inner) == _metadata(encoder)  # the mean is that of the encoder that is trained further


@pytest.mark.parametrize("resize", RULES)
def test_a_photo_has_the_features_of_the_run(photographed, resize):
    run, path, files = photographed
    rule = ImagePreprocessing(3, 24, 32, resize)
    exported = lw.load(retold(path, preprocessing=vars(rule)))
    assert exported.preprocessing == rule
    expected = Model(run.encoder(), rule).encode(files)
    assert expected.std(axis=0).max() > 0.01
    np.testing.assert_allclose(exported.encode(files, batch_size=3), expected, atol=1e-5)
    pixels = torch.stack([read_image(file, rule) for file in files])
    np.testing.assert_allclose(exported.encode(pixels / 255), expected, atol=1e-5)


def test_vectors_and_fine_tuned_encoders_are_exported(tmp_path):
    torch.manual_seed(0)
    encoder = MLP((5,), width=8)
    to_onnx(encoder, tmp_path / "mlp.onnx", facts={"names": ["a"]})
    model = lw.load(str(tmp_path / "mlp.onnx"), device="cpu")
    assert model.preprocessing is None
    assert repr(model) == "Model(OnnxEncoder: (5,) -> 8)"
    vectors = np.random.default_rng(0).normal(size=(9, 5))
    np.testing.assert_allclose(model.encode(vectors), Model(encoder).encode(vectors), atol=1e-5)
    with pytest.raises(ValueError, match=r"expected vectors \(N, 5\)"):
        model.encode(np.zeros((2, 4)))
    with pytest.raises(ValueError, match=r"expected inputs of shape \(N, 5\), got \(2, 4\)"):
        model.encoder(torch.zeros(2, 4))


def test_what_cannot_be_loaded_is_told_in_a_line(photographed, tmp_path, monkeypatch):
    _, path, _ = photographed
    (tmp_path / "damaged.onnx").write_bytes(path.read_bytes()[:1000])
    foreign = onnx.load(path)
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    for name, words in (
        ("gone.onnx", r"got \S+gone\.onnx, which does not exist: check the path"),
        ("damaged.onnx", r"expected an ONNX file, got \S+damaged\.onnx: .*: export it again"),
        ("foreign.onnx", r"by likewise export, got \S+foreign\.onnx, which doesn't say what its inputs are: export"),
    ):
        with pytest.raises(ValueError, match=words) as raised:
            lw.load(tmp_path / name)
        assert "\n" not in str(raised.value)
    with pytest.warns(UserWarning, match=r"the CPU computes \S+: this onnxruntime has no mps, onnxruntime-gpu may"):
        lw.load(path, device="mps")
    monkeypatch.setattr("likewise.models.onnx.find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"onnxruntime, .*: pip install 'likewise\[onnx\]'"):
        lw.load(path)
