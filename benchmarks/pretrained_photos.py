"""Photos, beginning with a pretrained network: SupCon, RASCAL, cross-entropy, and SupCon and then cross-entropy.

    python benchmarks/pretrained_photos.py grocery.csv --label fine FOLDER [--steps 100] [--seeds 0 1 2]
    python benchmarks/pretrained_photos.py new-classes.csv --label fine FOLDER --new 0.25
    python benchmarks/pretrained_photos.py development.csv --label fine FOLDER --rates 1e-4 2e-4 5e-4 1e-3 --seeds 0

`benchmarks/public_tables.py` writes the tables. Every method sees as many photos in two views, on as many steps;
"SupCon, then cross-entropy" halves them. All else is as by default. With --rates, each
method but the last is trained with each rate, in a folder of its own: LOG.md says which was chosen. Runs go to
FOLDER/SETTING, and one that is there is not trained again: `docs/scripts/result_tables.py gather` puts their scores
into a file. The frozen network is in every run, as it began.
"""

import argparse
from pathlib import Path
from typing import Any

from once import trained

METHODS: dict[str, dict[str, Any]] = {
    "SupCon": {"loss": "SupConLoss"},
    "cross-entropy": {"loss": "CrossEntropyLoss"},
    "RASCAL": {"loss": "RASCALLoss", "loss.ranking": "current", "head": "NoHead"},
}
THEN = "SupCon, then cross-entropy"


def main() -> None:
    """Train every setting with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--label", required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--new", type=float, help="share of the classes that are new: they are the test part")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--then", action=argparse.BooleanOptionalAction, default=True, help=f"train {THEN!r}, too")
    parser.add_argument("--rates", nargs="*", type=float, default=[])
    asked = parser.parse_args()
    data = {"data": str(asked.table), "data.label": asked.label, "validation_epochs": 0, "keep": "last"}
    for seed in asked.seeds:
        name, common = f"seed-{seed}", {**data, "seed": seed, "steps": asked.steps}
        if asked.new is not None:  # other classes with each seed
            shares = {"train": 0.9 - asked.new, "validation": 0.1, "test": asked.new, "seed": seed}
            common |= {"split": "ByClass", **{f"split.{part}": of for part, of in shares.items()}}
        for method in asked.methods:
            options = METHODS[method]
            if not asked.rates:
                trained(asked.folder / method, name, {**common, **options})
            for rate in asked.rates:
                trained(asked.folder / f"{method}, {rate:g}", name, {**common, **options, "lr": rate})
        if not asked.rates and asked.then:
            half = {**common, "steps": asked.steps // 2}
            first = trained(asked.folder / "SupCon, half", name, {**half, **METHODS["SupCon"], "evaluations": []})
            begun = {"weights": str(first / "encoder.safetensors")}
            trained(asked.folder / THEN, name, {**half, **METHODS["cross-entropy"], **begun})


if __name__ == "__main__":
    main()
