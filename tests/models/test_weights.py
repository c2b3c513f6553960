"""Weights of anybody's files: which tensors go where, what is told of the others, and what is refused."""

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file

from likewise.models import MLP, Timm, Wrapped
from likewise.models.weights import load_weights


def _made(seed, make=torchvision.models.resnet18):
    torch.manual_seed(seed)
    made = make()
    for part in made.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_()
    return made


def _features(module, images):
    module.fc = torch.nn.Identity()
    with torch.no_grad():
        return module.eval()(images)


@pytest.mark.parametrize(
    "written",
    [
        lambda of: of,
        lambda of: {f"module.{name}": tensor for name, tensor in of.items()},
        lambda of: {"epoch": 3, "state_dict": {f"module.encoder.{name}": tensor for name, tensor in of.items()}},
        lambda of: {"model": {f"backbone.{name}": tensor for name, tensor in of.items()}, "optimizer": {"lr": 0.1}},
        lambda of: {
            "state_dict": {f"module.{name}": tensor for name, tensor in of.items()},
            "best": torch.tensor(76.1),
        },
        lambda of: {"teacher": {f"backbone.{name}": tensor for name, tensor in of.items()}},
        lambda of: {f"student.{name}": tensor * 0 for name, tensor in list(of.items())[:3]} | of,
    ],
    ids=[
        "plain",
        "module",
        "state_dict, module.encoder",
        "model, backbone",
        "beside a score",
        "teacher",
        "a part twice",
    ],
)
def test_a_networks_own_features_come_back_whatever_stands_before_the_names(written, tmp_path):
    trained, images = _made(0), torch.randn(2, 3, 64, 64)
    torch.save(written(trained.state_dict()), tmp_path / "weights.pth")
    encoder = Timm((3, 64, 64), "resnet18")
    matched = load_weights(encoder, tmp_path / "weights.pth")
    assert matched.missing == ()
    assert {name.rpartition("fc.")[2] for name in matched.unexpected if "fc." in name} == {"weight", "bias"}
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval().model(images), _features(trained, images))


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
    torch.save(timm.create_model("mobilenetv3_small_050").state_dict(), tmp_path / "other.pth")
    encoder = Timm((3, 64, 64), "resnet18")
    before = {name: of.clone() for name, of in encoder.state_dict().items()}
    with pytest.raises(
        ValueError,
        match=r"expected weights of Timm, got \d% of its numbers, 12 of \d+ tensors from .*other.pth; missing: ",
    ):
        load_weights(encoder, tmp_path / "other.pth")
    assert all(torch.equal(of, before[name]) for name, of in encoder.state_dict().items())
    (tmp_path / "text.pth").write_text("no weights")
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    torch.save(torch.nn.Linear(1, 1), tmp_path / "module.pth")
    for file, said in (
        ("none.pth", "which does not exist"),
        ("text.pth", "written by torch.save, got"),
        ("empty.pth", "expected tensors by name in .*empty.pth, got none"),
        ("module.pth", "got pickled objects"),
    ):
        with pytest.raises(ValueError, match=said):
            load_weights(encoder, tmp_path / file)
