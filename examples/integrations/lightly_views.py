"""A tiny network learns images by lightly's views and our loss, and another one by our views and lightly's loss.

pip install . lightly
python lightly_views.py
"""

from collections.abc import Callable
from typing import Any

import torch
from lightly.data import LightlyDataset
from lightly.data.multi_view_collate import MultiViewCollate
from lightly.loss import NTXentLoss
from lightly.transforms.simclr_transform import SimCLRTransform
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData
from torchvision.transforms import Compose, Resize, ToTensor
from torchvision.transforms.functional import normalize

import likewise as lw
from likewise.data import SimCLRViews

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # lightly's transforms normalise; our views don't


def pictures(transform: Callable[..., Any]) -> Any:
    """Return 256 pictures of four random colours that run into each other."""
    return LightlyDataset.from_torch_dataset(FakeData(256, (3, 2, 2)), transform=Compose([Resize((16, 16)), transform]))


def train(loader: Any, views_of: Callable[[Any], list[Tensor]], loss_of: Callable[..., Tensor]) -> None:
    """Train for eight epochs, and print the loss of the first and the last batch."""
    network = nn.Sequential(nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 7 * 7, 32))
    optimizer, losses = torch.optim.AdamW(network.parameters(), lr=3e-3), list[float]()
    for _ in range(8):
        for batch, _labels, _filenames in loader:
            (loss := loss_of([network(view) for view in views_of(batch)])).backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    print(f"loss before: {losses[0]:.4f}, after: {losses[-1]:.4f}")


def main() -> None:
    """Train twice."""
    torch.manual_seed(0)
    theirs = pictures(SimCLRTransform(input_size=16, min_scale=0.5, cj_strength=0.25, random_gray_scale=0.0))
    train(DataLoader[Any](theirs, 64, collate_fn=MultiViewCollate()), list, lw.NTXentLoss(temperature=0.1))
    draw, loss_of = SimCLRViews(size=16, scale=(0.5, 1.0), strength=0.25, grey=0.0), NTXentLoss(temperature=0.1)

    def views_of(images: Tensor) -> list[Tensor]:
        return list(normalize(draw(images), MEAN, STD).unbind(dim=1))

    train(DataLoader[Any](pictures(ToTensor()), 64), views_of, lambda views: loss_of(*views))


if __name__ == "__main__":
    main()
