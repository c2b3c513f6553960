"""A training step of a small transformer on texts with label sets, and its pieces: the encoder and the losses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measuring.case import Batch, Case, Contender, Sampler
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.prediction import Growth
from benchmarks.measuring.results import Timing
from likewise.losses import Loss, MSCLoss, NWSLoss
from likewise.models import ProjectionHead, Transformer

EMBEDDING = 128
VOCABULARY = 8000
LOSSES = ("MSC", "NWS")


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure training steps of a small transformer on texts with label sets, as NWS trains it.

    Queries with gradient, keys of another encoder without, and a queue. The encoder is measured with a sum in the place
    of the loss; a loss on ready embeddings, forward and backward.
    """

    sizes: tuple[int, ...] = option((32,), "Texts of a batch.", least=8)
    length: int = option(64, "Tokens of a text.", least=2)
    labels: int = option(90, "How many labels there are.", least=4)
    queue: int = option(512, "Length of the queue.", least=1)
    clock: str = option("cpu", "What to time on a CPU: elapsed or processor time.", choices=("wall", "cpu"))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.features = EMBEDDING

    def contenders(self) -> list[Contender]:
        growth = Growth(time=1)
        found = [Contender("piece", "encoder", "", self._encoder, self._tokens, growth)]
        return found + [Contender("piece", name, "", self._loss(name), self._rows, growth) for name in LOSSES]

    def summary(self, results: Sequence[Timing]) -> str:
        times = {(each.rows, each.contender): each.milliseconds for each in results}
        lines = [super().summary(results), ""]
        for rows in dict.fromkeys(each.rows for each in results):
            encoder = times.get((rows, "encoder"))
            for name in LOSSES:
                loss = times.get((rows, name))
                if encoder and loss:
                    lines.append(f"{rows}: {name} is {100 * loss / (encoder + loss):.1f} % of a step")
        return "\n".join(lines)

    def _tokens(self, sampler: Sampler) -> Batch:
        return (2 + sampler.integers(sampler.rows * self.length, VOCABULARY - 2).view(sampler.rows, self.length),)

    def _rows(self, sampler: Sampler) -> Batch:
        own, older = sampler.label_sets(sampler.rows, self.labels), sampler.label_sets(self.queue, self.labels)
        keys, queue = (sampler.embeddings(count, learned=False) for count in (sampler.rows, self.queue))
        return sampler.embeddings(sampler.rows), own, sampler.embeddings(self.labels), keys, queue, older

    def _encoder(self, case: Case) -> Callable[[Tensor], None]:
        torch.manual_seed(0)
        networks = [
            torch.nn.Sequential(Transformer((), vocabulary=VOCABULARY), ProjectionHead(128, out_dim=EMBEDDING))
            for _ in range(2)
        ]
        fast, slow = (network.to(case.device).train() for network in networks)
        optimizer = torch.optim.AdamW(fast.parameters(), lr=1e-3)

        def step(tokens: Tensor) -> None:
            with torch.no_grad():
                slow(tokens)
            optimizer.zero_grad()
            fast(tokens).sum().backward()
            optimizer.step()

        return step

    def _loss(self, name: str) -> Callable[[Case], Callable[..., Tensor]]:
        def make(case: Case) -> Callable[..., Tensor]:
            loss: Loss = MSCLoss() if name == "MSC" else NWSLoss(torch.eye(self.labels))
            loss = loss.to(case.device)

            def compute(z: Tensor, own: Tensor, *others: Tensor) -> Tensor:
                prototypes, keys, queue, older = others
                given = {"keys": keys, "key_labels": own} if name == "NWS" else {}
                return loss(z, own, prototypes, **given, queue=queue, queue_labels=older)

            return compute

        return make
