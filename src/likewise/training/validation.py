"""Validation during training: the encoder's scores, and the effective rank of its features, every few epochs."""

import io
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, final

import torch
from lightning import Callback, Trainer

from likewise.data import Parts, Samples
from likewise.diagnostics import effective_rank
from likewise.evaluation import (
    KNN,
    CrossModalRetrieval,
    Evaluation,
    FeatureParts,
    Features,
    FewShot,
    Metric,
    OwnClassifier,
    Result,
    Retrieval,
    Score,
)
from likewise.evaluation.features import Bar, features_of, silent
from likewise.runs import Run
from likewise.scores import ALL, best
from likewise.training.assembly import prepared

MOST_SAMPLES = 10_000  # of each part, enough for a curve
RANKED = 2000  # of which the effective rank is taken
RANK = Metric("effective rank", "plain", "neither")


@final
class Validation(Callback):
    """Evaluate the validation part every few epochs, and save the scores with the run.

    The evaluation is that of the run's own classifier if the loss is one of logits alone; else kNN (k = 20, weighted by
    similarity) if the validation classes or labels are also trained on, and retrieval if they are not. Of pairs it is
    retrieval of one side by the other. Without labels or pairs nothing is evaluated. At most 10,000 samples of each
    part, chosen at random, are encoded; of new classes, whole classes; for episodes as many of every class, and no
    fewer than an episode takes. The random numbers of the training do not change.

    With or without them, the effective rank of the validation features, of at most 2,000 samples, is saved too. It is
    not used for model selection.

    Args:
        run: The run to save scores to.
        parts: The training and validation samples.
        every: Epochs between evaluations, of which the last epoch is one; 0: no evaluation.
        evaluations: Evaluations to try instead; the first of them that applies is used.
        told: Called with the scores found by an evaluation.
        shown: Called with the trainer, the validation samples that were encoded, and their features.
        progress: Wraps what is encoded and evaluated.
        keep_best: Whether to save all weights, as `Run.best`, at the epoch with the best score by a metric that
            selects (accuracy, mAP, precision@1 or recall@1), the first of equals.

    Raises:
        ValueError: `every` is negative; or, with `keep_best`, it is 0, or there are neither labels nor pairs.
    """

    def __init__(
        self,
        run: Run,
        parts: Parts,
        every: int = 5,
        evaluations: Sequence[Evaluation] | None = None,
        told: Callable[[Result], None] | None = None,
        *,
        shown: Callable[[Trainer, Samples, Features], None] | None = None,
        progress: Bar = silent,
        keep_best: bool = False,
    ) -> None:
        if every < 0:
            raise ValueError(f"expected 0 or more epochs between validation scores, got {every}: 0 switches them off")
        if keep_best and every == 0:
            raise ValueError(
                "expected validation scores to keep the best epoch by, got none: give validation_epochs above 0, and "
                "evaluations other than []"
            )
        if keep_best and parts.validation.labels is None and parts.validation.counterparts is None:
            raise ValueError("expected labels or pairs to keep the best epoch by, got neither: leave out --keep")
        self.run = run
        self.keep_best = keep_best
        self.every = every
        self._train = parts.train.fewer(MOST_SAMPLES)
        self._tokenised = False
        usual = (CrossModalRetrieval(), OwnClassifier(), KNN(20, "similarity"), Retrieval())
        self._tried = usual if evaluations is None else evaluations
        self._validation = _some(parts, self._tried)
        self._told = told
        self._shown = shown
        self._progress = progress

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Evaluate after the last batch of an epoch, before its checkpoint is saved."""
        epoch = trainer.current_epoch + 1
        ends = batch_idx + 1 >= trainer.num_training_batches
        due = self.every and (epoch % self.every == 0 or epoch == trainer.max_epochs)
        if not (ends and due and trainer.is_global_zero):
            return
        if trainer.fast_dev_run or len(self._validation) < 2:  # pyright: ignore[reportAttributeAccessIssue]
            return
        if not self._tokenised:
            self._train, self._validation = (
                prepared(pl_module.encoder, part, pl_module.second) for part in (self._train, self._validation)
            )
            self._tokenised = True
        validation = features_of(self._validation, pl_module.encoder, "validation", self._progress, pl_module.second)
        for measured in (result.at(epoch) for result in self._found(pl_module, validation)):
            if self.keep_best and self._is_best(measured):
                content = io.BytesIO()
                torch.save(pl_module.state_dict(), content)
                self.run.write(self.run.best.name, content.getvalue())
            self._save(trainer, measured)
            if self._told is not None:
                self._told(measured)
        self._save(trainer, _rank(validation).at(epoch))
        if self._shown is not None:
            self._shown(trainer, self._validation.readable(), validation)

    def _found(self, module: Any, validation: Features) -> list[Result]:
        """Evaluate the encoder, and the classifier trained with it, on the validation part."""
        if validation.labels is None and validation.counterparts is None:  # no evaluation applies
            return []
        train = features_of(self._train, module.encoder, "train", self._progress, module.second)
        if module.head is None:
            train, validation = (module.with_predictions(features) for features in (train, validation))
        parts = FeatureParts(train, validation, validation)
        applicable = (
            evaluation for evaluation in self._tried if evaluation.why_not_applicable(evaluation.taken(parts)) is None
        )
        return [evaluation(*parts, progress=self._progress) for evaluation in islice(applicable, 1)]

    def _save(self, trainer: Trainer, result: Result) -> None:
        """Save scores with the run, and show them in the trainer's loggers at the step that they were taken after."""
        self.run.add(result)
        metrics = {f"validation/{score.evaluation} {score.metric}": score.value for score in result.headline}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step - 1)

    def _is_best(self, result: Result) -> bool:
        """Tell whether an epoch is better than those before it."""
        if not result.selecting:
            raise ValueError(
                f"expected a metric of {result.headline[0].evaluation} that selects, to keep the best epoch, got none: "
                "declare it with Metric(..., selects=True), or leave out --keep"
            )
        score = result.selecting[0]
        before = [one for one in _alike(self.run, score) if one.epoch and score.epoch and one.epoch < score.epoch]
        return best([*before, score]) is score


def best_epoch(run: Run) -> Score | None:
    """Return the validation score of the epoch that is kept as the best; None if no epoch was validated."""
    first = next((score for score in run.scores if score.epoch and score.group == ALL and score.metric.selects), None)
    return None if first is None else best(_alike(run, first))


def _alike(run: Run, score: Score) -> list[Score]:
    """Return the scores of all epochs that measure the same as this one, in order."""
    return [other for other in run.scores if other.epoch is not None and other.what == score.what]


def _some(parts: Parts, tried: Sequence[Evaluation]) -> Samples:
    """Return the validation samples that are encoded."""
    first, samples = next(iter(tried), None), parts.validation
    if isinstance(first, FewShot) and samples.label_kind == "classes":
        return samples.fewer_of_each(MOST_SAMPLES, max(shape.each for shape in first.shapes))
    return samples.fewer(MOST_SAMPLES, whole_classes=parts.new_in_validation)


def _rank(features: Features) -> Result:
    """Return the effective rank of features as a score, which has no interval."""
    some = features.fewer(RANKED)
    rank = effective_rank(some.vectors)
    return Result((Score("features", RANK, rank, rank, rank, len(some), part=features.part),))
