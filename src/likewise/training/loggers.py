"""Lightning's loggers for the tools that are asked for, and a run's options as their hyper-parameters."""

import logging
import os
import secrets
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from likewise.files.detection import suggest
from likewise.instantiate import is_spec
from likewise.runs import Run

PACKAGES = ("tensorboard", "wandb", "mlflow")  # named like the tools
TOOLS = (*PACKAGES, "csv")
PROJECT = "likewise"  # where W&B and MLflow gather runs, unless their variables name another place
MLFLOW = "sqlite:///mlflow.db"  # where `mlflow ui` looks, too
NAMING_TOOLS = ("wandb", "mlflow")  # tools that name a run themselves; a resumed run keeps the name


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

    TensorBoard, W&B and CSV files are in a folder of the run that is named like the tool. W&B stays offline unless
    WANDB_MODE or WANDB_API_KEY is set. MLflow keeps all runs in one database, mlflow.db in the current folder, unless
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
    logging.disable(logging.WARNING)  # what MLflow logs while it makes the tables of a new database
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
    """Yield options by their names on the command line, as numbers and strings; of a part its class first."""
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
