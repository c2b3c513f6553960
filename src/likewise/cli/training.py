"""What `likewise train` does: pretrain, evaluate the frozen encoder, write the run's folder and report; or resume."""

import json
import logging
import os
import platform
import re
import signal
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ProgressBar

from likewise.cli.options import options, pairs_of, parse, plain, trainer_options
from likewise.cli.printing import say, tell
from likewise.cli.progress import RunProgress
from likewise.data import Parts
from likewise.models import Encoder
from likewise.parts import Spec
from likewise.report import Encoded, Measurements, measure, write_page
from likewise.runs import Run, cared_for
from likewise.training import Assembled, Checkpoints, Terminated, assemble
from likewise.training.fitting import fit, processes, trainer_of

IRRELEVANT = (
    ".*does not have many workers.*",  # samples are in memory, a worker would only copy them
    ".*LeafSpec.*",  # Lightning's debt to PyTorch
    ".*exists and is not empty.*",  # the run's folder is new, and holds the configuration
)
SEEDS = 2**32  # NumPy takes no more
PRINTED_CLASSES = 20  # with more, only the report tells them all
LONGEST_NAME = 40  # of a class that is printed
CHOSEN = ("data", "subset", "split", "batches", "encoder", "head", "loss", "offers", "optimizer", "schedule")


def run(arguments: Sequence[str]) -> None:
    """Run `likewise train` with the arguments that follow the verb.

    Raises:
        ValueError: An argument, a file or the data are not as expected; or training diverged.
        KeyboardInterrupt: The user ended it.
        Terminated: SIGTERM ended it.
    """
    before = _to_resume(arguments)
    words = list(arguments)
    if before is not None:
        words = ["--config", str(before.configuration), *_without_resume(arguments)]
    parser = options(words)
    config = parse(parser, words)
    if not 0 <= config.seed < SEEDS:
        raise ValueError(f"expected --seed between 0 and {SEEDS - 1}, got {config.seed}: 0 is the default")
    chosen = plain(parser, config)
    given = trainer_options(parser, config)
    with _quiet_lightning():
        lightning.seed_everything(config.seed, workers=True, verbose=False)
        try:
            ready = assemble({part: chosen.get(part) for part in CHOSEN}, config.seed)
            if before is not None:
                _check_same(before, ready)
            if _rank() > 0:
                if before is None or before.stage == "training":
                    checkpoints = Checkpoints(Run(Path()), config.checkpoint_minutes)
                    fit(ready, trainer_of(given, [], checkpoints), before)
                return
            made = before or Run.create(config.runs, _name(chosen["loss"]), _name(chosen["data"]))
            with cared_for(made, _left, new=before is None):
                if before is None:
                    made.write(made.configuration.name, parser.dump(_without_file(config)).encode())
                    made.describe(ready.facts | {"seed": config.seed, "versions": _versions()})
                whole = _through(made, ready, given, Checkpoints(made, config.checkpoint_minutes))
        except MisconfigurationException as error:
            raise ValueError(_in_our_words(str(error))) from error
    tell(f"\nreport: {whole.report}" if whole.report.exists() else f"\nrun: {whole.folder}")


def _through(made: Run, ready: Assembled, given: Mapping[str, Any], checkpoints: Checkpoints) -> Run:
    """Do what the run has not done yet, and write and tell each result as soon as there is one."""
    times = [time.monotonic()]
    encoder = ready.module.encoder
    if made.stage == "training":
        _train(made, ready, given, checkpoints)
        made.save_encoder(encoder)
    else:
        encoder.load_state_dict(made.encoder().state_dict())
    times.append(time.monotonic())
    unfit = _unfit(ready.parts)
    if unfit:
        say(f"there is no evaluation of {unfit} yet: the encoder is in {made.weights.name}, for likewise.load_encoder")
        return made.finished()
    with _terminable(None):
        measured, train, test = _evaluate(made, encoder, ready.parts)
        times.append(time.monotonic())
        say("laying out the map and writing the report …")
        with made.writing(made.report.name) as page:
            facts = _facts(made, ready, times)
            write_page(page, facts=facts, metrics=made.metrics, measured=measured, train=train, test=test)
    return made.finished()


def _unfit(parts: Parts) -> str | None:
    """Say what no evaluation fits, if that is so."""
    if parts.train.label_kind != "classes":
        return parts.train.label_kind or "samples without labels"
    return None if parts.test.names == parts.train.names else "classes that were not trained on"


def _train(made: Run, ready: Assembled, given: Mapping[str, Any], checkpoints: Checkpoints) -> None:
    callbacks: list[lightning.Callback] = []
    theirs = given.get("callbacks") or []
    barred = any(isinstance(of, ProgressBar) for of in (theirs if isinstance(theirs, list) else [theirs]))
    if given.get("enable_progress_bar") is not False and not barred:
        callbacks.append(RunProgress())
    if processes() > 1 and not torch.cuda.is_available():
        say("batch normalisation is each process's own on CPUs")
    trainer = trainer_of({**given, "default_root_dir": made.folder}, callbacks, checkpoints)
    with _terminable(checkpoints):
        fit(ready, trainer, made)
    ready.module.encoder.to(trainer.strategy.root_device)


def _evaluate(made: Run, encoder: Encoder, parts: Parts) -> tuple[Measurements, Encoded, Encoded]:
    """Encode, measure, save and print."""
    say("evaluating …")
    train, test = (
        Encoded(encoder.encode(part.inputs), part.inputs, part.labels)  # pyright: ignore[reportArgumentType]
        for part in (parts.train, parts.test)
    )
    with made.writing(made.embeddings.name) as path, path.open("wb") as file:
        np.savez(
            file,
            train_features=train.features.numpy(),
            train_labels=train.labels.numpy(),
            test_features=test.features.numpy(),
            test_labels=test.labels.numpy(),
            class_names=np.array(parts.train.names),
        )
    measured = measure(train, test, parts.train.names)
    made.write(made.results.name, (json.dumps(measured.as_json(), indent=2) + "\n").encode())
    _print(measured)
    return measured, train, test


def _to_resume(arguments: Sequence[str]) -> Run | None:
    """Open the run that is to be gone on with, if one is named."""
    named = [following for word, following in pairs_of(arguments) if word == "--resume"]
    named += [word.partition("=")[2] for word in arguments if word.startswith("--resume=")]
    if not named:
        return None
    others = [
        word for word in _without_resume(arguments) if word.startswith("--") and not word.startswith("--trainer.")
    ]
    if others:
        raise ValueError(
            f"expected with --resume no option but --trainer.*, got {others[0].partition('=')[0]}: a run goes on as it "
            "began; leave it out, or train anew with --config"
        )
    made = Run.open(named[-1])
    if made.stage == "finished":
        raise ValueError(
            f"expected a run that is not finished, got {made.folder}: train on from it with "
            f"--encoder FromRun --encoder.run {made.folder}"
        )
    return made


def _without_resume(arguments: Sequence[str]) -> list[str]:
    before = ["", *arguments[:-1]]
    pairs = zip(before, arguments, strict=True)
    return [word for last, word in pairs if last != "--resume" and not word.startswith("--resume")]


def _check_same(before: Run, ready: Assembled) -> None:
    """Raise unless data and parts are those that the run began with."""
    facts = json.loads(json.dumps(ready.facts))
    kept = before.facts
    for known in (kept, facts):
        known["parts"].pop("data", None)  # wherever it lies now, it is recognised by what it holds
    for what in ("samples", "parts"):
        if kept.get(what) != facts[what]:
            raise ValueError(
                f"expected the {'data' if what == 'samples' else 'classes and arguments'} that {before.folder} began "
                f"with, got others: restore them, or train anew with likewise train --config {before.configuration}"
            )


def _in_our_words(message: str) -> str:
    """Say what Lightning says of a training that is to end before it goes on."""
    epochs = re.search(r"current_epoch=(\d+), but you have set Trainer\(max_epochs=(\d+)\)", message)
    if epochs is None:
        return message.rstrip(".")
    return f"expected --trainer.max_epochs of at least {epochs[1]}, got {epochs[2]}: so many epochs are done"


def _rank() -> int:
    return int(os.environ.get("RANK", "0")) if processes() > 1 else 0


def _left(folder: Path) -> str:
    return f"what the run had written is left in {folder}; go on with likewise train --resume {folder}"


def _without_file(config: Any) -> Any:
    copy = config.clone()
    copy.pop("config", None)
    return copy


def _versions() -> dict[str, str]:
    return {
        "likewise": metadata.version("likewise"),
        "torch": str(torch.__version__),
        "lightning": lightning.__version__,
        "python": platform.python_version(),
    }


def _facts(made: Run, ready: Assembled, times: Sequence[float]) -> dict[str, str]:
    kept = made.facts
    sizes = [f"{len(of):,} to {to}" for of, to in zip(_sizes(ready.parts), ("train", "choose", "judge"), strict=True)]
    parts = {part: _words(spec) for part, spec in kept["parts"].items() if spec}
    return {
        "run": made.name,
        **parts,
        "samples": f"{', '.join(sizes)}, {len(ready.parts.train.names)} classes",
        "seed": str(kept["seed"]),
        "versions": ", ".join(f"{name} {version}" for name, version in kept["versions"].items()),
        "took": f"{times[1] - times[0]:.1f} s to train, {times[2] - times[1]:.1f} s to evaluate; this page came after",
        "again": f"likewise train --config {made.folder.with_name(made.name) / made.configuration.name}",
    }


def _sizes(parts: Parts) -> tuple[Any, Any, Any]:
    return parts.train, parts.validation, parts.test


def _words(spec: Spec | list[Spec]) -> str:
    if isinstance(spec, list):
        return ", ".join(_words(one) for one in spec)
    settings = ", ".join(f"{name}={value}" for name, value in spec["init_args"].items() if value is not None)
    return f"{_name(spec)}({settings})"


def _name(spec: Spec) -> str:
    return spec["class_path"].rpartition(".")[2]


def _print(measured: Measurements) -> None:
    """Print the accuracies."""
    rows = measured.table()
    shown = rows if len(measured.class_names) <= PRINTED_CLASSES else rows[:2]
    shown = [(_short(first), *others) for first, *others in shown]
    widths = [max(len(row[column]) for row in shown) for column in range(len(rows[0]))]
    tell("\nHeld-out accuracy, with 95 % intervals (Wilson)")
    for first, *others in shown:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        tell("  ".join([first.ljust(widths[0]), *cells]))
    tell("\nEncoder less raw inputs, in points, with 95 % intervals (Agresti and Min, paired)")
    for name, difference in measured.differences.items():
        low, high = (100 * bound for bound in difference.interval)
        tell(f"{name}: {100 * difference.value:+.2f} [{low:+.2f}, {high:+.2f}]")


def _short(name: str) -> str:
    line = " ".join(name.split())
    return line if len(line) <= LONGEST_NAME else line[: LONGEST_NAME - 1] + "…"


@contextmanager
def _terminable(checkpoints: Checkpoints | None) -> Generator[None]:
    """Answer SIGTERM: a training ends after its next step, which is saved; anything else ends at once."""

    def end(*_: object) -> None:
        if checkpoints is None:
            raise Terminated
        checkpoints.told_to_end = True

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread, which alone has signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _quiet_lightning() -> Generator[None]:
    """Keep Lightning's tips to itself, and its warnings that do not concern a run."""
    logs = [logging.getLogger(f"lightning.{room}") for room in ("pytorch", "fabric")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in IRRELEVANT:
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
