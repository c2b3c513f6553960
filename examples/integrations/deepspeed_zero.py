"""An encoder and a loss that learns its temperature in DeepSpeed's ZeRO: one module for the engine.

pip install . deepspeed
python deepspeed_zero.py        # or: torchrun --nproc-per-node 2 deepspeed_zero.py
"""

import os
from typing import Any

import deepspeed  # pyright: ignore[reportMissingImports] - for Linux alone
import torch
import torch.distributed as dist
from torch import Tensor, nn

import likewise as lw

CONFIG = {
    "train_micro_batch_size_per_gpu": 64,  # only counted: each process may bring any number of rows
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.0, "torch_adam": True}},
}


class Step(nn.Module):
    """An encoder and a loss, whose parameters the engine optimizes together."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 16))
        self.loss = lw.InfoNCELoss(temperature="learned", symmetric=True, gather_distributed=True)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Encode both sides in one call, and return the loss of the batches of all processes."""
        return self.loss(*self.encoder(torch.stack([queries, keys])).unbind())


def main() -> None:
    """Train on pairs of noisy copies, and print the loss before and after."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ |= alone | dict(os.environ)
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same weights and data everywhere
    weights: Any = (step := Step()).parameters()
    engine, *_ = deepspeed.initialize(model=step, model_parameters=weights, config=CONFIG)
    losses = []
    for _ in range(100):
        mine = torch.randn(99, 32).tensor_split(world)[rank].to(engine.device)  # shares of different sizes are exact
        loss = engine(mine + 0.1 * torch.randn_like(mine), mine)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    if not rank:
        print(f"loss before: {losses[0]:.4f}, after: {losses[-1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
