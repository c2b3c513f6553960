"""Every public loss in every backend, and what others offer for the same."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from benchmarks.measuring import rivals
from benchmarks.measuring.case import CLASSES, LABELS, Batch, Case, Contender, Dtype, Sampler
from benchmarks.measuring.measurement import DTYPES, Measurement, option
from benchmarks.measuring.prediction import DENSE, Growth
from likewise import losses as public
from likewise.operator import Backend, no_triton

CELLS = 16  # of a feature map
WAYS = 5

INPUTS: dict[str, Callable[[Sampler], Tensor]] = {
    "rows": lambda of: of.embeddings(of.rows),
    "view": lambda of: of.embeddings(of.rows // 2),
    "views": lambda of: of.embeddings(of.rows // 2, 2),
    "keys": lambda of: of.embeddings(of.rows, learned=False),
    "classes": lambda of: of.classes(of.rows),
    "classes of samples": lambda of: of.classes(of.rows // 2),
    "samples": lambda of: torch.arange(of.rows // 2, device=of.case.device),
    "label sets": lambda of: of.label_sets(of.rows),
    "class prototypes": lambda of: of.embeddings(CLASSES),
    "label prototypes": lambda of: of.embeddings(LABELS),
    "class logits": lambda of: of.values(of.rows, CLASSES),
    "label logits": lambda of: of.values(of.rows, LABELS),
}
"""What losses are given."""


def batch_of(*inputs: str) -> Callable[[Sampler], Batch]:
    """Return what samples a batch of some `INPUTS`."""
    return lambda sampler: tuple(INPUTS[name](sampler) for name in inputs)


def _episode(sampler: Sampler) -> Batch:
    case, side, queries = sampler.case, int(CELLS**0.5), max(1, sampler.rows // CELLS)
    maps = (sampler.values(1, count, case.features, side, side) for count in (queries, WAYS))
    return *maps, sampler.classes(queries).view(1, -1, 1, 1).expand(1, queries, side, side) % WAYS


def _episode_and_cells(sampler: Sampler) -> Batch:
    queries, supports, labels = _episode(sampler)
    cells = labels.flatten(0, 1)
    return queries, supports, labels, sampler.values(*cells.shape, CLASSES), cells


def _episode_features(sampler: Sampler) -> Batch:
    queries, means = (sampler.values(1, count, sampler.case.features) for count in (sampler.rows, WAYS))
    return queries, means, sampler.classes(sampler.rows).view(1, -1) % WAYS


def _info_patch(case: Case, **options: Any) -> Callable[..., Tensor]:
    loss = public.InfoPatchLoss(**options).to(case.device)
    return lambda queries, supports, labels, logits, classes: loss(
        queries, supports, labels, map_logits=logits, map_labels=classes
    )


def _clip(case: Case, **options: Any) -> Callable[..., Tensor]:
    loss, scale = public.ClipLoss(**options), torch.full((), 14.3, device=case.device)
    return lambda images, texts: loss(images, texts, scale)


def _nws(case: Case, **options: Any) -> Callable[..., Tensor]:
    similarity = torch.rand(LABELS, LABELS, generator=torch.Generator().manual_seed(1))
    loss = public.NWSLoss((similarity + similarity.T) / 2, **options).to(case.device)
    return lambda rows, labels, prototypes, keys: loss(rows, labels, prototypes, keys=keys, key_labels=labels)


def _rascal(case: Case, **options: Any) -> nn.Module:
    return public.RASCALLoss(case.rows // 2, case.features, **options).to(case.device)


class Entry(NamedTuple):
    """A loss: a batch for it, and how it is made if that takes more than options."""

    batch: Callable[[Sampler], Batch]
    pairwise: bool = True
    """Whether it contrasts all rows with all others, so that it has backends and its time grows with N²."""
    make: Callable[..., Callable[..., Tensor]] | None = None


ENTRIES: dict[str, Entry] = {
    "SupConLoss": Entry(batch_of("rows", "classes")),
    "NTXentLoss": Entry(batch_of("view", "view")),
    "InfoNCELoss": Entry(batch_of("rows", "rows")),
    "ArcFaceLoss": Entry(batch_of("rows", "classes", "class prototypes"), pairwise=False),
    "AsymmetricLoss": Entry(batch_of("label logits", "label sets"), pairwise=False),
    "BCELoss": Entry(batch_of("label logits", "label sets"), pairwise=False),
    "BCLLoss": Entry(batch_of("rows", "classes", "class prototypes")),
    "BYOLLoss": Entry(batch_of("rows", "keys"), pairwise=False),
    "BatchTripletLoss": Entry(batch_of("rows", "classes"), pairwise=False),
    "ClipLoss": Entry(batch_of("rows", "rows"), make=_clip),
    "ContrastiveMarginLoss": Entry(batch_of("rows", "classes")),
    "CosFaceLoss": Entry(batch_of("rows", "classes", "class prototypes"), pairwise=False),
    "CrossEntropyLoss": Entry(batch_of("class logits", "classes"), pairwise=False),
    "DCLLoss": Entry(batch_of("view", "view")),
    "HardNegativeLoss": Entry(batch_of("view", "view")),
    "KCLLoss": Entry(batch_of("rows", "classes")),
    "LiftedStructureLoss": Entry(batch_of("rows", "classes")),
    "MSCLoss": Entry(batch_of("rows", "label sets", "label prototypes")),
    "MulSupConLoss": Entry(batch_of("rows", "label sets")),
    "MultiSimilarityLoss": Entry(batch_of("rows", "classes")),
    "NPairsLoss": Entry(batch_of("rows", "rows")),
    "NWSLoss": Entry(batch_of("rows", "label sets", "label prototypes", "keys"), make=_nws),
    "PaCoLoss": Entry(batch_of("rows", "classes", "class logits")),
    "PatchLoss": Entry(_episode, pairwise=False),
    "InfoPatchLoss": Entry(_episode_and_cells, pairwise=False, make=_info_patch),
    "PrototypicalLoss": Entry(_episode_features, pairwise=False),
    "ProxyAnchorLoss": Entry(batch_of("rows", "classes", "class prototypes"), pairwise=False),
    "ProxyNCALoss": Entry(batch_of("rows", "classes", "class prototypes"), pairwise=False),
    "RASCALLoss": Entry(batch_of("views", "classes of samples", "samples"), make=_rascal),
    "SigLIPLoss": Entry(batch_of("rows", "rows")),
    "TripletLoss": Entry(batch_of("rows", "rows", "rows"), pairwise=False),
}
"""Every public loss, the ones most often compared first."""

NAMES = tuple(ENTRIES)


def backends(device: str) -> list[str]:
    """Return the operator's backends that run on a device, except "auto", which is one of them."""
    return [name for name in get_args(Backend) if name != "auto" and (name != "triton" or device == "cuda")]


def ours(name: str, backend: str) -> Contender:
    """Return the library's own way to compute a loss, with a backend."""
    entry, growth = ENTRIES[name], DENSE if backend == "dense" else Growth()
    if not entry.pairwise:
        backend, growth = "", Growth(time=1)
    options = {"backend": backend} if backend else {}

    def make(case: Case) -> Callable[..., Tensor]:
        return entry.make(case, **options) if entry.make else getattr(public, name)(**options)

    return Contender(name, "likewise", backend, make, entry.batch, growth, first=name == "SupConLoss")


def contenders(names: list[str], chosen: list[str], device: str) -> list[Contender]:
    """Return the contenders for losses: the library's own in each backend, and others."""
    own = (ours(name, backend) for name in names for backend in chosen)
    batches = {name: entry.batch for name, entry in ENTRIES.items() if name in names}
    return [*{each.key: each for each in own}.values(), *rivals.rivals(batches, device)]


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure time and peak memory of every loss and backend on this machine, forward and backward.

    So are the dense form as it is usually written, torch.compile on it, and other libraries if they are installed. A
    step that is predicted to take too much memory or time is skipped. Results are written as they come, so you can stop
    at any time.
    """

    losses: tuple[str, ...] = option(NAMES, "Which losses.", choices=NAMES)
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
