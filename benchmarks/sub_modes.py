"""Sub-modes: trained on 20 coarse classes, some of them wrong on purpose, and evaluated on the 100 fine ones.

    python benchmarks/sub_modes.py FILE.npz FOLDER [--seeds 3] [--noise 0 0.2 0.4] [--epochs 12]

FILE.npz has images, labels and names (coarse), fine_labels and fine_names, and test, as `likewise train FILE.npz` reads
them; 40 % of its training part is used. Runs go to FOLDER/SETTING, seed by seed, and one that is there is not trained
again: `docs/scripts/result_tables.py gather` puts their scores into a file. The network is a ResNet-8 of width 16.
Views are mild crops and flips, but for SimCLR, which has its own. RASCAL with uniform weights is SupCon, bit for bit,
and records how far ranks drift: it stands for SupCon here.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from once import trained

SHARE = 0.4
MILD: Mapping[str, Any] = {
    "batches.augmentation": "RandomResizedCrop",
    "batches.augmentation.scale": [0.5, 1.0],
    "batches.augmentation.flip": 0.5,
}
RASCAL = {"recipe": "rascal-cifar100-20", **MILD}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "SupCon": {**RASCAL, "loss.ranking": "uniform"},
    "RASCAL, agreement": {**RASCAL, "loss.ranking": "agreement"},
    "RASCAL, agreement, by sample": {**RASCAL, "loss.ranking": "agreement", "loss.rank_level": "sample"},
    "RASCAL, current": {**RASCAL, "loss.ranking": "current"},
    "cross-entropy": {"recipe": "cross-entropy-cifar100-20", **MILD},
    "SimCLR": {"recipe": "simclr-cifar100-20"},
}


def options(file: Path, noise: float, epochs: int) -> dict[str, Any]:
    """Return what all settings share."""
    subsets = [{"class_path": "Fraction", "init_args": {"fraction": SHARE}}]
    if noise:
        subsets.append({"class_path": "LabelNoise", "init_args": {"share": noise}})
    return {
        "data": "Arrays",
        "data.path": str(file),
        "subset": subsets,
        "batch_size": 128,
        "epochs": epochs,
        "validation_epochs": 0,
    }


def main() -> None:
    """Train every setting with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0, 0.2, 0.4])
    parser.add_argument("--epochs", type=int, default=12)
    asked = parser.parse_args()
    for noise in asked.noise:
        for seed in range(asked.seeds):
            for name, own in SETTINGS.items():
                if noise and name == "SimCLR":
                    continue  # it sees no labels
                folder = asked.folder / (f"{name}, {noise:.0%} wrong" if noise else name)
                trained(folder, f"seed-{seed}", {**options(asked.file, noise, asked.epochs), **own, "seed": seed})


if __name__ == "__main__":
    main()
