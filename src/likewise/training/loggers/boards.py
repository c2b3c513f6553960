"""The tools that show a training: TensorBoard, Weights & Biases and MLflow, and what each shows besides curves."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int, UInt8
from lightning import Callback, Trainer
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch import Tensor
from torch.nn import functional

from likewise.data import Batch, Samples
from likewise.diagnostics import plots, similarity_histogram, two_dimensional_map
from likewise.diagnostics.plots.images import montage, thumbnails
from likewise.diagnostics.unit_rows import unit_rows
from likewise.evaluation import Features
from likewise.evaluation.features import id_words, label_words

MOST_NAMED = 24  # classes that have a colour of their own
COMPONENTS = 50  # of features, which the projector lays out
TAG = "validation"
MOST = 1000  # validation samples that are shown
SAMPLES, VIEWS = 8, 6  # at most, in the picture of views
SIDE = 32  # pixels of a sample's picture on a map
AT_ONCE = 256  # inputs that are read together


@final
@dataclass(frozen=True)
class Seen:
    """The encoder's features of some validation samples, after an epoch, and where they lie on a map.

    Pictures are in colour, from 0 to 1; None where inputs are no images. Similarities are edges of bins from −1 to 1,
    and each bin's share of the pairs of one class and of two, see `similarity_histogram`; None without classes.
    """

    epoch: int
    step: int
    features: Features
    places: Float[Tensor, "n 2"]
    pictures: Float[Tensor, "n 3 h w"] | None = None
    similarities: tuple[Float[Tensor, " edges"], Float[Tensor, " bins"], Float[Tensor, " bins"]] | None = None

    @property
    def histograms(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Of pairs of one class and of two, the edges of bins and each one's share in percent; none without classes."""
        if self.similarities is not None:
            edges, *shares = self.similarities
            for name, share in zip(("same class", "different classes"), shares, strict=True):
                yield f"{TAG}/cosine, {name}", edges, 100 * share

    @property
    def map(self) -> Any:
        """The samples on their map, as a Plotly figure: hovering names their labels and ids."""
        words = label_words(self.features)
        few = self.features.label_kind == "classes" and len(self.features.names) <= MOST_NAMED
        kinds: dict[str, list[plots.Point]] = {}
        for (x, y), name, called in zip(self.places.tolist(), words, id_words(self.features), strict=True):
            kinds.setdefault(name if few else "samples", []).append(
                plots.Point(x, y, ", ".join(filter(None, [name, called])))
            )
        return plots.scatter(kinds, "first principal component", "second")


@final
class OnTensorBoard:
    """Show a training on TensorBoard."""

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
        for name, edges, percent in seen.histograms:
            middles = (edges[1:] + edges[:-1]) / 2
            moments = float(percent.sum()), float(percent @ middles), float(percent @ middles.square())
            buckets = edges[1:].tolist(), percent.tolist()
            writer.add_histogram_raw(name, -1, 1, *moments, *buckets, seen.step)
        folder = Path(writer.log_dir)
        config = folder / "projector_config.pbtxt"
        before = _maps(config)
        shutil.rmtree(folder / f"{seen.step:05}", ignore_errors=True)
        words = [" ".join(label.split()) for label in label_words(seen.features)] if seen.features.label_kind else None
        writer.add_embedding(components(seen.features.vectors), words, seen.pictures, seen.step, TAG)
        if before:
            config.write_text("".join(dict.fromkeys([*before, *_maps(config)])), encoding="utf-8")


@final
class OnWandb:
    """Show a training on W&B."""

    def __init__(self, logger: WandbLogger) -> None:
        self.logger = logger

    def views(self, picture: UInt8[Tensor, "h w 4"]) -> None:
        """Log an image."""
        self.logger.log_image("views", [picture.numpy()], step=0)

    def epoch(self, seen: Seen) -> None:
        """Log histograms and a figure."""
        wandb: Any = import_module("wandb")
        shown: dict[str, Any] = {"validation/map": wandb.Plotly(seen.map)}
        for name, edges, percent in seen.histograms:
            shown[name] = wandb.Histogram(np_histogram=(percent.numpy(), edges.numpy()))
        self.logger.log_metrics(shown, seen.step)


@final
class OnMLflow:
    """Show a training on MLflow."""

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


Board = OnTensorBoard | OnWandb | OnMLflow
"""What a logger's tool can show of a training: views of some samples, and what validation encodes after an epoch."""


def board_of(logger: Logger) -> Board | None:
    """Return what draws in a logger's tool; None where nothing does."""
    if isinstance(logger, TensorBoardLogger) and find_spec("tensorboard") is not None:  # it can do with tensorboardX
        return OnTensorBoard(logger)
    if isinstance(logger, WandbLogger):
        return OnWandb(logger)
    return OnMLflow(logger) if isinstance(logger, MLFlowLogger) else None


def components(features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
    """Return unit features along their first principal components, to four decimals, since they are written as text.

    Example:
        >>> components(torch.eye(3))[:, :2].square().sum(dim=1).round(decimals=2)
        tensor([0.6700, 0.6700, 0.6700], dtype=torch.float64)
    """
    units = unit_rows(features)
    u, s, _ = torch.linalg.svd((units - units.mean(dim=0)).float(), full_matrices=False)
    return (u * s)[:, :COMPONENTS].double().round(decimals=4)


def _maps(config: Path) -> list[str]:
    """Return the parts of the projector's configuration, one a map."""
    text = config.read_text(encoding="utf-8") if config.is_file() else ""
    return [f"embeddings {part}" for part in text.split("embeddings ")[1:]]


@final
class Drawings(Callback):
    """Show in TensorBoard, W&B and MLflow what is no curve; other loggers get the options alone.

    At the start, some samples of the first batch, each followed by its views as the encoder receives them, where they
    are images. As training begins and after each validated epoch, of at most 1,000 validation samples: histograms of
    the cosine similarities
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

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Log the options."""
        for logger in trainer.loggers:
            logger.log_hyperparams(dict(self.options))
        self._boards = [board for board in map(board_of, trainer.loggers) if board is not None]

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Let TensorBoard begin at the current step."""
        for board in self._boards:
            if isinstance(board, OnTensorBoard):
                board.begin(self.options, trainer.global_step)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Show the views of the very first batch."""
        if self._boards and batch_idx == 0 and trainer.global_step == 0:
            picture = views(self.samples, batch)
            for board in self._boards:
                if picture is not None:
                    board.views(picture)

    def show(self, trainer: Trainer, samples: Samples, features: Features) -> None:
        """Show what the encoder makes of validation samples."""
        if not self._boards:
            return
        rows = torch.linspace(0, len(features) - 1, min(MOST, len(features)), dtype=torch.float64).long()
        some = features[rows]
        self._places = two_dimensional_map(some.vectors, "pca", start=self._places)
        if self._pictures is None and len(samples.input_shape) == 3:
            parts = [images(samples, part) for part in rows.split(AT_ONCE)]
            self._pictures = torch.cat([thumbnails(part, SIDE) for part in parts])
        pairs = similarity_histogram(some.vectors, some.classes) if some.label_kind == "classes" else None
        step, epoch = max(0, trainer.global_step - 1), trainer.current_epoch + 1 if trainer.global_step else 0
        seen = Seen(epoch, step, some, self._places, self._pictures, pairs)
        for board in self._boards:
            board.epoch(seen)


def views(samples: Samples, batch: Batch) -> UInt8[Tensor, "h w 4"] | None:
    """Put some samples of a batch into one picture, a row each: first as it is evaluated, then its views.

    Red, green, blue and opacity; None where samples are no images.
    """
    shown = batch["inputs"][:SAMPLES, :VIEWS]
    if shown.ndim != 5:
        return None
    whole = images(samples, batch["sample_index"][:SAMPLES].cpu())
    size = list(shown.shape[-2:])
    whole = functional.interpolate(whole, size=size, mode="bilinear", antialias=True, align_corners=False)
    return montage(torch.cat([whole.unsqueeze(1), shown.float().cpu()], dim=1))


def images(samples: Samples, rows: Int[Tensor, " n"]) -> Float[Tensor, "n ch h w"]:
    """Read images, from 0 to 1."""
    read = samples.inputs[rows]
    return read.float() if read.is_floating_point() else read.float() / 255
