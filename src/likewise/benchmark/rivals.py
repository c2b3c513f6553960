"""The same losses by others: as people write them, compiled, and by other libraries where they are installed."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

from likewise.benchmark.case import Case, Contender, Sampler
from likewise.benchmark.prediction import Growth

TEMPERATURE, NT_XENT, INFO_NCE = 0.1, 0.5, 0.07  # the default temperatures of our losses

Loss = Callable[..., Tensor]
Making = Callable[[Case], Loss]


class Library(NamedTuple):
    """A library that computes some of the losses."""

    install: str
    """What pip installs; its module has the same name."""
    device: str
    """Where it runs: "" for everywhere, or "cuda"."""
    losses: dict[str, tuple[Making, Growth]]
    """How it computes each loss, and how time and memory grow."""

    @property
    def module(self) -> str:
        """What is imported."""
        return self.install.replace("-", "_")

    @property
    def is_installed(self) -> bool:
        """Whether it can be imported."""
        return find_spec(self.module) is not None


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


def flex_sup_con(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return SupCon with FlexAttention's log-sum-exp for the push, and class sums for the linear pull."""
    z = functional.normalize(embeddings, dim=1)
    rows = z[None, None]

    def not_self(score: Tensor, _: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.where(query == key, -torch.inf, score)

    _, found = flex.flex_attention(
        rows, rows, rows, score_mod=not_self, scale=1 / TEMPERATURE, return_aux=flex.AuxRequest(lse=True)
    )
    lse = torch.as_tensor(found.lse)[0, 0]
    own = functional.one_hot(labels).to(z)
    positives = (own @ (own.T @ z) - z) / (own @ own.sum(dim=0) - 1)[:, None]
    return (lse - (z * positives).sum(dim=1) / TEMPERATURE).mean()


def _imported(module: str, name: str, **options: Any) -> Making:
    return lambda _: getattr(import_module(module), name)(**options)


def _metric_nt_xent(_: Case) -> Loss:
    loss = import_module("pytorch_metric_learning.losses").NTXentLoss(temperature=NT_XENT)
    return lambda *views: loss(torch.cat(views), torch.arange(len(views[0]), device=views[0].device).repeat(2))


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


DENSE = Growth(memory=2, matrices=8)
LIBRARIES = (
    Library(
        "pytorch-metric-learning",
        "",
        {
            "SupConLoss": (
                _imported("pytorch_metric_learning.losses", "SupConLoss", temperature=TEMPERATURE),
                Growth(memory=2, matrices=16),
            ),
            # every positive pair is stored with every negative pair of the batch
            "NTXentLoss": (_metric_nt_xent, Growth(time=3, memory=3, matrices=8)),
        },
    ),
    Library(
        "lightly",
        "",
        {
            "NTXentLoss": (_imported("lightly.loss", "NTXentLoss", temperature=NT_XENT), DENSE),
            "DCLLoss": (_imported("lightly.loss", "DCLLoss", temperature=TEMPERATURE), DENSE),
        },
    ),
    Library("inf-cl", "cuda", {"InfoNCELoss": (_inf_cl, Growth())}),
    Library("cut-cross-entropy", "cuda", {"InfoNCELoss": (_cut_cross_entropy, Growth())}),
)


def missing(device: str) -> dict[str, str]:
    """Return the libraries that would run on the device but are not installed, with the command that installs each."""
    absent = (each for each in LIBRARIES if each.device in {"", device} and not each.is_installed)
    return {library.install: f"pip install {library.install}" for library in absent}


def rivals(batches: Mapping[str, Callable[[Sampler], tuple[Any, ...]]], device: str) -> Iterator[Contender]:
    """Return what others offer for losses, given a batch for each."""

    def contender(loss: str, name: str, make: Making, growth: Growth, **more: Any) -> Iterator[Contender]:
        if loss in batches:
            yield Contender(loss, name, "", make, batches[loss], growth, first=loss == "SupConLoss", **more)

    for loss, form in ("SupConLoss", dense_sup_con), ("NTXentLoss", dense_nt_xent), ("InfoNCELoss", dense_info_nce):
        yield from contender(loss, "dense form", lambda _, form=form: form, DENSE)
    growth, apart = Growth(memory=2, matrices=2, setup=30), device == "cpu"
    yield from contender("SupConLoss", "torch.compile", _compiled(dense_sup_con), growth, apart=apart)
    if device == "cuda":
        yield from contender("SupConLoss", "FlexAttention", _compiled(flex_sup_con), Growth(setup=30))
    for library in LIBRARIES:
        if library.device in {"", device} and library.is_installed:
            for loss, (make, growth) in library.losses.items():
                yield from contender(loss, library.install, make, growth, module=library.module)


def _compiled(loss: Loss) -> Making:
    def make(_: Case) -> Loss:
        warnings.filterwarnings("ignore", module=r"torch\._(inductor|dynamo).*")
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # "no CUDA runtime is found"
        return torch.compile(loss, dynamic=False)

    return make
