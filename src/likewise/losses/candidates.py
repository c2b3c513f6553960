"""The candidates among which a query finds its key: other keys, hard negatives, a queue; duplicates excluded."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from likewise import distributed
from likewise.losses.contrast_batch import ContrastBatch
from likewise.losses.inputs import UNSIGNED_DTYPES, check_tensor, describe_missing
from likewise.operator.inputs import check_finite, check_floating
from likewise.pairs import AllPairs, Below, Equal, NoPairs, PairWeight, concat

if TYPE_CHECKING:
    from likewise.losses.base import ContrastiveLoss


class Candidates(NamedTuple):
    """The inputs besides queries and keys; see `InfoNCELoss.forward`."""

    negatives: Tensor | None = None
    queue: Tensor | None = None
    ids: Tensor | None = None
    negative_ids: Tensor | None = None
    queue_ids: Tensor | None = None
    guide_queries: Tensor | None = None
    guide_keys: Tensor | None = None
    guide_negatives: Tensor | None = None
    guide_margin: float = 0.0

    @property
    def back(self) -> "Candidates":
        """The candidates among which a key finds its query."""
        return self._replace(guide_queries=self.guide_keys, guide_keys=self.guide_queries)

    def sections(
        self, loss: "ContrastiveLoss", queries: Tensor, keys: Tensor
    ) -> tuple[ContrastBatch, PairWeight, PairWeight]:
        """Return the batch with all candidates, the pull of each query's own key, and the push, own keys included."""
        only_queue = self.queue is not None and self.negatives is None
        rows = loss.rows(queries, keys, replicated=() if self.queue is None else (self.queue,), local=only_queue)
        push = [rows.aligned() if only_queue else self.nearby(rows)]
        if self.negatives is not None:
            negatives, pushed = self.hard(rows, self.negatives)
            rows, push = rows._replace(replicated=(negatives, *rows.replicated)), [*push, pushed]
        if self.queue is not None:
            push = [*push, self._apart(rows, self.queue_ids, None, len(self.queue))]
        return rows, concat([rows.aligned(), *(NoPairs(*weight.shape) for weight in push[1:])]), concat(push)

    def nearby(self, rows: ContrastBatch) -> PairWeight:
        """Return the pairs of a query and its own key, or another key that may push it."""
        return rows.aligned().__or__(self.others(rows, self.guide_keys))

    def others(self, rows: ContrastBatch, guide: Tensor | None) -> PairWeight:
        """Return the pairs of a query and a reference that may push it, by the ids of keys and this guide's vectors."""
        ids, guide = (None if values is None else of_all(rows, values) for values in (self.ids, guide))
        return self._apart(rows, ids, guide, len(rows.references))

    def hard(self, rows: ContrastBatch, negatives: Tensor) -> tuple[Tensor, PairWeight]:
        """Return all hard negatives as a section of rows, and which of them push."""
        every = of_all(rows, negatives).flatten(0, -2)
        ids = None if self.negative_ids is None else of_all(rows, self.negative_ids).flatten()
        guide = None if self.guide_negatives is None else of_all(rows, self.guide_negatives).flatten(0, -2)
        return every, self._apart(rows, ids, guide, len(every))

    def _apart(self, rows: ContrastBatch, ids: Tensor | None, guide: Tensor | None, count: int) -> PairWeight:
        """Return the pairs of a query and a reference that neither has its id nor is too similar for the guide."""
        device, pairs = rows.queries.device, AllPairs(len(rows.queries), count)
        if self.ids is not None and ids is not None:
            mine, references = (values.to(device, torch.int64) for values in (self.ids, ids))
            pairs = Equal(mine, references, name="ids").__invert__()
        if self.guide_queries is None or self.guide_keys is None or guide is None:
            return pairs
        queries, keys, references = (_directions(v, device) for v in (self.guide_queries, self.guide_keys, guide))
        limits = (queries * keys).sum(dim=1) - self.guide_margin
        return pairs & Below(queries.to(references.dtype), references, limits=limits)


def _directions(guide: Tensor, device: torch.device) -> Tensor:
    return normalize(guide.detach().to(device, torch.promote_types(guide.dtype, torch.float32)), dim=-1)


def of_all(rows: ContrastBatch, values: Tensor) -> Tensor:
    """Return the values for the queries of all processes, from those for the queries of this process."""
    dtype = torch.promote_types(rows.dtype, values.dtype) if values.is_floating_point() else torch.int64
    here = values.to(rows.queries.device, dtype) if rows.gathered else values  # ranks may differ in narrower ones
    return distributed.gather(here, rows.reference_shards)


def check_ids(name: str, rows_name: str, also: str, inputs: dict[str, Any]) -> None:
    """Raise unless ids, if given, are integers, one per row of (…, D), and those rows and ``also`` are given too."""
    if (ids := inputs[name]) is None:
        return
    check_tensor(name, ids)
    for needed in (rows_name, also):
        if inputs[needed] is None:
            raise ValueError(f"expected {needed} with {name}, got none: pass both or neither")
    shape = inputs[rows_name].shape[:-1]
    if ids.is_floating_point() or ids.is_complex() or ids.dtype in UNSIGNED_DTYPES or ids.shape != shape:
        expected = f"expected {name} to be integers, one for each of the {rows_name}, shape {tuple(shape)}"
        raise ValueError(f"{expected}, got {ids.dtype} of shape {tuple(ids.shape)}: number them, equal ones alike")


def check_candidates(inputs: dict[str, Any]) -> None:
    """Raise unless ids of negatives, and a guide's finite vectors of one width, match the rows they describe."""
    check_ids("negative_ids", "negatives", "ids", inputs)
    for side in ("queries", "keys", "negatives"):
        name, first = f"guide_{side}", inputs["guide_queries"]
        vectors, rows = inputs[name], inputs[side]
        if vectors is None and (side == "negatives" or first is None):
            continue
        if vectors is None or first is None or rows is None:
            expected = f"expected guide_queries and guide_keys together, and {side} with {name}"
            got = describe_missing(("guide_queries", name, side), inputs)
            raise ValueError(f"{expected}, got {got}: pass the guide's vectors of both sides, or none")
        check_tensor(name, vectors)
        check_floating(name, vectors)
        if vectors.shape[:-1] != rows.shape[:-1] or vectors.shape[-1:] != first.shape[-1:]:
            shape = (*rows.shape[:-1], *first.shape[-1:])
            expected = f"expected {name} to be vectors of the guide's width, one for each of the {side}, shape {shape}"
            raise ValueError(f"{expected}, got shape {tuple(vectors.shape)}: encode the batch's own")
        check_finite(name, vectors)
