"""Folders for other libraries: they load without what the encoder was made of, and encode as it does."""

import shutil

import pytest
import torch
from in_use import encoder_run
from PIL import Image
from test_sentence_models import KINDS, TEXTS, bert, following, saved  # noqa: F401 - fixtures
from test_texts import small_bert

import likewise as lw
from likewise.cli import main
from likewise.data import Texts
from likewise.models import ConvNet, PretrainedTransformer, Timm
from likewise.runs.scores import Metric, Result, Score
from likewise.workflows import Silent

pytestmark = pytest.mark.slow  # imports the other libraries
CLOSE = {"rtol": 0, "atol": 1e-6}


def run_of(encoder, arguments, folder, **facts):
    """Write a run with an encoder and a score."""
    run = encoder_run(folder, encoder, arguments | encoder.recorded, **facts)
    parts = run.metadata["parts"] | {"loss": {"class_path": "likewise.losses.SupConLoss"}}
    run.describe(run.metadata | {"parts": parts})
    run.add(Result((Score("kNN", Metric("accuracy"), 0.9, 0.8, 0.95, 1200),)))
    return run


def of_texts(folder, runs, **options):
    """Make an encoder of a saved model, as a training leaves it: with other weights."""
    encoder = PretrainedTransformer((), str(folder), **options)
    encoder.observe(Texts(TEXTS))
    for parameter in encoder.parameters():
        parameter.data += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    arguments = {"input_shape": [], "name": str(folder)} | ({"lora": options["lora"]} if "lora" in options else {})
    return encoder, run_of(encoder, arguments, runs, begins_with="somebody's model")


@pytest.mark.parametrize("given", ["modules", "mean", "first", "adapters"])
def test_sentence_transformers_encodes_as_the_run(given, saved, tmp_path):  # noqa: F811 - the fixture
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - takes seconds

    if given == "modules":
        prompts = {"prompts": {"query": "rain bank "}, "default_prompt_name": "query"}
        _, folder = saved(*following(*KINDS, dense=True), max_seq_length=9, do_lower_case=True, **prompts)
        encoder, run = of_texts(folder, tmp_path / "runs")
    else:
        folder = tmp_path / "bert"
        small_bert(folder)
        options = {"lora": 2} if given == "adapters" else {"pooling": given, "length": 5}
        encoder, run = of_texts(folder, tmp_path / "runs", **options)
    expected = encoder.encode(TEXTS)
    made = lw.export(run, format="sentence-transformers", progress=Silent())
    shutil.rmtree(folder)
    found = SentenceTransformer(str(made), device="cpu").encode(TEXTS)
    torch.testing.assert_close(torch.from_numpy(found), expected, **CLOSE)
    card = (made / "README.md").read_text()
    assert "| kNN, accuracy | 90.00 % [80.0, 95.0] | 1,200 |" in card
    assert "trained by SupConLoss, beginning with somebody's model." in card
    assert f'SentenceTransformer("{made.name}")' in card


def test_transformers_loads_model_and_tokenizer(tmp_path):
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - takes seconds

    small_bert(tmp_path / "bert")
    encoder, run = of_texts(tmp_path / "bert", tmp_path / "runs", pooling="first", length=6)
    made = lw.export(run, tmp_path / "made", format="transformers", progress=Silent())
    shutil.rmtree(tmp_path / "bert")
    tokenizer, model = AutoTokenizer.from_pretrained(made), AutoModel.from_pretrained(made).eval()
    given = tokenizer(TEXTS, truncation=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        found = model(**given).last_hidden_state[:, 0]
    torch.testing.assert_close(found, encoder.encode(TEXTS), **CLOSE)


@pytest.mark.parametrize(("channels", "resize"), [(3, "squash"), (1, "crop")])
def test_timm_encodes_as_the_run(channels, resize, tmp_path):
    import timm  # noqa: PLC0415 - takes seconds

    torch.manual_seed(0)
    encoder = Timm((channels, 48, 40), "resnet10t")
    encoder.observe(torch.rand(20, channels, 48, 40))
    encoder.eval()
    rule = {"channels": channels, "height": 48, "width": 40, "resize": resize}
    arguments = {"input_shape": [channels, 48, 40], "name": "resnet10t"}
    run = run_of(encoder, arguments, tmp_path / "runs", preprocessing=rule)
    made = lw.export(run, format="timm", progress=Silent())
    named = timm.create_model(f"local-dir:{made}", pretrained=True).eval()
    options = {"checkpoint_path": made / "model.safetensors", "num_classes": 0, "in_chans": channels}
    by_file = timm.create_model("resnet10t", **options).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(named))
    noise = torch.randint(256, (48, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    image = Image.fromarray(noise.numpy()).convert("RGB" if channels == 3 else "L")
    expected = torch.from_numpy(lw.load(run).encode([image]))
    with torch.no_grad():
        for network in (named, by_file):
            torch.testing.assert_close(network(transform(image)[None]), expected, rtol=0, atol=1e-5)


def test_what_is_no_folder_of_a_library_is_told(tmp_path, capsys):
    run = run_of(ConvNet((3, 8, 8), width=4), {"input_shape": [3, 8, 8], "width": 4}, tmp_path / "runs")
    for library, kind in (("timm", "Timm"), ("transformers", "PretrainedTransformer")):
        with pytest.raises(ValueError, match=f"expected an encoder {kind} for {library}, got ConvNet: export it to"):
            lw.export(run, format=library, progress=Silent())
    (tmp_path / "there").mkdir()
    assert main(["export", str(run.folder), "--format", "timm", "--output", str(tmp_path / "there")]) != 0
    assert "expected a new folder, got" in capsys.readouterr().err
    assert sorted(of.name for of in run.folder.parent.iterdir()) == [run.folder.name]
