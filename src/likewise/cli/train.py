"""`likewise train`: pretrain an encoder, evaluate it frozen, write the run's folder and its report."""

import csv
import json
import logging
import platform
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from jsonargparse import ArgumentParser, Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only

from likewise.cli.options import options, parse
from likewise.cli.progress import RunProgress
from likewise.data import LabelledData, Samples
from likewise.report import Encoded, Measurements, measure, write_page
from likewise.training import Pretraining, RunFolder, run_folder

IRRELEVANT = (
    ".*does not have many workers.*",  # samples are in memory, a worker would only copy them
    ".*LeafSpec.*",  # Lightning's debt to PyTorch
    ".*exists and is not empty.*",  # the run's folder is new, and holds the configuration
)
SEEDS = 2**32  # NumPy takes no more
PRINTED_CLASSES = 20  # with more, only the report tells them all


def run(arguments: Sequence[str]) -> None:
    """Run `likewise train` with the arguments that follow the verb.

    Raises:
        ValueError: An argument, a file or the data are not as expected; or training diverged.
        KeyboardInterrupt: The user ended it.
    """
    parser = options(arguments)
    config = parse(parser, arguments)
    if not 0 <= config.seed < SEEDS:
        raise ValueError(f"expected --seed between 0 and {SEEDS - 1}, got {config.seed}: 0 is the default")
    with _quiet_lightning():
        lightning.seed_everything(config.seed, workers=True, verbose=False)
        try:
            parts = parser.instantiate(config)
            if rank_zero_only.rank > 0:  # pyright: ignore[reportFunctionMemberAccess]
                _fit(parts, None)
                return
            with run_folder(config.runs, _name(config.loss), _name(config.data)) as folder:
                _into(folder, parser, config, parts)
        except MisconfigurationException as error:
            raise ValueError(str(error)) from error
    print(f"\nreport: {folder.whole / 'report.html'}")


def _into(folder: RunFolder, parser: ArgumentParser, config: Namespace, parts: Namespace) -> None:
    """Do the run, and write and tell each result as soon as there is one."""
    plain = config.clone()
    plain.pop("config", None)
    (folder.partial / "config.yaml").write_text(parser.dump(plain), encoding="utf-8")
    times = [time.monotonic()]
    encoder, data = _fit(parts, folder.partial).encoder, parts.data
    times.append(time.monotonic())
    _say("evaluating …")
    train, test = (
        Encoded(encoder.encode(part.inputs), part.inputs, part.labels)
        for part in (data.train_samples, data.test_samples)
    )
    _save_embeddings(folder.partial / "embeddings.npz", train, test, data.train_samples)
    measured = measure(train, test, data.train_samples.class_names)
    (folder.partial / "results.json").write_text(json.dumps(measured.as_json(), indent=2) + "\n", encoding="utf-8")
    times.append(time.monotonic())
    _tell(measured)
    _say("laying out the map and writing the report …")
    write_page(
        folder.partial / "report.html",
        facts=_facts(folder, config, data, times),
        metrics=_metrics(folder.partial / "metrics.csv"),
        measured=measured,
        train=train,
        test=test,
    )


def _fit(parts: Namespace, folder: Path | None) -> Pretraining:
    """Train under Lightning; what its trainer is given beyond the user's options is where to write, and a bar."""
    given = parts.trainer.as_dict()
    callbacks, loggers = _as_list(given.pop("callbacks")), _as_list(given.pop("logger"))
    if given["enable_checkpointing"] is not False:
        where = folder or Path()
        callbacks.append(ModelCheckpoint(where, "checkpoint", save_top_k=1, enable_version_counter=False))
    if given["enable_progress_bar"] is not False and not any(isinstance(known, ProgressBar) for known in callbacks):
        callbacks.append(RunProgress())
    if folder is not None:
        loggers.append(CSVLogger(folder, name="", version=""))
    trainer = lightning.Trainer(**given, callbacks=callbacks, logger=loggers, default_root_dir=folder)
    module = Pretraining(parts.encoder, parts.head, parts.loss, parts.optimizer, num_classes=parts.data.num_classes)
    try:
        trainer.fit(module, datamodule=parts.data)
    except SystemExit as error:  # Lightning's answer to Ctrl-C
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    if folder is not None:
        (folder / "hparams.yaml").unlink(missing_ok=True)  # the logger's empty twin of config.yaml
    module.encoder.to(trainer.strategy.root_device)
    return module


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return list(value)
    return [] if value is None or isinstance(value, bool) else [value]


def _save_embeddings(path: Path, train: Encoded, test: Encoded, samples: Samples) -> None:
    np.savez(
        path,
        train_features=train.features.numpy(),
        train_labels=train.labels.numpy(),
        test_features=test.features.numpy(),
        test_labels=test.labels.numpy(),
        class_names=np.array(samples.class_names),
    )


def _metrics(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Read the curves; a training that logged nothing, such as one of no step, has no file and no curve."""
    metrics: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name in row.keys() - {"step", "epoch"}:
                if row[name]:
                    metrics[name].append((int(row["step"]), float(row[name])))
    return {name: metrics[name] for name in sorted(metrics, key=lambda name: (name != "loss", name))}


def _facts(folder: RunFolder, config: Namespace, data: LabelledData, times: Sequence[float]) -> dict[str, str]:
    samples = f"{len(data.train_samples):,} to train, {len(data.test_samples):,} held out"
    parts = {part: _words(config[part]) for part in ("loss", "data", "encoder", "head", "optimizer")}
    return {
        "run": folder.whole.name,
        **parts,
        "samples": f"{samples}, {len(data.train_samples.class_names)} classes",
        "seed": str(config.seed),
        "versions": f"likewise {metadata.version('likewise')}, torch {torch.__version__}, "
        f"lightning {lightning.__version__}, Python {platform.python_version()}",
        "took": f"{times[1] - times[0]:.1f} s to train, {times[2] - times[1]:.1f} s to evaluate; this page came after",
        "again": f"likewise train --config {folder.whole / 'config.yaml'}",
    }


def _words(part: Namespace) -> str:
    given = part.get("init_args", Namespace()).items()
    settings = ", ".join(f"{name}={value}" for name, value in given if value is not None)
    return f"{_name(part)}({settings})"


def _name(part: Namespace) -> str:
    return part.class_path.rpartition(".")[2]


def _say(doing: str) -> None:
    """Say what is going on, before it takes its time, where the training's progress stands too."""
    print(doing, file=sys.stderr, flush=True)


def _tell(measured: Measurements) -> None:
    """Print the accuracies."""
    rows = measured.table()
    shown = rows if len(measured.class_names) <= PRINTED_CLASSES else rows[:2]
    widths = [max(len(row[column]) for row in shown) for column in range(len(rows[0]))]
    print("\nHeld-out accuracy, with 95 % intervals (Wilson)")
    for first, *others in shown:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]))
    print("\nEncoder less raw inputs, in points, with 95 % intervals (Agresti and Min, paired)")
    for name, difference in measured.differences.items():
        low, high = (100 * bound for bound in difference.interval)
        print(f"{name}: {100 * difference.value:+.2f} [{low:+.2f}, {high:+.2f}]", flush=True)


@contextmanager
def _quiet_lightning() -> Generator[None]:
    """Keep Lightning's tips to itself, and its warnings that do not concern a run."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in IRRELEVANT:
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        log.setLevel(level)
