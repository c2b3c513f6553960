"""Train: pretrain an encoder, evaluate it frozen, write the run's folder and its page; or resume."""

import os
import re
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, final

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import LambdaCallback, ProgressBar
from torch import nn

from likewise import distributed
from likewise.configuration import resolve, written
from likewise.configuration.options import TrainOptions
from likewise.evaluation import FeatureParts, Result
from likewise.evaluation.choice import while_training
from likewise.files.waiting import shown_by
from likewise.models import Encoder
from likewise.parts import MAIN, arguments, listed
from likewise.report import went_in
from likewise.report.formatting import short_name
from likewise.report.run_verdict import run_verdict
from likewise.report.subject import Subject
from likewise.runs import Run
from likewise.score_words import counted, score_words
from likewise.training import (
    Assembled,
    Checkpoints,
    Collapse,
    Snapshots,
    Statistics,
    Terminated,
    Validation,
    assemble,
)
from likewise.training.callbacks import Pace
from likewise.training.checkpoints import drop_checkpoints
from likewise.training.fine_tuning import ALL, FineTuning
from likewise.training.fitting import fit, last_whole, trainer_of
from likewise.training.launch import from_slurm, rank, terminable
from likewise.training.loggers import check_tools, logging_to, named
from likewise.training.memory import MemoryOfStep
from likewise.training.processes import joined, leave
from likewise.training.validation import CHOOSE, MOST_SAMPLES, ValidationScores, best_epoch, check_that_choose
from likewise.workflows.arguments import TrainArguments, given_options
from likewise.workflows.failures import check_same, removed_if_idle, unfinished
from likewise.workflows.lightning_trainer import TrainingBar, in_our_words, quiet_lightning
from likewise.workflows.metadata import device_of, device_words, flat, shared_options, versions
from likewise.workflows.objects import Objects
from likewise.workflows.pilot import steps_within
from likewise.workflows.progress import PRINTED, Progress, shown
from likewise.workflows.scoring import (
    EvaluationOptions,
    check_applicable,
    encoded,
    encoded_as_begun,
    say_lost,
    score,
    write_report,
)
from likewise.workflows.sharing import follow, lead

# Unless it is asked to before its first call, MKL's results may depend on where arrays lie, and so on earlier runs.
os.environ.setdefault("MKL_CBWR", "AUTO")
CPU = torch.device("cpu")
ALIKE = "let all processes read the same files"
CHOSEN = ("data", "subset", "split", "batches", "encoder", "head", "loss", "inputs", "optimizer", "schedule")


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
            Dataset, which are kept in a file beside the runs. Or options of `likewise train` by their names, dotted or
            nested, as on the command line or in the config.yaml of a run. Or all of them as a record.
        progress: What is said meanwhile, and where scores are told.
        **more: More options; they win. Parts may be objects, too: a network as a torch.nn.Module; a loss; an
            optimizer's class, or functools.partial of one; a head, split, schedule, inputs, evaluations ... With
            `resume`, a run that is not finished goes on; with options that change no training, such as `log`.

    Returns:
        The finished run; None in all processes but the first.

    Raises:
        ValueError: An option, a file or the data are not as expected; or training diverged.
        KeyboardInterrupt: The user ended it.
        Terminated: SIGTERM ended it.

    Example:
        >>> import tempfile
        >>> from likewise.workflows import Silent
        >>> root = tempfile.TemporaryDirectory()
        >>> few = {"subset": "Fraction", "subset.fraction": 0.2, "encoder.width": 4, "report": False, "runs": root.name}
        >>> run = train(few, loss="supcon", epochs=1, progress=Silent())
        >>> run.stage, [score.metric.name for score in run.scores if score.evaluation == "linear probe"][0]
        ('finished', 'accuracy')
        >>> root.cleanup()
    """
    given = given_options(TrainOptions, options, more, "data")
    objects = Objects(given) if isinstance(given, TrainOptions) else Objects.of(given)
    started = time.monotonic()
    with quiet_lightning():
        config: TrainOptions = resolve(objects.options)
        before = None if config.resume is None else unfinished(config.resume)
        check_tools(listed(config.log))
        trainer = arguments(lightning.Trainer, config.trainer)
        from_slurm()
        if rank() > 0:
            warnings.simplefilter("ignore")  # the first process shows them
        try:
            with joined(shared_options(config), config.timeout_minutes):
                return _trained(config, trainer, before, progress, started, network=objects.network)
        except MisconfigurationException as error:
            raise ValueError(in_our_words(str(error))) from error


def check(config: TrainOptions) -> None:
    """Put together what would be trained and evaluated, and train nothing; raise as `train` does."""
    check_tools(listed(config.log))
    with quiet_lightning():
        warnings.simplefilter("ignore")  # the run itself will warn
        _assembled(config)


def _trained(
    config: TrainOptions,
    trainer: Mapping[str, Any],
    before: Run | None,
    progress: Progress,
    started: float,
    *,
    network: nn.Module | None,
) -> Run | None:
    """Train as one of the processes that have met."""
    bars = shown_by(progress.bar if rank() == 0 else None)
    with bars, distributed.agreement(CPU, lambda: flat(ready.facts), of="data and parts", remedy=ALIKE):
        ready, evaluations = _assembled(config, before, network)
        if before is not None:
            check_same(before, ready.facts)
        if config.minutes is not None:
            limit = _steps_within(config, ready, evaluations, trainer, progress=progress, started=started)
            config = replace(config, minutes=None, trainer={**config.trainer, **limit})
            trainer = {**trainer, **limit}
    if rank() > 0:
        _follow(ready, trainer, config, before, _validated(config, ready, evaluations))
        return None
    for note in ready.notes if before is None else ():
        progress.say(note)
    if unfound := dict.fromkeys(re.findall(rf"class_path: {MAIN}\.(\S+)", written(config))):
        progress.say(
            f"warning: no other process finds {', '.join(unfound)}, of this script or notebook: put the training below "
            'if __name__ == "__main__":, or the classes into a file; likewise.load(run, module=...) takes a network too'
        )
    names = [config.name] if config.name else [short_name(config.loss), short_name(config.data)]
    run = before or Run.create(config.runs, *names)
    with removed_if_idle(run, _left, new=before is None):
        if before is None:
            _describe(run, ready, config)
        else:
            _note_device(run, device_words(config.trainer), progress)
        finished = _Training(config, run, ready, trainer, evaluations, progress).finished()
    progress.tell(f"\nreport: {shown(finished.report)}" if config.report else f"\nrun: {shown(finished.folder)}")
    return finished


def _steps_within(
    config: TrainOptions,
    ready: Assembled,
    options: EvaluationOptions,
    trainer: Mapping[str, Any],
    *,
    progress: Progress,
    started: float,
) -> dict[str, int]:
    """Return the limits of a training that fits into the minutes asked for, and say how many steps these are."""
    minutes = config.minutes or 0.0
    if not minutes > 0:
        raise ValueError(f"expected --minutes above 0, got {minutes:g}: 10 is one choice")
    every, most = _validated(config, ready, options), 0 if options.evaluations == [] else options.evaluation_samples
    steps, each = steps_within(minutes, ready, trainer, every=every, most=most, started=started)
    progress.say(f"{minutes:g} minutes are {counted(steps, 'step')} of about {each:.2g} s, and the evaluation")
    return {"max_steps": steps, "max_epochs": -1}


def _follow(ready: Assembled, trainer: Mapping[str, Any], config: TrainOptions, before: Run | None, every: int) -> None:
    nowhere = Run(Path())
    callbacks: list[lightning.Callback] = [
        ValidationScores(nowhere, every, config.patience),
        Statistics(nowhere, ready.trained.names),
        *_memory(config, lambda _: None),
    ]
    own = trainer_of(trainer, callbacks, Checkpoints(nowhere, config.checkpoint_minutes))
    if before is None or before.stage == "training":
        fit(ready, own, before, compiled=config.compile)
    if EvaluationOptions.of(config).evaluations != []:
        follow(ready.module, ready.parts, own.strategy.root_device, workers=config.workers)


def _memory(config: TrainOptions, tell: Callable[[str], None]) -> list[MemoryOfStep]:
    """Return what looks after memory, on every process; a compiled network would be compiled for it once more."""
    return [] if config.compile else [MemoryOfStep(tell)]


def chosen_parts(config: TrainOptions) -> dict[str, Any]:
    """Return the parts of a training that a configuration describes."""
    chosen = {part: getattr(config, part) for part in CHOSEN}
    if config.min_per_class > 1:
        smallest = {"class_path": "likewise.data.MinPerClass", "init_args": {"count": config.min_per_class}}
        chosen["subset"] = [smallest, *listed(chosen["subset"])]
    return chosen


def _validated(config: TrainOptions, ready: Assembled, evaluations: EvaluationOptions) -> int:
    """Return the epochs between validations; 0 without any."""
    return 0 if ready.refit or evaluations.evaluations == [] else config.validation_epochs


def _assembled(
    config: TrainOptions, before: Run | None = None, network: nn.Module | None = None
) -> tuple[Assembled, EvaluationOptions]:
    lightning.seed_everything(config.seed, workers=True, verbose=False)
    tuned = FineTuning(
        config.freeze,
        unfreeze_epoch=config.unfreeze_epoch,
        rate_factor=config.encoder_rate_factor,
        layer_decay=config.layer_decay,
    )
    given = config.seed, config.chunk_size, config.workers, config.temperature_rate_factor
    make = partial(assemble, chosen_parts(config), *given, weights=config.weights, unlabelled=config.unlabelled)
    ready = make(widths=config.widths, fine_tuning=tuned, begun=before, network=network)
    evaluations = EvaluationOptions.of(config)
    check_applicable(ready.parts, evaluations, predicts=ready.module.predicts)
    best, patience, every = config.keep == "best", config.patience, _validated(config, ready, evaluations)
    for asked, does, option in (
        (best, "keep the best epoch by", "--keep"),
        (patience, "end the training by", "--patience"),
    ):
        if asked and ready.refit:
            raise ValueError(f"expected a validation part to {does}, got a refit on it: leave out {option}")
        if asked:
            check_that_choose(ready.parts, every, does, option)
    ValidationScores(Run(Path()), every, patience)  # it refuses a patience below 1
    return ready, evaluations


def _describe(run: Run, ready: Assembled, config: TrainOptions) -> None:
    settled = deepcopy({part: ready.specs[part] for part in ("batches", "inputs")})  # by the data and the loss
    asked, made = config.encoder, ready.specs["encoder"]
    digest = made["init_args"].get("digest")
    if digest and made["class_path"] == asked["class_path"]:  # that of another run's, or within another, is noted there
        settled["encoder"] = {**asked, "init_args": {**asked.get("init_args", {}), "digest": digest}}
    run.write(run.configuration.name, written(replace(config, **settled)).encode())
    recipe = {} if config.recipe is None else {"recipe": config.recipe}
    origin = {"seed": config.seed, "device": device_words(config.trainer), "versions": versions("lightning")}
    run.describe(ready.facts | recipe | origin | {"begins_with": ready.origin})
    first, second = ready.module.encoder, ready.module.second
    if ready.origin:
        run.save_begun(first)
    if second is not None and second is not first and second.origin:
        run.save_begun(second, "second")
    similarity = getattr(ready.module.loss, "label_similarity", None)
    if isinstance(similarity, torch.Tensor):
        run.save_label_similarity(similarity)


def _note_device(run: Run, device: str, progress: Progress) -> None:
    """Note where a run goes on, if that is elsewhere: it then doesn't end bit for bit as if it had stayed."""
    facts = run.facts
    if device not in (known := facts.get("device", device)).split("; then "):
        progress.say(
            f"begun with {known}, and now with {device}: results differ by rounding, and by what each process draws"
        )
        run.describe(facts | {"device": f"{known}; then {device}"})


@final
@dataclass(frozen=True)
class _Training:
    """A run that is trained and evaluated, as far as it is not yet."""

    config: TrainOptions
    run: Run
    ready: Assembled
    trainer_arguments: Mapping[str, Any]
    evaluations: EvaluationOptions
    progress: Progress

    def finished(self) -> Run:
        """Do what the run has not done yet, and write and tell each result as soon as there is one."""
        run, ready, module = self.run, self.ready, self.ready.module
        if run.stage == "training":
            with self._timed("training"):
                self._train()
            if module.second is not None and module.second is not module.encoder:
                run.save_encoder(module.second, "second")
            run.save_encoder(module.encoder)
        else:
            self._restore()
            for tower in filter(None, (module.encoder, module.second)):
                tower.to(device_of(self.trainer_arguments))
        with terminable(_end):
            if self.evaluations.evaluations == []:
                leave()
            else:
                with self._timed("evaluation"):
                    self.progress.say("evaluating ...")
                    trained = self.config.freeze != ALL or self.config.unfreeze_epoch is not None
                    features = encoded(
                        run,
                        module.encoder,
                        ready.parts,
                        self.progress,
                        module.with_predictions,
                        second=module.second,
                        trained=trained,
                        workers=self.config.workers,
                        most=self.evaluations.evaluation_samples,
                        shared=lead(module, self.evaluations.evaluation_samples, there=run.embeddings.is_file()),
                    )
                    leave()  # the others are done: what follows is this process's own
                    if (own := module.predictor(features)) is not None:
                        run.write(run.classifier.name, own.saved())
                    begun = self._features_as_begun() if trained else None
                    given = (run, features, ready.parts, self.evaluations, self.progress)
                    device = device_of(self.trainer_arguments)
                    score(*given, begun=begun, refit=ready.refit, trained=trained, device=device)
            if self.evaluations.evaluations != [] and (judged := run_verdict(Subject(run))):
                self.progress.tell("\n".join(["", *judged.lines]))
            for doubt in went_in.doubts(run.facts, run.metrics):
                self.progress.say(f"warning: {doubt}")
            write_report(run, ready.parts, self.evaluations, self.progress)
        run.drop_begun()
        finished = say_lost(run, self.progress, ready.data.lost).finished()
        drop_checkpoints(finished, keep=self.config.keep_checkpoints)
        return finished

    def _features_as_begun(self) -> FeatureParts | None:
        """Return the features of the encoders as they began; None where one began with random weights."""
        module, device = self.ready.module, device_of(self.trainer_arguments)
        first = self.run.encoder_as_begun()
        alike = module.second is None or module.second is module.encoder
        second = first if alike else self.run.encoder_as_begun("second")
        if not isinstance(first, Encoder) or not isinstance(second, Encoder):
            return None
        return encoded_as_begun(
            self.run,
            first.to(device),
            self.ready.parts,
            self.progress,
            second=None if module.second is None else second.to(device),
            workers=self.config.workers,
            most=self.evaluations.evaluation_samples,
        )

    def _train(self) -> None:
        callbacks, given = self._callbacks(), self.trainer_arguments
        checkpoints = Checkpoints(self.run, self.config.checkpoint_minutes)

        def end_soon() -> None:
            checkpoints.told_to_end = True  # after the next step, which is saved

        with terminable(end_soon), logging_to(listed(self.config.log), self.run) as loggers:
            logger = [*listed(given.get("logger")), *loggers] or given.get("logger")
            options = {**given, "logger": logger, "default_root_dir": self.run.folder}
            trainer = trainer_of(options, callbacks, checkpoints)
            for each in trainer.loggers:
                each.log_hyperparams(dict(named(self.run.options)))
            fit(self.ready, trainer, self.run, compiled=self.config.compile)
        if self.config.keep == "best" or self.run.best.is_file():
            self._keep_best(trainer.current_epoch)
        for tower in filter(None, (self.ready.module.encoder, self.ready.module.second)):
            tower.to(trainer.strategy.root_device)

    def _callbacks(self) -> list[lightning.Callback]:
        run, ready, asked = self.run, self.ready, self.evaluations.evaluations
        every = _validated(self.config, ready, self.evaluations)
        evaluations, note = while_training(ready.parts, ready.data.batches, asked)
        if note:
            self.progress.say(note)
        validation = Validation(
            run,
            ready.parts,
            every,
            evaluations,
            told=self._say_validated,
            progress=self.progress.bar,
            keep_best=self._keeps_best(),
            workers=self.config.workers,
        )
        collapse = Collapse(lambda told: self.progress.say(f"warning: {told}"))
        callbacks: list[lightning.Callback] = [
            LambdaCallback(on_train_start=lambda trainer, _: self._say_what_goes_in(trainer)),
            validation,
            ValidationScores(run, every, self.config.patience, self._say_ended),
            Statistics(run, ready.trained.names),
            Snapshots(run),
            collapse,
            *_memory(self.config, self.progress.say),
            Pace(self.progress.say, lambda trainer: self._seconds_of_evaluation(trainer, validation)),
        ]
        barred = any(isinstance(callback, ProgressBar) for callback in listed(self.trainer_arguments.get("callbacks")))
        if self.trainer_arguments.get("enable_progress_bar") is not False and not barred:
            callbacks.append(TrainingBar(self.progress))
        return callbacks

    def _seconds_of_evaluation(self, trainer: lightning.Trainer, validation: Validation) -> float:
        """Return how long the evaluations that follow will take; that at the end, which encodes more, by the last."""
        parts = self.ready.parts
        encoded = min(len(parts.train), MOST_SAMPLES) + min(len(parts.validation), MOST_SAMPLES)
        times = (2 if self.ready.origin else 1) * sum(map(len, (parts.train, parts.validation, parts.test)))
        return validation.seconds_left(trainer) + validation.seconds * times / max(1, encoded)

    def _say_what_goes_in(self, trainer: lightning.Trainer) -> None:
        facts = self.run.facts | {"went_in": went_in.facts_of(self.ready, trainer)}
        self.run.describe(facts)
        for name, words in went_in.lines_of(facts):
            self.progress.say(f"{name}: {words}")
        if done := trainer.global_step:
            self.progress.say(f"going on after {counted(done, 'step')}")

    def _say_ended(self, best: int, last: int) -> None:
        limit = self.config.trainer.get("max_epochs")
        of = "" if limit in {None, -1} else f" of {limit}"
        self.progress.say(f"training ended after epoch {last}{of}: validation was best after epoch {best} (--patience)")

    def _keeps_best(self) -> bool | None:
        """Return whether the best epoch is kept; None: where there are scores to choose by."""
        asked, chosen_by = self.config.keep, self.ready.parts.validation
        if asked is not None:
            return asked == "best"
        trained = self.config.freeze != ALL or self.config.unfreeze_epoch is not None
        return None if trained and (self.ready.origin or len(chosen_by) >= CHOOSE) else False

    def _keep_best(self, epochs: int) -> None:
        kept = best_epoch(self.run) if self.run.best.is_file() else None
        if kept is None:
            self.progress.say("no epoch was validated, so the last is kept: lower --validation_epochs")
            return
        told = f"{kept.metric} {score_words(kept)}"
        self.run.describe(self.run.facts | {"kept": kept.epoch})
        which = f"epoch {kept.epoch} of {epochs}" if kept.epoch else "the encoder as it began"
        self.progress.say(f"kept {which}, the best on validation: {told}")
        self.ready.module.load_state_dict(
            torch.load(self.run.best, map_location="cpu", weights_only=True)["state_dict"]
        )

    def _restore(self) -> None:
        """Load the trained encoder, and the weights that head, loss and inputs had with it, if these were saved."""
        module = self.ready.module
        trained = self.run.with_weights(module.encoder).state_dict()
        if module.second is not None and module.second is not module.encoder:
            self.run.with_weights(module.second, "second")
        checkpoint = self.run.best if self.run.best.is_file() else last_whole(self.run)
        if checkpoint is not None:
            state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
            module.load_state_dict(state | {f"encoder.{name}": value for name, value in trained.items()})

    def _say_validated(self, result: Result) -> None:
        """Say the validation scores of an epoch that epochs are chosen by; the page has all."""
        first = result.headline[0]
        when = f"after epoch {first.epoch}" if first.epoch else "before training"
        scores = ", ".join(f"{score.metric} {score_words(score)}" for score in result.selecting or result.headline)
        self.progress.say(f"validation {when}: {first.evaluation}, {scores}")

    @contextmanager
    def _timed(self, doing: str) -> Generator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            facts = self.run.facts
            seconds = facts.get("seconds", {})
            seconds[doing] = round(seconds.get(doing, 0.0) + time.monotonic() - start, 1)
            self.run.describe(facts | {"seconds": seconds})


def _end() -> None:
    raise Terminated


def _left(folder: Path) -> str:
    return f"what the run had written is left in {folder}; resume it with likewise train --resume {folder}"
