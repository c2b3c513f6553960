"""A tiny network in a trainer of pytorch-metric-learning, with our loss and our queue instead of CrossBatchMemory.

pip install . pytorch-metric-learning
python metric_loss_only.py
"""

import torch
from pytorch_metric_learning.trainers import MetricLossOnly
from torch import nn
from torch.utils.data import TensorDataset

import likewise as lw
from likewise.integrations import ForMetricLearning
from likewise.memory import Queue

CLASSES, FEATURES, WIDTH = 40, 32, 16


def main() -> None:
    """Train for eight epochs, and print the loss of the first and the last batch."""
    torch.manual_seed(0)
    labels = torch.arange(40 * CLASSES) % CLASSES
    samples = torch.randn(CLASSES, FEATURES)[labels] + 0.5 * torch.randn(len(labels), FEATURES)
    trunk = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, WIDTH))
    loss_of = ForMetricLearning(lw.SupConLoss(temperature=0.1, form="pairs"), queue=Queue(256, WIDTH))
    losses = list[float]()

    def note(trainer: MetricLossOnly) -> None:
        losses.append(float(trainer.losses["metric_loss"]))

    trainer = MetricLossOnly(
        models={"trunk": trunk},
        optimizers={"trunk_optimizer": torch.optim.AdamW(trunk.parameters(), lr=3e-3)},
        batch_size=64,
        loss_funcs={"metric_loss": loss_of},
        dataset=TensorDataset(samples, labels),
        data_device=torch.device("cpu"),
        dataloader_num_workers=0,
        end_of_iteration_hook=note,
    )
    trainer.train(num_epochs=8)
    print(f"loss before: {losses[0]:.4f}, after: {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
