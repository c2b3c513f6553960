"""One process of several: losses of open_clip and lightly, and ours in their place, on its shard of a batch.

python other_losses_worker.py RANK WORLD FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

import likewise as lw
from likewise.integrations import ForOpenClip

SAMPLES = 12


class TwoTowers(nn.Module):
    """A model that returns what open_clip's do."""

    def __init__(self, *, sigmoid):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.image, self.text = (
            nn.Parameter(torch.randn(9, 5, generator=generator, dtype=torch.float64)) for _ in range(2)
        )
        self.logit_scale = nn.Parameter(torch.tensor(2.3, dtype=torch.float64))
        self.logit_bias = nn.Parameter(torch.tensor(-4.0, dtype=torch.float64)) if sigmoid else None

    def forward(self, images, texts):
        bias = {} if self.logit_bias is None else {"logit_bias": self.logit_bias}
        features = normalize(images @ self.image), normalize(texts @ self.text)
        return {
            "image_features": features[0],
            "text_features": features[1],
            "logit_scale": self.logit_scale.exp(),
            **bias,
        }


def cases(rank, world):
    """Return each loss by name, with whether it is SigLIP's, and whether it is of two views."""
    from lightly.loss import NTXentLoss  # noqa: PLC0415 - where they are installed
    from open_clip.loss import ClipLoss, SigLipLoss  # noqa: PLC0415

    place = {"rank": rank, "world_size": world}
    variants = {(local, grad): f"clip, local={local}, grad={grad}" for local in (False, True) for grad in (False, True)}
    return {
        "ours": (ForOpenClip(), False, False),
        "our sigmoid": (ForOpenClip(sigmoid=True), True, False),
        "sigmoid": (SigLipLoss(**place), True, False),
        **{
            name: (ClipLoss(local_loss=local, gather_with_grad=grad, **place), False, False)
            for (local, grad), name in variants.items()
        },
        "our views": (lw.NTXentLoss(temperature=0.5, gather_distributed=True), False, True),
        "views": (NTXentLoss(temperature=0.5, gather_distributed=world > 1), False, True),
    }


def measured(rank, world):
    """Return value and gradients of each loss, averaged over processes as DistributedDataParallel does it."""
    generator = torch.Generator().manual_seed(1)
    images, texts = (torch.randn(SAMPLES, 9, generator=generator, dtype=torch.float64) for _ in range(2))
    own, found = slice(rank * SAMPLES // world, (rank + 1) * SAMPLES // world), {}
    for name, (loss_of, sigmoid, of_views) in cases(rank, world).items():
        model = TwoTowers(sigmoid=sigmoid)
        called = DistributedDataParallel(model, find_unused_parameters=of_views) if world > 1 else model
        made = called(images[own], texts[own])
        views = made["image_features"], made["text_features"]
        if of_views:
            loss = loss_of(list(views)) if name == "our views" else loss_of(*views)
        else:
            loss = loss_of(**made, output_dict=True)["contrastive_loss"]
        loss.backward()
        grads = {key: of.grad for key, of in model.named_parameters() if of.grad is not None}
        found[name] = loss.detach(), grads
    return found


def main(rank, world, folder):
    """Measure on this rank, and save it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.save(measured(rank, world), folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
