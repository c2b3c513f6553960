"""Trainings in float32 and in bfloat16, and features of one encoder in both: what the precision changes.

    python benchmarks/precision.py train FOLDER [--only digits cifar texts] [--seeds 0 1 2] [--images IMAGES.npz]
        [--texts TABLE.csv --model FOLDER]
    python benchmarks/precision.py features [--photos TABLE.csv --label fine] [--texts TABLE.csv --model FOLDER]

Every setting is trained in both precisions with each seed, into FOLDER/SETTING, PRECISION. IMAGES.npz has uint8
`images`, `labels` and `parts`; the tables are those of `public_tables.py`. Features are those of tf_efficientnet_lite0
and all-MiniLM-L6-v2 as published, computed by `torch.autocast` too: how far they lie from those in float32, and the
accuracy of the nearest neighbour, training to test part.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from once import trained
from torch import Tensor
from torch.nn.functional import normalize

from likewise.data import inputs_for_encoder, parts_of
from likewise.evaluation.encoding import features_of
from likewise.models import Encoder, PretrainedTransformer, Timm

PRECISIONS = ("32-true", "bf16-mixed")
COMMON: dict[str, Any] = {"validation_epochs": 0, "keep": "last"}
Asked = argparse.Namespace


def settings(asked: Asked) -> dict[str, dict[str, Any]]:
    """Return the options of each setting that is asked for."""
    every = {
        "digits": {"data": "digits"},
        "cifar": {
            "data": str(asked.images),
            "encoder": "ConvNet",
            "augmentation": "SimCLRViews",
            "batch_size": 64,
            "steps": 100,
        },
        "texts": {
            "data": str(asked.texts),
            "data.label": "intent",
            "encoder": "PretrainedTransformer",
            "encoder.name": str(asked.model),
            "batch_size": 64,
            "lr": 1e-4,
            "steps": 50,
        },
    }
    return {name: every[name] for name in asked.only}


def train(asked: Asked) -> None:
    """Train every setting in both precisions with each seed."""
    for seed in asked.seeds:
        for name, options in settings(asked).items():
            for precision in PRECISIONS:
                given = {**COMMON, **options, "seed": seed, "precision": precision}
                trained(asked.folder / f"{name}, {precision}", f"seed-{seed}", given)


def compare(name: str, encoder: Encoder, data: dict[str, Any]) -> None:
    """Print how far features in bfloat16 lie from those in float32, and the nearest neighbour's accuracy by both."""
    table = {"class_path": "likewise.data.Table", "init_args": data}
    parts = parts_of({"data": table, "split": {"class_path": "likewise.data.Stratified"}})[0]
    encoder.observe(inputs_for_encoder(parts.train, observed=False))
    features: dict[bool, dict[str, Tensor]] = {}
    for bf16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            each = {part: features_of(getattr(parts, part), encoder, part).vectors for part in ("train", "test")}
        features[bf16] = {part: normalize(vectors) for part, vectors in each.items()}
    cosines = (features[False]["test"] * features[True]["test"]).sum(1)
    print(f"{name}: cosine of a feature with itself, mean {cosines.mean():.6f}, least {cosines.min():.6f}")
    labels = {part: getattr(parts, part).labels for part in ("train", "test")}
    nearest = {bf16: (each["test"] @ each["train"].T).argmax(1) for bf16, each in features.items()}
    right = {bf16: (labels["train"][rows] == labels["test"]).double().mean() for bf16, rows in nearest.items()}
    same = (nearest[False] == nearest[True]).double().mean()
    print(f"{name}: 1-NN {100 * right[False]:.2f} and {100 * right[True]:.2f} %, the same neighbour {100 * same:.1f} %")


def features(asked: Asked) -> None:
    """Compare the features of what was published."""
    if asked.texts:
        model = PretrainedTransformer((), str(asked.model))
        compare("texts", model, {"path": str(asked.texts), "label": "intent"})
    if asked.photos:
        network = Timm((3, 224, 224), "tf_efficientnet_lite0", pretrained=True)
        compare("photos", network, {"path": str(asked.photos), "label": asked.label, "size": 224})


def main() -> None:
    """Train, or compare features."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "features"])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/precision"))
    parser.add_argument("--only", nargs="+", choices=["digits", "cifar", "texts"], default=["digits"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--images", type=Path)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--label", default="fine")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--model", type=Path)
    asked = parser.parse_args()
    for name, needed in (("cifar", asked.images), ("texts", asked.texts and asked.model)):
        if asked.what == "train" and name in asked.only and not needed:
            parser.error(f"expected --{'images' if name == 'cifar' else 'texts and --model'} for {name}, got none")
    (train if asked.what == "train" else features)(asked)


if __name__ == "__main__":
    main()
