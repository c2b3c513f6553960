"""SimCLR in a Lightning module of your own, without labels.

    pip install '.[train]'
    python lightning_module.py

Digits stand at random places of a larger image, so that pixels say little about which of them are alike. The network
only learns to recognise two views of the same image. Labels serve to count, in validation, how often the nearest other
image shows the same digit.

With several devices, Lightning runs this on all of them, and `gather_distributed=True` contrasts each view with the
views on all devices: the gradient is that of one device with the whole batch.
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import likewise as lw
from likewise.data import Draw, RandomAffine


def scattered_digits() -> TensorDataset:
    """Return scikit-learn's digits at random places of images of 12 x 12 pixels, with their classes."""
    pixels, classes = load_digits(return_X_y=True)
    digits = torch.from_numpy(pixels).float().reshape(-1, 8, 8) / 16
    images = torch.zeros(len(digits), 1, 12, 12)
    for image, digit, (top, left) in zip(images, digits, torch.randint(5, (len(digits), 2)).tolist(), strict=True):
        image[0, top : top + 8, left : left + 8] = digit
    return TensorDataset(images, torch.from_numpy(classes))


def agreement(vectors: Tensor, labels: Tensor) -> Tensor:
    """Return the share of samples whose nearest other sample, by cosine similarity, has the same label."""
    units = functional.normalize(vectors)
    similarities = (units @ units.T).fill_diagonal_(-1)
    return (labels[similarities.argmax(dim=1)] == labels).float().mean()


class SimCLR(lightning.LightningModule):
    """An encoder, a head, and NT-Xent."""

    def __init__(self, temperature: float = 0.2, lr: float = 2e-3) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()),
        )
        self.head = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        self.loss = lw.NTXentLoss(temperature=temperature, gather_distributed=True)
        self.augment = RandomAffine(translate=0.17)
        self.lr = lr

    def forward(self, images: Tensor) -> Tensor:
        """Return features."""
        return self.encoder(images)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Return the loss of a batch, of which labels are not used."""
        images, _ = batch
        draw = Draw(seed=self.global_step, rows=2 * len(images), device=images.device)
        views = self.augment(images.repeat_interleave(2, dim=0), draw)
        loss = self.loss(self.head(self(views)).unflatten(0, (-1, 2)))  # (B, 2, D)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor]) -> None:
        """Log how often neighbours agree."""
        images, labels = batch
        self.log("pixels", agreement(images.flatten(1), labels))
        self.log("features", agreement(self(images), labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main() -> None:
    """Train, and compare features with pixels."""
    lightning.seed_everything(0, verbose=False)
    data = scattered_digits()
    batches = DataLoader(data, batch_size=128, shuffle=True, drop_last=True)
    everything = DataLoader(data, batch_size=len(data))
    trainer = lightning.Trainer(
        max_epochs=3, logger=False, enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False
    )
    trainer.fit(SimCLR(), batches, everything)
    for name in ("pixels", "features"):
        print(f"nearest image by {name} shows the same digit: {trainer.callback_metrics[name]:.3f}")


if __name__ == "__main__":
    main()
