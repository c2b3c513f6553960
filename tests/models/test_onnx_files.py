"""ONNX files of every encoder: the encoder's features in batches of any size, of texts of any length."""

import inspect

import onnxruntime
import pytest
import torch
from test_texts import TOPICS, small_bert

from likewise import models
from likewise.data import Texts
from likewise.models import Encoder, FromRun, PretrainedTransformer, Projected, ProjectionHead, Timm, Wrapped, to_onnx
from likewise.models.networks import MLP, Conv4, ConvNet, ResNet, ResNet12
from likewise.models.text_encoder import BagOfTokens, Transformer, reads_texts

pytestmark = pytest.mark.slow  # the exporter takes seconds
IMAGE = (3, 32, 32)
TEXTS = [" ".join(words) for words in TOPICS.values()]


def small_t5(folder):
    """Save a tiny T5 in a folder, which has a decoder too, with the tokenizer of a BERT."""
    from transformers import T5Config, T5Model  # noqa: PLC0415 - of an extra

    _, _, tokenizer = small_bert(folder)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    T5Model(T5Config(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    return [folder]


ENCODERS = {
    "ConvNet": lambda _: ConvNet(IMAGE, width=4),
    "Conv4": lambda _: Conv4(IMAGE, width=4, features="flat"),
    "ResNet": lambda _: ResNet((1, 8, 8), depth=8),
    "ResNet12": lambda _: ResNet12(IMAGE, widths=(4, 4, 8, 8)),
    "MLP": lambda _: MLP((5,), width=8),
    "Timm": lambda _: Timm(IMAGE, "test_efficientnet"),
    "Timm, a vision transformer": lambda _: Timm(IMAGE, "test_vit"),
    "Wrapped": lambda _: Wrapped(IMAGE, torch.nn.Conv2d(3, 4, 3)),
    "Projected": lambda _: Projected(MLP((5,), width=8), ProjectionHead(8, out_dim=4, batch_norm=True)),
    "BagOfTokens": lambda _: BagOfTokens((), width=16, vocabulary=90),
    "Transformer": lambda _: Transformer((), width=16, heads=2, vocabulary=90, length=32),
    "PretrainedTransformer, adapted": lambda folder: PretrainedTransformer((), str(small_bert(folder)[0]), lora=2),
    "PretrainedTransformer, T5": lambda folder: PretrainedTransformer((), str(small_t5(folder)[0]), pooling="mean"),
}


def test_no_encoder_is_left_out():
    own = {kind for kind in vars(models).values() if inspect.isclass(kind) and issubclass(kind, Encoder)}
    abstract = {kind for kind in own if inspect.isabstract(kind)}
    assert {kind.__name__ for kind in own - abstract - {FromRun}} == {name.partition(",")[0] for name in ENCODERS}


def inputs_of(encoder, batch, length):
    """Return images or vectors, or texts of which only the first has the full length."""
    if not reads_texts(encoder):
        return torch.rand(batch, *encoder.input_shape)
    tokens = torch.randint(2, 20, (batch, length))
    tokens[1:, length - 1 :] = 0
    return tokens


@pytest.mark.parametrize("make", ENCODERS.values(), ids=ENCODERS)
def test_a_file_gives_the_encoders_features_in_batches_of_any_size(make, tmp_path):
    torch.manual_seed(0)
    encoder = make(tmp_path / "published")
    if reads_texts(encoder):
        encoder.observe(Texts(TEXTS))
    else:
        encoder.observe(torch.rand(16, *encoder.input_shape))
        encoder(torch.rand(16, *encoder.input_shape))  # running statistics that are not those of a new network
    encoder.train()
    file = tmp_path / "encoder.onnx"
    to_onnx(encoder, file)
    assert encoder.training
    assert not list(tmp_path.glob("*.partial"))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for batch, length in ((1, 2), (5, 2), (1, 30), (5, 30)):
        inputs = inputs_of(encoder, batch, length)
        (features,) = session.run(None, {"inputs": inputs.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(features), encoder.eval()(inputs), rtol=1e-4, atol=1e-5)


class Splitting(torch.nn.Module):
    """Takes batches of two alone, which only the file's session tells."""

    def forward(self, images):
        first, second = images.flatten(1).split(1)
        return torch.cat([first, second])


@pytest.mark.parametrize("fails", ["exporting", "copying", "computing"])
def test_whatever_keeps_a_file_from_being_written_is_told_in_a_line(fails, tmp_path, monkeypatch, capfd):
    encoder = Wrapped((1, 4, 4), Splitting() if fails == "exporting" else torch.nn.Flatten())
    if fails == "copying":
        encoder.handle = (one for one in ())  # as a session of onnxruntime, which can't be copied either
    if fails == "computing":
        monkeypatch.setattr(onnxruntime.InferenceSession, "run", lambda *_: 1 / 0)
    with pytest.raises(ValueError, match=r"expected an encoder that can be written as ONNX, got .*: export it") as told:
        to_onnx(encoder, tmp_path / "encoder.onnx")
    assert "\n" not in str(told.value)
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")
