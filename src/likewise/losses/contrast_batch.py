"""A batch as rows, gathered from all processes if requested, and the facts that must be the same on all ranks."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise import distributed
from likewise.distributed import RankSizes
from likewise.operator import Backend
from likewise.operator.backends import EXCHANGES, exchange_of
from likewise.operator.spec import LocalAnchors
from likewise.pairs import AllPairs, NotSelf, PairWeight, SameClass, SameSample, concat
from likewise.pairs.label_sets import Sets

PRECISIONS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class ContrastBatch(NamedTuple):
    """A batch as rows: N anchors, all first views and then all second views, and R references.

    References are the batch itself (``references is queries``), the batches of all processes in the order of ranks, or
    separate rows. Further sections are held completely by every process: a queue, prototypes. All are kept as given;
    the operator normalises them if required.
    """

    queries: Float[Tensor, "n d"]
    references: Float[Tensor, "r d"]
    views: int
    others: bool
    """Whether references are separate from the batch: no anchor is then among them."""
    sample_shards: RankSizes
    """The number of samples of each process."""
    reference_shards: RankSizes
    """The number of references of each process."""
    replicated: tuple[Tensor, ...]
    """Further sections of references, the same on every process."""
    dtype: torch.dtype
    """The dtype in which the operator computes: float32 or wider."""
    exchange: str
    """The exchange of whole gradients supported by the backends of all processes; empty: none."""

    @classmethod
    def of(cls, embeddings: Tensor, references: Tensor | None, replicated: tuple[Tensor, ...]) -> "ContrastBatch":
        """Return checked embeddings, (N, D) or (B, V, D), as the rows of this process alone."""
        views = embeddings.shape[1] if embeddings.ndim == 3 else 1
        queries = torch.cat(embeddings.unbind(dim=1)) if embeddings.ndim == 3 else embeddings
        here = queries if references is None else references
        dtype = torch.promote_types(queries.dtype, torch.float32)
        for v in (here, *replicated):
            dtype = torch.promote_types(dtype, v.dtype)
        samples, rows = RankSizes((embeddings.shape[0],), 0), RankSizes((here.shape[0],), 0)
        return cls(queries, here, views, references is not None, samples, rows, replicated, dtype, "")

    def gather(self, backend: Backend) -> "ContrastBatch":
        """Return this batch with the references of all processes, for a backend."""
        here, rank = self.references, distributed.rank()
        (samples,), (count,) = self.sample_shards.sizes, self.reference_shards.sizes
        mine = samples, count, PRECISIONS.index(here.dtype), exchange_of(backend)
        sizes = distributed.exchange(mine, self.queries.device)
        here = here.to(functools.reduce(torch.promote_types, (PRECISIONS[process[2]] for process in sizes)))
        shards = RankSizes(tuple(process[1] for process in sizes), rank)
        return self._replace(
            references=distributed.gather(here, shards, self.dtype),
            sample_shards=RankSizes(tuple(process[0] for process in sizes), rank),
            reference_shards=shards,
            exchange=EXCHANGES[sizes[0][3]] if len({process[3] for process in sizes}) == 1 else "",
        )

    @property
    def sections(self) -> tuple[Tensor, ...]:
        """All references in the order of the pair weights: first the batch, then the replicated sections."""
        return self.references, *self.replicated

    @property
    def gathered(self) -> bool:
        """Whether the references come from several processes."""
        return len(self.reference_shards.sizes) > 1

    @property
    def part(self) -> LocalAnchors | None:
        """Access to the anchors of the other processes; None unless the references are all processes' anchors."""
        shards = self.reference_shards
        if self.others or not self.gathered or self.replicated or not self.exchange:
            return None
        if 0 in shards.sizes:  # all pairs may then be symmetric on one process, but not on the others
            return None
        return LocalAnchors(shards.offset, functools.partial(distributed.gather, shards=shards))

    def of_anchors(self, values: Tensor) -> Tensor:
        """Repeat the samples' values, (B, …), for each anchor, (N, …)."""
        return values if self.views == 1 else torch.cat([values] * self.views)

    def of_references(self, values: Tensor) -> Tensor | None:
        """Gather values, one for each reference of this process; None if the references are the anchors."""
        return distributed.gather(values, self.reference_shards) if self.others or self.gathered else None

    def wide(self) -> "ContrastBatch":
        """Return the rows in the operator's dtype: gradients of several uses are then summed before rounding."""
        queries = self.queries.to(self.dtype)
        references = queries if self.references is self.queries else self.references.to(self.dtype)
        return self._replace(
            queries=queries,
            references=references,
            replicated=tuple(section.to(self.dtype) for section in self.replicated),
        )

    def labels(self, labels: Tensor, reference_labels: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the labels of the anchors, (N, …), and of the references, (R, …): as given, or the batch's own."""
        anchors = self.of_anchors(labels.to(self.queries.device, dtype))
        references = self.of_references(anchors if reference_labels is None else reference_labels.to(anchors))
        return anchors, anchors if references is None else references

    def sets(
        self, labels: Tensor, reference_labels: Tensor | None, queue_labels: Tensor | None
    ) -> tuple[Sets, list[Sets]]:
        """Return the label sets of the anchors, and of each section of references, the anchors' own first."""
        anchors, references = self.labels(labels, reference_labels, torch.bool)
        anchor_sets = Sets(anchors, "labels")
        sections = [anchor_sets if references is anchors else Sets(references, "labels of references")]
        if queue_labels is not None:
            sections.append(Sets(queue_labels.to(self.queries.device), "labels of a section"))
        return anchor_sets, sections

    def samples(self) -> tuple[Tensor, Tensor | None]:
        """Return the sample number, over all processes, of each anchor and reference (None: they are the anchors)."""
        count, first = self.queries.shape[0] // self.views, self.sample_shards.offset
        anchors = self.of_anchors(torch.arange(first, first + count, device=self.queries.device))
        return anchors, self.of_references(anchors)

    @property
    def place(self) -> int | None:
        """The index of this process's first anchor among the references; None if these are separate."""
        return None if self.others else self.reference_shards.offset

    def same_sample(self) -> PairWeight:
        """Return the pairs of views of the same sample, including each view with itself."""
        anchors, references = self.samples()
        return SameSample(anchors, references, offset=self.place)

    def same_class(self, anchors: Tensor, sections: Sequence[Tensor]) -> PairWeight:
        """Return the pairs of a class, including each row with itself; the arguments are the results of `classes`."""
        first, *rest = sections
        first_pairs = SameClass(anchors, None if first is anchors else first, offset=self.place)
        return concat([first_pairs, *(SameClass(anchors, section) for section in rest)])

    def classes(
        self, labels: Tensor, reference_labels: Tensor | None = None, queue_labels: Tensor | None = None
    ) -> tuple[Int[Tensor, " n"], list[Int[Tensor, " r"]]]:
        """Return the classes of the anchors, and of each section of references, the anchors' own first."""
        anchors, references = self.labels(labels, reference_labels, torch.int64)
        return anchors, [references, *([] if queue_labels is None else [queue_labels.to(anchors)])]

    def not_self(self) -> PairWeight:
        """Return all pairs except an anchor with itself."""
        n, r = self.queries.shape[0], self.references.shape[0]
        return AllPairs(n, r) if self.others else NotSelf(n, r, self.reference_shards.offset)

    def all_others(self) -> PairWeight:
        """Return all pairs except an anchor with itself, over all sections."""
        return concat([self.not_self(), *(AllPairs(len(self.queries), len(section)) for section in self.replicated)])

    def aligned(self) -> PairWeight:
        """Return each anchor's pair with the reference at its own position, if each anchor has one."""
        not_self = NotSelf(len(self.queries), len(self.references), self.reference_shards.offset)
        return not_self.__invert__()  # torch 2.13 cannot compile ~ of an object


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
REMEDY = "build losses and batches the same way on all ranks, and put what they learn into DistributedDataParallel"
REPLICATED_INPUTS = "queue", "queue_labels", "prototypes"
"""Inputs that every process holds completely; the lengths of other inputs may differ between processes."""


def describe_input(name: str, value: Any) -> str:
    """Describe the properties of a loss's input that must be the same on all ranks."""
    if value is None:
        return "none"
    if not isinstance(value, Tensor):
        return "given"
    if name.endswith("labels"):
        label_kind = "classes" if value.ndim == 1 else f"sets over {value.shape[1]} labels"
        return f"{label_kind}, {len(value)} of them" if name in REPLICATED_INPUTS else label_kind
    if not value.is_floating_point() or name == "mask":
        return "given"
    single = value.ndim == 3 and value.shape[1] == 1
    features = value.shape[2 if single else 1 :]  # (B, 1, D) counts as (B, D)
    shape = ", ".join(map(str, (len(value) if name in REPLICATED_INPUTS else "N", *features)))
    dtype = str(torch.promote_types(value.dtype, torch.float32)).removeprefix("torch.")
    learned = value.requires_grad and torch.is_grad_enabled() and name not in REPLICATED_INPUTS
    return f"of shape ({shape}) in {dtype}{', with gradient' if learned else ''}"


def values_of(loss: nn.Module, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return checksums of values that must be the same on all ranks: unsharded parameters and replicated inputs."""
    held = {name: value for name, value in loss.named_parameters() if type(value) is nn.Parameter}
    replicated = {name: value for name, value in inputs.items() if name in REPLICATED_INPUTS}
    held |= {name: value for name, value in replicated.items() if type(value) in {Tensor, nn.Parameter}}
    return {f"values of {name}": checksum(value) for name, value in held.items()}


def checksum(value: Tensor) -> str:
    """Return a checksum of the bits of the values, the same on every device and processor."""
    bits = value.detach().contiguous().view(BITS[value.element_size()])
    sums = bits.flatten(1).sum(dim=0, dtype=torch.int64) if bits.ndim > 1 else bits.flatten().to(torch.int64)
    weights = 2 * torch.arange(len(sums), device=sums.device) + 1  # swapped columns then change the checksum
    return f"{int((sums * weights).sum()) % 2**32:08x}"
