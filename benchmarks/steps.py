"""A training step of a small network, and its pieces: the encoder, the views, the losses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.measuring.case import Batch, Case, Contender, Sampler
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.prediction import Growth
from benchmarks.measuring.results import Timing
from benchmarks.measuring.rivals import TEMPERATURE
from likewise.data.augmentation import Draw, SimCLRViews
from likewise.losses import Loss, RASCALLoss, SupConLoss
from likewise.models import ProjectionHead, ResNet

VIEWS, CLASSES, EMBEDDING = 2, 64, 64
LOSSES = ("SupCon", "RASCAL")


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure training steps of a ResNet-8 on colour images: two views of each, encoder and head, loss, AdamW.

    The pieces are measured alone too: views without the rest; encoder, head and optimizer with a sum in the place of
    the loss; a loss on ready embeddings, forward and backward. RASCAL's cache is warm.
    """

    sizes: tuple[int, ...] = option((256,), "Samples of a batch.", least=8)
    side: int = option(16, "Pixels of an image on each side.", least=8)
    clock: str = option("cpu", "What to time on a CPU: elapsed or processor time.", choices=("wall", "cpu"))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.features = 3 * self.side**2

    def contenders(self) -> list[Contender]:
        growth = Growth(time=1)
        pieces = {"views": _views, "encoder": _encoder}
        found = [Contender("piece", name, "", make, self._images, growth) for name, make in pieces.items()]
        for name in LOSSES:
            found.append(Contender("piece", name, "", _loss_alone(name), self._images, growth))
            found.append(Contender("whole step", name, "", _whole(name), self._images, growth))
        return found

    def summary(self, results: Sequence[Timing]) -> str:
        times = {(each.rows, each.loss, each.contender): each.milliseconds for each in results}
        lines = [super().summary(results), ""]
        for rows in dict.fromkeys(each.rows for each in results):
            supcon, rascal = (times.get((rows, "whole step", name)) for name in LOSSES)
            pieces = [times.get((rows, "piece", name)) for name in ("views", "SupCon", "encoder")]
            if supcon and all(pieces):
                views, loss, encoder = (piece or 0.0 for piece in pieces)
                share = 100 * (views + loss) / (views + loss + encoder)
                lines.append(f"{rows}: views and SupCon are {share:.1f} % of a step")
            if supcon and rascal:
                lines.append(f"{rows}: a whole step with RASCAL takes {rascal / supcon:.3f} times one with SupCon")
        return "\n".join(lines)

    def _images(self, sampler: Sampler) -> Batch:
        images = sampler.values(sampler.rows, 3, self.side, self.side, learned=False).sigmoid()
        return (images * 255).to(torch.uint8), sampler.classes(sampler.rows, CLASSES)


class _Training:
    """What a step needs: networks, optimizer, views that differ from step to step."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        side = int((case.features // 3) ** 0.5)
        self.encoder = ResNet((3, side, side), depth=8).to(case.device).train()
        self.head = ProjectionHead(self.encoder.feature_dim, out_dim=EMBEDDING).to(case.device)
        self.optimizer = torch.optim.AdamW([*self.encoder.parameters(), *self.head.parameters()], lr=1e-3)
        self._augmentation = SimCLRViews()
        self._step = 0

    def views(self, images: Tensor) -> Tensor:
        """Return two views of every image, (2·B, 3, height, width)."""
        self._step += 1
        draw = Draw(self._step, rows=VIEWS * len(images), device=images.device)
        return self._augmentation(images.repeat(VIEWS, 1, 1, 1), draw)

    def embed(self, views: Tensor) -> Tensor:
        """Return embeddings (B, 2, E)."""
        return self.head(self.encoder(views)).unflatten(0, (VIEWS, -1)).transpose(0, 1)

    def update(self, loss: Tensor) -> None:
        """Take the optimizer's step."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def _views(case: Case) -> Callable[[Tensor, Tensor], Tensor]:
    training = _Training(case)
    return lambda images, _: training.views(images)


def _encoder(case: Case) -> Callable[[Tensor, Tensor], None]:
    training = _Training(case)
    ready: list[Tensor] = []

    def step(images: Tensor, _: Tensor) -> None:
        if not ready:
            ready.append(training.views(images))
        training.update(training.embed(ready[0]).sum())

    return step


def _loss_alone(name: str) -> Callable[[Case], Callable[[Tensor, Tensor], Tensor]]:
    def make(case: Case) -> Callable[[Tensor, Tensor], Tensor]:
        loss, index = _loss(name, case)
        embeddings = nn.Parameter(torch.randn(case.rows, VIEWS, EMBEDDING, device=case.device))
        return lambda _, labels: loss(embeddings, labels, *index)

    return make


def _whole(name: str) -> Callable[[Case], Callable[[Tensor, Tensor], None]]:
    def make(case: Case) -> Callable[[Tensor, Tensor], None]:
        training = _Training(case)
        loss, index = _loss(name, case)
        return lambda images, labels: training.update(loss(training.embed(training.views(images)), labels, *index))

    return make


def _loss(name: str, case: Case) -> tuple[Loss, tuple[Tensor, ...]]:
    """Return a loss, and what it is given besides embeddings and labels."""
    if name == "SupCon":
        return SupConLoss(temperature=TEMPERATURE), ()
    index = torch.arange(case.rows, device=case.device)
    return RASCALLoss(case.rows, EMBEDDING, temperature=TEMPERATURE).to(case.device), (index,)
