"""Inputs from the batch alone: embeddings, labels, pairs of views, and the supports and queries of episodes."""

from contextlib import suppress
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from likewise.data import Batches, Draw, Episodes, LocalBatch, derive_seed, owned_by_partner
from likewise.models import CellGrid, Encoder
from likewise.training.inputs.learned import ClassParameters
from likewise.training.inputs.loss_input import InputContext, LossInput, Step

PARTNERS = frozenset({"keys", "positives"})
NEGATIVES, MASKING = 1, 2  # purposes of a step's random numbers


@final
class BatchInputs(LossInput):
    """The inputs that every batch has.

    embeddings      z of all views, except a key that goes to a momentum encoder, (B, V, E)
    labels          classes (B,) or label sets (B, L), if the data has labels
    sample_index    rows in the training part, (B,)
    """

    of_labels = frozenset({"labels"})
    without_head = frozenset({"labels", "sample_index"})

    def embeddings(self, step: Step) -> Float[Tensor, "b v e"]:
        return step.embeddings

    def labels(self, step: Step) -> Tensor:
        return step.labels

    def sample_index(self, step: Step) -> Int[Tensor, " b"]:
        return step.batch["sample_index"]


@final
class ViewPairs(LossInput):
    """Pairs and triplets from views.

    queries, anchors    z of all views, without the last if the loss needs keys or positives, or if it goes to a
                        momentum encoder: (B, E) for one view, (B, V, E) for more
    keys, positives     if the loss needs them: z of the last view, with gradient
    negatives           z of the last view of another sample, of another class if labels are classes
    key_labels          the labels, if there are keys
    """

    only_if_required = frozenset({"keys", "positives", "negatives", "key_labels"})
    of_labels = frozenset({"key_labels"})

    def build(self, context: InputContext) -> None:
        self._apart = bool(context.signature.required & PARTNERS)
        self._loss = context.signature.loss

    def queries(self, step: Step) -> Tensor:
        embeddings = step.embeddings
        if self._apart:
            has_partner = step.slow is not None or "counterparts" in step.batch
            if step.views != 2 and not (step.views == 1 and has_partner):
                raise ValueError(
                    f"expected two views for {self._loss}, an anchor and its partner, got {step.views}: "
                    "set batches.views to 2"
                )
            embeddings = embeddings[:, :1]
        return embeddings[:, 0] if embeddings.shape[1] == 1 else embeddings

    anchors = queries

    def keys(self, step: Step) -> Float[Tensor, "b e"]:
        return step.embeddings[:, -1]

    positives = keys

    def negatives(self, step: Step) -> Float[Tensor, "b e"]:
        return step.embeddings[:, -1][step.others(NEGATIVES)]

    def key_labels(self, step: Step) -> Tensor:
        return step.labels


@final
class EpisodeMeans(LossInput):
    """The inputs of prototypical networks, from pooled features f(x) of a batch of episodes.

    query_features  features of the queries, (E, N·Q, D), class after class
    class_means     for each class the mean of its support features, (E, N, D)
    query_labels    each query's class within its episode, 0 … N − 1, (E, N·Q)
    """

    batches = Episodes
    without_head = frozenset({"query_features", "class_means", "query_labels"})

    def query_features(self, step: Step) -> Float[Tensor, "e q d"]:
        return step.by_episode(step.features[:, 0])[1].flatten(1, 2)

    def class_means(self, step: Step) -> Float[Tensor, "e k d"]:
        return step.by_episode(step.features[:, 0])[0].mean(dim=2)

    def query_labels(self, step: Step) -> Int[Tensor, "e q"]:
        return _own_classes(step)


@final
class EpisodeMaps(ClassParameters, LossInput):
    """The inputs of InfoPatch: feature maps of a batch of episodes, cell by cell.

    query_maps      feature maps of the queries, (E, N·Q, D, H, W), class after class
    support_maps    for each class the mean map of its supports, (E, N, D, H, W), with one cell masked
    cell_labels     the class within its episode that each cell of a query shows, (E, N·Q, H, W)
    map_logits      logits of all training classes for every cell of every image, (B, H, W, C), by a linear layer
    map_labels      the training class that each of these cells shows, (B, H, W)

    In mixed queries, a cell shows the image that covers more than half of it.

    Args:
        mask: Whether one cell, drawn for each step, is set to zero in all support maps, after the mean over shots.
        rate_factor: Factor of the linear layer's learning rate.

    Raises:
        ValueError: The factor is not positive; the encoder has no maps, or maps of a single cell, which a mask would
            empty.

    Source:
        C. Liu et al., Learning a Few-shot Embedding Model with Contrastive Learning, 2021, sections 3.2 and 3.3.
    """

    batches = Episodes
    without_head = frozenset({"query_maps", "support_maps", "cell_labels", "map_logits", "map_labels"})
    linear: nn.Linear

    def __init__(self, mask: bool = True, rate_factor: float = 1.0) -> None:
        super().__init__(rate_factor)
        self.mask = mask
        self._grid: CellGrid | None = None

    def build(self, context: InputContext) -> None:
        channels = context.encoder.map_shape[0]
        if self.mask:
            _check_cells(context.encoder, "to mask one", "mask none, by --inputs EpisodeMaps --inputs.mask false")
        with suppress(ValueError):  # unmixed images need none
            self._grid = context.encoder.cell_grid
        if "map_logits" in context.signature.names:
            self.linear = nn.Linear(channels, context.num_labels)

    def check_batches(self, batches: Batches, context: InputContext) -> None:
        super().check_batches(batches, context)
        if not (isinstance(batches, Episodes) and batches.mix):
            return
        _check_cells(context.encoder, "for mixed queries", "mix none, by --batches.mix false")
        _ = context.encoder.cell_grid  # or an error with a remedy

    def query_maps(self, step: Step) -> Float[Tensor, "e q d h w"]:
        return step.by_episode(step.maps)[1].flatten(1, 2)

    def support_maps(self, step: Step) -> Float[Tensor, "e k d h w"]:
        maps = step.by_episode(step.maps)[0].mean(dim=2)
        if not self.mask:
            return maps
        height, width = maps.shape[-2:]
        draw = Draw(derive_seed(LocalBatch.of(step.batch).seed, MASKING), 1, device=maps.device)
        cell = (draw.uniform() * (height * width)).long()
        kept = torch.arange(height * width, device=maps.device) != cell
        return maps * kept.view(height, width)

    def cell_labels(self, step: Step) -> Int[Tensor, "e q h w"]:
        return self._shown(step, _own_classes(step))

    def map_logits(self, step: Step) -> Float[Tensor, "b h w c"]:
        return self.linear(step.maps.movedim(1, -1))

    def map_labels(self, step: Step) -> Int[Tensor, "b h w"]:
        support, queries = step.by_episode(step.labels)
        shown = self._shown(step, queries.flatten(1)).unflatten(1, queries.shape[1:])
        whole = support[..., None, None].expand(*support.shape, *shown.shape[-2:])
        return torch.cat([whole, shown], dim=2).flatten(0, 2)

    def _shown(self, step: Step, classes: Int[Tensor, "e q"]) -> Int[Tensor, "e q h w"]:
        """Return the class of the image that each cell of a query shows."""
        height, width = step.maps.shape[-2:]
        ours = classes[..., None, None].expand(*classes.shape, height, width)
        mix = step.batch.get("mix")
        if mix is None:
            return ours
        if self._grid is None:
            raise RuntimeError("mixed queries need an encoder whose cells are known")  # see check_batches
        partners: Int[Tensor, "e q"] = classes.gather(1, mix.partners)
        image = (step.inputs.shape[-2], step.inputs.shape[-1])
        theirs: Bool[Tensor, "e h w"] = owned_by_partner(
            mix, (height, width), self._grid.stride, image, start=self._grid.start
        )
        return torch.where(theirs.unsqueeze(1), partners[..., None, None], ours)


def _check_cells(encoder: Encoder, purpose: str, remedy: str) -> None:
    _, height, width = encoder.map_shape
    if height * width < 2:
        raise ValueError(
            f"expected feature maps of at least 2 cells {purpose}, got {height} x {width} for images "
            f"{encoder.input_shape}: pool less often, as by --encoder.pools 3 of Conv4, or {remedy}"
        )


def _own_classes(step: Step) -> Int[Tensor, "e q"]:
    shape = step.episodes
    classes = torch.arange(shape.ways, device=step.inputs.device).repeat_interleave(shape.queries)
    return classes.expand(shape.episodes, -1)
