"""Checkpoints of a run, written atomically; its curves, row by row; and the loggers of the requested tools."""

import csv
import logging
import os
import secrets
import signal
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import torch
from lightning import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch import Tensor

from likewise.files.detection import suggest
from likewise.instantiate import is_spec
from likewise.runs import Run
from likewise.training.callbacks import VALIDATION
from likewise.training.launch import TERMINATED

RESUME_KEYS = {"optimizer_states", "lr_schedulers"}
"""Entries of a checkpoint that only resuming needs; an optimizer's state is up to twice the weights."""
SECONDS_BETWEEN_ROWS = 5.0  # reading values synchronises an accelerator
PACKAGES = ("tensorboard", "wandb", "mlflow")  # named like the tools
TOOLS = (*PACKAGES, "csv")
PROJECT = "likewise"  # the project of runs in W&B and MLflow, unless their variables name another
MLFLOW = "sqlite:///mlflow.db"  # where `mlflow ui` looks, too
NAMING_TOOLS = ("wandb", "mlflow")  # tools that name a run themselves; a resumed run keeps the name


class Terminated(SystemExit):
    """The exit of a process after SIGTERM, with anything unsaved saved first."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


@final
class Checkpoints(Callback):
    """A callback that saves the state of a training every epoch, every few minutes and at its end, and its curves.

    Checkpoints are saved after a step of the optimizer, since accumulated gradients are not saved. Each is written
    under a temporary name, synced to disk, and renamed; the previous one is kept. After SIGTERM, one more is saved and
    the training ends.

    Args:
        run: The run to save to.
        minutes: Minutes between checkpoints within an epoch.

    Attributes:
        saves: Whether checkpoints are saved at all.
        told_to_end: Whether the training should end after the next step of the optimizer.

    Raises:
        ValueError: minutes is not positive.
    """

    def __init__(self, run: Run, minutes: float = 10.0) -> None:
        if not minutes > 0:
            raise ValueError(f"expected minutes above 0 between checkpoints, got {minutes}: 10 is the default")
        self.run = run
        self.minutes = minutes
        self.saves = True
        self.told_to_end = False
        self._curves = MetricsFile(run)
        self._last = time.monotonic()
        self._steps = self._saved = 0

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Continue the curves from the current step."""
        self._steps = self._saved = trainer.global_step
        self._last = time.monotonic()
        if threading.current_thread() is threading.main_thread():
            # in place of Lightning's, which ends the training at once, even between two steps of the optimizer
            signal.signal(signal.SIGTERM, self._end_soon)
        if trainer.is_global_zero:
            self._curves.go_on(trainer.fit_loop.epoch_loop.batch_progress.total.ready)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the logged values, and save a checkpoint if one is due."""
        number = trainer.fit_loop.epoch_loop.total_batch_idx
        every = int(getattr(trainer, "log_every_n_steps", 1))
        if trainer.is_global_zero and every and (number + 1) % every == 0:
            self._curves.note(number, trainer.current_epoch + 1, trainer.callback_metrics)
        stepped = trainer.global_step > self._steps
        if not stepped or trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
            return
        self._steps = trainer.global_step
        ends = batch_idx + 1 >= trainer.num_training_batches
        agree, late = trainer.strategy.reduce_boolean_decision, time.monotonic() - self._last > 60 * self.minutes
        ending = agree(self.told_to_end, all=False)
        due = ending or ends or agree(late, all=False)
        if due and self.saves:
            self.save(trainer)
        if ending:
            raise Terminated

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the last rows, and a checkpoint if steps or time ran out within an epoch."""
        self._curves.write()
        if self.saves and self._steps > self._saved:
            self.save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Write the rows so far."""
        self._curves.write()

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint under a temporary name, then rename it, and keep the last one as the previous."""
        self._curves.write()
        new = self.run.folder / f"{self.run.checkpoint.name}.new"
        epochs: Any = trainer.fit_loop.epoch_progress
        for progress in (epochs.total, epochs.current):
            # after a resumption at the end of an epoch, Lightning does not count the next one, and would begin it again
            progress.ready = progress.started = progress.processed + 1
        trainer.save_checkpoint(new)  # called by all processes; the first writes
        if trainer.is_global_zero:
            self.run.adopt_checkpoint(new)
        self._last, self._saved = time.monotonic(), trainer.global_step

    def _end_soon(self, *_: object) -> None:
        self.told_to_end = True


@final
class MetricsFile:
    """The rows of a run's metrics, buffered before they are written."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: list[tuple[int, int, dict[str, Any]]] = []
        self._columns: list[str] = []
        self._written = time.monotonic()

    def go_on(self, batches: int) -> None:
        """Drop the rows from this batch on, since training repeats them."""
        if not self._run.metrics_file.exists():
            return
        rows = self._rows()
        self._columns = list(rows[0]) if rows else []
        whole = [row for row in rows if row["step"].isdigit() and None not in row.values()]
        self._rewrite([row for row in whole if int(row["step"]) < batches])

    def note(self, batch: int, epoch: int, metrics: Mapping[str, Tensor]) -> None:
        """Add a row, without validation scores, which `Run.scores` keeps."""
        values = {name: value.detach() for name, value in metrics.items() if not name.startswith(VALIDATION)}
        self._waiting.append((batch, epoch, values))
        if time.monotonic() - self._written > SECONDS_BETWEEN_ROWS:
            self.write()

    def write(self) -> None:
        """Write the buffered rows."""
        self._written = time.monotonic()
        if not self._waiting:
            return
        rows: list[dict[str, Any]] = [
            {"step": batch, "epoch": epoch} | {name: repr(float(value)) for name, value in values.items()}
            for batch, epoch, values in self._waiting
        ]
        self._waiting.clear()
        new = dict.fromkeys(name for row in rows for name in row if name not in self._columns)
        if new:
            self._columns += new
            self._rewrite(self._rows())
        with self._run.metrics_file.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns, restval="", lineterminator="\n").writerows(rows)

    def _rows(self) -> list[dict[str, Any]]:
        if not self._run.metrics_file.exists():
            return []
        with self._run.metrics_file.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        name = self._run.metrics_file.name
        with self._run.writing(name) as path, path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def drop_checkpoints(run: Run, *, keep: bool) -> None:
    """Remove the checkpoints of a finished run, or keep its weights, without the entries that only resuming needs."""
    if not keep:
        for path in (run.checkpoint, run.checkpoint_before, run.best):
            path.unlink(missing_ok=True)
        return
    if run.best.is_file():
        run.checkpoint.unlink(missing_ok=True)
    elif readable(run.checkpoint):
        state = torch.load(run.checkpoint, map_location="cpu", weights_only=True, mmap=True)
        with run.writing(run.checkpoint.name) as beside:
            torch.save({name: value for name, value in state.items() if name not in RESUME_KEYS}, beside)
    else:
        return
    run.checkpoint_before.unlink(missing_ok=True)


def readable(checkpoint: Path) -> bool:
    """Return whether a checkpoint exists and is complete."""
    try:
        with zipfile.ZipFile(checkpoint) as file:
            if file.testzip() is not None:
                return False
        torch.load(checkpoint, map_location="meta", weights_only=True)
    except Exception:  # noqa: BLE001 - a truncated file can raise anything
        return False
    return True


def check_tools(tools: Iterable[str]) -> None:
    """Raise a ValueError unless all tools are known and installed."""
    for tool in tools:
        if tool not in TOOLS:
            remedy = suggest(tool, TOOLS, ": choose some of these")
            raise ValueError(f"expected --log to be {', '.join(TOOLS[:-1])} or {TOOLS[-1]}, got {tool}{remedy}")
        if tool in PACKAGES and find_spec(tool) is None:
            raise ValueError(f"expected {tool} for --log {tool}, got none installed: pip install {tool}")


@contextmanager
def logging_to(tools: Iterable[str], run: Run) -> Generator[list[Logger]]:
    """Make the loggers of a training, and end them with it.

    TensorBoard, W&B and CSV files are in a folder of the run named after the tool. W&B stays offline unless WANDB_MODE
    or WANDB_API_KEY is set. MLflow keeps all runs in one database, mlflow.db in the current folder, unless
    MLFLOW_TRACKING_URI names a server. The names that W&B and MLflow give the run are written to run.json, and a
    resumed run keeps them.
    """
    makers: dict[str, Callable[[Run, str | None], Logger]] = {
        "tensorboard": lambda run, _: TensorBoardLogger(run.folder, "tensorboard", "", default_hp_metric=False),
        "wandb": _wandb,
        "mlflow": _mlflow,
        "csv": lambda run, _: CSVLogger(run.folder, "csv"),
    }
    known: dict[str, str] = run.metadata.get("logged", {})
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # MLflow's messages while it makes the tables of a new database
    try:
        made = {tool: makers[tool](run, known.get(tool)) for tool in dict.fromkeys(tools)}
    finally:
        logging.disable(level)
    logged = known | {tool: str(made[tool].version) for tool in NAMING_TOOLS if tool in made}
    if logged != known:
        run.describe(run.metadata | {"logged": logged})
    failed = 1
    try:
        yield list(made.values())
        failed = 0
    finally:
        if "wandb" in made:
            import_module("wandb").finish(exit_code=failed)  # Lightning leaves its run open, for the next one to find


def _wandb(run: Run, known: str | None) -> Logger:
    alone = not os.environ.keys() & {"WANDB_MODE", "WANDB_API_KEY"}
    offline: dict[str, Any] = {"mode": "offline", "settings": {"silent": True}} if alone else {}
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    return WandbLogger(run.name, run.folder, known or secrets.token_hex(4), project=project, **offline)


def _mlflow(run: Run, known: str | None) -> Logger:
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing leaves this machine
        uri = MLFLOW
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    try:
        logger = MLFlowLogger(experiment, run.name, uri, run_id=known)
        _ = logger.run_id  # begins the run, or finds it
    except Exception as error:
        message = " ".join(str(error).split())[:160]
        if known is not None:
            warnings.warn(f"MLflow at {uri} doesn't have run {known}, a new one begins: {message}", stacklevel=2)
            return _mlflow(run, None)
        raise ValueError(f"expected MLflow to begin a run at {uri}, got {message}: see MLFLOW_TRACKING_URI") from error
    return logger


def flatten_options(options: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield options by their names on the command line, as numbers and strings; for a part, its class first."""
    for name, value in options.items():
        if is_spec(value):
            yield f"{before}{name}", str(value["class_path"]).rpartition(".")[2]
            yield from flatten_options(value.get("init_args") or {}, f"{before}{name}.")
        elif isinstance(value, Mapping):
            yield from flatten_options(value, f"{before}{name}.")
        elif isinstance(value, list) and any(map(is_spec, value)):
            yield from flatten_options(
                {f"{name}.{position}": item for position, item in enumerate(value, start=1)}, before
            )
        elif value is not None:
            yield f"{before}{name}", value if isinstance(value, int | float | str) else str(value)
