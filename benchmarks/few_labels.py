"""Few labels and all images: SimCLR and then fine-tuning, SupCon and cross-entropy on the labelled part, equal views.

    python benchmarks/few_labels.py FILE.npz FOLDER [--seeds 3] [--labels 0.1 0.01] [--epochs 12]

FILE.npz has images, labels, names and test, as `likewise train FILE.npz` reads them; 40 % of its training part is used.
Runs go to FOLDER/SETTING, one after the other, and one that is there is not trained again:
`docs/scripts/result_tables.py gather` puts their scores into a file. Every method takes as many steps as all others:
what fine-tuning takes, a quarter of SimCLR's, is added to the budget of the others. The network is a ResNet-8 of width
16. Views are mild crops and flips, but for SimCLR, which has its own. LOG.md says what was chosen on validation.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from once import trained

BATCH, SHARE, VALIDATION = 128, 0.4, 0.1
SIMCLR = {"loss.temperature": 0.2}
RATE_FACTOR = 1.0
MILD = {
    "batches.augmentation": "RandomResizedCrop",
    "batches.augmentation.scale": [0.5, 1.0],
    "batches.augmentation.flip": 0.5,
}
RECIPES = {"SupCon": "supcon-cifar100-20", "cross-entropy": "cross-entropy-cifar100-20", "SimCLR": "simclr-cifar100-20"}


def main() -> None:
    """Train every setting with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--labels", nargs="+", type=float, default=[0.1, 0.01])
    parser.add_argument("--epochs", type=int, default=12)
    asked = parser.parse_args()

    images = int((~np.load(asked.file)["test"]).sum() * SHARE)
    steps = asked.epochs * int(images * (1 - VALIDATION) / BATCH)
    fraction = {"class_path": "Fraction", "init_args": {"fraction": SHARE}}
    common = {"data": "Arrays", "data.path": str(asked.file), "validation_epochs": 0, "epochs": -1, "batch_size": BATCH}
    for seed in range(asked.seeds):
        simclr = trained(
            asked.folder / "SimCLR, all labels",
            f"seed-{seed}",
            {**common, "seed": seed, "recipe": RECIPES["SimCLR"], **SIMCLR, "subset": [fraction], "steps": steps},
        )
        for labels in asked.labels:
            few = {"class_path": "FewLabels", "init_args": {"fraction": labels, "seed": seed}}
            batch = min(BATCH, int(images * labels * (1 - VALIDATION)))
            here = {**common, **MILD, "seed": seed, "subset": [fraction, few], "batch_size": batch}
            quarter = steps * BATCH // batch // 4
            tuned: dict[str, Any] = {
                "encoder": "FromRun",
                "encoder.run": str(simclr),
                "recipe": RECIPES["cross-entropy"],
            }
            settings: dict[str, dict[str, Any]] = {
                "SimCLR, fine-tuned": {**tuned, "steps": quarter, "encoder_rate_factor": RATE_FACTOR},
                "SimCLR, frozen": {**tuned, "steps": quarter, "freeze": "all"},
                "SupCon": {"recipe": RECIPES["SupCon"], "steps": 5 * quarter},
                "cross-entropy": {"recipe": RECIPES["cross-entropy"], "steps": 5 * quarter},
            }
            for name, options in settings.items():
                trained(asked.folder / f"{name}, {labels:.0%} of labels", f"seed-{seed}", {**here, **options})


if __name__ == "__main__":
    main()
