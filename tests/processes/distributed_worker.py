"""One process of several: evaluates every case on its shard under DistributedDataParallel, and saves what it got.

python distributed_worker.py RANK SHARDS FOLDER, with the samples of each process as 5,2; of 7 it holds everything.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import likewise as lw
from likewise import pairs
from likewise.losses import ContrastiveLoss
from likewise.training.fitting import synchronize
from loss_table import FEATURES, LOSSES, draw

SAFE = 1 / 300
"""The temperature below which e^{s} of normalised rows is taken relative to their maximum, in float64."""


class Case(NamedTuple):
    """A loss, a batch, which parts of it the encoder makes, and which every process holds whole."""

    make: Callable[..., nn.Module]
    batch: dict[str, torch.Tensor]
    learned: tuple[str, ...] = ("embeddings",)
    whole: tuple[str, ...] = ()
    temperature: float | None = 0.3
    encoder: Callable[[], nn.Module] | None = None


class SoftLabels(ContrastiveLoss):
    """A loss whose pull, and the number of anchors with it, come from a learned row of each class."""

    weight_by_pull = True

    def __init__(self, temperature=0.1, **options):
        super().__init__(temperature, **options)
        self.classes = nn.Parameter(torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))

    def forward(self, embeddings, labels):
        rows = self.rows(embeddings)
        one, other = rows.labels(labels, None, torch.int64)
        weight = pairs.LowRank(self.classes[one].exp(), self.classes[other].exp()) * 0.1
        return self.evaluate(rows, pull=weight, push=weight * rows.not_self(), positives=weight)


class Deep(nn.Module):
    """Several layers with two normalisations of the batch, of vectors and of maps; the latter may be timm's."""

    def __init__(self, maps=nn.BatchNorm2d):
        super().__init__()
        self.first = nn.Linear(FEATURES, 12, dtype=torch.float64)
        self.one = nn.BatchNorm1d(12, dtype=torch.float64)
        self.two = maps(3, momentum=None, affine=False, dtype=torch.float64)
        self.last = nn.Linear(12, FEATURES, dtype=torch.float64)
        for number, layer in enumerate((self.first, self.last)):
            nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(number))
            nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(number))
        nn.init.normal_(self.one.weight, generator=torch.Generator().manual_seed(0))

    def forward(self, inputs):
        x = torch.relu(self.one(self.first(inputs.flatten(0, -2))))
        x = self.two(x.view(-1, 3, 2, 2)).flatten(1)
        return self.last(torch.tanh(x)).view(inputs.shape)


class Step(nn.Module):
    """An encoder and a loss with a learned temperature, as one module to distribute."""

    def __init__(self, case):
        super().__init__()
        self.learned = case.learned
        self.encoder = nn.Linear(FEATURES, FEATURES, dtype=torch.float64) if case.encoder is None else case.encoder()
        if case.encoder is None:
            nn.init.normal_(self.encoder.weight, generator=torch.Generator().manual_seed(1))
            nn.init.zeros_(self.encoder.bias)
        if "class_logits" in case.learned:
            self.gain = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        options = {}
        if case.temperature is not None:
            self.temperature = options["temperature"] = nn.Parameter(
                torch.tensor(case.temperature, dtype=torch.float64)
            )
        self.loss = case.make(gather_distributed=True, **options)

    def forward(self, batch):
        made = {name: self.made(name, value) if name in self.learned else value for name, value in batch.items()}
        first, *others = made
        return self.loss(made[first], **{name: made[name] for name in others})

    def made(self, name, value):
        """Encode features, wherever they stand; logits, which no encoder here makes, have a gain of their own."""
        if name == "class_logits":
            return value * self.gain
        axis = 2 if name.endswith("maps") else -1
        return self.encoder(value.movedim(axis, -1)).movedim(-1, axis)


def cases():
    """Yield each case's name, and the case: every loss of the table, each reduction, and more of SupCon."""
    for name, row in LOSSES.items():
        for reduction in ("mean", "sum", "none"):
            make = partial(row.make, reduction=reduction)
            temperature = 0.3 if row.temperature else None
            yield f"{name} {reduction}", Case(make, row.batch(7, draw(0)), row.learned, row.whole, temperature)
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 0, 2, 1, 0, 3])
    mask = torch.rand(7, 7, generator=generator) > 0.6

    def inputs(*shape):
        return torch.randn(*shape, FEATURES, dtype=torch.float64, generator=generator)

    yield "tiled", Case(partial(lw.SupConLoss, backend="tiled"), {"embeddings": inputs(7, 2), "labels": labels})
    yield "no labels", Case(lw.SupConLoss, {"embeddings": inputs(7, 2)})
    queries = {"queries": inputs(7), "keys": inputs(7)}
    yield (
        "learned temperature",
        Case(
            lambda **options: lw.InfoNCELoss(temperature="learned", symmetric=True, **options).double(),
            queries,
            ("queries", "keys"),
            temperature=None,
        ),
    )
    yield "learned weights", Case(SoftLabels, {"embeddings": inputs(7), "labels": labels})
    yield "mask", Case(partial(lw.SupConLoss, form="in"), {"embeddings": inputs(7, 2), "mask": mask})
    yield "all different", Case(lw.SupConLoss, {"embeddings": inputs(7), "labels": torch.arange(7)})
    references = ("embeddings", "references")
    others = {"references": inputs(7), "reference_labels": labels.flip(0)}
    yield "references", Case(lw.SupConLoss, {"embeddings": inputs(7, 2), "labels": labels, **others}, references)
    masked = {"embeddings": inputs(7, 2), "mask": mask, "references": inputs(7)}
    yield "references, mask", Case(lw.SupConLoss, masked, references)
    views = {"embeddings": inputs(7, 2), "labels": labels}
    yield "batch normalisation", Case(lw.SupConLoss, views, encoder=Deep)
    activated = partial(BatchNormAct2d, act_layer=nn.SiLU)
    yield "batch normalisation of timm", Case(lw.SupConLoss, views, encoder=partial(Deep, activated))
    yield "cold", Case(lw.SupConLoss, views, temperature=SAFE / 2)
    yield "cold, two pushes", Case(lw.HardNegativeLoss, {"embeddings": inputs(7, 2)}, temperature=SAFE / 4)
    lengths = torch.tensor([0.02] * 6 + [10], dtype=torch.float64)[:, None, None]  # long on the last rank alone
    longer = {"embeddings": inputs(7, 2) * lengths, "labels": labels}
    yield "long rows on one rank", Case(partial(lw.SupConLoss, normalize=False), longer, temperature=1.0)
    alone = {"embeddings": inputs(7), "labels": torch.tensor([0, 0, 0, 0, 1, 2, 3])}  # the last ranks have no positives
    yield "no positives on a rank", Case(lw.SupConLoss, alone)


def evaluate(case, batch, rank, world):
    """Return the loss, and the gradients of encoder, gain and temperature that an optimiser would meet."""
    step = Step(case)
    if world > 1:
        synchronize(step, torch.device("cpu"))
    model = step if world == 1 else DistributedDataParallel(step)
    torch.manual_seed(rank)  # ranks draw differently by themselves
    loss = model(batch)
    total = loss.sum()
    if loss.ndim and world > 1:
        total = total * world  # "none" leaves the scaling to the user: DDP's mean divides by the world
    total.backward()
    followed = [buffer.clone() for name, buffer in step.named_buffers() if name.startswith("encoder")]
    return loss.detach(), [parameter.grad.clone() for parameter in step.parameters()], followed


def refusals(rank, world):
    """Return what each rank is told where the input of rank 1 is bad."""
    z, labels = torch.randn(2, 2, 3), torch.tensor([0, 1])
    cold = lw.SupConLoss(gather_distributed=True)
    cold.temperature = -1 if rank == 1 else 0.1
    criterion = lw.SupConLoss(gather_distributed=True)
    good = {"embeddings": z, "labels": labels}
    bad = {
        "labels": {"embeddings": z, "labels": labels[:1]},
        "nan": {"embeddings": z * torch.nan, "labels": labels},
        "features": {"embeddings": torch.randn(2, 2, 5), "labels": labels},
        "kind": {"embeddings": z, "labels": torch.eye(2)},
        "list": {"embeddings": z, "labels": [0, 1]},
        "queue": {**good, "references": torch.randn(5, 3), "reference_labels": torch.arange(5)},
        "mask": {"embeddings": z, "mask": torch.ones(2, 2)},
    }
    told = {}
    for name, batch in [*bad.items(), ("temperature", good)]:
        usual = {"embeddings": z, "mask": torch.ones(2, 2 * world)} if name == "mask" else good
        try:
            (cold if name == "temperature" else criterion)(**(batch if rank == 1 else usual))
        except ValueError as error:
            told[name] = str(error)
    try:
        lw.Matryoshka(criterion, (3, 2))(z[..., :2] if rank == 1 else z, labels)
    except ValueError as error:
        told["widths"] = str(error)
    return told


def main(rank, sizes, folder):
    """Evaluate every case, and save the results of this rank."""
    torch.set_num_threads(1)
    world = len(sizes)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    start = sum(sizes[:rank])
    mine = slice(start, start + sizes[rank])
    results = {}
    for name, case in cases():
        shard = {key: value if key in case.whole else value[mine] for key, value in case.batch.items()}
        results[name] = evaluate(case, shard, rank, world)
    if world > 1:
        results["refusals"] = refusals(rank, world)
        dist.destroy_process_group()
    torch.save(results, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(size) for size in sys.argv[2].split(",")], Path(sys.argv[3]))
