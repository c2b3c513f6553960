"""Pretraining: encoder, head, loss and inputs as one Lightning module."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

import lightning
import torch
from jaxtyping import Float
from lightning.pytorch.callbacks import Timer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from likewise.data import Batch, Samples
from likewise.evaluation import FeatureParts, Features, OwnClassifier
from likewise.evaluation.features import labelled_validation
from likewise.evaluation.linear import MAX_TRAINING_SCORES, SCORING_BATCH, LinearPredictor
from likewise.evaluation.logistic_regression import LinearClassifier
from likewise.losses import Loss, Matryoshka
from likewise.models import Encoder, Head
from likewise.models.encoder import frozen
from likewise.runs.scores import format_count
from likewise.training.callbacks import BY_ANCHOR, HISTOGRAM
from likewise.training.inputs import InputContext, LossInput, LossInputs, SecondTower
from likewise.training.inputs.loss_input import Step
from likewise.training.inputs.resolution import label_kind_of, reads_embeddings
from likewise.training.optimization import FineTuning, OptimizerCallable, optimizer_of
from likewise.training.schedule import Cosine, Schedule

STEPS_BETWEEN_CHECKS = 50  # reading a value synchronises an accelerator; on a CPU every step is checked
SCORES_AT_ONCE = 2**22  # class scores read at a time


@final
class Pretraining(lightning.LightningModule):
    """A Lightning module that trains an encoder with a loss; the argument names of the loss's forward select inputs.

        z = g(f(views)),   minimise loss(what its forward names)

    The `inputs` supply those arguments: embeddings, queries, keys, labels, prototypes, a queue, class_logits and more;
    see `likewise.training.inputs`.

    Args:
        encoder: f, which is kept.
        head: g, used only in training. It is dropped if the loss does not read embeddings. None: no head.
        loss: The loss. The values in its `last` are logged, vectors by their mean; those for `Statistics` are not.
        optimizer: Makes the optimizer, such as `torch.optim.AdamW` or a partial of it.
        inputs: Inputs of the loss beyond those of every batch and those it requires. None: the ones it recommends.
        samples: The training part, for the kind and number of its labels. None: labels are of the loss's kind, and
            there are no prototypes.
        schedule: Schedule of the learning rate. None: a cosine to 0.
        chunk_size: Inputs encoded at a time. The activations of a batch may exceed the memory, and the loss is still
            that of the whole batch. See `likewise.models.in_chunks`. None: all.
        temperature_rate_factor: Factor of a learned temperature's learning rate.
        fine_tuning: The trained parameters of the encoder and their learning rates. None: all, at the optimizer's rate.

    Attributes:
        inputs: The `LossInputs` in force.
        observer: Called with each step after its loss, if set.

    Raises:
        ValueError: The loss is not reduced, has an argument that no input supplies, or takes other labels; see
            `LossInputs`. In training: a loss of two views gets another number of views, embeddings or loss are not
            finite, the trainer has no limit, or the learning rate would be 0 in every step.

    Example:
        >>> import likewise as lw
        >>> from likewise.models import MLP, ProjectionHead
        >>> module = Pretraining(MLP((3,), width=8), ProjectionHead(8), lw.NTXentLoss(), torch.optim.AdamW)
        >>> module(torch.zeros(4, 3)).shape
        torch.Size([4, 8])
    """

    def __init__(
        self,
        encoder: Encoder,
        head: Head | None,
        loss: Loss | Matryoshka,
        optimizer: OptimizerCallable,
        inputs: Sequence[LossInput] | None = None,
        *,
        samples: Samples | None = None,
        schedule: Schedule | None = None,
        chunk_size: int | None = None,
        temperature_rate_factor: float = 1.0,
        fine_tuning: FineTuning | None = None,
    ) -> None:
        super().__init__()
        self._objective = (loss,)  # a tuple, so the state of the inner loss has only one name
        loss = loss.loss if isinstance(loss, Matryoshka) else loss
        if getattr(loss, "reduction", "mean") == "none":
            raise ValueError("expected a loss with reduction mean or sum, one value per batch, got none: choose mean")
        learned = getattr(loss, "log_temperature", None)
        if not temperature_rate_factor > 0 or (learned is None and temperature_rate_factor != 1):
            raise ValueError(
                f'expected temperature_rate_factor above 0, and temperature="learned" with it, got '
                f"{temperature_rate_factor}: 1 is the encoder's rate"
            )
        self.fine_tuning = (fine_tuning or FineTuning()).begin(encoder)
        self._of_loss = {} if learned is None else {learned: temperature_rate_factor}
        self.encoder = encoder
        self.head = head if reads_embeddings(type(loss)) else None
        self.loss = loss
        self.inputs = LossInputs(loss, _context(encoder, self.head, loss, samples), inputs)
        self.schedule = self._in_force = Cosine() if schedule is None else schedule
        self.chunk_size = chunk_size
        self.observer: Callable[[Step], None] | None = None
        self._make_optimizer = optimizer
        self._logged_group = 0  # the group of the optimizer whose learning rate is logged

    def forward(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """Encode inputs (N, ...) to features (N, D), without the head."""
        return self.encoder(inputs)

    @property
    def second(self) -> Encoder | None:
        """The network that encodes the other side of pairs; None if there is no other side."""
        for loss_input in self.inputs.all:
            if isinstance(loss_input, SecondTower):
                return self.encoder if loss_input.shared else loss_input.tower
        return None

    @property
    def predicts(self) -> bool:
        """Whether a classifier of features is trained; see `with_predictions`."""
        return any(type(loss_input).predicted is not LossInput.predicted for loss_input in self.inputs.all)

    @torch.no_grad()
    def with_predictions(self, features: Features) -> Features:
        """Add the scores of the classes or labels from the trained classifier, if there is one.

        A linear classifier gives logits, label prototypes the cosines of embeddings and prototypes. A training part
        gets none if there would be more than 2²⁷: nothing is evaluated by them.
        """
        if features.part == "train" and len(features) * len(features.names) > MAX_TRAINING_SCORES:
            return features
        with frozen(self):
            for loss_input in self.inputs.all:
                chunks: list[Tensor] = []
                for some in features.vectors.split(SCORING_BATCH):
                    scores = loss_input.predicted(some.to(self.encoder.mean.device, self.encoder.mean.dtype), self.head)
                    chunks += [] if scores is None else [scores.float().cpu()]
                if chunks:
                    return replace(features, predictions=torch.cat(chunks), logits=loss_input.predicts_logits)
        return features

    def predictor(self, features: FeatureParts) -> LinearPredictor | None:
        """Return the predictor behind `with_predictions`, calibrated on the validation part, if a run can keep it."""
        train, validation, _ = (part.as_trained() for part in features)
        alike = validation.names == train.names  # no new classes
        chosen_by = labelled_validation(validation) if alike else train[torch.arange(0)]
        for loss_input in self.inputs.all:
            classifier = loss_input.classifier()
            scores = chosen_by.predictions if len(chosen_by) else torch.empty(0, len(train.names))
            if classifier is not None and scores is not None:
                made = LinearPredictor(
                    OwnClassifier.name,
                    train.names,
                    train.vectors.shape[1],
                    LinearClassifier(*(tensor.detach().cpu() for tensor in classifier)),
                    head=None if loss_input.predicts_logits else self.head or nn.Identity(),
                    probabilities=loss_input.predicts_logits or train.label_kind == "classes",
                )
                return made.calibrated(partial(_in_chunks, scores), chosen_by)
        return None

    def step_of(self, batch: Batch) -> Step:
        """Return the training step of a batch, with nothing computed yet."""
        momentum, keyed = self.inputs.momentum, self.inputs.signature.keyed
        slow = None if momentum is None else momentum.slow
        return Step(batch, self.encoder, self.head, slow=slow, keyed=keyed, chunk_size=self.chunk_size)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the loss of one batch."""
        step = self.step_of(batch)
        views, named = self.inputs.arguments(step)
        for name, value in {"embeddings": views, **named}.items():
            for rows in value if isinstance(value, tuple) else (value,):
                if isinstance(rows, Tensor) and rows.requires_grad:  # made by the network; the rest can't diverge
                    self._check_finite(name, rows, batch_idx)
        loss = self._objective[0](*views, **named)
        if loss.ndim:
            raise ValueError(f"expected one loss per batch, got {tuple(loss.shape)}: reduce it by its mean or sum")
        self._check_finite("loss", loss, batch_idx)
        for loss_input in self.inputs.all:
            loss_input.after_loss(step)
        if self.observer is not None:
            self.observer(step)
        self._tell(loss, len(batch["inputs"]))
        return loss

    def train(self, mode: bool = True) -> "Pretraining":
        """Set training mode; frozen parts stay in evaluation mode."""
        super().train(mode)
        if mode:
            self._apply_freeze()
        return self

    def on_train_start(self) -> None:
        """Put frozen parts into evaluation mode, even if a resumed training begins within an epoch."""
        self._apply_freeze()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Unfreeze the parts that are trained from this epoch on."""
        if batch_idx == 0:
            self._apply_freeze()

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Drop the gradients of frozen parameters before clipping."""
        self.fine_tuning.drop_gradients(self.current_epoch + 1)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Take the optimizer's step, then update the inputs."""
        super().optimizer_step(*args, **kwargs)
        self.inputs.after_update()

    def configure_optimizers(self) -> Any:
        """Make the optimizer and its schedule, which advances with every optimizer step."""
        self.trainer.fit_loop.setup_data()  # determines the number of steps in an epoch
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps) and self._timer() is None:
            raise ValueError(
                "expected a training of finite length, got no limit: set trainer.max_epochs, max_steps or max_time"
            )
        for loss_input in self.inputs.all:
            loss_input.start(0 if math.isinf(steps) else int(steps))
        rates = self.fine_tuning.rates | self._of_loss
        makers: dict[nn.Module, OptimizerCallable] = {}
        for loss_input in self.inputs.all:
            rates |= loss_input.rate_factors()
            if (make := loss_input.optimizer_of(self._make_optimizer)) is not None:
                makers[loss_input] = make
        optimizer = optimizer_of(self, self._make_optimizer, rates, makers)
        shown = [rates.get(group["params"][0], 1.0) for group in optimizer.param_groups]
        self._logged_group = shown.index(1.0) if 1.0 in shown else shown.index(max(shown))
        self._fit_schedule(steps, max(group["lr"] for group in optimizer.param_groups))
        schedule = LambdaLR(optimizer, self._factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _fit_schedule(self, steps: float, rate: float) -> None:
        """Fit the schedule to a training of `steps` steps; raise a ValueError if it would train nothing."""
        finite = range(int(steps) if math.isfinite(steps) else 0)
        of_epoch, until = self._steps_of_epoch(), self.fine_tuning.unfreeze_epoch
        if finite and math.isfinite(of_epoch):
            self._in_force = self.schedule.within(len(finite), int(of_epoch))
            if until is not None and until > (epochs := math.ceil(steps / of_epoch)):
                raise ValueError(
                    f"expected unfreeze_epoch within the training of {format_count(epochs, 'epoch')}, got {until}: "
                    "train longer, or leave it out, so that what is frozen stays so"
                )
        if not rate > 0 or (finite and not any(self._factor(step) > 0 for step in finite)):
            raise ValueError(
                "expected a learning rate above 0 in some step, got 0 in all: raise --lr, or choose another --schedule"
            )

    def _steps_of_epoch(self) -> float:
        batches = self.trainer.num_training_batches
        return batches if math.isinf(batches) else max(1, math.ceil(batches / self.trainer.accumulate_grad_batches))

    def _factor(self, step: int) -> float:
        steps = float(self.trainer.estimated_stepping_batches)
        epoch = step / self._steps_of_epoch()
        share = 1.0 if steps == 0 else step / steps
        timer = self._timer()
        if timer is not None:
            gone, left = timer.time_elapsed(), timer.time_remaining() or 0.0
            share = max(share, gone / (gone + left) if gone + left else 1.0)
        return self._in_force.factor(epoch, min(share, 1.0))

    def _apply_freeze(self) -> None:
        momentum = self.inputs.momentum
        copies = () if momentum is None else tuple(momentum.slow.encoder.children())[:1]
        self.fine_tuning.settle(self.current_epoch + 1, self.encoder, *copies)

    def _timer(self) -> Timer | None:
        callbacks: Iterable[Any] = self.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        timers = (callback for callback in callbacks if isinstance(callback, Timer))
        return next((timer for timer in timers if timer.time_remaining() is not None), None)

    def _tell(self, loss: Tensor, count: int) -> None:
        """Log the loss, the learning rate and the loss's `last`, averaged over all processes."""
        optimizer = self.optimizers()
        rates = [group["lr"] for group in optimizer.param_groups] if isinstance(optimizer, Optimizer) else [math.nan]
        self.log("loss", loss, prog_bar=True, batch_size=count, sync_dist=True)
        self.log("learning_rate", rates[self._logged_group], batch_size=count)
        for name, value in self.loss.last.items():
            if not name.endswith((HISTOGRAM, BY_ANCHOR)):
                self.log(name, value.float().mean(), batch_size=count, sync_dist=True)

    def _check_finite(self, name: str, value: Tensor, batch_idx: int) -> None:
        if value.device.type != "cpu" and batch_idx % STEPS_BETWEEN_CHECKS:
            return
        if not torch.isfinite(value).all():
            raise ValueError(
                f"expected finite {name}, got NaN or infinity at step {self.global_step}, training has diverged: "
                "lower the learning rate (--lr), or raise the temperature of the loss (--loss.temperature)"
            )


def _context(encoder: Encoder, head: Head | None, loss: Loss, samples: Samples | None) -> InputContext:
    if samples is not None:
        return InputContext(encoder, head, label_kind_of(samples), len(samples.names), samples=samples)
    kinds = loss.label_kinds
    return InputContext(encoder, head, "classes" if "classes" in kinds else "label sets" if kinds else None)


def _in_chunks(scores: Float[Tensor, "n c"]) -> Iterator[tuple[slice, Tensor]]:
    rows = max(1, SCORES_AT_ONCE // max(1, scores.shape[1]))
    for start in range(0, len(scores), rows):
        yield slice(start, start + rows), scores[start : start + rows]
