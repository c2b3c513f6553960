"""Crops of whole images beside crops of the middle, already reduced: accuracy, at the same number of steps.

    python benchmarks/crops.py CIFAR100.npz FOLDER [--seeds 3] [--epochs 24]

CIFAR100.npz has `images` (N, 32, 32, 3), `labels` and `test`. Its first 20 classes are written to FOLDER/images as PNG
files of 32 pixels, and encoders of 16 by 16 pixels trained on these: once with `--data.memory 0`, by which crops are
taken of the 32 pixels, and once in memory, of 16. Evaluation is the same for both. What is there is not trained again.
"""

import argparse
import os
from pathlib import Path

import numpy as np
from once import trained
from PIL import Image

CLASSES = 20
METHODS = {"SimCLR": "simclr-cifar100-20", "SupCon": "supcon-cifar100-20"}
CROPS = {"whole image": 0, "reduced image": 2}


def write_images(file: Path, folder: Path) -> None:
    """Write the images of the first classes, each in the folder of its part and class; whole or not at all."""
    with np.load(file) as arrays:
        kept = np.flatnonzero(arrays["labels"] < CLASSES)
        images, labels, test = (arrays[name][kept] for name in ("images", "labels", "test"))
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    for number, (image, label, held_out) in enumerate(zip(images, labels, test, strict=True)):
        place = unfinished / ("test" if held_out else "train") / f"{label:02}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number:05}.png", compress_level=1)
    unfinished.rename(folder)


def main() -> None:
    """Train every method with both crops, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=24)
    asked = parser.parse_args()
    images = asked.folder / "images"
    if not images.is_dir():
        write_images(asked.file, images)
    for seed in asked.seeds:
        for method, recipe in METHODS.items():
            for crop, memory in CROPS.items():
                options = {"recipe": recipe, "data": "Folder", "data.path": str(images), "data.size": 16, "subset": []}
                options |= {"data.memory": memory, "epochs": asked.epochs, "seed": seed, "validation_epochs": 0}
                trained(asked.folder / f"{method}, {crop}", f"seed-{seed}", {**options, "workers": 0})


if __name__ == "__main__":
    main()
