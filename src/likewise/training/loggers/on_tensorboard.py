"""A training on TensorBoard: hyper-parameters, images, histograms, and the projector's maps."""

import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, UInt8
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from likewise.diagnostics.unit_rows import unit_rows
from likewise.evaluation.label_words import label_words
from likewise.training.loggers.board import PAIRS, Seen

COMPONENTS = 50  # of features, which the projector lays out
TAG = "validation"


@final
class OnTensorBoard:
    """Show a training on TensorBoard.

    Args:
        logger: Lightning's logger.
    """

    def __init__(self, logger: TensorBoardLogger) -> None:
        self.logger = logger

    def begin(self, options: Mapping[str, Any], step: int) -> None:
        """Hide what was logged from this step on, since training repeats it; compare the options with other runs'."""
        from torch.utils.tensorboard.summary import hparams  # noqa: PLC0415 - of an extra

        events: Any = import_module("tensorboard.compat.proto.event_pb2")
        writer: Any = self.logger.experiment.file_writer
        writer.add_event(events.Event(session_log=events.SessionLog(status=events.SessionLog.START)), step)
        for summary in hparams(dict(options), {"loss": 0.0}):  # the metric's name; its values are those of the curve
            writer.add_summary(summary)

    def views(self, picture: UInt8[Tensor, "h w 4"]) -> None:
        """Add an image."""
        self.logger.experiment.add_image("views", picture, 0, dataformats="HWC")

    def epoch(self, seen: Seen) -> None:
        """Add histograms, and a map for the projector, which is told of earlier maps in a resumed training too."""
        writer: Any = self.logger.experiment
        for name, (edges, shares) in _histograms(seen).items():
            percent, middles = 100 * shares, (edges[1:] + edges[:-1]) / 2
            moments = float(percent.sum()), float(percent @ middles), float(percent @ middles.square())
            buckets = edges[1:].tolist(), percent.tolist()
            writer.add_histogram_raw(f"{TAG}/cosine, {name}", -1, 1, *moments, *buckets, seen.step)
        folder = Path(writer.log_dir)
        config = folder / "projector_config.pbtxt"
        before = _maps(config)
        shutil.rmtree(folder / f"{seen.step:05}", ignore_errors=True)
        words = [" ".join(of.split()) for of in label_words(seen.features)] if seen.features.label_kind else None
        writer.add_embedding(components(seen.features.vectors), words, seen.pictures, seen.step, TAG)
        if before:
            config.write_text("".join(dict.fromkeys([*before, *_maps(config)])), encoding="utf-8")


def components(features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
    """Return unit features along their first principal components, to four decimals, since they are written as text.

    Example:
        >>> components(torch.eye(3))[:, :2].square().sum(dim=1).round(decimals=2)
        tensor([0.6700, 0.6700, 0.6700], dtype=torch.float64)
    """
    units = unit_rows(features)
    u, s, _ = torch.linalg.svd((units - units.mean(dim=0)).float(), full_matrices=False)
    return (u * s)[:, :COMPONENTS].double().round(decimals=4)


def _histograms(seen: Seen) -> dict[str, tuple[Tensor, Tensor]]:
    if seen.similarities is None:
        return {}
    edges, *shares = seen.similarities
    return {name: (edges, of) for name, of in zip(PAIRS, shares, strict=True)}


def _maps(config: Path) -> list[str]:
    """Return the parts of the projector's configuration, one a map."""
    text = config.read_text(encoding="utf-8") if config.is_file() else ""
    return [f"embeddings {part}" for part in text.split("embeddings ")[1:]]
