"""Every public loss, and the two primitives: how each is made, and a batch for it."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from likewise import losses as public
from likewise.benchmark.case import CLASSES, LABELS, Case, Contender, Draw
from likewise.benchmark.prediction import Growth
from likewise.operator import Backend, contrast, log_sum_exp
from likewise.pairs import NotSelf, PairWeight, SameClass, SharesLabel

TEMPERATURE = 0.1
DENSE = Growth(memory=2, matrices=8)
GRAPH_ROWS = 4096  # up to here a step's launches are felt
CELLS = 16  # of one feature map
WAYS = 5

Options = dict[str, Any]


class Entry(NamedTuple):
    """A loss: how it is made, a batch for it, and what it does not have."""

    make: Callable[[Case, Options], Callable[..., Tensor]]
    batch: Callable[[Draw], tuple[Any, ...]]
    pairwise: bool = True
    """Whether it contrasts all rows with all, so that it has backends and its time grows with N²."""


def _plain(loss: Callable[..., nn.Module]) -> Callable[[Case, Options], Callable[..., Tensor]]:
    return lambda _, options: loss(**options)


def _views(draw: Draw) -> tuple[Any, ...]:
    return draw.embeddings(draw.case.rows // 2), draw.embeddings(draw.case.rows // 2)


def _pairs(draw: Draw) -> tuple[Any, ...]:
    return draw.embeddings(draw.case.rows), draw.embeddings(draw.case.rows)


def _classes(draw: Draw) -> tuple[Any, ...]:
    return draw.embeddings(draw.case.rows), draw.classes(draw.case.rows)


def _with_prototypes(draw: Draw) -> tuple[Any, ...]:
    return *_classes(draw), draw.embeddings(CLASSES)


def _sets(draw: Draw) -> tuple[Any, ...]:
    return draw.embeddings(draw.case.rows), draw.label_sets(draw.case.rows)


def _sets_with_prototypes(draw: Draw) -> tuple[Any, ...]:
    return *_sets(draw), draw.embeddings(LABELS)


def _sets_with_keys(draw: Draw) -> tuple[Any, ...]:
    rows, labels, prototypes = _sets_with_prototypes(draw)
    return rows, labels, prototypes, draw.embeddings(draw.case.rows, learned=False)


def _sample_views(draw: Draw) -> tuple[Any, ...]:
    samples = draw.case.rows // 2
    return draw.embeddings(samples, 2), draw.classes(samples), torch.arange(samples, device=draw.case.device)


def _episode(draw: Draw) -> tuple[Any, ...]:
    side, queries = int(CELLS**0.5), max(1, draw.case.rows // CELLS)
    maps = draw.values(1, queries, draw.case.features, side, side), draw.values(1, WAYS, draw.case.features, side, side)
    return *maps, draw.classes(queries).view(1, -1, 1, 1).expand(1, queries, side, side) % WAYS


def _nws(case: Case, options: Options) -> Callable[..., Tensor]:
    similarity = torch.rand(LABELS, LABELS, generator=torch.Generator().manual_seed(1))
    loss = public.NWSLoss((similarity + similarity.T) / 2, **options).to(case.device)
    return lambda rows, labels, prototypes, keys: loss(rows, labels, prototypes, keys=keys, key_labels=labels)


def _rascal(case: Case, options: Options) -> nn.Module:
    return public.RASCALLoss(case.rows // 2, case.features, **options).to(case.device)


def _tagged(draw: Draw) -> tuple[Any, ...]:
    return draw.values(draw.case.rows, LABELS), draw.label_sets(draw.case.rows)


def _alone(loss: Callable[[], nn.Module]) -> Callable[[Case, Options], Callable[..., Tensor]]:
    """Make a loss that has no options."""
    return lambda _, __: loss()


ENTRIES: dict[str, Entry] = {
    "SupConLoss": Entry(_plain(public.SupConLoss), _classes),
    "NTXentLoss": Entry(_plain(public.NTXentLoss), _views),
    "InfoNCELoss": Entry(_plain(public.InfoNCELoss), _pairs),
    "AsymmetricLoss": Entry(_alone(public.AsymmetricLoss), _tagged, pairwise=False),
    "BCELoss": Entry(_alone(public.BCELoss), _tagged, pairwise=False),
    "BCLLoss": Entry(_plain(public.BCLLoss), _with_prototypes),
    "BYOLLoss": Entry(
        _alone(public.BYOLLoss),
        lambda draw: (draw.embeddings(draw.case.rows), draw.embeddings(draw.case.rows, learned=False)),
        pairwise=False,
    ),
    "CrossEntropyLoss": Entry(
        _alone(public.CrossEntropyLoss),
        lambda draw: (draw.values(draw.case.rows, CLASSES), draw.classes(draw.case.rows)),
        pairwise=False,
    ),
    "DCLLoss": Entry(_plain(public.DCLLoss), _views),
    "HardNegativeLoss": Entry(_plain(public.HardNegativeLoss), _views),
    "KCLLoss": Entry(_plain(public.KCLLoss), _classes),
    "MSCLoss": Entry(_plain(public.MSCLoss), _sets_with_prototypes),
    "MulSupConLoss": Entry(_plain(public.MulSupConLoss), _sets),
    "NPairsLoss": Entry(_plain(public.NPairsLoss), _pairs),
    "NWSLoss": Entry(_nws, _sets_with_keys),
    "PaCoLoss": Entry(_plain(public.PaCoLoss), lambda draw: (*_classes(draw), draw.values(draw.case.rows, CLASSES))),
    "PatchLoss": Entry(_plain(public.PatchLoss), _episode, pairwise=False),
    "ProxyNCALoss": Entry(_plain(public.ProxyNCALoss), _with_prototypes, pairwise=False),
    "RASCALLoss": Entry(_rascal, _sample_views),
    "TripletLoss": Entry(
        _plain(public.TripletLoss), lambda draw: (*_pairs(draw), draw.embeddings(draw.case.rows)), pairwise=False
    ),
}
"""Every public loss; those that people compare first come first."""

PRIMITIVES = ("contrast", "log_sum_exp")


def backends(device: str) -> list[str]:
    """Return the operator's backends that run on a device, but "auto", which is one of them."""
    return [name for name in get_args(Backend) if name != "auto" and (name != "triton" or device == "cuda")]


def ours(names: list[str], chosen: list[str], device: str) -> Iterator[Contender]:
    """Return the library's own contenders for these losses and primitives, with these backends."""
    for name in names:
        if name in ENTRIES:
            yield from _of_loss(name, ENTRIES[name], chosen, device)
        else:
            for backend in chosen:
                yield from (_contrast(backend, device) if name == "contrast" else _log_sum_exp(backend))


def _of_loss(name: str, entry: Entry, chosen: list[str], device: str) -> Iterator[Contender]:
    def made(backend: str) -> Callable[[Case], Callable[..., Tensor]]:
        return lambda case: entry.make(case, {"backend": backend} if backend else {})

    if not entry.pairwise:
        yield Contender(name, "likewise", "", made(""), entry.batch, Growth(time=1))
        return
    for backend in chosen:
        yield Contender(
            name, "likewise", backend, made(backend), entry.batch, _growth(backend), first=name == "SupConLoss"
        )
        if name == "SupConLoss" and device == "cuda" and backend == "triton":
            yield Contender(
                name,
                "likewise, in a CUDA graph",
                backend,
                made(backend),
                entry.batch,
                _growth(backend),
                in_graph=True,
                largest=4 * GRAPH_ROWS,
            )


def _growth(backend: str) -> Growth:
    return DENSE if backend == "dense" else Growth()


def unit(draw: Draw) -> Tensor:
    """Return embeddings of length 1, made outside the step."""
    return nn.functional.normalize(draw.embeddings(draw.case.rows).detach(), dim=1).requires_grad_()


def sup_con_weights(draw: Draw) -> tuple[Tensor, PairWeight, PairWeight]:
    """Return rows of length 1, and SupCon's pull and push for them."""
    not_self = NotSelf(draw.case.rows)
    return unit(draw), (SameClass(draw.classes(draw.case.rows)) & not_self).mean_over_row(), not_self


def _contrast(backend: Any, device: str) -> Iterator[Contender]:
    """Symmetric SupCon by the operator alone: rows of length 1 and pair weights come ready-made."""

    def make(_: Case) -> Callable[..., Tensor]:
        return lambda z, pull, push: contrast(z, pull=pull, push=push, temperature=TEMPERATURE, backend=backend).mean()

    name = "SupCon's weights"
    yield Contender("contrast", name, backend, make, sup_con_weights, _growth(backend), first=True)
    if device == "cuda":
        yield Contender(
            "contrast",
            f"{name}, in a CUDA graph",
            backend,
            make,
            sup_con_weights,
            _growth(backend),
            first=True,
            in_graph=True,
            largest=GRAPH_ROWS,
        )


def _log_sum_exp(backend: Any) -> Iterator[Contender]:
    """The primitive with weights that cost a kernel more or less: none but self, classes, label sets."""

    def make(_: Case) -> Callable[..., Tensor]:
        def mean(z: Tensor, push: PairWeight) -> Tensor:
            found = log_sum_exp(z, push=push, temperature=TEMPERATURE, backend=backend)
            return torch.where(found.isfinite(), found, 0).mean()

        return mean

    def pushes(draw: Draw) -> dict[str, Callable[[], PairWeight]]:
        n = draw.case.rows
        return {
            "plain": lambda: NotSelf(n),
            "class labels": lambda: SameClass(draw.classes(n)) & NotSelf(n),
            f"label sets, L = {LABELS}": lambda: SharesLabel(draw.label_sets(n)),
            "label sets, L = 128": lambda: SharesLabel(draw.label_sets(n, 128)),
        }

    for name in pushes(Draw(Case(2, 1, "float32", "cpu"))):
        yield Contender(
            "log_sum_exp",
            name,
            backend,
            make,
            lambda draw, name=name: (unit(draw), pushes(draw)[name]()),
            _growth(backend),
        )
