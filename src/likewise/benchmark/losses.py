"""Every public loss and the two primitives, in every backend, and what others offer for the same."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from likewise import losses as public
from likewise.benchmark import rivals
from likewise.benchmark.case import CLASSES, LABELS, Batch, Case, Contender, Dtype, Sampler
from likewise.benchmark.measurement import DTYPES, Timed, option
from likewise.benchmark.prediction import Growth
from likewise.operator import Backend, contrast, log_sum_exp, no_triton
from likewise.pairs import NotSelf, PairWeight, SameClass, SharesLabel

TEMPERATURE = 0.1
GRAPH_ROWS = 4096  # with fewer rows the launches of a step take a noticeable part of its time
CELLS = 16  # of a feature map
WAYS = 5


class Entry(NamedTuple):
    """A loss: a batch for it, and how it is made if that takes more than options."""

    batch: Callable[[Sampler], Batch]
    pairwise: bool = True
    """Whether it contrasts all rows with all others, so that it has backends and its time grows with N²."""
    make: Callable[..., Callable[..., Tensor]] | None = None


def _views(sampler: Sampler) -> Batch:
    return sampler.embeddings(sampler.rows // 2), sampler.embeddings(sampler.rows // 2)


def _pairs(sampler: Sampler) -> Batch:
    return sampler.embeddings(sampler.rows), sampler.embeddings(sampler.rows)


def classes(sampler: Sampler) -> Batch:
    """Return embeddings and their classes."""
    return sampler.embeddings(sampler.rows), sampler.classes(sampler.rows)


def _sets(sampler: Sampler) -> Batch:
    return sampler.embeddings(sampler.rows), sampler.label_sets(sampler.rows)


def _sets_with_prototypes(sampler: Sampler) -> Batch:
    return *_sets(sampler), sampler.embeddings(LABELS)


def _sample_views(sampler: Sampler) -> Batch:
    samples = sampler.rows // 2
    return sampler.embeddings(samples, 2), sampler.classes(samples), torch.arange(samples, device=sampler.case.device)


def _episode(sampler: Sampler) -> Batch:
    case, side, queries = sampler.case, int(CELLS**0.5), max(1, sampler.rows // CELLS)
    maps = (sampler.values(1, count, case.features, side, side) for count in (queries, WAYS))
    return *maps, sampler.classes(queries).view(1, -1, 1, 1).expand(1, queries, side, side) % WAYS


def _info_patch(case: Case, **options: Any) -> Callable[..., Tensor]:
    loss = public.InfoPatchLoss(**options).to(case.device)
    return lambda queries, supports, labels, logits, classes: loss(
        queries, supports, labels, map_logits=logits, map_labels=classes
    )


def _cells(sampler: Sampler) -> Batch:
    """Return an episode's maps, and the logits of every cell."""
    queries, supports, labels = _episode(sampler)
    cells = labels.flatten(0, 1)
    return queries, supports, labels, sampler.values(*cells.shape, CLASSES), cells


def _features_of_episode(sampler: Sampler) -> Batch:
    """Return features of an episode's queries and class means."""
    queries, means = (sampler.values(1, count, sampler.case.features) for count in (sampler.rows, WAYS))
    return queries, means, sampler.classes(sampler.rows).view(1, -1) % WAYS


def _tagged(sampler: Sampler) -> Batch:
    return sampler.values(sampler.rows, LABELS), sampler.label_sets(sampler.rows)


def _nws(case: Case, **options: Any) -> Callable[..., Tensor]:
    similarity = torch.rand(LABELS, LABELS, generator=torch.Generator().manual_seed(1))
    loss = public.NWSLoss((similarity + similarity.T) / 2, **options).to(case.device)
    return lambda rows, labels, prototypes, keys: loss(rows, labels, prototypes, keys=keys, key_labels=labels)


def _rascal(case: Case, **options: Any) -> nn.Module:
    return public.RASCALLoss(case.rows // 2, case.features, **options).to(case.device)


ENTRIES: dict[str, Entry] = {
    "SupConLoss": Entry(classes),
    "NTXentLoss": Entry(_views),
    "InfoNCELoss": Entry(_pairs),
    "AsymmetricLoss": Entry(_tagged, pairwise=False),
    "BCELoss": Entry(_tagged, pairwise=False),
    "BCLLoss": Entry(lambda sampler: (*classes(sampler), sampler.embeddings(CLASSES))),
    "BYOLLoss": Entry(
        lambda sampler: (sampler.embeddings(sampler.rows), sampler.embeddings(sampler.rows, learned=False)),
        pairwise=False,
    ),
    "CrossEntropyLoss": Entry(
        lambda sampler: (sampler.values(sampler.rows, CLASSES), sampler.classes(sampler.rows)),
        pairwise=False,
    ),
    "DCLLoss": Entry(_views),
    "HardNegativeLoss": Entry(_views),
    "KCLLoss": Entry(classes),
    "MSCLoss": Entry(_sets_with_prototypes),
    "MulSupConLoss": Entry(_sets),
    "NPairsLoss": Entry(_pairs),
    "NWSLoss": Entry(
        lambda sampler: (*_sets_with_prototypes(sampler), sampler.embeddings(sampler.rows, learned=False)),
        make=_nws,
    ),
    "PaCoLoss": Entry(lambda sampler: (*classes(sampler), sampler.values(sampler.rows, CLASSES))),
    "PatchLoss": Entry(_episode, pairwise=False),
    "InfoPatchLoss": Entry(_cells, pairwise=False, make=_info_patch),
    "PrototypicalLoss": Entry(_features_of_episode, pairwise=False),
    "ProxyNCALoss": Entry(lambda sampler: (*classes(sampler), sampler.embeddings(CLASSES)), pairwise=False),
    "RASCALLoss": Entry(_sample_views, make=_rascal),
    "TripletLoss": Entry(lambda sampler: (*_pairs(sampler), sampler.embeddings(sampler.rows)), pairwise=False),
}
"""Every public loss, the ones most often compared first."""

PUSHES: dict[str, Callable[[Sampler], PairWeight]] = {
    "plain": lambda sampler: NotSelf(sampler.rows),
    "class labels": lambda sampler: SameClass(sampler.classes(sampler.rows)) & NotSelf(sampler.rows),
    f"label sets, L = {LABELS}": lambda sampler: SharesLabel(sampler.label_sets(sampler.rows)),
    "label sets, L = 128": lambda sampler: SharesLabel(sampler.label_sets(sampler.rows, 128)),
}
"""Weights that cost a kernel more or less."""

NAMES = (*ENTRIES, "contrast", "log_sum_exp")


def backends(device: str) -> list[str]:
    """Return the operator's backends that run on a device, except "auto", which is one of them."""
    return [name for name in get_args(Backend) if name != "auto" and (name != "triton" or device == "cuda")]


def ours(name: str, backend: str, device: str) -> Iterator[Contender]:
    """Return the library's own contenders for a loss or a primitive with a backend."""
    growth = Growth(memory=2, matrices=8) if backend == "dense" else Growth()
    if name == "log_sum_exp":
        for weight, push in PUSHES.items():
            made = _mean_of(backend)
            yield Contender(
                name, weight, backend, made, lambda sampler, push=push: (_unit(sampler), push(sampler)), growth
            )
        return
    if name == "contrast":
        made = _contrast(backend)
        found = Contender(name, "SupCon's weights", backend, made, _sup_con_weights, growth, first=True)
    else:
        found = _of_loss(name, backend, growth)
    yield found
    if device == "cuda" and (name == "contrast" or found.key == ("SupConLoss", "likewise", "triton")):
        largest = GRAPH_ROWS if name == "contrast" else 4 * GRAPH_ROWS
        yield replace(found, name=f"{found.name}, in a CUDA graph", in_graph=True, largest=largest)


def _of_loss(name: str, backend: str, growth: Growth) -> Contender:
    entry = ENTRIES[name]
    if not entry.pairwise:
        backend, growth = "", Growth(time=1)
    options = {"backend": backend} if backend else {}

    def make(case: Case) -> Callable[..., Tensor]:
        return entry.make(case, **options) if entry.make else getattr(public, name)(**options)

    return Contender(name, "likewise", backend, make, entry.batch, growth, first=name == "SupConLoss")


def _unit(sampler: Sampler) -> Tensor:
    """Return embeddings of length 1, normalised outside the step."""
    rows = sampler.embeddings(sampler.rows, learned=False)
    return nn.functional.normalize(rows, dim=1).requires_grad_()


def _sup_con_weights(sampler: Sampler) -> tuple[Tensor, PairWeight, PairWeight]:
    """Return rows of length 1, and SupCon's pull and push for them, made outside the step."""
    not_self = NotSelf(sampler.rows)
    return _unit(sampler), (SameClass(sampler.classes(sampler.rows)) & not_self).mean_over_row(), not_self


def _contrast(backend: Any) -> Callable[[Case], Callable[..., Tensor]]:
    return lambda _: (
        lambda z, pull, push: contrast(
            z, pull=pull, push=push, temperature=TEMPERATURE, reduction="mean", backend=backend
        )
    )


def _mean_of(backend: Any) -> Callable[[Case], Callable[..., Tensor]]:
    def mean(z: Tensor, push: PairWeight) -> Tensor:
        found = log_sum_exp(z, push=push, temperature=TEMPERATURE, backend=backend)
        return torch.where(found.isfinite(), found, 0).mean()

    return lambda _: mean


def contenders(names: list[str], chosen: list[str], device: str) -> list[Contender]:
    """Return the contenders for losses and primitives: the library's own in each backend, and others.

    Example:
        >>> [str(each) for each in contenders(["TripletLoss", "InfoNCELoss"], ["tiled"], "cpu")]
        ['TripletLoss likewise', 'InfoNCELoss likewise tiled', 'InfoNCELoss dense form']
    """
    own = (each for name in names for backend in chosen for each in ours(name, backend, device))
    batches = {name: entry.batch for name, entry in ENTRIES.items() if name in names}
    return [*{each.key: each for each in own}.values(), *rivals.rivals(batches, device)]


@dataclass(kw_only=True)
class Measure(Timed):
    """Measure time and peak memory of every loss and backend on this machine, forward and backward.

    So are the dense form as it is usually written, torch.compile on it, and other libraries if they are installed. A
    step that is predicted to take too much memory or time is skipped. Results are written as they come, so you can stop
    at any time.
    """

    losses: tuple[str, ...] = option(NAMES, "Which losses and primitives.", choices=NAMES)
    backends: tuple[str, ...] = option((), "Which backends.", choices=get_args(Backend))
    sizes: tuple[int, ...] = option((256, 1024, 4096, 16384, 65536, 262144, 1048576), "Numbers of rows.", least=32)
    features: int = option(128, "Features of a row.", least=1)
    dtype: Dtype = option("float32", "Type of the embeddings.", choices=DTYPES)  # noqa: RUF009 - a field
    repeats: int = option(5, "Steps to time at least, while time is left.", least=1)
    budget: float = option(480.0, "Seconds for everything, approximately.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if "triton" in self.backends and self.device != "cuda":
            why = no_triton(torch.device(self.device)) or "Triton's interpreter says nothing about a kernel's speed"
            raise ValueError(f"--backends triton cannot be measured here: {why}")
        self.backends = self.backends or tuple(backends(self.device))

    def contenders(self) -> list[Contender]:
        return contenders(list(self.losses), list(self.backends), self.device)

    def missing(self) -> dict[str, str]:
        return rivals.missing(self.device)
