"""Batch normalisation over the batch of all processes, with the exact gradient: on GPUs PyTorch's, on CPUs our own.

mean = Σ x / n      variance = Σ (x − mean)² / n      both sums over the samples of all processes
"""

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - the base of all three

from likewise import distributed


@final
class GatheredBatchNorm(_BatchNorm):
    """Batch normalisation with the statistics of all processes, with parameters and buffers of what it replaces."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 - PyTorch's name
        if input.ndim < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.ndim}: samples by channels")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        """Normalise inputs (N, C, ...)."""
        if distributed.world_size() == 1 or not (self.training or self.running_mean is None):
            return super().forward(input)
        self._check_input_dim(input)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        rest, by_channel = [0, *range(2, x.ndim)], (1, -1, *[1] * (x.ndim - 2))
        count = distributed.total(x.new_full((), x.numel() / x.shape[1], dtype=torch.float64)).to(x.dtype)
        mean = distributed.summed(x.sum(dim=rest)) / count
        centred = x - mean.view(by_channel)
        variance = distributed.summed(centred.square().sum(dim=rest)) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        normal = centred * (variance + self.eps).rsqrt().view(by_channel)
        if self.affine:
            normal = normal * self.weight.view(by_channel) + self.bias.view(by_channel)
        return normal.to(input.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        if not self.training or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None  # noqa: S101 - it is there whenever the statistics are
        self.num_batches_tracked.add_(1)
        by = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), by)
        self.running_var.lerp_(variance.to(self.running_var.dtype), by)


def synchronize(module: nn.Module, device: torch.device) -> None:
    """Replace all batch normalisations within a module by ones that normalise the batch of all processes."""
    if device.type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            module.register_module(name, _gathered(child))
        else:
            synchronize(child, device)


def _gathered(layer: Any) -> GatheredBatchNorm:
    made = GatheredBatchNorm(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
    for name in [*dict(made.named_parameters()), *dict(made.named_buffers())]:
        delattr(made, name)
    for name, parameter in layer.named_parameters():
        made.register_parameter(name, parameter)  # the same tensors: an optimizer may know them
    for name, buffer in layer.named_buffers():  # in a momentum encoder, its weights too
        made.register_buffer(name, buffer)
    return made.train(layer.training)
