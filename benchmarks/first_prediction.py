"""Processor time until the first prediction of one photo, beside the import of torch and the encoder alone.

    python benchmarks/first_prediction.py [RESNET_SIZE] [TRAINING_SAMPLES]

Both run in fresh processes, in turns; a run with a small ResNet, ready features and a probe is made for it.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from likewise.evaluation import FeatureParts, Features, LinearProbe, save_features
from likewise.models import ResNet
from likewise.runs import Run

TURNS = 5
ENCODER_ALONE = """
import json, sys, time, torch
from safetensors.torch import load_file
from likewise.models import ResNet
encoder = ResNet(**json.load(open(sys.argv[1] + "/run.json"))["parts"]["encoder"]["init_args"])
encoder.load_state_dict(load_file(sys.argv[1] + "/encoder.safetensors"))
with torch.no_grad():
    encoder.eval()(torch.zeros(1, *encoder.input_shape))
print(time.process_time())
"""
PREDICTION = """
import sys, time, likewise as lw
lw.load(sys.argv[1]).predict(sys.argv[2])
print(time.process_time())
"""


def made(folder: Path, size: int, count: int) -> tuple[Path, Path]:
    """Return a run and a photo."""
    arguments = {"input_shape": [3, size, size]}
    encoder = ResNet((3, size, size))
    run = Run.create(folder, "mine")
    run.describe({"parts": {"encoder": {"class_path": "likewise.models.ResNet", "init_args": arguments}}})
    run.save_encoder(encoder)
    generator = torch.Generator().manual_seed(0)
    parts: list[Features] = []
    for part, some in (("train", count), ("validation", count // 10), ("test", count // 5)):
        labels = torch.arange(some) % 10
        vectors = torch.randn(some, encoder.feature_dim, generator=generator)
        vectors[:, :10] += 3 * torch.eye(10)[labels]
        parts.append(Features(vectors, labels, tuple("abcdefghij"), part=part))
    save_features(run.embeddings, FeatureParts(*parts))
    run.add(LinearProbe(1e-3)(*parts))
    pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.jpg")
    return run.folder, folder / "photo.jpg"


def main(size: int = 64, count: int = 20_000) -> None:
    """Time both in turns, and print the medians and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(path) for path in made(Path(folder), size, count)]
        seconds: dict[str, list[float]] = {"torch and the encoder": [], "first prediction": []}
        for _ in range(TURNS):
            for (_, times), script in zip(seconds.items(), (ENCODER_ALONE, PREDICTION), strict=True):
                done = subprocess.run(  # noqa: S603 - our own words
                    [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
                )
                times.append(float(done.stdout))
    for name, times in seconds.items():
        print(f"{name}: {statistics.median(times):.2f} s, from {min(times):.2f} to {max(times):.2f}")
    alone, whole = (statistics.median(times) for times in seconds.values())
    print(f"ratio: {whole / alone:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
