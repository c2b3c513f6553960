"""The execution of a run: its remaining training and evaluation, with all processes encoding after training.

The first process announces how many samples to encode, sends its weights, and gathers the features.
"""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import lightning
import torch
from lightning.pytorch.callbacks import LambdaCallback, ProgressBar

from likewise import distributed
from likewise.configuration.options import TrainOptions
from likewise.data import Parts
from likewise.evaluation import FeatureParts, Result
from likewise.evaluation.choice import while_training
from likewise.evaluation.encoding import encode_share
from likewise.evaluation.features import CPU, capped
from likewise.instantiate import as_list
from likewise.models import Encoder
from likewise.report import run_summary
from likewise.report.run_summary import run_verdict
from likewise.report.run_view import RunView
from likewise.runs import Run
from likewise.runs.run import with_weights
from likewise.runs.scores import format_count, format_score
from likewise.training import Assembled, Checkpoints, Collapse, Snapshots, Statistics, Terminated, Validation
from likewise.training.callbacks import Pace
from likewise.training.checkpoints import drop_checkpoints, flatten_options, logging_to
from likewise.training.fitting import fit, last_whole, trainer_of
from likewise.training.launch import terminable
from likewise.training.memory import MemoryOfStep
from likewise.training.optimization import ALL
from likewise.training.pretraining import Pretraining
from likewise.training.processes import gains_by_bfloat16, send_weights, shutdown
from likewise.training.validation import MAX_SAMPLES, MIN_CHOOSING_SAMPLES, ValidationScores, best_epoch
from likewise.workflows import scoring
from likewise.workflows.lightning_trainer import TrainingBar, device_of
from likewise.workflows.progress import Progress
from likewise.workflows.scoring import EvaluationOptions, evaluate_features

ALL_SAMPLES, NOTHING = 0, -1  # announced by the first process instead of a number of samples


def memory_of_step(config: TrainOptions, tell: Callable[[str], None]) -> list[MemoryOfStep]:
    """Return the callback that limits memory, for every process; none with compile, to not compile twice."""
    return [] if config.compile else [MemoryOfStep(tell)]


def epochs_between(config: TrainOptions, ready: Assembled, evaluations: EvaluationOptions) -> int:
    """Return the number of epochs between validations; 0 without any."""
    return 0 if ready.refit or evaluations.evaluations == [] else config.validation_epochs


def join_encoding(module: Pretraining, parts: Parts, device: torch.device, *, workers: int | None) -> None:
    """Encode this process's share of the samples announced by the first process; not called in the first."""
    ((most,), *_) = distributed.exchange((NOTHING,), CPU)
    if most == NOTHING:
        return
    send_weights(*(tower.to(device) for tower in (module.encoder, module.second) if tower is not None))
    for samples, _ in capped([parts.train, parts.validation, parts.test], most or None):
        encode_share(samples, module.encoder, module.second, workers=workers)


@final
@dataclass(frozen=True)
class Execution:
    """The remaining training and evaluation of a run."""

    config: TrainOptions
    run: Run
    ready: Assembled
    trainer_arguments: Mapping[str, Any]
    evaluations: EvaluationOptions
    progress: Progress

    def execute(self) -> Run:
        """Do the remaining work of the run, and write and report each result as soon as there is one."""
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
        features = None
        with terminable(_end):
            if self.evaluations.evaluations == []:
                shutdown()
            else:
                with self._timed("evaluation"):
                    features = self._evaluate()
                if judged := run_verdict(RunView(run, ready.parts, features=features)):
                    self.progress.result("\n".join(["", *judged.lines]))
            for warning in run_summary.training_warnings(run.metadata, run.metrics):
                self.progress.log(f"warning: {warning}")
            scoring.write_report(run, ready.parts, self.evaluations, self.progress, features)
        run.drop_initial()
        scoring.note_lost(run, ready.data.lost)
        scoring.say_lost(run, self.progress)
        finished = run.finalize()
        drop_checkpoints(finished, keep=self.config.keep_checkpoints)
        return finished

    def _initial_features(self, device: torch.device) -> FeatureParts | None:
        module, most = self.ready.module, self.evaluations.evaluation_samples
        first = self.run.initial_encoder()
        second = first if module.second in {None, module.encoder} else self.run.initial_encoder("second")
        if not isinstance(first, Encoder) or not isinstance(second, Encoder):
            return None
        other = None if module.second is None else second.to(device)
        arguments = self.run, first.to(device), self.ready.parts, self.progress
        return scoring.encode_initial(*arguments, second=other, workers=self.config.workers, most=most)

    @property
    def _trained(self) -> bool:
        return self.config.freeze != ALL or self.config.unfreeze_epoch is not None

    def _evaluate(self) -> FeatureParts:
        run, ready, module, most = self.run, self.ready, self.ready.module, self.evaluations.evaluation_samples
        self.progress.log("evaluating ...")
        features = scoring.encode_parts(
            run, module.encoder, ready.parts, self.progress, module.with_predictions, second=module.second,
            trained=self._trained, workers=self.config.workers, most=most,
            shared=_announce_encoding(module, most, there=run.embeddings.is_file()),
        )  # fmt: skip
        shutdown()  # the other processes are done: this one does the rest
        if (predictor := module.predictor(features)) is not None:
            run.write(run.classifier.name, predictor.to_bytes())
        device = device_of(self.trainer_arguments)
        initial = self._initial_features(device) if self._trained else None
        arguments = (run, features, ready.parts, self.evaluations, self.progress)
        evaluate_features(*arguments, initial=initial, refit=ready.refit, trained=self._trained, device=device)
        return features

    def _train(self) -> None:
        callbacks, trainer_arguments = self._callbacks(), self.trainer_arguments
        checkpoints = Checkpoints(self.run, self.config.checkpoint_minutes)

        def end_soon() -> None:
            checkpoints.told_to_end = True  # after the next step, which is saved

        with terminable(end_soon), logging_to(as_list(self.config.log), self.run) as loggers:
            logger = [*as_list(trainer_arguments.get("logger")), *loggers] or trainer_arguments.get("logger")
            options = {**trainer_arguments, "logger": logger, "default_root_dir": self.run.folder}
            trainer = trainer_of(options, callbacks, checkpoints)
            for each in trainer.loggers:
                each.log_hyperparams(dict(flatten_options(self.run.options)))
            fit(self.ready, trainer, self.run, compiled=self.config.compile)
        if self.config.keep == "best" or self.run.best.is_file():
            self._keep_best(trainer.current_epoch)
        for tower in filter(None, (self.ready.module.encoder, self.ready.module.second)):
            tower.to(trainer.strategy.root_device)

    def _advice(self) -> str:
        """Return advice on a faster precision, if none is chosen and the device gains by one; else ""."""
        if self.config.trainer.get("precision") is not None:
            return ""
        gains = gains_by_bfloat16(self.ready.module, device_of(self.trainer_arguments))
        return "; --precision auto, bfloat16 here, may be twice as fast" if gains else ""

    def _callbacks(self) -> list[lightning.Callback]:
        run, ready, named_evaluations = self.run, self.ready, self.evaluations.evaluations
        every = epochs_between(self.config, ready, self.evaluations)
        evaluations, note = while_training(ready.parts, ready.data.batches, named_evaluations)
        if note:
            self.progress.log(note)
        validation = Validation(
            run, ready.parts, every, evaluations, told=self._say_validated, progress=self.progress.bar,
            keep_best=self._keeps_best(), workers=self.config.workers,
        )  # fmt: skip
        collapse = Collapse(lambda message: self.progress.log(f"warning: {message}"))
        callbacks: list[lightning.Callback] = [
            LambdaCallback(on_train_start=lambda trainer, _: self._say_what_goes_in(trainer)),
            validation,
            ValidationScores(run, every, self.config.patience, self._say_ended),
            Statistics(run, ready.trained.names),
            Snapshots(run),
            collapse,
            *memory_of_step(self.config, self.progress.log),
            Pace(self.progress.log, lambda trainer: self._seconds_of_evaluation(trainer, validation), self._advice()),
        ]
        barred = any(isinstance(callback, ProgressBar) for callback in as_list(self.trainer_arguments.get("callbacks")))
        if self.trainer_arguments.get("enable_progress_bar") is not False and not barred:
            callbacks.append(TrainingBar(self.progress))
        return callbacks

    def _seconds_of_evaluation(self, trainer: lightning.Trainer, validation: Validation) -> float:
        """Estimate the seconds of the remaining evaluations: the final one, which encodes more, from the latest."""
        parts = self.ready.parts
        encoded_count = min(len(parts.train), MAX_SAMPLES) + min(len(parts.validation), MAX_SAMPLES)
        times = (2 if self.ready.origin else 1) * sum(map(len, (parts.train, parts.validation, parts.test)))
        return validation.seconds_left(trainer) + validation.seconds * times / max(1, encoded_count)

    def _say_what_goes_in(self, trainer: lightning.Trainer) -> None:
        facts = self.run.metadata | {"run_summary": run_summary.summarize(self.ready, trainer)}
        self.run.describe(facts)
        for line in run_summary.summary_lines(facts):
            self.progress.log(line)
        if done := trainer.global_step:
            self.progress.log(f"going on after {format_count(done, 'step')}")

    def _say_ended(self, best: int, last: int) -> None:
        limit = self.config.trainer.get("max_epochs")
        suffix = "" if limit in {None, -1} else f" of {limit}"
        self.progress.log(
            f"training ended after epoch {last}{suffix}: validation was best after epoch {best} (--patience)"
        )

    def _keeps_best(self) -> bool | None:
        """Return whether the best epoch is kept; None: only if there are scores to choose by."""
        keep, chosen_by = self.config.keep, self.ready.parts.validation
        if keep is not None:
            return keep == "best"
        return None if self._trained and (self.ready.origin or len(chosen_by) >= MIN_CHOOSING_SAMPLES) else False

    def _keep_best(self, epochs: int) -> None:
        kept = best_epoch(self.run) if self.run.best.is_file() else None
        if kept is None:
            self.progress.log("no epoch was validated, so the last is kept: lower --validation_epochs")
            return
        self.run.describe(self.run.metadata | {"kept": kept.epoch})
        which = f"epoch {kept.epoch} of {epochs}" if kept.epoch else "the encoder as it began"
        initial = [score for score in self.run.scores if score.epoch == 0 and score.what == kept.what]
        level = kept.epoch and any(score.value == kept.value for score in initial)
        why = "level with the encoder as it began on validation" if level else "the best on validation"
        self.progress.log(f"kept {which}, {why}: {kept.metric} {format_score(kept)}")
        self.ready.module.load_state_dict(_state(self.run.best))

    def _restore(self) -> None:
        """Load the trained encoder, and the weights of head, loss and inputs saved with it, if any."""
        module = self.ready.module
        trained = with_weights(module.encoder, self.run.weights).state_dict()
        if module.second is not None and module.second is not module.encoder:
            with_weights(module.second, self.run.second_weights)
        checkpoint = self.run.best if self.run.best.is_file() else last_whole(self.run)
        if checkpoint is not None:
            module.load_state_dict(_state(checkpoint) | {f"encoder.{name}": tensor for name, tensor in trained.items()})

    def _say_validated(self, result: Result) -> None:
        first = result.headline[0]
        when = f"after epoch {first.epoch}" if first.epoch else "before training"
        shown = result.selecting or result.headline
        scores = ", ".join(f"{score.metric} {format_score(score)}" for score in shown)
        self.progress.log(f"validation {when}: {first.evaluation}, {scores}")

    @contextmanager
    def _timed(self, doing: str) -> Generator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            facts = self.run.metadata
            seconds = facts.get("seconds", {})
            seconds[doing] = round(seconds.get(doing, 0.0) + time.monotonic() - start, 1)
            self.run.describe(facts | {"seconds": seconds})


def _announce_encoding(module: Pretraining, most: int | None, *, there: bool) -> bool:
    """Announce to the other processes what to encode, unless features are `there`; return whether they encode."""
    if distributed.world_size() == 1:
        return False
    distributed.exchange((NOTHING if there else most or ALL_SAMPLES,), CPU)
    if not there:
        send_weights(*filter(None, (module.encoder, module.second)))
    return not there


def _state(checkpoint: Path | str) -> dict[str, Any]:
    return torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]


def _end() -> None:
    raise Terminated
