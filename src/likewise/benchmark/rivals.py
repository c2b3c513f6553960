"""The same losses by others: as people write them, compiled, and by other libraries where they are installed."""

import logging
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

from likewise.benchmark.case import Case, Contender, Draw
from likewise.benchmark.losses import ENTRIES, TEMPERATURE
from likewise.benchmark.prediction import Growth

NT_XENT, INFO_NCE = 0.5, 0.07  # the temperatures that our losses have by default


class Library(NamedTuple):
    """A library that computes some of the losses."""

    module: str
    install: str
    device: str
    """Where it runs: "" for everywhere, or "cuda"."""
    losses: dict[str, tuple[Callable[[Case], Callable[..., Tensor]], Growth]]
    """What it computes, how, and how that grows."""


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
    """Return NT-Xent as the cross entropy of N x N similarities, self left out, with the other view as the class."""
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


def _metric_sup_con(_: Case) -> Callable[..., Tensor]:
    from pytorch_metric_learning.losses import SupConLoss  # pyright: ignore  # noqa: PGH003, PLC0415

    return SupConLoss(temperature=TEMPERATURE)


def _metric_nt_xent(_: Case) -> Callable[..., Tensor]:
    from pytorch_metric_learning.losses import NTXentLoss  # pyright: ignore  # noqa: PGH003, PLC0415

    loss: Any = NTXentLoss(temperature=NT_XENT)
    return lambda *views: loss(torch.cat(views), torch.arange(len(views[0]), device=views[0].device).repeat(2))


def _lightly_nt_xent(_: Case) -> Callable[..., Tensor]:
    from lightly.loss import NTXentLoss  # pyright: ignore  # noqa: PGH003, PLC0415

    return NTXentLoss(temperature=NT_XENT)


def _lightly_dcl(_: Case) -> Callable[..., Tensor]:
    from lightly.loss import DCLLoss  # pyright: ignore  # noqa: PGH003, PLC0415

    return DCLLoss(temperature=TEMPERATURE)


def _inf_cl(_: Case) -> Callable[..., Tensor]:
    from inf_cl import cal_flash_loss  # pyright: ignore  # noqa: PGH003, PLC0415

    def loss(queries: Tensor, keys: Tensor) -> Tensor:
        q, k = functional.normalize(queries, dim=1), functional.normalize(keys, dim=1)
        return cal_flash_loss(q, k, scale=1 / INFO_NCE, head_dim=min(256, q.shape[1])).mean()

    return loss


def _cut_cross_entropy(_: Case) -> Callable[..., Tensor]:
    from cut_cross_entropy import linear_cross_entropy  # pyright: ignore  # noqa: PGH003, PLC0415

    def loss(queries: Tensor, keys: Tensor) -> Tensor:
        q, k = functional.normalize(queries, dim=1) / INFO_NCE, functional.normalize(keys, dim=1)
        return linear_cross_entropy(q, k, torch.arange(len(q), device=q.device), filter_eps=None)

    return loss


LIBRARIES = (
    Library(
        "pytorch_metric_learning",
        "pytorch-metric-learning",
        "",
        {
            "SupConLoss": (_metric_sup_con, Growth(memory=2, matrices=16)),
            # each positive pair is held beside every negative pair of the batch
            "NTXentLoss": (_metric_nt_xent, Growth(time=3, memory=3, matrices=8)),
        },
    ),
    Library(
        "lightly",
        "lightly",
        "",
        {
            "NTXentLoss": (_lightly_nt_xent, Growth(memory=2, matrices=8)),
            "DCLLoss": (_lightly_dcl, Growth(memory=2, matrices=8)),
        },
    ),
    Library("inf_cl", "inf-cl", "cuda", {"InfoNCELoss": (_inf_cl, Growth())}),
    Library("cut_cross_entropy", "cut-cross-entropy", "cuda", {"InfoNCELoss": (_cut_cross_entropy, Growth())}),
)


def missing(device: str) -> dict[str, str]:
    """Return the libraries that would run on the device and are not installed, with the command that installs each."""
    return {
        library.install: f"pip install {library.install}"
        for library in LIBRARIES
        if library.device in {"", device} and find_spec(library.module) is None
    }


def rivals(names: list[str], device: str) -> Iterator[Contender]:
    """Return the others' contenders for these losses, those of libraries that are installed among them."""
    written = {"SupConLoss": dense_sup_con, "NTXentLoss": dense_nt_xent, "InfoNCELoss": dense_info_nce}
    for name in (name for name in written if name in names):
        yield _contender(name, "dense form", lambda _, of=written[name]: of, Growth(memory=2, matrices=8))
    if "SupConLoss" in names:
        compiled = Growth(memory=2, matrices=2, setup=30)
        yield _contender("SupConLoss", "torch.compile", _compiled(dense_sup_con), compiled, apart=True)
        if device == "cuda":
            fused = Growth(setup=30)
            yield _contender("SupConLoss", "FlexAttention", _compiled(flex_sup_con), fused, apart=True)
    for library in LIBRARIES:
        if library.device in {"", device} and find_spec(library.module) is not None:
            for name, (make, growth) in library.losses.items():
                if name in names:
                    yield _contender(name, library.install, make, growth, module=library.module)


def _compiled(loss: Callable[..., Tensor]) -> Callable[[Case], Callable[..., Tensor]]:
    def make(_: Case) -> Callable[..., Tensor]:
        warnings.filterwarnings("ignore", module=r"torch\._(inductor|dynamo).*")
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # "no CUDA runtime is found"
        return torch.compile(loss, dynamic=False)

    return make


def _contender(
    loss: str,
    name: str,
    make: Callable[[Case], Callable[..., Tensor]],
    growth: Growth,
    *,
    apart: bool = False,
    module: str = "",
) -> Contender:
    batch: Callable[[Draw], tuple[Any, ...]] = ENTRIES[loss].batch
    return Contender(loss, name, "", make, batch, growth, first=loss == "SupConLoss", apart=apart, module=module)
