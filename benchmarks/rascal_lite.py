"""RASCAL-Lite: SupCon beside RASCAL's three rankings on all of CIFAR-100, at 16 by 16 pixels, seed by seed.

    python benchmarks/rascal_lite.py CIFAR100.npz FOLDER [--seeds 0 1 2] [--epochs 16] [--imbalance 100]

CIFAR100.npz has `images` (N, 32, 32, 3), `labels` and `test`. Encoder, head, augmentation, batches and optimiser are
those of the recipe supcon-cifar100-20; all settings see the same views in the same order, and start from the same
weights. With `--imbalance` the training part has a long tail, as in the recipe cifar100-lt. What is there is not
trained again. `drift.py` and `docs/scripts/result_tables.py` gather what the runs have found.
"""

import argparse
from pathlib import Path

from once import trained

SETTINGS = {
    "SupCon": {"loss": "SupConLoss"},
    "RASCAL, uniform": {"loss": "RASCALLoss", "loss.ranking": "uniform"},
    "RASCAL, current": {"loss": "RASCALLoss", "loss.ranking": "current"},
    "RASCAL, agreement": {"loss": "RASCALLoss", "loss.ranking": "agreement"},
}


def main() -> None:
    """Train every setting, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--imbalance", type=float, help="how many times larger the largest class is than the smallest")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    asked = parser.parse_args()
    tail = [{"class_path": "LongTail", "init_args": {"imbalance": asked.imbalance}}] if asked.imbalance else []
    data = {"data": "Arrays", "data.path": str(asked.file), "data.size": 16, "subset": tail}
    common = {"recipe": "supcon-cifar100-20", **data, "epochs": asked.epochs, "validation_epochs": 0, "workers": 0}
    common |= {"evaluations": ["LinearProbe", "KNN"]}
    for seed in asked.seeds:
        for name in asked.settings:
            trained(asked.folder / name, f"seed-{seed}", {**common, **SETTINGS[name], "seed": seed})


if __name__ == "__main__":
    main()
