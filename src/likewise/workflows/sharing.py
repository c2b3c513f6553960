"""Encode by all processes after training: the first says how much, sends its weights, and gathers the features."""

import torch

from likewise import distributed
from likewise.data import Parts
from likewise.evaluation.encoding import encode_share
from likewise.evaluation.features import CPU, capped
from likewise.training.pretraining import Pretraining
from likewise.training.processes import send_weights

ALL_SAMPLES, NOTHING = 0, -1  # what the first process may announce instead of a number of samples


def announce_encoding(module: Pretraining, most: int | None, *, there: bool) -> bool:
    """Tell the other processes what to encode with this one, the first, unless features are `there`; do they?"""
    if distributed.world_size() == 1:
        return False
    distributed.exchange((NOTHING if there else most or ALL_SAMPLES,), CPU)
    if not there:
        send_weights(*filter(None, (module.encoder, module.second)))
    return not there


def join_encoding(module: Pretraining, parts: Parts, device: torch.device, *, workers: int | None) -> None:
    """Encode this process's share of what the first process asks for; not called in the first."""
    ((most,), *_) = distributed.exchange((NOTHING,), CPU)
    if most == NOTHING:
        return
    send_weights(*(tower.to(device) for tower in (module.encoder, module.second) if tower is not None))
    for samples, _ in capped([parts.train, parts.validation, parts.test], most or None):
        encode_share(samples, module.encoder, module.second, workers=workers)
