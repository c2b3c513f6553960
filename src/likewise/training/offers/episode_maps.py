"""Feature maps of an episode: those of its queries and supports, and what each cell shows."""

from contextlib import suppress
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from likewise.data import Draw, Share, mixed, owned_by_partner
from likewise.models import CellGrid
from likewise.training.offers.episode_means import own_classes
from likewise.training.offers.offer import Offer, Plan
from likewise.training.step import Step

MASKING = 2  # purpose of a step's random numbers


@final
class EpisodeMaps(Offer):
    """What InfoPatch compares: feature maps of a batch of episodes, cell by cell.

    query_maps      feature maps of the queries, (E, N·Q, D, H, W), class after class
    support_maps    for each class the mean map of its supports, (E, N, D, H, W), with one cell masked
    cell_labels     the class within its episode that each cell of a query shows, (E, N·Q, H, W)
    map_logits      logits of all training classes for every cell of every image, (B, H, W, C), by a linear layer
    map_labels      the training class that each of these cells shows, (B, H, W)

    Where queries are mixed, a cell shows the image that covers more than half of it.

    Args:
        mask: Whether one cell, drawn for each step, is set to zero in all support maps, after the mean over shots.
        rate_factor: Factor of the linear layer's learning rate.

    Raises:
        ValueError: The factor is not positive; the encoder has no maps, or maps of a single cell, of which a mask
            leaves nothing.

    Source:
        C. Liu et al., Learning a Few-shot Embedding Model with Contrastive Learning, 2021, sections 3.2 and 3.3.
    """

    linear: nn.Linear

    def __init__(self, mask: bool = True, rate_factor: float = 1.0) -> None:
        super().__init__()
        if not rate_factor > 0:
            raise ValueError(f"expected rate_factor above 0, got {rate_factor}: 1 is the encoder's rate")
        self.mask = mask
        self.rate_factor = rate_factor
        self._grid: CellGrid | None = None

    def build(self, plan: Plan) -> None:
        """Make the layer, and check that maps have cells to tell apart."""
        channels, height, width = plan.encoder.map_shape
        if height * width < 2 and self.mask:
            raise ValueError(
                f"expected feature maps of at least 2 cells to mask one, got {height} x {width} for images "
                f"{plan.encoder.input_shape}: pool less often, as by --encoder.pools 3 of Conv4, or mask none, by "
                "--offers EpisodeMaps --offers.mask false"
            )
        with suppress(ValueError):  # images that are not mixed need none
            self._grid = plan.encoder.cell_grid
        if "map_logits" in plan.asked:
            self.linear = nn.Linear(channels, plan.num_labels)

    def rate_factors(self) -> dict[nn.Parameter, float]:
        """Return the factor for the layer."""
        return dict.fromkeys(self.parameters(), self.rate_factor)

    def query_maps(self, step: Step) -> Float[Tensor, "e q d h w"]:
        """Return the feature maps of the queries."""
        return step.by_episode(step.maps)[1].flatten(1, 2)

    def support_maps(self, step: Step) -> Float[Tensor, "e k d h w"]:
        """Return the mean feature map of each class's support, with one cell masked."""
        maps = step.by_episode(step.maps)[0].mean(dim=2)
        if not self.mask:
            return maps
        height, width = maps.shape[-2:]
        draw = Draw(mixed(Share.of(step.batch).seed, MASKING), 1, device=maps.device)
        cell = (draw.uniform() * (height * width)).long()
        kept = torch.arange(height * width, device=maps.device) != cell
        return maps * kept.view(height, width)

    def cell_labels(self, step: Step) -> Int[Tensor, "e q h w"]:
        """Return the class within its episode that each cell of a query shows."""
        return self._shown(step, own_classes(step))

    def map_logits(self, step: Step) -> Float[Tensor, "b h w c"]:
        """Return the logits of every cell of every image."""
        return self.linear(step.maps.movedim(1, -1))

    def map_labels(self, step: Step) -> Int[Tensor, "b h w"]:
        """Return the training class that each cell shows."""
        support, queries = step.by_episode(step.labels)
        shown = self._shown(step, queries.flatten(1)).unflatten(1, queries.shape[1:])
        whole = support[..., None, None].expand(*support.shape, *shown.shape[-2:])
        return torch.cat([whole, shown], dim=2).flatten(0, 2)

    def _shown(self, step: Step, classes: Int[Tensor, "e q"]) -> Int[Tensor, "e q h w"]:
        """Return for each cell of a query the class of the image that it shows."""
        height, width = step.maps.shape[-2:]
        own = classes[..., None, None].expand(*classes.shape, height, width)
        mix = step.batch.get("mix")
        if mix is None:
            return own
        if self._grid is None:
            raise RuntimeError("mixed queries need an encoder whose cells are known")  # refused before training
        partners: Int[Tensor, "e q"] = classes.gather(1, mix.partners)
        image = (step.inputs.shape[-2], step.inputs.shape[-1])
        theirs: Bool[Tensor, "e h w"] = owned_by_partner(
            mix, (height, width), self._grid.stride, image, start=self._grid.start
        )
        return torch.where(theirs.unsqueeze(1), partners[..., None, None], own)
