"""A batch as rows, those of all processes if they are gathered, and what all ranks have to agree on first."""

import zlib
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from likewise import distributed
from likewise.distributed import Shards
from likewise.pairs import AllPairs, NotSelf, PairWeight


class Rows(NamedTuple):
    """A batch as rows: N anchors, all first views and then all second views, and R references.

    References are the batch itself (``references is queries``), the batches of all processes in the order of ranks, or
    others that were given. Beside them stand the sections that every process holds whole: a queue, prototypes. They are
    as they came: the operator normalises them, if it is asked to.
    """

    queries: Float[Tensor, "n d"]
    references: Float[Tensor, "r d"]
    views: int
    others: bool
    """Whether references are others than the batch, so that no anchor is among them."""
    sample_shards: Shards
    """The samples of each process."""
    reference_shards: Shards
    """The references of each process."""
    whole: tuple[Tensor, ...]
    """Further sections of references, the same on every process."""
    dtype: torch.dtype
    """In which the operator computes: float32 or wider."""

    @property
    def sections(self) -> tuple[Tensor, ...]:
        """All references, as the pair weights weigh them: those of the batch first."""
        return self.references, *self.whole

    @property
    def gathered(self) -> bool:
        """Whether the references are those of several processes."""
        return len(self.reference_shards.sizes) > 1

    def of_anchors(self, values: Tensor) -> Tensor:
        """Return the samples' values, (B, …), for each anchor, (N, …)."""
        return values if self.views == 1 else torch.cat([values] * self.views)

    def of_references(self, values: Tensor) -> Tensor | None:
        """Return this process's values, one for each of its references, for all; None where they are the anchors'."""
        return distributed.gather(values, self.reference_shards) if self.others or self.gathered else None

    def labels(self, labels: Tensor, reference_labels: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the labels of the anchors, (N, …), and of the references, (R, …): given, or the batch's own."""
        anchors = self.of_anchors(labels.to(self.queries.device, dtype))
        others = self.of_references(anchors if reference_labels is None else reference_labels.to(anchors))
        return anchors, anchors if others is None else others

    def samples(self) -> tuple[Tensor, Tensor | None]:
        """Return which sample of all processes each anchor is, and each reference (None: they are the anchors)."""
        count, first = len(self.queries) // self.views, self.sample_shards.offset
        anchors = self.of_anchors(torch.arange(first, first + count, device=self.queries.device))
        return anchors, self.of_references(anchors)

    def not_self(self) -> PairWeight:
        """Return every pair but an anchor with itself."""
        n, r = len(self.queries), len(self.references)
        return AllPairs(n, r) if self.others else NotSelf(n, r, self.reference_shards.offset)

    def beside(self) -> PairWeight:
        """Return each anchor with the reference that stands beside it, where there is one for each: by place alone."""
        return ~NotSelf(len(self.queries), len(self.references), self.reference_shards.offset)


def agreed_sizes(
    sizes: tuple[int, int], alike: tuple[int, ...], shared: tuple[object, ...], device: torch.device
) -> list[tuple[int, int]]:
    """Return every rank's samples and references; raise on each unless the batches are alike.

    Args:
        sizes: This rank's samples and references.
        alike: Its views, its features, and what else is the same on all ranks.
        shared: More of that, which ranks that share different things may have more or less of.
        device: Where the collective runs.
    """
    digest = zlib.crc32(repr(shared).encode())  # one number, so that messages have one length
    everyone = distributed.exchange((*sizes, *alike, digest), device)
    if len({theirs[2:] for theirs in everyone}) > 1:
        raise ValueError(
            "a batch has the same views, features, dtype, kind of labels, and references or none, on all ranks, "
            "and a queue and prototypes the same length, "
            f"got embeddings of {' and '.join(f'{t[2]} views and {t[3]} features' for t in everyone)}; "
            "build the batches of all ranks alike"
        )
    return [(theirs[0], theirs[1]) for theirs in everyone]
