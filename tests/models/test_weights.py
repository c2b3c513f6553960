"""Weights of anybody's files: which tensors go where, what is told of the others, and what is refused."""

import pickle

import pytest
import timm
import torch
from safetensors.torch import save_file

from likewise.data import Texts
from likewise.models import MLP, BagOfTokens, Timm, Transformer, Wrapped
from likewise.models.weights import BY_ORDER, load_weights

pytestmark = pytest.mark.slow


class Small(torch.nn.Module):
    """A network with the names of a ResNet's parts."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8)
        block = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU())
        self.layer1, self.pool = torch.nn.Sequential(block), torch.nn.AdaptiveAvgPool2d(1)
        self.fc = torch.nn.Linear(16, 4)

    def forward(self, images):
        return self.fc(self.pool(self.layer1(self.bn1(self.conv1(images)))).flatten(1))


def _made(seed):
    """Return a network, and one without its classifier as an encoder."""
    torch.manual_seed(seed)
    made, other = Small(), Small()
    other.fc = torch.nn.Identity()
    for part in made.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_()
    return made, Wrapped((3, 16, 16), other)


def _same_features(encoder, trained):
    """Compare an encoder's features with those of a network, up to its classifier."""
    images, trained.fc = torch.randn(2, 3, 16, 16), torch.nn.Identity()
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval().module(images), trained.eval()(images))


def _below(start, of):
    return {f"{start}{name}": tensor for name, tensor in of.items()}


@pytest.mark.parametrize(
    "written",
    [
        lambda of: of,
        lambda of: {"epoch": 3, "state_dict": _below("module.encoder.", of), "best": torch.tensor(76.1)},
        lambda of: {"teacher": _below("backbone.", of), "optimizer": {"lr": 0.1}},
        lambda of: {f"student.{name}": tensor * 0 for name, tensor in list(of.items())[:3]} | of,
    ],
    ids=["plain", "state_dict, module.encoder", "teacher", "a part twice"],
)
def test_a_networks_own_features_come_back_whatever_stands_before_the_names(written, tmp_path):
    trained, encoder = _made(0)
    torch.save(written(trained.state_dict()), tmp_path / "weights.pth")
    matched = load_weights(encoder, tmp_path / "weights.pth")
    assert matched.missing == ()
    assert {name.rpartition("fc.")[2] for name in matched.unexpected if "fc." in name} == {"weight", "bias"}
    _same_features(encoder, trained)


def test_safetensors_of_a_transformer_with_a_head(tmp_path):
    """As of a masked language model: names begin with the model's, and its head has no place."""
    from transformers import BertConfig, BertForMaskedLM  # noqa: PLC0415 - of an extra

    config = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    trained = BertForMaskedLM(config)
    save_file({name: of.clone() for name, of in trained.state_dict().items()}, tmp_path / "model.safetensors")
    network = Wrapped((4,), _Reads(type(trained.bert)(config, add_pooling_layer=False)))
    matched = load_weights(network, tmp_path / "model.safetensors")
    assert matched.missing == ()
    assert all(name.startswith("cls.") for name in matched.unexpected)
    for name, of in trained.bert.state_dict().items():
        assert torch.equal(network.module.model.state_dict()[name], of)


class _Reads(torch.nn.Module):
    """Takes numbers as tokens."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x.long().clamp(0, 59)).last_hidden_state.mean(dim=1)


def test_what_is_missing_or_not_used_is_named(tmp_path):
    given = MLP((3,), width=8).state_dict()
    gone = [name for name in given if given[name].ndim == 2][:1]
    torch.save(
        {name: of for name, of in given.items() if name not in gone} | {"fc.weight": torch.ones(2, 2)},
        tmp_path / "w.pt",
    )
    encoder = MLP((3,), width=8)
    before = encoder.state_dict()[gone[0]].clone()
    matched = load_weights(encoder, tmp_path / "w.pt")
    assert (matched.missing, matched.unexpected) == (tuple(gone), ("fc.weight",))
    assert torch.equal(encoder.state_dict()[gone[0]], before)
    assert str(matched).endswith(f"w.pt; missing: {gone[0]}; not used: fc.weight")


def test_files_of_other_networks_are_refused(tmp_path):
    torch.save(timm.create_model("test_efficientnet").state_dict(), tmp_path / "other.pth")
    _, encoder = _made(0)
    before = {name: of.clone() for name, of in encoder.state_dict().items()}
    with pytest.raises(ValueError, match=r"of Wrapped, got \d+% of its numbers, \d+ of \d+ tensors .*; missing: "):
        load_weights(encoder, tmp_path / "other.pth")
    assert all(torch.equal(of, before[name]) for name, of in encoder.state_dict().items())
    with pytest.raises(ValueError, match="which does not exist"):
        load_weights(encoder, tmp_path / "none.pth")


def _others(of):
    return {name: tensor + 1 for name, tensor in of.items()}


def _copies(first, other):
    """Two copies of a network, the second with other numbers."""
    return lambda of: _below(first, of) | _below(other, _others(of))


@pytest.mark.parametrize(
    ("written", "chosen"),
    [
        (
            lambda of: _copies("encoder_q.", "encoder_k.")(of) | {"queue": torch.ones(128, 9)},
            "encoder_q, not encoder_k",
        ),
        (lambda of: {"state_dict": _copies("backbone.", "backbone_momentum.")(of)}, "backbone, not backbone_momentum"),
        (_copies("teacher_backbone.", "student_backbone."), "teacher_backbone, not student_backbone"),
        (
            lambda of: {"student": _below("module.backbone.", _others(of)), "teacher": _below("backbone.", of)},
            "teacher, not student",
        ),
        (
            lambda of: {"state_dict": _others(of), "state_dict_ema": of, "optimizer": {"state": {0: torch.ones(2)}}},
            "state_dict_ema, not state_dict",
        ),
        (lambda of: {"model_state": of, "ema": {"decay": 0.99}}, ""),
    ],
    ids=["MoCo", "lightly's MoCo", "lightly's DINO", "DINO", "timm's average", "no average in it"],
)
def test_of_two_copies_the_trained_one_is_taken_and_named(written, chosen, tmp_path):
    trained, encoder = _made(0)
    torch.save(written(trained.state_dict()), tmp_path / "weights.pth")
    matched = load_weights(encoder, tmp_path / "weights.pth")
    assert (matched.missing, matched.chosen) == ((), chosen)
    assert f"weights.pth{chosen and f' ({chosen})'}; not used: " in str(matched)
    assert {name.rpartition("fc.")[2] for name in matched.unexpected} - {"queue"} == {"weight", "bias"}
    _same_features(encoder, trained)


def test_a_network_cut_into_a_sequence_comes_back_in_order(tmp_path):
    """As lightly's backbones are: names are the numbers of children."""
    trained, encoder = _made(0)
    cut = torch.nn.Sequential(*list(trained.children())[:-1])
    held = _below("backbone_momentum.", _others(cut.state_dict())) | _below("backbone.", cut.state_dict())
    torch.save({"state_dict": held | {"head.weight": torch.ones(3, 3)}}, tmp_path / "lightly.ckpt")
    matched = load_weights(encoder, tmp_path / "lightly.ckpt")
    assert (matched.missing, matched.chosen) == ((), BY_ORDER)
    _same_features(encoder, trained)
    with pytest.raises(ValueError, match=r"got \d+% of its numbers"):
        load_weights(Timm((3, 64, 64), "resnet10t"), tmp_path / "lightly.ckpt")


def _renamed(of, words):
    """Return tensors under names that have nothing in common with theirs, but what `words` makes of the last word."""
    return {f"{row}/{words(name.rpartition('.')[2])}": tensor for row, (name, tensor) in enumerate(of.items())}


OTHERS = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}


@pytest.mark.parametrize(
    "words", [lambda word: word, OTHERS.get, lambda _: "array"], ids=["the same", "others", "none that mean a kind"]
)
def test_other_names_are_matched_in_order_where_all_shapes_agree(words, tmp_path):
    trained = Timm((3, 64, 64), "test_efficientnet")
    held = {name: of for name, of in trained.model.state_dict().items() if not name.endswith("num_batches_tracked")}
    torch.save(_renamed(held, words) | {"fc": torch.ones(5, 7)}, tmp_path / "weights.pth")
    encoder = Timm((3, 64, 64), "test_efficientnet")
    matched = load_weights(encoder, tmp_path / "weights.pth")
    assert str(matched).endswith(f"({BY_ORDER}); not used: fc")
    assert all(torch.equal(of, encoder.model.state_dict()[name]) for name, of in held.items())


def test_an_order_that_is_not_the_networks_is_refused(tmp_path):
    """Names that mean another kind tell it, and .safetensors sorts its tensors."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4, bias=False) for _ in range(12)]  # sorted by name, 10 and 11 come before 2
    network = Wrapped((4,), torch.nn.Sequential(*layers, torch.nn.LayerNorm(4)))
    norm = {"norm.beta": torch.ones(4), "norm.gamma": torch.ones(4)}
    alike = {f"a{number}.weight": of.weight.detach() for number, of in enumerate(layers)}
    torch.save(alike | norm, tmp_path / "other_kinds.pth")
    save_file(alike | {"norm.array": torch.ones(4), "norm.brray": torch.ones(4)}, tmp_path / "sorted.safetensors")
    for file in ("other_kinds.pth", "sorted.safetensors"):
        with pytest.raises(ValueError, match=r"expected weights of Wrapped, got \d% of its numbers"):
            load_weights(network, tmp_path / file)
    torch.save(alike | dict(reversed(norm.items())), tmp_path / "right.pth")
    assert load_weights(network, tmp_path / "right.pth").chosen == BY_ORDER


@pytest.mark.parametrize("make", [Transformer, BagOfTokens])
def test_embeddings_of_other_tokens_are_refused(make, tmp_path):
    """They have the same shape, so that they would match."""
    texts = Texts(["pull what is alike", "push what is not"])
    trained, alike, other = (make((), width=16, vocabulary=20) for _ in range(3))
    trained.observe(texts)
    alike.observe(texts)
    other.observe(Texts(["a sunny day by the sea", "rain all night"]))
    torch.save({"encoder": trained.state_dict()}, tmp_path / "run.pth")
    assert load_weights(alike, tmp_path / "run.pth").missing == ()
    assert torch.equal(alike.eval().encode(texts), trained.eval().encode(texts))
    before = {name: of.clone() for name, of in other.state_dict().items()}
    with pytest.raises(ValueError, match=r"run.pth, which has embeddings of other tokens: begin with the run, --enc"):
        load_weights(other, tmp_path / "run.pth")
    torch.save({name: of for name, of in trained.state_dict().items() if name != "tokenizer"}, tmp_path / "bare.pth")
    with pytest.raises(ValueError, match=r"bare.pth, which has no tokenizer: begin"):
        load_weights(other, tmp_path / "bare.pth")
    assert all(torch.equal(of, before[name]) for name, of in other.state_dict().items())


class _Runs:
    """Runs code where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (type(self.path).touch, (self.path,))


def test_what_is_no_file_of_weights_is_refused_in_a_line_and_runs_nothing(tmp_path):
    encoder, evil, loop = MLP((3,), width=8), tmp_path / "evil", {}
    loop["model"] = loop
    files = {
        name: tmp_path / name for name in ("loop.pth", "page.pth", "object.pth", "old.pth", "folder", "nothing.pth")
    }
    for suffix, save in ((".pth", torch.save), (".safetensors", save_file)):
        save(encoder.state_dict(), tmp_path / f"whole{suffix}")
        content = (tmp_path / f"whole{suffix}").read_bytes()
        files[f"cut{suffix}"] = tmp_path / f"cut{suffix}"
        files[f"cut{suffix}"].write_bytes(content[: len(content) // 2])
    torch.save({"model": loop}, files["loop.pth"])
    files["page.pth"].write_text("<!DOCTYPE html>\n<html>\nNot found</html>\n" * 50)
    files["nothing.pth"].touch()
    for protocol in range(6):
        files[str(protocol)] = tmp_path / f"{protocol}.pkl"
        files[str(protocol)].write_bytes(pickle.dumps({"a": _Runs(evil)}, protocol))
    torch.save({"a": _Runs(evil)}, files["object.pth"])
    torch.save({"a": _Runs(evil)}, files["old.pth"], _use_new_zipfile_serialization=False)
    files["folder"].mkdir()
    (files["folder"] / "encoder.safetensors").touch()
    told = {
        "folder": r"got the folder .*: give a file in it, encoder.safetensors$",
        "object.pth": "got pickled objects",
    }
    told |= {"page.pth": "by torch.save, got", "loop.pth": "expected tensors by name in .*loop.pth, got none"}
    for name, path in files.items():
        with pytest.raises(ValueError, match=rf"^(?=expected ).*{told.get(name, '')}") as refused:
            load_weights(encoder, path)
        message = str(refused.value)
        assert "\n" not in message, path
        assert str(path) in message, path
        assert len(message) < 330 + len(str(path)), path
    assert not evil.exists()
