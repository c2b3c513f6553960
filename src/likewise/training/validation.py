"""Validation during training: the encoder's scores, and the effective rank of its features, every few epochs."""

import io
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
from lightning import Callback, Trainer

from likewise.data import Parts, Samples
from likewise.diagnostics import effective_rank
from likewise.evaluation import KNN, CrossModalRetrieval, Evaluation, FewShot, OwnClassifier, Retrieval
from likewise.evaluation.encoding import features_of
from likewise.evaluation.features import Bar, FeatureParts, Features, silent
from likewise.runs import Run
from likewise.runs.scores import ALL, Metric, Result, Score, best
from likewise.training.assembly import prepared
from likewise.training.callbacks import VALIDATION

MAX_SAMPLES = 10_000  # of each part, enough for a curve
RANK_SAMPLES = 2000  # for the effective rank
MIN_CHOOSING_SAMPLES = 100  # least validation samples to keep the best epoch by default, if weights are random
RANK = Metric("effective rank", "plain", "neither")


@final
class Validation(Callback):
    """A callback that saves scores of the validation part before the first step, as epoch 0, and every few epochs.

    If the loss takes logits alone, the run's own classifier is evaluated; otherwise kNN (k = 20, weighted by
    similarity) if the validation classes or labels are also trained on, and retrieval if they are not. For pairs it is
    retrieval of one side by the other. Without labels or pairs nothing is evaluated. At most 10,000 samples of each
    part, chosen at random, are encoded: whole classes if they are new; for episodes, equally many of every class, and
    no fewer than an episode takes. The random numbers of the training do not change.

    The effective rank of the validation features, of at most 2,000 samples, is saved too; nothing is selected by it.

    Args:
        run: The run to save scores to.
        parts: The training and validation samples.
        every: Epochs between evaluations; 0: no evaluation. The last epoch is evaluated too, even if steps or time end
            within it.
        evaluations: Evaluations to try instead; the first applicable one is used.
        told: Called with the scores of an evaluation.
        progress: Wraps the iterations of encoding and evaluation.
        keep_best: Whether to save all weights, as `Run.best`, at the epoch with the best score by a metric that selects
            (accuracy, mAP, precision@1 or recall@1): the first of equals, and the initial encoder only if no epoch is
            as good. None: if there is such a score.
        workers: Processes that read inputs not in memory. None: one per core, up to 8.

    Raises:
        ValueError: `every` is negative; or, with `keep_best`, it is 0, there are neither labels nor pairs, or no metric
            selects.
    """

    def __init__(
        self,
        run: Run,
        parts: Parts,
        every: int = 5,
        evaluations: Sequence[Evaluation] | None = None,
        told: Callable[[Result], None] | None = None,
        *,
        progress: Bar = silent,
        keep_best: bool | None = False,
        workers: int | None = None,
    ) -> None:
        if every < 0:
            raise ValueError(f"expected 0 or more epochs between validation scores, got {every}: 0 switches them off")
        if keep_best:
            check_that_choose(parts, every, "keep the best epoch by", "--keep")
        self.run = run
        self.keep_best = keep_best
        self.every = every
        self._train = parts.train.fewer(MAX_SAMPLES)
        usual = (CrossModalRetrieval(), OwnClassifier(), KNN(20, "similarity"), Retrieval())
        self._tried = usual if evaluations is None else evaluations
        self._validation = _limit_samples(parts, self._tried)
        self._told = told
        self._progress = progress
        self._workers = workers
        self._evaluated = 0  # the step of the last evaluation
        self.seconds = 0.0  # duration of the last evaluation

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Evaluate the initial encoder."""
        self._evaluated = trainer.global_step
        if self.every and not trainer.global_step:
            self._evaluate(trainer, pl_module, 0)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Evaluate after the last batch of an epoch, before its checkpoint is saved."""
        if is_due(trainer, batch_idx, self.every):
            self._evaluate(trainer, pl_module, trainer.current_epoch + 1)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Evaluate if time ran out within an epoch."""
        if self.every and self._evaluated < trainer.global_step:
            self._evaluate(trainer, pl_module, trainer.current_epoch)  # Lightning has counted it

    def _evaluate(self, trainer: Trainer, pl_module: Any, epoch: int) -> None:
        started = time.monotonic()
        dry: bool = trainer.fast_dev_run  # pyright: ignore[reportAttributeAccessIssue]
        self._evaluated = trainer.global_step
        if dry or not trainer.is_global_zero or len(self._validation) < 2:
            return
        self._train, self._validation = (  # tokens, once; other inputs as they are
            prepared(pl_module.encoder, part, pl_module.second) for part in (self._train, self._validation)
        )
        validation = self._encoded(pl_module, self._validation, "validation")
        for result in self._results(pl_module, validation):
            measured = result.at(epoch)
            if self.keep_best is not False and self._is_best(measured):
                content = io.BytesIO()
                torch.save({"state_dict": pl_module.state_dict(), "epoch": epoch - 1}, content)
                self.run.write(self.run.best.name, content.getvalue())
            self._save(trainer, measured)
            if self._told is not None:
                self._told(measured)
        some = validation.fewer(RANK_SAMPLES)
        rank = effective_rank(some.vectors)
        score = Score("features", RANK, rank, rank, rank, len(some), part=some.part)
        self._save(trainer, Result((score,)).at(epoch))
        self.seconds = time.monotonic() - started

    def seconds_left(self, trainer: Trainer) -> float:
        """Return the duration of the remaining evaluations, if each takes as long as the last."""
        if not self.every:
            return 0.0
        steps = float(trainer.estimated_stepping_batches) - trainer.global_step
        epochs = steps * trainer.accumulate_grad_batches / trainer.num_training_batches
        return self.seconds * math.ceil(epochs / self.every)

    def _results(self, module: Any, validation: Features) -> list[Result]:
        if validation.labels is None and validation.counterparts is None:  # no evaluation applies
            return []
        train = self._encoded(module, self._train, "train")
        if module.head is None:
            train, validation = (module.with_predictions(features) for features in (train, validation))
        parts = FeatureParts(train, validation, validation)
        for evaluation in self._tried:
            if evaluation.why_not_applicable(evaluation.select(parts)) is None:
                return [evaluation(*parts, progress=self._progress)]
        return []

    def _encoded(self, module: Any, samples: Samples, part: str) -> Features:
        return features_of(samples, module.encoder, part, self._progress, module.second, workers=self._workers)

    def _save(self, trainer: Trainer, result: Result) -> None:
        self.run.add(result)
        metrics = {logged_as(score): score.value for score in result.headline}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=max(0, trainer.global_step - 1))

    def _is_best(self, result: Result) -> bool:
        if not result.selecting:
            if self.keep_best is None:
                return False
            raise ValueError(
                f"expected a metric of {result.headline[0].evaluation} that selects, to keep the best epoch, got none: "
                "declare it with Metric(..., selects=True), or leave out --keep"
            )
        score = result.selecting[0]
        return _best_of([*_alike(self.run, score, until=(score.epoch or 0) - 1), score]) is score


@final
class ValidationScores(Callback):
    """A callback that logs validation scores on every process, and ends a training that no longer improves.

    Other callbacks may monitor the scores as validation/<evaluation>/<metric>. With `patience` the training ends once
    that many validations in a row were no better than the best epoch, by the score of `best_epoch`, and `told` is
    called with the best epoch and the last. The scores are read from the run, where `Validation`, which comes before
    and only on the first process, has saved them; so a resumed training ends where it would have ended.
    """

    def __init__(
        self, run: Run, every: int, patience: int | None = None, told: Callable[[int, int], None] | None = None
    ) -> None:
        if patience is not None and patience < 1:
            raise ValueError(f"expected patience of 1 validation or more, got {patience}: 5 is usual")
        self.run = run
        self.every = every
        self.patience = patience
        self._told = told

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """End at once if the training was stopped after its last epoch."""
        self._end(trainer, trainer.current_epoch)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the scores that `Validation` has saved after the last batch of an epoch."""
        epoch = trainer.current_epoch + 1
        if not is_due(trainer, batch_idx, self.every):
            return
        saved = self.run.scores if trainer.is_global_zero else ()
        scores = {logged_as(score): score.value for score in saved if score.epoch == epoch and score.group == ALL}
        for name, value in trainer.strategy.broadcast(scores).items():
            pl_module.log(name, value, batch_size=1, logger=False)  # `Validation` reports to loggers
        self._end(trainer, epoch)

    def _end(self, trainer: Trainer, epoch: int) -> None:
        if self.patience is None:
            return
        best_score, since = self._since_best(epoch) if trainer.is_global_zero else (None, 0)
        if trainer.strategy.broadcast(since) >= self.patience:
            trainer.should_stop = True
            if self._told is not None and best_score is not None and best_score.epoch is not None:
                self._told(best_score.epoch, epoch)

    def _since_best(self, epoch: int) -> tuple[Score | None, int]:
        """Return the best score up to an epoch, and the number of scores since; repeated epochs are scored again."""
        first = best_epoch(self.run)
        scores = [] if first is None else [score for score in _alike(self.run, first, until=epoch) if score.epoch]
        best_score = best(scores)
        return best_score, 0 if best_score is None else len(scores) - 1 - scores.index(best_score)


def check_that_choose(parts: Parts, every: int, what: str, option: str) -> None:
    """Raise a ValueError unless there will be validation scores for an option that needs them."""
    if every == 0:
        raise ValueError(
            f"expected validation scores to {what}, got none: give validation_epochs above 0, and evaluations other "
            f"than [], or leave out {option}"
        )
    if parts.validation.labels is None and parts.validation.counterparts is None:
        raise ValueError(f"expected labels or pairs to {what}, got neither: leave out {option}")


def is_due(trainer: Trainer, batch_idx: int, every: int) -> bool:
    """Tell whether the validation part is evaluated after a batch: every few epochs, and after the last step."""
    epoch = trainer.current_epoch + 1
    ends = batch_idx + 1 >= trainer.num_training_batches
    last = (ends and epoch == trainer.max_epochs) or 0 < trainer.max_steps <= trainer.global_step
    due = every and ((ends and epoch % every == 0) or last)
    return bool(due) and not trainer.fast_dev_run  # pyright: ignore[reportAttributeAccessIssue]


def logged_as(score: Score) -> str:
    """Return the name under which a validation score is logged."""
    return f"{VALIDATION}{score.evaluation}/{score.metric}"


def best_epoch(run: Run) -> Score | None:
    """Return the validation score of the epoch that is kept as the best; None if no epoch was validated."""
    of_epochs = (score for score in run.scores if score.epoch is not None)
    first = next((score for score in of_epochs if score.group == ALL and score.metric.selects), None)
    return None if first is None else _best_of(_alike(run, first))


def _best_of(scores: Iterable[Score]) -> Score | None:
    """Return the best score over epochs; ties go to the earliest trained epoch, since training helps more often."""
    return best(sorted(scores, key=lambda score: score.epoch == 0))


def _alike(run: Run, score: Score, until: float = math.inf) -> list[Score]:
    """Return the validation scores of the same kind, up to an epoch."""
    of_epochs = (other for other in run.scores if other.epoch is not None and other.epoch <= until)
    return [other for other in of_epochs if other.what == score.what]


def _limit_samples(parts: Parts, tried: Sequence[Evaluation]) -> Samples:
    first, samples = next(iter(tried), None), parts.validation.as_evaluated()
    if isinstance(first, FewShot) and samples.label_kind == "classes":
        return samples.fewer_of_each(MAX_SAMPLES, max(shape.each for shape in first.shapes))
    return samples.fewer(MAX_SAMPLES, whole_classes=parts.new_in_validation)
