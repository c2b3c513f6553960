"""An encoder and a loss that learns its temperature, sharded by FSDP2: one module, so that one call shards both.

pip install .
python fsdp.py        # or: torchrun --nproc-per-node 2 fsdp.py
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import likewise as lw


class Step(nn.Module):
    """An encoder and a loss: FSDP2 gathers the parameters of both before forward, and shards their gradients after."""

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
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    torch.manual_seed(0)  # the same weights and data everywhere
    step, mesh = Step().to(device), init_device_mesh(device.type, (world,))
    for layer in (step.encoder[0], step.encoder[2], step):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(step.parameters(), lr=3e-3, weight_decay=0)
    losses = []
    for _ in range(100):
        mine = torch.randn(99, 32).tensor_split(world)[rank].to(device)  # shares of different sizes are exact
        loss = step(mine + 0.1 * torch.randn_like(mine), mine)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if rank == 0:
        print(f"loss before: {losses[0]:.4f}, after: {losses[-1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
