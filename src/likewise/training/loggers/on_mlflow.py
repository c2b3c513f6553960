"""A training on MLflow: images and figures among the run's artifacts."""

from typing import final

from jaxtyping import UInt8
from lightning.pytorch.loggers import MLFlowLogger
from torch import Tensor

from likewise.diagnostics import plots
from likewise.training.loggers.board import Seen


@final
class OnMLflow:
    """Show a training on MLflow.

    Args:
        logger: Lightning's logger.
    """

    def __init__(self, logger: MLFlowLogger) -> None:
        self.logger = logger

    def views(self, picture: UInt8[Tensor, "h w 4"]) -> None:
        """Log an image."""
        self.logger.experiment.log_image(self.logger.run_id, picture.numpy(), "views.png")

    def epoch(self, seen: Seen) -> None:
        """Log figures, as pages."""
        figures = {"map": seen.map}
        if seen.similarities is not None:
            figures["similarities"] = plots.similarities({"encoder": seen.similarities})
        for name, figure in figures.items():
            page = f"validation/{name}-epoch-{seen.epoch:04}.html"
            self.logger.experiment.log_figure(self.logger.run_id, figure, page)
