"""One batch on its way through encoder and head: what is computed once, and read by many offers."""

from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from likewise.data import Batch, Draw, Share, mixed


@final
class Step:
    """A batch of B samples in V views, with what encoder and head make of them, each computed when it is first read.

    Args:
        batch: Views (B, V, ...), sample_index (B,), and labels where there are some.
        encoder: f, from inputs to features.
        head: g, from features to embeddings; None: a step that asks for embeddings has the features.
        slow: A momentum encoder of both, or None.
        keyed: Whether the last view is a key, which with a momentum encoder the encoder itself does not see.

    Attributes:
        inputs: The views, (B, V, ...).
        slow: The momentum encoder, or None.
    """

    def __init__(
        self,
        batch: Batch,
        encoder: nn.Module,
        head: nn.Module | None,
        *,
        slow: nn.Module | None = None,
        keyed: bool = False,
    ) -> None:
        self.batch = batch
        self.inputs: Shaped[Tensor, "b v ..."] = batch["inputs"]
        self._encoder = encoder
        self._head = head
        self.slow = slow
        self._keyed = keyed

    @property
    def views(self) -> int:
        """How many views a sample has, V."""
        return self.inputs.shape[1]

    @property
    def encoded(self) -> int:
        """How many of the views the encoder itself sees: all but a key that is the momentum encoder's."""
        return self.views - (self.slow is not None and self._keyed and self.views > 1)

    @property
    def labels(self) -> Tensor:
        """Classes (B,), or label sets (B, L), of a batch that has some."""
        labels = self.batch.get("labels")
        if labels is None:
            raise RuntimeError("this batch has no labels")  # offers are checked before training
        return labels

    @cached_property
    def features(self) -> Float[Tensor, "b v d"]:
        """What f makes of the views that the encoder sees."""
        seen = self.inputs[:, : self.encoded]
        return self._encoder(seen.flatten(0, 1)).unflatten(0, seen.shape[:2])

    @cached_property
    def embeddings(self) -> Float[Tensor, "b v e"]:
        """Embeddings z = g(f) of the views that the encoder sees."""
        if self._head is None:
            return self.features
        return self._head(self.features.flatten(0, 1)).unflatten(0, self.features.shape[:2])

    @cached_property
    def keys(self) -> Float[Tensor, "b e"]:
        """Embeddings of the last view, without gradient: the momentum encoder's where there is one."""
        if self.slow is None:
            return self.embeddings[:, -1].detach()
        return self.slow(self.inputs[:, -1])

    @cached_property
    def targets(self) -> Float[Tensor, "b v e"]:
        """The momentum encoder's z of all views."""
        if self.slow is None:
            raise RuntimeError("targets are a momentum encoder's")  # offers are checked before training
        return self.slow(self.inputs.flatten(0, 1)).unflatten(0, self.inputs.shape[:2])

    def draw(self, purpose: int) -> Draw:
        """Return random numbers for each sample, other ones for each purpose."""
        held = len(self.inputs)
        share = self.batch.get("share") or Share(int(torch.randint(2**62, ())), held)
        return share._replace(seed=mixed(share.seed, purpose)).draw(1, held, self.inputs.device)

    def others(self, purpose: int) -> Int[Tensor, " b"]:
        """Draw for each sample another of the batch, of another class where labels are classes.

        Where all of the batch is of one class, any other sample.
        """
        count, device = len(self.inputs), self.inputs.device
        if count < 2:
            raise ValueError(
                f"expected another sample in the batch for negatives, got {count} here: enlarge batch_size"
            )
        alone = torch.arange(count, device=device)
        known = self.batch.get("labels")
        labels = alone if known is None or known.ndim != 1 else known
        in_order, order = labels.sort(stable=True)
        first, end = torch.searchsorted(in_order, labels), torch.searchsorted(in_order, labels, right=True)
        lonely = end - first == count
        place = torch.empty_like(order).scatter_(0, order, alone)
        first, end = torch.where(lonely, place, first), torch.where(lonely, place + 1, end)
        drawn = (self.draw(purpose).uniform() * (count - (end - first))).long()
        return order[torch.where(drawn < first, drawn, drawn + end - first)]
