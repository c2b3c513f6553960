"""One batch and its results from encoder and head, computed once and shared by all inputs of the loss."""

from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from likewise.data import Batch, Draw, EpisodeShape, LocalBatch, derive_seed
from likewise.models import in_chunks


@final
@dataclass(eq=False, repr=False)
class Step:
    """A batch of B samples in V views, with outputs of encoder and head, each computed when it is first read.

    Args:
        batch: Views (B, V, ...), sample_index (B,), and labels if there are any.
        encoder: f, from inputs to features.
        head: g, from features to embeddings. None: the embeddings are the features.
        slow: A momentum encoder of both, or None.
        keyed: Whether the last view is a key, which only the momentum encoder sees if there is one.
        chunk_size: Inputs that are encoded at a time; see `likewise.models.in_chunks`. None: all.
    """

    batch: Batch
    encoder: nn.Module
    head: nn.Module | None
    _: KW_ONLY
    slow: nn.Module | None = None
    keyed: bool = False
    chunk_size: int | None = None

    @property
    def inputs(self) -> Shaped[Tensor, "b v ..."]:
        """The views, (B, V, ...)."""
        return self.batch["inputs"]

    @property
    def views(self) -> int:
        """Number of views per sample, V."""
        return self.inputs.shape[1]

    @property
    def encoded(self) -> int:
        """Number of views that the encoder sees: all, except a key that goes to the momentum encoder."""
        return self.views - (self.slow is not None and self.keyed and self.views > 1)

    @property
    def labels(self) -> Tensor:
        """Classes (B,) or label sets (B, L)."""
        labels = self.batch.get("labels")
        if labels is None:
            raise RuntimeError("this batch has no labels")  # inputs are checked before training
        return labels

    @cached_property
    def features(self) -> Float[Tensor, "b v d"]:
        """Features f(x) of the views that the encoder sees."""
        seen = self.inputs[:, : self.encoded]
        return in_chunks(self.encoder, seen.flatten(0, 1), self.chunk_size).unflatten(0, seen.shape[:2])

    @cached_property
    def maps(self) -> Float[Tensor, "b d h w"]:
        """Feature maps of the first view."""
        maps: Any = self.encoder.maps  # an `Encoder`
        return in_chunks(self.encoder, self.inputs[:, 0], self.chunk_size, maps)

    @property
    def represented(self) -> Float[Tensor, "n d"] | None:
        """The last result for the samples so far: embeddings, else features, else the means of feature maps."""
        computed = vars(self)
        for name in ("embeddings", "features"):
            if name in computed:
                return computed[name].flatten(0, 1)
        return computed["maps"].flatten(2).mean(dim=2) if "maps" in computed else None

    @property
    def episodes(self) -> EpisodeShape:
        """The shape of the batch's episodes."""
        shape = self.batch.get("episodes")
        if shape is None:
            raise RuntimeError("this batch has no episodes")  # batches are checked before training
        return shape

    def by_episode(self, rows: Shaped[Tensor, "b ..."]) -> tuple[Tensor, Tensor]:
        """Split rows of samples into those of supports, (E, N, K, ...), and those of queries, (E, N, Q, ...)."""
        shape = self.episodes
        parted = rows.unflatten(0, (shape.episodes, shape.ways, shape.each))
        return parted[:, :, : shape.shots], parted[:, :, shape.shots :]

    @cached_property
    def embeddings(self) -> Float[Tensor, "b v e"]:
        """Embeddings z = g(f) of the views that the encoder sees."""
        if self.head is None:
            return self.features
        return self.head(self.features.flatten(0, 1)).unflatten(0, self.features.shape[:2])

    @cached_property
    def keys(self) -> Float[Tensor, "b e"]:
        """Embeddings of the last view, without gradient, by the momentum encoder if there is one."""
        if self.slow is None:
            return self.embeddings[:, -1].detach()
        return self._encode_slow(self.slow, self.inputs[:, -1])

    @cached_property
    def targets(self) -> Float[Tensor, "b v e"]:
        """Embeddings of all views by the momentum encoder."""
        if self.slow is None:
            raise RuntimeError("targets need a momentum encoder")  # inputs are checked before training
        return self._encode_slow(self.slow, self.inputs.flatten(0, 1)).unflatten(0, self.inputs.shape[:2])

    @torch.no_grad()
    def _encode_slow(self, slow: nn.Module, inputs: Tensor) -> Tensor:
        return in_chunks(slow, inputs, self.chunk_size)

    def draw(self, purpose: int) -> Draw:
        """Return random numbers for each sample, different for each purpose."""
        share = LocalBatch.of(self.batch)
        return share._replace(seed=derive_seed(share.seed, purpose)).draw(1, len(self.inputs), self.inputs.device)

    def others(self, purpose: int) -> Int[Tensor, " b"]:
        """Sample another row of the batch for each sample, of another class if labels are classes.

        If the whole batch has one class, any other sample is chosen.
        """
        count, device = len(self.inputs), self.inputs.device
        if count < 2:
            raise ValueError(
                f"expected another sample in the batch for negatives, got {count} here: increase batch_size"
            )
        rows = torch.arange(count, device=device)
        known = self.batch.get("labels")
        labels = rows if known is None or known.ndim != 1 else known
        in_order, order = labels.sort(stable=True)
        first, end = torch.searchsorted(in_order, labels), torch.searchsorted(in_order, labels, right=True)
        one_class = end - first == count
        position = torch.empty_like(order).scatter_(0, order, rows)
        first, end = torch.where(one_class, position, first), torch.where(one_class, position + 1, end)
        chosen = (self.draw(purpose).uniform() * (count - (end - first))).long()
        return order[torch.where(chosen < first, chosen, chosen + end - first)]
