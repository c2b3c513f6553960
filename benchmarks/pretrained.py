"""Start from a pretrained network: frozen, its last block, all of it, and from scratch, with few labels and with more.

    python benchmarks/pretrained.py FOLDER [--seeds 3] [--labels 10 50 250] [--steps 200]

FOLDER has source.npz and target.npz, which docs/how-to/pretrained.md says how to make. SupCon trains a network on the
source; every setting starts from its file of weights, or from none, and takes as many steps on as many labels, whose
choice, as everything else, is that of the seed. A fifth of the labels is for validation, which chooses the epoch. Runs
go to FOLDER/SETTING, and one that is there is not trained again: `docs/result_tables.py gather` puts their scores into
a file. Nothing is tuned.
"""

import argparse
from pathlib import Path
from typing import Any

from once import trained

BATCH, VALIDATION, CLASSES, CHECKS = 128, 0.2, 20, 5
EPOCHS = 6  # on the source
LONGER = 5  # times the steps, from scratch


def main() -> None:
    """Train the network, and then every setting with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--labels", nargs="+", type=int, default=[10, 50, 250])
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()

    common = {"encoder": "resnet8", "encoder.width": 8, "lr": 0.003}
    source = trained(
        asked.folder / "source",
        "source",
        {
            **common,
            "data": str(asked.folder / "source.npz"),
            "batches.batch_size": BATCH,
            "epochs": EPOCHS,
            "validation_epochs": 0,
            "evaluations": [],
        },
    )
    weights = {"weights": str(source / "encoder.safetensors")}
    settings: dict[str, dict[str, Any]] = {
        "frozen": {**weights, "freeze": "all"},
        "last block": {**weights, "freeze": "all but the last block", "encoder_rate_factor": 0.1},
        "everything, slowly": {**weights, "encoder_rate_factor": 0.1, "layer_decay": 0.75},
        "everything": weights,
        "from scratch": {},
    }
    for labels in asked.labels:
        batches = int(labels * CLASSES * (1 - VALIDATION)) // BATCH
        for seed in range(asked.seeds):
            here = {
                **common,
                "data": str(asked.folder / "target.npz"),
                "subset": "FewLabels",
                "subset.per_class": labels,
                "subset.seed": seed,
                "split.validation": VALIDATION,
                "split.seed": seed,
                "loss": "CrossEntropyLoss",
                "views": 1,
                "batches.batch_size": BATCH,
                "epochs": -1,
                "steps": asked.steps,
                "validation_epochs": max(1, asked.steps // batches // CHECKS),
                "keep": "best",
                "evaluations": [{"class_path": "OwnClassifier"}, {"class_path": "LinearProbe"}],
                "seed": seed,
            }
            for name, options in settings.items():
                trained(asked.folder / f"{labels} a class" / name, f"seed-{seed}", {**here, **options})
            if labels == max(asked.labels):
                longer = {key: LONGER * here[key] for key in ("steps", "validation_epochs")}
                trained(asked.folder / f"{labels} a class" / "from scratch, longer", f"seed-{seed}", {**here, **longer})


if __name__ == "__main__":
    main()
