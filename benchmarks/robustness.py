"""Robustness: SupCon beside cross-entropy on corrupted test images and with wrong labels, seed by seed.

    python benchmarks/robustness.py CIFAR100.npz FOLDER [--seeds 0 1 2] [--noise 0 0.4] [--epochs 20]

CIFAR100.npz has `images` (N, 32, 32, 3), `labels` and `test`. Data, network, augmentation, and optimiser
are those of the recipes supcon-cifar100-20 and cross-entropy-cifar100-20: both methods see the same views in
the same order, and start from the same encoder. Wrong labels are those of the training alone. Every encoder is frozen
and gets a linear probe that is fitted to clean images, with the right labels. What is there is not trained
again; `docs/scripts/result_tables.py` gathers the scores.
"""

import argparse
from pathlib import Path

from once import trained

METHODS = {"SupCon": "supcon-cifar100-20", "cross-entropy": "cross-entropy-cifar100-20"}


def main() -> None:
    """Train both methods at every level of noise, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0, 0.4])
    parser.add_argument("--epochs", type=int, default=20)
    asked = parser.parse_args()
    common = {"data": "Arrays", "data.path": str(asked.file), "data.size": 16, "epochs": asked.epochs}
    common |= {"validation_epochs": 0, "workers": 0, "evaluations": ["LinearProbe", "KNN", "Robustness"]}
    for seed in asked.seeds:
        for noise in asked.noise:
            subsets = [{"class_path": "Classes", "init_args": {"count": 20}}]
            subsets += [{"class_path": "LabelNoise", "init_args": {"share": noise}}] if noise else []
            for name, recipe in METHODS.items():
                setting = f"{name}, {noise:.0%} wrong" if noise else name
                options = {"recipe": recipe, **common, "subset": subsets, "seed": seed}
                trained(asked.folder / setting, f"seed-{seed}", options)


if __name__ == "__main__":
    main()
