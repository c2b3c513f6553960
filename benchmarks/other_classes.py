"""Other classes with few labels: SupCon on 80 classes, and what its encoder is worth on 20 others, by `transfer`.

    python benchmarks/other_classes.py SOURCE.npz TARGET.npz FOLDER [--seeds 3] [--per-class 5 20 100] [--epochs 12]

docs/results/few-labels.md says how the two files are made. Each seed trains an encoder of its own, FOLDER/source, and
draws its own labels, FOLDER/SEED; what is there is not trained again. `docs/scripts/result_tables.py gather FILE.csv
FOLDER/SEED` puts the scores of a seed into a file. The network is a ResNet-8 of width 16; views are mild crops and
flips. LOG.md says what was chosen on validation.
"""

import argparse
from pathlib import Path
from typing import Any

from once import trained

import likewise

SOURCE = {
    "recipe": "supcon-cifar100-20",
    "subset": [],
    "batches.augmentation": "RandomResizedCrop",
    "batches.augmentation.scale": [0.5, 1.0],
    "batches.augmentation.flip": 0.5,
    "batch_size": 128,
    "validation_epochs": 0,
}
RATE, RATE_FACTOR = 0.01, 1.0


def main() -> None:
    """Train every encoder, and transfer it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--per-class", nargs="+", type=int, default=[5, 20, 100])
    parser.add_argument("--epochs", type=int, default=12)
    asked = parser.parse_args()
    for seed in range(asked.seeds):
        options = {**SOURCE, "data": "Arrays", "data.path": str(asked.source), "epochs": asked.epochs, "seed": seed}
        source = trained(asked.folder / "source", f"seed-{seed}", options)
        target: dict[str, Any] = {"data": "Arrays", "data.path": str(asked.target)}
        target |= {"lr": RATE, "encoder_rate_factor": RATE_FACTOR, "output": asked.folder / str(seed)}
        likewise.transfer(source, per_class=asked.per_class, seeds=[seed], **target)


if __name__ == "__main__":
    main()
