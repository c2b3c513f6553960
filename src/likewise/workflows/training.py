"""Training: pretrain an encoder, evaluate it frozen, write the run's folder and its page; or resume."""

import json
import os
import re
import time
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn

from likewise import distributed
from likewise.configuration import resolve, written
from likewise.configuration.options import TrainOptions
from likewise.data.lazy_inputs import use_progress
from likewise.evaluation.features import CPU
from likewise.instantiate import MAIN, as_list
from likewise.report.elements import short_name
from likewise.report.sections.training import first_lines
from likewise.runs import Run, machine
from likewise.runs.run import remove_if_idle
from likewise.runs.scores import format_count
from likewise.training import Assembled, Checkpoints, Statistics, assemble
from likewise.training.checkpoints import check_tools
from likewise.training.fitting import fit, trainer_of
from likewise.training.launch import from_slurm, processes, rank
from likewise.training.optimization import FineTuning
from likewise.training.processes import precision_of, process_group
from likewise.training.validation import ValidationScores, check_that_choose
from likewise.workflows.arguments import TrainArguments, given_options, named_objects
from likewise.workflows.execution import Execution, epochs_between, join_encoding, memory_of_step
from likewise.workflows.lightning_trainer import (
    device_of,
    in_our_words,
    quiet_lightning,
    steps_within,
    trainer_arguments,
)
from likewise.workflows.progress import PRINTED, Progress, shown
from likewise.workflows.scoring import EvaluationOptions, check_applicable

# Unless this is set before its first call, MKL's results may depend on arrays' addresses, and so on earlier runs.
os.environ.setdefault("MKL_CBWR", "AUTO")
READ_ALIKE = "let all processes read the same files"
NEXT, NEXT_INDENT = "next: ", "\n      "
REMAINING = "what the run had written is left in {0}; resume it with likewise train --resume {0}"
NOT_SHARED = {"runs", "report", "sections", "log", "config", "recipe"}  # used by the first process only
_CLASS_PATH = re.compile(r'"likewise\.[\w.]*?(\w+)"')  # a class, in any module of likewise
CHOSEN_PARTS = ("data", "subset", "split", "batches", "encoder", "head", "loss", "inputs", "optimizer", "schedule")


def train(
    options: TrainOptions | Mapping[str, Any] | Any = None,
    /,
    *,
    progress: Progress = PRINTED,
    **more: Unpack[TrainArguments],
) -> Run | None:
    """Pretrain an encoder, evaluate it frozen, and write the run's folder and its page.

    Args:
        options: The data: a folder, a file, the name of a data set, or arrays (X, y), a DataFrame or a map-style
            Dataset, which are saved to a file next to the runs. Or options, see `TrainOptions`, dotted or nested, as on
            the command line or in the config.yaml of a run; or all of them as a record.
        progress: Receives messages during the work, and the scores.
        **more: More options; they win. Parts may be objects, too: a network as a torch.nn.Module; a loss; an
            optimizer's class, or functools.partial of one; a head, split, schedule, inputs, evaluations ...

    Returns:
        The finished run; None in all processes except the first.

    Raises:
        ValueError: An option, a file or the data are not as expected; or training diverged.
        KeyboardInterrupt: The user ended it.
        Terminated: SIGTERM ended it.

    Example:
        >>> from likewise.workflows import Silent
        >>> few = {"subset": "Fraction", "subset.fraction": 0.2, "encoder.width": 4, "report": False}
        >>> run = train(few, loss="supcon", epochs=1, progress=Silent())
        >>> run.stage, [score.metric.name for score in run.scores if score.evaluation == "linear probe"][0]
        ('finished', 'accuracy')
    """
    chosen, network = given_options(TrainOptions, options, more, "data"), None
    if not isinstance(chosen, TrainOptions):
        chosen, network = named_objects(chosen)
    started = time.monotonic()
    with quiet_lightning():
        config: TrainOptions = resolve(chosen)
        before = None if config.resume is None else _open_unfinished(config.resume)
        check_tools(as_list(config.log))
        trainer = trainer_arguments(config.trainer)
        from_slurm()
        if rank() > 0:
            warnings.simplefilter("ignore")  # the first process shows them
        try:
            shared = {name: value for name, value in vars(config).items() if name not in NOT_SHARED}
            with process_group(_flat({"versions": machine.versions("lightning"), **shared}), config.timeout_minutes):
                return _train_run(config, trainer, before, progress, started, network=network)
        except MisconfigurationException as error:
            raise ValueError(in_our_words(str(error))) from error


def check(config: TrainOptions) -> None:
    """Assemble the parts of a training and its evaluation, without training; raise as `train` does."""
    check_tools(as_list(config.log))
    with quiet_lightning():
        warnings.simplefilter("ignore")  # the run itself will warn
        _assemble(config)


def _train_run(
    config: TrainOptions,
    trainer: Mapping[str, Any],
    before: Run | None,
    progress: Progress,
    started: float,
    *,
    network: nn.Module | None,
) -> Run | None:
    bars = use_progress(progress.bar if rank() == 0 else None)
    with bars, distributed.agreement(CPU, lambda: _flat(ready.metadata), subject="data and parts", remedy=READ_ALIKE):
        ready, evaluations = _assemble(config, before, network)
        if before is not None:
            _check_same(before, ready.metadata)
        if config.trainer.get("precision") == "auto":
            chosen = {"precision": precision_of(ready.module, device_of(trainer))}
            config, trainer = replace(config, trainer={**config.trainer, **chosen}), {**trainer, **chosen}
        if config.minutes is not None:
            every = epochs_between(config, ready, evaluations)
            most = 0 if evaluations.evaluations == [] else evaluations.evaluation_samples
            steps, each = steps_within(config.minutes, ready, trainer, every=every, most=most, started=started)
            count = format_count(steps, "step")
            progress.log(f"{config.minutes:g} minutes are {count} of about {each:.2g} s, and the evaluation")
            limit = {"max_steps": steps, "max_epochs": -1}
            config = replace(config, minutes=None, trainer={**config.trainer, **limit})
            trainer = {**trainer, **limit}
    if rank() > 0:
        _follow(ready, trainer, config, before, epochs_between(config, ready, evaluations))
        return None
    for note in ready.notes if before is None else ():
        progress.log(note)
    if unfound := dict.fromkeys(re.findall(rf"class_path: {MAIN}\.(\S+)", written(config))):
        message = f"warning: no other process finds {', '.join(unfound)}, of this script or notebook: put the training "
        message += 'below if __name__ == "__main__":, or the classes into a file'
        progress.log(f"{message}; likewise.load(run, module=...) takes a network too")
    names = [config.name] if config.name else [short_name(config.loss), short_name(config.data)]
    run = before or Run.create(config.runs, *names)
    with remove_if_idle(run, REMAINING, new=before is None):
        if before is None:
            _describe(run, ready, config)
        else:
            _note_device(run, device_words(config.trainer), progress)
        finished = Execution(config, run, ready, trainer, evaluations, progress).execute()
    commands, _ = first_lines(finished)
    predicts = any(file.is_file() for file in (finished.probe, finished.classifier, finished.embeddings))
    verbs = ("embed", "search", "predict") if predicts else ("embed", "search")
    lines = [line for line in commands.values() if line.split()[1] in verbs]
    progress.result(f"\n{NEXT}{NEXT_INDENT.join(lines)}")
    progress.result(f"\nreport: {shown(finished.report)}" if config.report else f"\nrun: {shown(finished.folder)}")
    return finished


def _follow(ready: Assembled, trainer: Mapping[str, Any], config: TrainOptions, before: Run | None, every: int) -> None:
    nowhere = Run(Path())
    callbacks: list[lightning.Callback] = [
        ValidationScores(nowhere, every, config.patience),
        Statistics(nowhere, ready.trained.names),
        *memory_of_step(config, lambda _: None),
    ]
    local_trainer = trainer_of(trainer, callbacks, Checkpoints(nowhere, config.checkpoint_minutes))
    if before is None or before.stage == "training":
        fit(ready, local_trainer, before, compiled=config.compile)
    if EvaluationOptions.of(config).evaluations != []:
        join_encoding(ready.module, ready.parts, local_trainer.strategy.root_device, workers=config.workers)


def chosen_parts(config: TrainOptions) -> dict[str, Any]:
    """Return the parts of a training described by a configuration."""
    chosen = {part: getattr(config, part) for part in CHOSEN_PARTS}
    if config.min_per_class > 1:
        smallest = {"class_path": "likewise.data.MinPerClass", "init_args": {"count": config.min_per_class}}
        chosen["subset"] = [smallest, *as_list(chosen["subset"])]
    return chosen


def _assemble(
    config: TrainOptions, before: Run | None = None, network: nn.Module | None = None
) -> tuple[Assembled, EvaluationOptions]:
    lightning.seed_everything(config.seed, workers=True, verbose=False)
    rates = {"rate_factor": config.encoder_rate_factor, "layer_decay": config.layer_decay}
    tuned = FineTuning(config.freeze, unfreeze_epoch=config.unfreeze_epoch, **rates)
    arguments = config.seed, config.chunk_size, config.workers, config.temperature_rate_factor
    make = partial(assemble, chosen_parts(config), *arguments, weights=config.weights, unlabelled=config.unlabelled)
    ready = make(widths=config.widths, fine_tuning=tuned, resumed=before, network=network)
    evaluations = EvaluationOptions.of(config)
    check_applicable(ready.parts, evaluations, predicts=ready.module.predicts)
    best, patience, every = config.keep == "best", config.patience, epochs_between(config, ready, evaluations)
    wanted = ((best, "keep the best epoch by", "--keep"), (patience, "end the training by", "--patience"))
    for value, does, option in wanted:
        if value and ready.refit:
            raise ValueError(f"expected a validation part to {does}, got a refit on it: leave out {option}")
        if value:
            check_that_choose(ready.parts, every, does, option)
    ValidationScores(Run(Path()), every, patience)  # raises for a patience below 1
    return ready, evaluations


def _describe(run: Run, ready: Assembled, config: TrainOptions) -> None:
    settled = deepcopy({part: ready.specs[part] for part in ("batches", "inputs")})  # by the data and the loss
    configured, made = config.encoder, ready.specs["encoder"]
    digest = made["init_args"].get("digest")
    if digest and made["class_path"] == configured["class_path"]:  # another run's, or a nested one, is noted there
        settled["encoder"] = {**configured, "init_args": {**configured.get("init_args", {}), "digest": digest}}
    run.write(run.configuration.name, written(replace(config, **settled)).encode())
    recipe = {} if config.recipe is None else {"recipe": config.recipe}
    origin = {"seed": config.seed, "device": device_words(config.trainer), "versions": machine.versions("lightning")}
    run.describe(ready.metadata | recipe | origin | {"begins_with": ready.origin})
    first, second = ready.module.encoder, ready.module.second
    if ready.origin:
        run.save_encoder(first, initial=True)
    if second is not None and second is not first and second.origin:
        run.save_encoder(second, "second", initial=True)
    similarity = getattr(ready.module.loss, "label_similarity", None)
    if isinstance(similarity, torch.Tensor):
        run.save_label_similarity(similarity)


def _note_device(run: Run, device: str, progress: Progress) -> None:
    """Note the device that a run resumes on, if it differs: results are then not bit-for-bit the same."""
    facts = run.metadata
    if device not in (known := facts.get("device", device)).split("; then "):
        differ = "results differ by rounding, and by what each process draws"
        progress.log(f"begun with {known}, and now with {device}: {differ}")
        run.describe(facts | {"device": f"{known}; then {device}"})


def device_words(trainer: Mapping[str, Any]) -> str:
    """Return the name of the training device, and for a CPU the number of threads."""
    device = device_of(trainer)
    name = machine.device_name(device.type)
    if device.type != "cpu":
        return f"{processes()} x {name}"
    several = f", {processes()} processes" if processes() > 1 else ""
    return f"{name}, {format_count(torch.get_num_threads(), 'thread')}{several}"


def _flat(facts: Mapping[str, Any], within: str = "") -> dict[str, str]:
    """Flatten nested facts to text, by dotted name."""
    texts: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            texts |= _flat(value, f"{within}{name}.")
        else:
            texts[within + name] = str(value)
    return texts


def _open_unfinished(folder: Path | str) -> Run:
    """Open a run to resume, or raise a ValueError: there is none, or it is finished."""
    run = Run.open(folder)
    if run.stage == "finished":
        remedy = f"train on from it with --encoder FromRun --encoder.run {run.folder}"
        raise ValueError(f"expected a run that is not finished, got {run.folder}: {remedy}")
    return run


def _check_same(before: Run, now: Mapping[str, Any]) -> None:
    """Raise a ValueError unless data and parts, in the form of `Assembled.metadata`, are the run's original ones."""
    texts = (json.dumps(facts) for facts in (now, before.metadata))
    facts, kept = (json.loads(_CLASS_PATH.sub(r'"likewise.\1"', text)) for text in texts)
    for known in (kept, facts):
        known["parts"].pop("data", None)  # it may have moved: it is recognised by its contents
    for what in ("samples", "parts"):
        if kept.get(what) != facts[what]:
            named = "data" if what == "samples" else "classes and arguments"
            remedy = f"restore them, or train anew with likewise train --config {before.configuration}"
            raise ValueError(f"expected the {named} that {before.folder} began with, got others: {remedy}")
