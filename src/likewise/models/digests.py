"""Digests of networks, by which published weights are recognised."""

import warnings
from hashlib import blake2b

import torch
from torch import nn


def digest_of(network: nn.Module) -> str:
    """Return a digest of a network's numbers, in float32 and in their order, whatever they are called."""
    digest = blake2b(digest_size=16)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def check_digest(name: str, digest: str | None, expected: str | None) -> None:
    """Warn where weights are not those that a run began with."""
    if expected is not None and digest != expected:
        warnings.warn(
            f"the weights of {name} are not those that the run began with: their digest is {digest}, not {expected}",
            stacklevel=3,
        )
