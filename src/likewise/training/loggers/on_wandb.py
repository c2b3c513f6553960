"""A training on Weights & Biases: images, histograms and figures."""

from importlib import import_module
from typing import Any, final

from jaxtyping import UInt8
from lightning.pytorch.loggers import WandbLogger
from torch import Tensor

from likewise.training.loggers.board import PAIRS, Seen


@final
class OnWandb:
    """Show a training on W&B.

    Args:
        logger: Lightning's logger.
    """

    def __init__(self, logger: WandbLogger) -> None:
        self.logger = logger

    def views(self, picture: UInt8[Tensor, "h w 4"]) -> None:
        """Log an image."""
        self.logger.log_image("views", [picture.numpy()], step=0)

    def epoch(self, seen: Seen) -> None:
        """Log histograms and a figure."""
        wandb: Any = import_module("wandb")
        shown: dict[str, Any] = {"validation/map": wandb.Plotly(seen.map)}
        if seen.similarities is not None:
            edges, *shares = (of.numpy() for of in seen.similarities)
            for name, share in zip(PAIRS, shares, strict=True):
                shown[f"validation/cosine, {name}"] = wandb.Histogram(np_histogram=(100 * share, edges))
        self.logger.log_metrics(shown, seen.step)
