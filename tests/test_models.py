"""Encoders and heads."""

import pytest
import torch

from likewise.models import MLP, ConvNet, ProjectionHead


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 20), (2, 3, 3), (1, 1, 1)])
@pytest.mark.parametrize("depth", [1, 4])
def test_convnet_takes_any_image_and_keeps_its_word_on_the_features(shape, depth):
    encoder = ConvNet(shape, width=4, depth=depth)
    assert encoder(torch.rand(2, *shape)).shape == (2, encoder.feature_dim)
    assert encoder.feature_dim == 4 * 2 ** (depth - 1)


def test_convnet_refuses_vectors_and_names_the_other_encoder():
    with pytest.raises(ValueError, match=r"got \(5,\): choose the encoder MLP"):
        ConvNet((5,))


def test_mlp_sees_images_as_vectors_of_any_unit():
    torch.manual_seed(0)
    encoder, images = MLP((2, 3, 3), width=8), torch.rand(64, 2, 3, 3)
    assert torch.allclose(encoder(images), encoder(1000 * images + 7), atol=1e-2)


def test_encoding_is_frozen_and_leaves_the_encoder_as_it_was():
    encoder = ConvNet((1, 8, 8), width=4).train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    features = encoder.encode(torch.rand(10, 1, 8, 8), batch_size=3)
    assert not features.requires_grad
    assert encoder.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_encoding_does_not_depend_on_the_batch_size():
    encoder, images = ConvNet((1, 8, 8), width=4), torch.rand(10, 1, 8, 8)
    assert torch.allclose(encoder.encode(images, batch_size=3), encoder.encode(images), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_an_encoder_of_any_dtype_encodes_to_float32(dtype):
    encoder = ConvNet((1, 8, 8), width=4).to(dtype)
    assert encoder.encode(torch.rand(10, 1, 8, 8)).dtype == torch.float32


@pytest.mark.parametrize("sizes", [{"width": 0}, {"depth": 0}])
def test_sizes_below_one_are_refused(sizes):
    for encoder in (ConvNet, MLP):
        with pytest.raises(ValueError, match=f"{next(iter(sizes))} of at least 1, got 0"):
            encoder((1, 8, 8), **sizes)
    with pytest.raises(ValueError, match="out_dim"):
        ProjectionHead(4, out_dim=0)
