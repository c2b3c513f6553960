"""Validation scores during training: the encoder, evaluated every few epochs."""

from collections.abc import Callable, Sequence
from typing import Any, final

import lightning
import torch

from likewise.data import Parts, Samples
from likewise.evaluation import KNN, Evaluation, FeatureParts, Features, Found, Retrieval
from likewise.models import Encoder
from likewise.runs import Run

MOST_SAMPLES = 10_000  # of each part, enough for a curve


@final
class Validation(lightning.Callback):
    """Evaluate the validation part every few epochs, and save the scores with the run.

    The evaluation is kNN (k = 20, weighted by similarity) if the validation classes are also trained on, and retrieval
    if they are not. With other
    labels, or without labels, nothing is evaluated. At most 10,000 samples of each part, chosen at random, are encoded.
    The random numbers of the training do not change.

    Args:
        run: The run to save scores to.
        parts: The training and validation samples.
        every: Epochs between evaluations; 0: no evaluation.
        evaluations: Evaluations to try instead; the first of them that applies is used.
        told: Called with the scores found.

    Raises:
        ValueError: `every` is negative.
    """

    def __init__(
        self,
        run: Run,
        parts: Parts,
        every: int = 5,
        evaluations: Sequence[Evaluation] | None = None,
        told: Callable[[Found], None] | None = None,
    ) -> None:
        if every < 0:
            raise ValueError(f"expected 0 or more epochs between validation scores, got {every}: 0 switches them off")
        self.run = run
        self.every = every
        self._train, self._validation = (_some(samples) for samples in (parts.train, parts.validation))
        # labels and names decide which evaluation applies; features come with each epoch
        self._evaluations = _applicable(
            self._labels(), (KNN(20, "similarity"), Retrieval()) if evaluations is None else evaluations
        )
        self._told = told

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Evaluate after the last batch of an epoch, before its checkpoint is saved."""
        del outputs, batch
        epoch = trainer.current_epoch + 1
        ends = batch_idx + 1 >= trainer.num_training_batches
        if not (ends and self.every and epoch % self.every == 0 and trainer.is_global_zero and self._evaluations):
            return
        if trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
            return
        encoder: Any = pl_module.encoder
        for found in (of.at(epoch) for of in self.validated(encoder)):
            self.run.add(found)
            metrics = {f"validation {score.evaluation} {score.metric}": score.value for score in found.headline}
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=trainer.global_step)
            if self._told is not None:
                self._told(found)

    def validated(self, encoder: Encoder) -> list[Found]:
        """Evaluate an encoder on the validation part."""
        train = _features(self._train, encoder.encode(self._train.inputs), "train")
        validation = _features(self._validation, encoder.encode(self._validation.inputs), "validation")
        return [evaluation(train, validation, validation) for evaluation in self._evaluations]

    def _labels(self) -> FeatureParts:
        parts = (self._train, "train"), (self._validation, "validation"), (self._validation, "validation")
        return FeatureParts(*(_features(samples, torch.zeros(len(samples), 1), name) for samples, name in parts))


def _applicable(parts: FeatureParts, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the first evaluation that applies."""
    return [evaluation for evaluation in evaluations if evaluation.refusal(parts) is None][:1]


def _some(samples: Samples) -> Samples:
    if len(samples) <= MOST_SAMPLES:
        return samples
    return samples[torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:MOST_SAMPLES]]


def _features(samples: Samples, vectors: torch.Tensor, part: str) -> Features:
    return Features(vectors, samples.labels, samples.names, samples.rows, part)
