"""Pretraining: encoder, head and loss as one Lightning module."""

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, final

import lightning
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from likewise.data import Batch
from likewise.losses import ContrastiveLoss
from likewise.memory import Prototypes
from likewise.models import Encoder, Head

OptimizerCallable = Callable[[Iterable[nn.Parameter]], Optimizer]
STEPS_BETWEEN_CHECKS = 50  # looking at a value makes an accelerator wait; a CPU looks at every step
OFFERED = ("labels", "sample_index", "prototypes", "class_logits")  # what a step gives a forward that names it
SECOND_VIEW = ("keys", "positives")  # a forward with one of these in second place takes two views, an argument each


def check_loss(kind: type[ContrastiveLoss]) -> None:
    """Raise unless `Pretraining` has all that the forward of such a loss needs.

    Raises:
        ValueError: The forward needs a parameter that is not offered, or labels that are label sets.

    Example:
        >>> import likewise as lw
        >>> check_loss(lw.ProxyNCALoss)
        >>> try:
        ...     check_loss(lw.TripletLoss)
        ... except ValueError as error:
        ...     print(str(error).partition(", got ")[2].partition(":")[0])
        TripletLoss, which needs negatives
    """
    others = _parameters(kind)[2 if _takes_two_views(kind) else 1 :]
    lacking = [of.name for of in others if of.name not in OFFERED and _is_required(of)]
    if kind.label_kinds == frozenset({"label sets"}):
        lacking.append("label sets as labels (a later version reads such data)")
    if lacking:
        raise ValueError(
            f"expected a loss of views and their classes, from {', '.join(('embeddings', *OFFERED))}, "
            f"got {kind.__name__}, which needs {' and '.join(lacking)}: "
            f"call it in a loop of your own{_page(kind)}"
        )


@final
class Pretraining(lightning.LightningModule):
    """Train an encoder by contrast, under a cosine schedule from the optimizer's learning rate to 0.

        z = g(f(views)),   minimise loss(z, what else its forward names)

    What a forward names is what it is given: first the embeddings (B, V, E), or two views (B, E) as two arguments where
    the second is called `keys` or `positives`; then, by these names,

        labels, sample_index     the classes of the batch's samples, and their rows in the training set, (B,)
        prototypes               one learned vector for each class, (C, E)
        class_logits             of a learned linear classifier on f(views), (B, V, C)

    Args:
        encoder: f; what is kept.
        head: g; what only training uses.
        loss: The loss. What it leaves in `last` is logged, a vector by its mean, but for histograms.
        optimizer: Makes the optimizer from the parameters of all three, and of prototypes and classifier.
        num_classes: C; only a loss of prototypes or class_logits needs it.

    Attributes:
        prototypes: Where the loss takes prototypes, its `Prototypes`.
        classifier: Where the loss takes class_logits, the linear layer that makes them.

    Raises:
        ValueError: The loss is not reduced, needs something else (see `check_loss`), or needs num_classes. In training,
            when a loss of two views gets more or fewer, when embeddings or loss stop being finite, and when the
            trainer's length is infinite.

    Example:
        >>> import likewise as lw
        >>> from likewise.models import MLP, ProjectionHead
        >>> module = Pretraining(MLP((3,), width=8), ProjectionHead(8), lw.SupConLoss(), torch.optim.AdamW)
        >>> module(torch.zeros(4, 3)).shape
        torch.Size([4, 8])
    """

    def __init__(
        self,
        encoder: Encoder,
        head: Head,
        loss: ContrastiveLoss,
        optimizer: OptimizerCallable,
        *,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        check_loss(type(loss))
        if loss.reduction == "none":
            raise ValueError("expected a loss with reduction mean or sum, one value a batch, got none: choose mean")
        self.encoder = encoder
        self.head = head
        self.loss = loss
        self._make_optimizer = optimizer
        names = self._names = [of.name for of in _parameters(type(loss))]
        self.prototypes = Prototypes(_known(num_classes, loss), head.embedding_dim) if "prototypes" in names else None
        self.classifier = nn.Linear(encoder.feature_dim, _known(num_classes, loss)) if "class_logits" in names else None

    def forward(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """Encode inputs (N, ...) to features (N, D), without the head."""
        return self.encoder(inputs)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Contrast one batch."""
        views = batch["inputs"]
        features = self.encoder(views.flatten(0, 1))
        embeddings = self.head(features).unflatten(0, views.shape[:2])
        self._check_finite("embeddings", embeddings, batch_idx)
        named: dict[str, Tensor] = {name: batch[name] for name in ("labels", "sample_index") if name in self._names}
        if self.prototypes is not None:
            named["prototypes"] = self.prototypes()
        if self.classifier is not None:
            named["class_logits"] = self.classifier(features).unflatten(0, views.shape[:2])
        loss = self.loss(*self._arguments(embeddings), **named)
        if loss.ndim:
            raise ValueError(f"expected one loss a batch, got {tuple(loss.shape)}: reduce it by its mean or sum")
        self._check_finite("loss", loss, batch_idx)
        self.log("loss", loss, prog_bar=True, batch_size=len(views))
        self.log("learning_rate", self.optimizers().param_groups[0]["lr"], batch_size=len(views))  # pyright: ignore[reportAttributeAccessIssue]
        for name, value in self.loss.last.items():
            if not name.endswith("_histogram"):
                self.log(name, value.float().mean(), batch_size=len(views))
        return loss

    def configure_optimizers(self) -> Any:
        """Make the optimizer and its cosine schedule, one step a batch."""
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise ValueError("expected a training of finite length, got no limit: set trainer.max_epochs or max_steps")
        optimizer = self._make_optimizer(self.parameters())
        schedule = CosineAnnealingLR(optimizer, T_max=max(1, int(steps)))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _arguments(self, embeddings: Float[Tensor, "b v e"]) -> tuple[Tensor, ...]:
        """Return what the loss takes first: the embeddings, or both views."""
        if not _takes_two_views(type(self.loss)):
            return (embeddings,)
        if embeddings.shape[1] != 2:
            raise ValueError(
                f"expected two views for {type(self.loss).__name__}, as {' and '.join(self._names[:2])}, "
                f"got {embeddings.shape[1]}: set data.views to 2"
            )
        return embeddings.unbind(dim=1)

    def _check_finite(self, name: str, value: Tensor, batch_idx: int) -> None:
        if value.device.type != "cpu" and batch_idx % STEPS_BETWEEN_CHECKS:
            return
        if not torch.isfinite(value).all():
            raise ValueError(
                f"expected finite {name}, got NaN or infinity at step {self.global_step}, training has diverged: "
                "lower the learning rate or raise the temperature"
            )


def _parameters(kind: type[ContrastiveLoss]) -> list[inspect.Parameter]:
    return list(inspect.signature(kind.forward).parameters.values())[1:]  # without self


def _page(kind: type[ContrastiveLoss]) -> str:
    """Point to the loss's page, named as its module is; a user's own loss has none."""
    room, _, name = kind.__module__.rpartition(".")
    return f"; docs/losses/{name.replace('_', '-')}.md shows its arguments" if room == "likewise.losses" else ""


def _takes_two_views(kind: type[ContrastiveLoss]) -> bool:
    return any(of.name in SECOND_VIEW for of in _parameters(kind)[1:2])


def _is_required(of: inspect.Parameter) -> bool:
    return of.default is of.empty and of.kind not in {of.VAR_POSITIONAL, of.VAR_KEYWORD}


def _known(num_classes: int | None, loss: ContrastiveLoss) -> int:
    if num_classes is None:
        raise ValueError(f"expected num_classes for {type(loss).__name__}, got none: pass that of the data")
    return num_classes
