"""Encoders, their standardisation, and heads."""

import pickle
import socket
import warnings
from functools import partial

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import nn

from likewise.files.detection import describe_pickle
from likewise.models import MLP, BagOfTokens, Conv4, ConvNet, ResNet, Timm, Wrapped, to_onnx
from likewise.models.heads import NoHead, PredictionHead, ProjectionHead

pytestmark = pytest.mark.slow


class Reader:
    """Rows that are read on demand, and record which."""

    def __init__(self, images):
        self.images, self.read = images, []
        self.shape, self.dtype = tuple(images.shape), images.dtype

    def __len__(self):
        return len(self.images)

    def __getitem__(self, rows):
        self.read.append(rows.tolist())
        return self.images[rows]


class Counting(nn.Module):
    """Counts its forwards in a buffer, half of the time in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("placed", torch.zeros(1))
        self.register_buffer("replaced", torch.zeros(1))
        self.norm = nn.BatchNorm2d(3)

    def forward(self, images):
        self.placed += 1
        self.replaced = self.replaced + 1
        return self.norm(images).mean(dim=(2, 3))


def pixels(*shape):
    """Sample uint8 images, each channel darker than the one before."""
    dimming = torch.arange(1, shape[1] + 1).view(-1, 1, 1)
    return (torch.randint(0, 256, shape) // dimming).to(torch.uint8)


def encoders(shape=(3, 16, 16)):
    return [
        ConvNet(shape, width=4),
        MLP(shape, width=8),
        ResNet(shape, depth=8, width=4),
        Timm(shape, "resnet10t"),
        Wrapped(shape, nn.Conv2d(shape[0], 5, kernel_size=3)),
    ]


@pytest.mark.parametrize(
    ("encoder", "side"),
    [
        *((ConvNet(shape, width=4, depth=depth), None) for shape, depth in (((3, 32, 20), 4), ((1, 1, 1), 1))),
        (ResNet((1, 8, 8), 8, width=4), 2),
        (ResNet((3, 32, 20), 18, width=4), 4),
        (ResNet((4, 63, 63), 50, width=4), 8),
        (ResNet((3, 64, 64), 18, width=4), 2),
        (ResNet((3, 64, 64), 34, width=4, stem="small"), 8),
    ],
)
def test_features_are_means_of_maps_which_the_stem_keeps_large_for_small_images(encoder, side):
    images = torch.rand(2, *encoder.input_shape)
    maps = encoder.eval().maps(images)
    assert maps.shape[:2] == (2, encoder.feature_dim)
    assert side in {None, maps.shape[2]}
    assert torch.allclose(encoder(images), maps.mean(dim=(2, 3)), atol=1e-6)


@pytest.mark.parametrize("depth", [34, 50])
def test_resnet_computes_what_torchvisions_does_with_the_same_weights(depth):
    theirs = getattr(torchvision.models, f"resnet{depth}")().eval()
    theirs.fc = nn.Identity()
    ours = ResNet((3, 64, 64), depth, stem="large").eval()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        mine.data.copy_(other)
    images = torch.rand(2, 3, 64, 64)
    assert torch.allclose(ours(images), theirs(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46)])
def test_resnets_for_cifar_have_the_published_number_of_parameters(depth, millions):
    classifier = 64 * 10 + 10
    parameters = sum(value.numel() for value in ResNet((3, 32, 32), depth).parameters())
    assert round((parameters + classifier) / 1e6, 2) == millions
    encoder = ResNet((1, 8, 8), depth, width=4).eval()  # with shortcuts that take every second pixel
    maps = encoder.stages[0](encoder.stem(torch.rand(2, 1, 8, 8)))
    stage = encoder.stages[1][0](maps)  # whose residual branch starts at zero
    assert torch.equal(stage[:, :4], maps[:, :, ::2, ::2])
    assert (stage[:, 4:] == 0).all()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ResNet((3, 4, 4)), "at least 5 pixels .* got 4: choose .*ConvNet"),
        (lambda: ResNet((3, 16, 16), 50, stem="large"), "at least 17 pixels .* got 16: choose the small stem.*ConvNet"),
        (lambda: ResNet((3, 32, 32), depth=19), "expected a depth of .*, got 19: "),
        (lambda: ResNet((3, 32, 32), stem="tiny"), "expected the stem .*, got tiny: "),
        *((partial(make, (5,)), r"got \(5,\): choose the encoder MLP") for make in (ConvNet, ResNet, Conv4)),
        (lambda: Timm((5,), "resnet18"), r"got \(5,\): choose the encoder MLP"),
        *((partial(MLP, shape), "give the shape of one input") for shape in ((), (0,), (3, 0, 8))),
        *((partial(make, (3, 32, 32), width=0), "width of at least 1, got 0") for make in (ConvNet, MLP, ResNet)),
        *((partial(make, (3, 32, 32), depth=0), "depth of at least 1, got 0") for make in (ConvNet, MLP)),
        *((partial(ProjectionHead, 4, **{of: 0}), f"{of} of at least 1") for of in ("out_dim", "hidden_dim", "layers")),
        *(
            (partial(made.maps, torch.zeros(2, 5)), rf"feature maps, got {type(made).__name__}: choose Conv4, Res")
            for made in (MLP((5,)), Wrapped((5,), nn.Linear(5, 3)))
        ),
        (lambda: ConvNet((1, 8, 8))(torch.ones(2, 1, 8, 8, dtype=torch.int64)), r"got torch\.int64: convert them to"),
    ],
)
def test_what_an_encoder_cannot_be_or_take_is_refused(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def test_mlp_sees_images_as_vectors_of_any_unit():
    encoder, images = MLP((2, 3, 3), width=8), torch.rand(64, 2, 3, 3)
    assert torch.allclose(encoder(images), encoder(1000 * images + 7), atol=1e-2)


@pytest.mark.parametrize("encoder", encoders(), ids=lambda encoder: type(encoder).__name__)
def test_an_encoder_standardises_by_its_own_mean_and_deviation(encoder):
    images = torch.rand(4, 3, 16, 16)
    plain = encoder.encode(images)
    statistics = torch.tensor([0.2, 0.5, 0.7]).view(3, 1, 1), torch.tensor([0.1, 0.3, 2.0]).view(3, 1, 1)
    encoder.mean.copy_(statistics[0])
    encoder.std.copy_(statistics[1])
    assert torch.allclose(encoder.encode(images * statistics[1] + statistics[0]), plain, atol=1e-5)
    assert not torch.allclose(encoder.encode(images), plain, atol=1e-3)
    assert {"mean", "std"} <= encoder.state_dict().keys()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float64])
def test_standardising_leaves_the_images_as_they_are(dtype):
    """It computes in place, on a copy of whatever layout is asked for."""
    encoder = ConvNet((3, 6, 5), width=4)
    encoder.std.fill_(0.5)
    images = (torch.rand(4, 3, 6, 5) * 255).round().to(torch.uint8)
    images = images if dtype is torch.uint8 else (images / 255).to(dtype)
    before = images.clone()
    same_layout, standardized = encoder.standardized(images), encoder.standardized(images, torch.channels_last)
    assert torch.equal(images, before)
    assert torch.equal(same_layout, standardized)
    assert standardized.is_contiguous(memory_format=torch.channels_last)
    expected = ((images / 255 if dtype is torch.uint8 else images.double()) - encoder.mean) / encoder.std
    torch.testing.assert_close(standardized, expected.float())
    with pytest.raises(ValueError, match=r"expected inputs of shape \(N, 3, 6, 5\), got \(3, 6, 5\)"):
        encoder(images[0])


@pytest.mark.parametrize("given", [lambda images: images, lambda images: images.float() / 255, Reader])
def test_observing_sets_mean_and_deviation_of_every_channel(given):
    images = pixels(2500, 3, 4, 5)
    values = images.double() / 255
    encoder, inputs = ConvNet((3, 4, 5), width=4), given(images)
    encoder.observe(inputs)
    if isinstance(inputs, Reader):
        assert [row for rows in inputs.read for row in rows] == list(range(2500))
    for channel in range(3):
        plain = values[:, channel].flatten()
        assert float(encoder.mean[channel]) == pytest.approx(float(plain.sum() / len(plain)), rel=1e-6)
        variance = (plain - plain.mean()).square().sum() / len(plain)
        assert float(encoder.std[channel]) == pytest.approx(float(variance.sqrt()), rel=1e-6)


def test_observing_loses_no_digits_far_from_zero_and_leaves_constant_channels_and_vectors():
    images = 1e6 + torch.rand(3000, 2, 4, 4, dtype=torch.float64)
    images[:, 1] = 0.1
    encoder = ConvNet((2, 4, 4), width=4).double()
    encoder.observe(images)
    assert float(encoder.std[0]) == pytest.approx(float(images[:, 0].std(correction=0)), rel=1e-9)
    assert (float(encoder.mean[1]), float(encoder.std[1])) == (pytest.approx(0.1), 1)
    vectors = MLP((5,), width=4)  # a layer standardises them
    vectors.observe(torch.rand(10, 5) + 3)
    assert (vectors.mean, vectors.std, vectors.mean.shape) == (0, 1, ())
    for images in (torch.zeros(0, 3, 4, 4), torch.zeros(5, 1, 4, 4), torch.zeros(3, 4, 4)):
        with pytest.raises(ValueError, match=r"expected images \(N, 3, height, width\).*: pass training inputs"):
            ConvNet((3, 4, 4)).observe(images)


@pytest.mark.parametrize("encoder", encoders(), ids=lambda encoder: type(encoder).__name__)
def test_encoding_is_frozen_and_leaves_the_encoder_as_it_was(encoder):
    encoder.train()
    frozen_part = next(part for part in reversed(list(encoder.modules())) if part is not encoder)
    frozen_part.eval()  # as one does with a part that is not to learn
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    features = encoder.encode(torch.rand(10, 3, 16, 16), batch_size=3)
    assert features.shape == (10, encoder.feature_dim)
    assert not features.requires_grad
    assert [part for part in encoder.modules() if not part.training] == [frozen_part]
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_encoding_that_fails_leaves_the_mode_as_it_was_and_no_inputs_have_no_features():
    encoder = ConvNet((1, 8, 8), width=4).train()
    with pytest.raises(ValueError, match="shape"):
        encoder.encode(torch.rand(10, 2, 8, 8))
    assert all(part.training for part in encoder.modules())
    assert encoder.encode(torch.zeros(0, 1, 8, 8)).shape == (0, 16)


def test_rows_are_read_one_batch_at_a_time_and_fewer_of_large_inputs():
    encoder, reader, steps = ConvNet((1, 8, 8), width=4), Reader(pixels(10, 1, 8, 8)), []
    assert torch.equal(encoder.encode(reader, batch_size=4), encoder.encode(reader.images, batch_size=4))
    assert torch.allclose(encoder.encode(reader.images), encoder.encode(reader.images, batch_size=4), atol=1e-6)
    assert reader.read == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    for shape, count in (((1, 1024, 1024), 9), ((3,), 2000)):
        inputs, progress = torch.zeros(count, *shape), lambda starts: steps.append(list(starts)) or starts
        MLP(shape, width=2, depth=1).encode(inputs, progress=progress)
    assert steps == [[0, 4, 8], [0, 1024]]


def test_an_encoder_of_any_dtype_encodes_to_float32_and_half_precision_loses_no_pixel():
    for encoder in encoders():
        for dtype in (torch.bfloat16, torch.float64):
            assert encoder.to(dtype).encode(pixels(4, 3, 16, 16)).dtype == torch.float32
    encoder = ConvNet((1, 16, 16), width=4).bfloat16()
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    encoder.mean.fill_(0.5)
    encoder.std.fill_(0.25)
    wanted = ((images.float() / 255 - 0.5) / 0.25).bfloat16()
    assert torch.equal(encoder.standardized(images), wanted)


def test_a_small_stem_keeps_the_image_size_until_the_stages():
    shape = (3, 32, 32)
    small, own = Timm(shape, "resnet18", stem="small"), Timm(shape, "resnet18")
    images = torch.rand(2, *shape)
    assert small.eval().model.forward_features(images).shape == (2, 512, 4, 4)
    assert own.eval().model.forward_features(images).shape == (2, 512, 1, 1)
    ours = sorted(value.shape for value in ResNet(shape, 18).parameters())
    assert sorted(value.shape for value in small.parameters()) == ours
    assert Timm(shape, "mobilenetv3_small_050").feature_dim == 1024  # of its head: num_features are 288


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("resnet10t", {"stem": "small"}, "expected a network with a ResNet's stem.*got resnet10t: leave"),
        ("test_vit", {"stem": "small"}, "expected a network with a ResNet's stem.*got test_vit: leave"),
        ("resnet81", {}, "did you mean resnet18"),
        ("resnet18.nope", {}, "got nope: choose a1_in1k"),
        ("xyzzy", {}, r"timm.list_models\(\) lists them"),
        (
            "test_convnext",
            {"input_shape": (3, 2, 2)},
            r"\(3, 2, 2\), got RuntimeError: .*: .*choose larger .*shallower",
        ),
        ("test_resnet", {"checkpoint": "missing.pth"}, r"expected .*, got missing\.pth: "),
    ],
)
def test_what_timm_cannot_make_is_refused_in_one_line(name, options, told):
    with pytest.raises(ValueError, match=told) as refused:
        Timm(**{"input_shape": (3, 32, 32), "name": name} | options)
    assert "\n" not in str(refused.value)


def test_pretrained_weights_without_network_fail_at_once_in_one_line(monkeypatch, tmp_path):
    waited = []

    def refuse(*_, **__):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("time.sleep", waited.append)
    with pytest.raises(ValueError, match=r"expected the weights of resnet18 .*: .* as checkpoint$") as told:
        Timm((3, 32, 32), "resnet18", pretrained=True)
    assert "\n" not in str(told.value)
    assert not waited  # to try again


def _saved(tmp_path, name="resnet10t", **options):
    model = timm.create_model(name, **options)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    return model.eval(), str(tmp_path / "weights.pth")


def test_published_weights_come_from_a_file_with_their_own_mean_and_deviation(tmp_path):
    model, file = _saved(tmp_path)
    model.reset_classifier(0)
    encoder = Timm((3, 64, 64), "resnet10t", checkpoint=file).eval()
    encoder.observe(torch.rand(8, 3, 64, 64))
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    assert torch.equal(encoder.mean, mean)
    assert torch.equal(encoder.std, std)
    images = torch.rand(2, 3, 64, 64)
    assert torch.allclose(encoder(images), model((images - mean) / std), atol=1e-6)
    arguments = {"input_shape": (3, 64, 64), "name": "resnet10t", "pretrained": True, "checkpoint": file}
    again = Timm(**{**arguments, **Timm.rebuilt_with})  # without its source
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again.encode(images), encoder.encode(images))
    grey = Timm((1, 64, 64), "resnet10t", checkpoint=file)  # whose weights are those of colours, summed
    assert torch.allclose(grey.model.conv1[0].weight, model.conv1[0].weight.sum(dim=1, keepdim=True), atol=1e-6)
    assert float(grey.mean) == pytest.approx(float(mean.mean()))
    model, file = _saved(tmp_path, "test_vit")  # of images of another size
    encoder = Timm((3, 64, 64), "test_vit", checkpoint=file)
    assert torch.equal(encoder.model.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.weight)


@pytest.mark.parametrize(("name", "other"), [("resnet18", "resnet34"), ("test_resnet", "test_vit")])
def test_weights_of_another_network_are_refused(tmp_path, caplog, name, other):
    model, _ = _saved(tmp_path, other)
    file = str(tmp_path / "trained.pth")
    torch.save({"epoch": 3, "state_dict": {f"module.{key}": of for key, of in model.state_dict().items()}}, file)
    own = timm.create_model(name, num_classes=0)
    given = {key for key, of in model.state_dict().items() if of.is_floating_point()}
    missing = len([key for key, _ in own.named_parameters() if key not in given])
    further = len([key for key in given if key not in own.state_dict() and key.startswith("layer")])
    counts = f"{missing} missing, {further} too many and 0 of other shapes, such as "
    told = "give a file of this network, or the name of theirs"
    with pytest.raises(ValueError, match=rf"^expected weights of {name} in .*trained\.pth, got {counts}.*: {told}$"):
        Timm((3, 64, 64), name, checkpoint=file)
    assert not caplog.records  # timm would log a line of all keys


def test_weights_with_another_head_are_taken(tmp_path, caplog):
    model, _ = _saved(tmp_path, "test_resnet")
    weights = {key: of for key, of in model.state_dict().items() if not key.startswith("fc.")}
    further = {"fc.0.weight": torch.rand(7, 256), "fc.2.bias": torch.rand(7), "decoder.weight": torch.rand(2, 2)}
    torch.save({**weights, **further}, tmp_path / "tuned.pth")
    encoder = Timm((3, 64, 64), "test_resnet", checkpoint=str(tmp_path / "tuned.pth"))
    assert all(torch.equal(of, weights[key]) for key, of in encoder.model.state_dict().items())
    assert not caplog.records


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("the file was unpickled",)


@pytest.mark.parametrize("save", [torch.save, lambda of, path: path.write_bytes(pickle.dumps(of))])
def test_a_pickled_module_is_never_loaded_and_named_with_the_remedy(tmp_path, save):
    module = timm.create_model("test_resnet")
    module.bomb = Bomb()
    save(module, tmp_path / "whole.pth")
    with pytest.raises(ValueError, match=r"whole\.pth, got pickled objects.*torch\.save\(module\.state_dict") as error:
        Timm((3, 64, 64), "test_resnet", checkpoint=str(tmp_path / "whole.pth"))
    assert "images" not in str(error.value)


def test_old_files_of_weights_and_scripts_are_told_apart(tmp_path):
    module = nn.Linear(2, 1)
    torch.save(module.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    torch.save(module, tmp_path / "old-module.pth", _use_new_zipfile_serialization=False)
    with warnings.catch_warnings(action="ignore"):  # scripting is deprecated
        torch.jit.save(torch.jit.script(module), tmp_path / "script.pt")
    (tmp_path / "notes.txt").write_text("PK and more")
    assert [describe_pickle(tmp_path / name)[:14] for name in ("old.pth", "notes.txt", "none.pth", ".")] == [""] * 4
    assert describe_pickle(tmp_path / "old-module.pth").startswith("pickled objects, which nothing here loads")
    assert describe_pickle(tmp_path / "script.pt").startswith("a TorchScript module, which nothing here loads")
    (tmp_path / "page.pth").write_text("no weights")
    with pytest.raises(ValueError, match=r"expected weights of .*, got a file of something else: "):
        Timm((3, 64, 64), "test_resnet", checkpoint=str(tmp_path / "page.pth"))


def test_a_wrapped_module_returns_vectors_or_maps():
    images = torch.rand(2, 3, 8, 8)
    vectors = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    assert torch.equal(Wrapped((3, 8, 8), vectors)(images), vectors(images))
    maps = nn.Conv2d(3, 7, kernel_size=3)
    encoder = Wrapped((3, 8, 8), maps)
    assert encoder.feature_dim == 7
    assert torch.allclose(encoder.maps(images), maps(images), atol=1e-6)
    assert torch.allclose(encoder(images), maps(images).mean(dim=(2, 3)), atol=1e-6)
    assert Wrapped((5,), nn.Linear(5, 3)).encode(torch.rand(4, 5)).shape == (4, 3)
    assert Wrapped((3, 8, 8), maps.double())(pixels(2, 3, 8, 8)).dtype == torch.float64
    unstandardised, bytes_ = Wrapped((3, 8, 8), nn.Flatten(), standardize=False), pixels(8, 3, 8, 8)
    unstandardised.observe(bytes_)
    assert torch.equal(unstandardised(bytes_), bytes_.flatten(1).float() / 255)


def test_a_dry_run_changes_no_buffer_and_no_mode():
    module = Counting().train()
    Wrapped((3, 8, 8), module)
    assert (module.placed, module.replaced, module.norm.num_batches_tracked) == (0, 0, 0)
    assert all(part.training for part in module.modules())
    module(torch.rand(2, 3, 8, 8))
    assert (module.placed, module.replaced) == (1, 1)
    assert module.state_dict().keys() == Counting().state_dict().keys()


def test_a_dry_run_uses_evaluation_mode_and_gives_lazy_layers_their_shapes():
    class WithAuxiliary(nn.Flatten):
        def forward(self, images):
            features = super().forward(images)
            return (features, features) if self.training else features

    assert Wrapped((3, 2, 2), WithAuxiliary().train()).feature_dim == 12
    encoder = Wrapped((3, 8, 8), nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()))
    assert encoder.module[0].weight.shape == (4, 3, 3, 3)
    assert encoder(torch.rand(2, 3, 8, 8)).shape == (2, 4)


def test_a_wrapped_module_takes_images_with_channels_last_if_it_can():
    class Flattened(nn.Conv2d):
        """Takes its maps as they lie in memory, which channels last would change."""

        def forward(self, images):
            maps = super().forward(images)
            return maps.view(len(maps), -1)

    formats, images, flattened = [], torch.rand(2, 3, 8, 8), Flattened(3, 4, kernel_size=3)
    for module in (nn.Conv2d(3, 7, kernel_size=3), flattened):
        encoder = Wrapped((3, 8, 8), module)
        with module.register_forward_pre_hook(
            lambda _, inputs: formats.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
        ):
            encoder(images)
    assert formats == [True, False]
    assert torch.allclose(encoder(images), flattened(images))


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("my.Net", "expected a torch.nn.Module to wrap, got str: pass"),
        (nn.Conv2d(3, 4, 9), r"expected Conv2d to take inputs of shape \(3, 8, 8\), got RuntimeError: .*too small"),
        (nn.Flatten(2), r"expected Flatten to return features .* got \(2, 3, 64\)"),
        (nn.MaxPool2d(2, return_indices=True), "expected MaxPool2d to return a tensor, got tuple"),
        (nn.Module(), "expected Module to take .* got NotImplementedError"),
    ],
)
def test_a_module_that_cannot_be_an_encoder_is_refused_in_one_line(module, told):
    with pytest.raises(ValueError, match=told) as error:
        Wrapped((3, 8, 8), module)
    assert "\n" not in str(error.value)


def test_heads_are_those_of_simclr_and_byol():
    assert [type(layer) for layer in ProjectionHead(8, 16, 4).layers] == [nn.Linear, nn.ReLU, nn.Linear]
    head, block = ProjectionHead(8, 16, 4, layers=2, batch_norm=True), [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert [type(layer) for layer in head.layers] == [*block, *block, nn.Linear]
    linear = [layer for layer in head.layers if isinstance(layer, nn.Linear)]
    assert [layer.weight.shape for layer in linear] == [(16, 8), (16, 16), (4, 16)]
    assert [layer.bias is None for layer in linear] == [True, True, False]
    assert head(torch.rand(3, 8)).shape == (3, head.embedding_dim)
    prediction, features = PredictionHead(4, hidden_dim=16), torch.rand(3, 4)
    assert [type(layer) for layer in prediction.layers] == [*block, nn.Linear]
    assert prediction(features).shape == (3, prediction.embedding_dim) == (3, 4)
    assert NoHead(4)(features) is features
    assert NoHead(4).embedding_dim == 4


def test_a_file_that_gives_other_features_is_not_kept_and_a_missing_extra_is_named(monkeypatch, tmp_path):
    encoder = MLP((5,), width=8)
    with pytest.raises(ValueError, match=r"within -1 of the encoder's, got .* in a batch of 1: "):
        to_onnx(encoder, tmp_path / "encoder.onnx", tolerance=-1)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("likewise.models.onnx.find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'likewise\[onnx\]'") as told:
        to_onnx(encoder, tmp_path / "encoder.onnx")
    assert told.value.name == "onnx"


@pytest.mark.parametrize(
    ("encoder", "inputs", "words"),
    [
        (MLP((3,), width=4), np.zeros((5, 3), np.float32), "expected inputs as a tensor, got ndarray: convert"),
        (MLP((3,), width=4), ["a text"], "got list: convert arrays.*an encoder of texts"),
        (MLP((3,), width=4), torch.zeros(3), r"shape \(N, 3\), got \(3,\)"),
        (ConvNet((3, 8, 8)), torch.zeros(2, 1, 8, 8), r"shape \(N, 3, 8, 8\), got \(2, 1, 8, 8\)"),
        (BagOfTokens(()), "a text", "expected texts, got str: pass a list of strings"),
        (BagOfTokens(()), np.zeros((5, 3)), "expected texts, got ndarray"),
    ],
)
def test_inputs_of_another_kind_or_shape_are_refused(encoder, inputs, words):
    """One channel would be broadcast to three, and encoded as something else."""
    with pytest.raises(ValueError, match=words):
        encoder.encode(inputs)


def test_images_of_another_size_are_encoded_with_a_warning_where_the_network_can():
    words = r"^expected images of 8 x 8 pixels, which the encoder was made for, got 16 x 12"
    with pytest.warns(UserWarning, match=f"{words}: resize them, or features may be worse$") as seen:
        assert ConvNet((3, 8, 8)).encode(torch.zeros(5, 3, 16, 12), batch_size=2).shape == (5, 128)
    assert len(seen) == 1
    with (
        pytest.warns(UserWarning, match=words),
        pytest.raises(ValueError, match=f"{words}, which it cannot take: resize them$"),
    ):
        MLP((3, 8, 8), width=4).encode(torch.zeros(2, 3, 16, 12))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_floating_point_images_are_encoded_from_0_to_1_alone(dtype):
    """Those of 0 to 255, and those that are normalised already, would be encoded as something else."""
    encoder, images = ConvNet((3, 8, 8), width=4), pixels(6, 3, 8, 8)
    images[-1, 0, 0, :2] = torch.tensor([0, 255])
    encoder.observe(images)
    plain = encoder.encode((images.double() / 255).to(dtype))
    assert torch.allclose(plain, encoder.encode(images), atol=1e-2)
    normalised = (images.double() / 255 - encoder.mean) / encoder.std
    for wrong in (images.double(), normalised, torch.full((1, 3, 8, 8), torch.nan)):
        low, high = wrong.to(dtype).aminmax()
        words = f"got {float(low):.4g} to {float(high):.4g}: divide by their largest possible value, leave mean and"
        with pytest.raises(ValueError, match=rf"^expected images of uint8, or floating point from 0 to 1, {words}"):
            encoder.encode(wrong.to(dtype))
        with pytest.raises(ValueError, match="from 0 to 1"):
            encoder.encode(Reader(wrong.to(dtype)))


def test_other_ranges_are_encoded_where_a_resize_overshoots_or_the_encoder_has_observed_them_or_nothing():
    """Bicubic interpolation of black and white reaches -0.2 and 1.2; decibels have their own mean and deviation."""
    encoder, images = ConvNet((3, 8, 8), width=4), pixels(6, 3, 8, 8)
    assert encoder.encode(torch.randn(4, 3, 8, 8)).isfinite().all()
    encoder.observe(images)
    assert encoder.encode(torch.tensor([-0.2, 1.2]).repeat(96).reshape(1, 3, 8, 8)).isfinite().all()
    narrow = ConvNet((1, 8, 8), width=4)
    narrow.observe(torch.linspace(-0.43, 0.9, 64).reshape(1, 1, 8, 8).repeat(20, 1, 1, 1))
    assert narrow.encode(torch.full((1, 1, 8, 8), -0.43)).isfinite().all()
    decibels = torch.randn(20, 1, 8, 8) * 20 - 40
    encoder, standard = ConvNet((1, 8, 8), width=4), ConvNet((1, 8, 8), width=4)
    encoder.observe(decibels)
    standard.load_state_dict(encoder.state_dict() | {"mean": torch.zeros(1, 1, 1), "std": torch.ones(1, 1, 1)})
    standardised = (decibels - encoder.mean) / encoder.std
    assert torch.allclose(encoder.encode(decibels), standard.eval()(standardised), atol=1e-4)
