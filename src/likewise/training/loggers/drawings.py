"""What a training shows in its loggers besides curves: options, views of samples, and what validation encodes."""

from collections.abc import Mapping
from typing import Any, final

import lightning
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from likewise.data import Batch, Samples
from likewise.diagnostics import similarity_histogram, two_dimensional_map
from likewise.diagnostics.plots.images import montage, thumbnails
from likewise.evaluation import Features
from likewise.training.loggers.boards import Board, OnTensorBoard, Seen, board_of

MOST = 1000  # validation samples that are shown
SAMPLES, VIEWS = 8, 6  # at most, in the picture of views
SIDE = 32  # pixels of a sample's picture on a map
AT_ONCE = 256  # inputs that are read together


@final
class Drawings(lightning.Callback):
    """Show in TensorBoard, W&B and MLflow what is no curve; other loggers get the options alone.

    At the start, some samples of the first batch, each followed by its views as the encoder receives them, where they
    are images. After each validated epoch, of at most 1,000 validation samples: histograms of the cosine similarities
    of pairs of one class and of different classes, and a map. In TensorBoard it is one for the projector, with labels
    and small pictures; elsewhere a figure by PCA, turned like the one before. The training and its random numbers do
    not change.
    """

    def __init__(self, options: Mapping[str, Any], samples: Samples) -> None:
        self.options = options
        self.samples = samples
        self._boards: list[Board] = []
        self._places: Tensor | None = None
        self._pictures: Tensor | None = None

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Log the options."""
        del pl_module, stage
        for logger in trainer.loggers:
            logger.log_hyperparams(dict(self.options))
        self._boards = [board for board in map(board_of, trainer.loggers) if board is not None]

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Let TensorBoard begin at the current step."""
        del pl_module
        for board in self._boards:
            if isinstance(board, OnTensorBoard):
                board.begin(self.options, trainer.global_step)

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Show the views of the very first batch."""
        del pl_module
        if self._boards and batch_idx == 0 and trainer.global_step == 0:
            picture = views(self.samples, batch)
            for board in self._boards:
                if picture is not None:
                    board.views(picture)

    def show(self, trainer: lightning.Trainer, samples: Samples, features: Features) -> None:
        """Show what the encoder makes of validation samples."""
        if not self._boards:
            return
        rows = torch.linspace(0, len(features) - 1, min(MOST, len(features)), dtype=torch.float64).long()
        some = features[rows]
        self._places = two_dimensional_map(some.vectors, "pca", start=self._places)
        if self._pictures is None and len(samples.input_shape) == 3:
            parts = [images(samples, part) for part in rows.split(AT_ONCE)]
            self._pictures = torch.cat([thumbnails(of, SIDE) for of in parts])
        pairs = similarity_histogram(some.vectors, some.classes) if some.label_kind == "classes" else None
        step = trainer.global_step - 1
        seen = Seen(trainer.current_epoch + 1, step, some, self._places, self._pictures, pairs)
        for board in self._boards:
            board.epoch(seen)


def views(samples: Samples, batch: Batch) -> UInt8[Tensor, "h w 4"] | None:
    """Put some samples of a batch into one picture, a row each: the original, and its views as the encoder gets them.

    Red, green, blue and opacity; None where samples are no images.
    """
    shown = batch["inputs"][:SAMPLES, :VIEWS]
    if shown.ndim != 5:
        return None
    originals = images(samples, batch["sample_index"][:SAMPLES].cpu())
    size = list(shown.shape[-2:])
    originals = functional.interpolate(originals, size=size, mode="bilinear", antialias=True, align_corners=False)
    return montage(torch.cat([originals.unsqueeze(1), shown.float().cpu()], dim=1))


def images(samples: Samples, rows: Int[Tensor, " n"]) -> Float[Tensor, "n ch h w"]:
    """Read images, from 0 to 1."""
    read = samples.inputs[rows]
    return read.float() if read.is_floating_point() else read.float() / 255
