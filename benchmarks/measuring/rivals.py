"""The same losses by others: as people write them, compiled, and by other libraries where they are installed."""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from benchmarks.measuring.case import CLASSES, Case, Contender, Sampler
from benchmarks.measuring.prediction import DENSE, Growth

TEMPERATURE, NT_XENT, INFO_NCE = 0.1, 0.5, 0.07  # the default temperatures of our losses

Loss = Callable[..., Tensor]
Making = Callable[[Case], Loss]


def dense_sup_con(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return SupCon from N x N matrices: similarities, masks, exponentials, log-probabilities."""
    z = functional.normalize(embeddings, dim=1)
    logits = z @ z.T / TEMPERATURE
    logits = logits - logits.max(dim=1, keepdim=True).values.detach()
    not_self = 1 - torch.eye(len(z), dtype=z.dtype, device=z.device)
    positive = (labels[:, None] == labels[None, :]).to(z) * not_self
    exponentials = torch.exp(logits) * not_self
    log_probability = logits - torch.log(exponentials.sum(dim=1, keepdim=True))
    return -((positive * log_probability).sum(dim=1) / positive.sum(dim=1)).mean()


def dense_nt_xent(view_0: Tensor, view_1: Tensor) -> Tensor:
    """Return NT-Xent as the cross entropy of N x N similarities without self, with the other view as the class."""
    z = functional.normalize(torch.cat([view_0, view_1]), dim=1)
    logits = (z @ z.T / NT_XENT).fill_diagonal_(-torch.inf)
    return functional.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(view_0)))


def dense_info_nce(queries: Tensor, keys: Tensor) -> Tensor:
    """Return InfoNCE as the cross entropy of N x N similarities."""
    logits = functional.normalize(queries, dim=1) @ functional.normalize(keys, dim=1).T / INFO_NCE
    return functional.cross_entropy(logits, torch.arange(len(queries), device=queries.device))


def _imported(module: str, name: str, temperature: float) -> Making:
    return lambda _: getattr(import_module(module), name)(temperature=temperature)


def compiled(loss: Loss) -> Making:
    """Return how a loss is made that torch.compile compiles, for one size."""

    def make(_: Case) -> Loss:
        warnings.filterwarnings("ignore", module=r"torch\._(inductor|dynamo).*")
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # "no CUDA runtime is found"
        return torch.compile(loss, dynamic=False)

    return make


def _metric_nt_xent(_: Case) -> Loss:
    loss = import_module("pytorch_metric_learning.losses").NTXentLoss(temperature=NT_XENT)
    return lambda *views: loss(torch.cat(views), torch.arange(len(views[0]), device=views[0].device).repeat(2))


def _metric(name: str, **options: float) -> Making:
    return lambda _: getattr(import_module("pytorch_metric_learning.losses"), name)(**options)


def _metric_classes(name: str, weight: str, **options: float) -> Making:
    """Return how a loss with vectors of classes is made; these are given to it, as to ours."""

    def make(case: Case) -> Loss:
        loss = getattr(import_module("pytorch_metric_learning.losses"), name)(CLASSES, case.features, **options)
        return lambda rows, classes, prototypes: functional_call(
            loss, {weight: prototypes.T if weight == "W" else prototypes}, (rows, classes)
        )

    return make


def _inf_cl(_: Case) -> Loss:
    fused = import_module("inf_cl").cal_flash_loss

    def loss(queries: Tensor, keys: Tensor) -> Tensor:
        q, k = functional.normalize(queries, dim=1), functional.normalize(keys, dim=1)
        return fused(q, k, scale=1 / INFO_NCE, head_dim=min(256, q.shape[1])).mean()

    return loss


def _cut_cross_entropy(_: Case) -> Loss:
    fused = import_module("cut_cross_entropy").linear_cross_entropy

    def loss(queries: Tensor, keys: Tensor) -> Tensor:
        q, k = functional.normalize(queries, dim=1) / INFO_NCE, functional.normalize(keys, dim=1)
        return fused(q, k, torch.arange(len(q), device=q.device), filter_eps=None)

    return loss


class Rival(NamedTuple):
    """How somebody else computes one of our losses: a library's name is what pip installs, and that of its module.

    `growth` is that of its time and memory; `device` is "cuda" if it runs there alone, or "" if everywhere.
    """

    loss: str
    name: str
    make: Making
    growth: Growth
    library: bool = False
    device: str = ""

    @property
    def module(self) -> str:
        """The module that it imports."""
        return self.name.replace("-", "_") if self.library else ""

    def is_missing(self) -> bool:
        """Whether its library is not installed."""
        return self.library and find_spec(self.module) is None


METRIC = "pytorch-metric-learning"
RIVALS = (
    Rival("SupConLoss", "dense form", lambda _: dense_sup_con, DENSE),
    Rival("NTXentLoss", "dense form", lambda _: dense_nt_xent, DENSE),
    Rival("InfoNCELoss", "dense form", lambda _: dense_info_nce, DENSE),
    Rival("SupConLoss", "torch.compile", compiled(dense_sup_con), Growth(memory=2, matrices=2, setup=30)),
    Rival(
        *("SupConLoss", METRIC, _imported("pytorch_metric_learning.losses", "SupConLoss", TEMPERATURE)),
        Growth(memory=2, matrices=16),
        library=True,
    ),
    # every positive pair is stored with every negative pair of the batch
    Rival("NTXentLoss", METRIC, _metric_nt_xent, Growth(time=3, memory=3, matrices=8), library=True),
    Rival("MultiSimilarityLoss", METRIC, _metric("MultiSimilarityLoss"), DENSE, library=True),
    Rival(
        *("ArcFaceLoss", METRIC, _metric_classes("ArcFaceLoss", "W", margin=math.degrees(0.5))),
        Growth(time=1),
        library=True,
    ),
    Rival("CosFaceLoss", METRIC, _metric_classes("CosFaceLoss", "W"), Growth(time=1), library=True),
    Rival("ProxyAnchorLoss", METRIC, _metric_classes("ProxyAnchorLoss", "proxies"), Growth(time=1), library=True),
    Rival("NTXentLoss", "lightly", _imported("lightly.loss", "NTXentLoss", NT_XENT), DENSE, library=True),
    Rival("DCLLoss", "lightly", _imported("lightly.loss", "DCLLoss", TEMPERATURE), DENSE, library=True),
    Rival("InfoNCELoss", "inf-cl", _inf_cl, Growth(), library=True, device="cuda"),
    Rival("InfoNCELoss", "cut-cross-entropy", _cut_cross_entropy, Growth(), library=True, device="cuda"),
)


def missing(device: str) -> dict[str, str]:
    """Return the libraries that would run on the device but are not installed, with the command that installs each."""
    return {each.name: f"pip install {each.name}" for each in _on(device) if each.is_missing()}


def rivals(batches: Mapping[str, Callable[[Sampler], tuple[Any, ...]]], device: str) -> Iterator[Contender]:
    """Return what others offer for losses, given a batch for each."""
    for each in _on(device):
        if each.loss in batches and not each.is_missing():
            first, apart = each.loss == "SupConLoss", each.name == "torch.compile" and device == "cpu"
            named = each.loss, each.name, "", each.make, batches[each.loss], each.growth
            yield Contender(*named, first=first, apart=apart, module=each.module)


def _on(device: str) -> list[Rival]:
    return [each for each in RIVALS if each.device in {"", device}]
