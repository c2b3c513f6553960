"""Whether the fast CIFAR recipes train with the kernels: images a second first, then as many epochs as fit."""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.reports import Report, begun

NEEDED = "lightning", "sklearn", "scipy", "yaml", "jinja2", "PIL", "plotly", "numpy", "safetensors", "tqdm"
"""What the command needs for training, by the name of the module."""

FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
"""What torchvision unpacks."""

IMAGES = 45000
"""Of an epoch: the training images without those for validation."""

FEW, RESERVE = 2, 30.0
"""Epochs of the first training; seconds of the second for all but its epochs."""


def source(recipe: str, files: list[str]) -> list[str] | None:
    """Return the options for the data of a recipe: an array file with its name in its own, or torchvision's folder."""
    named = [each for each in files if ("100" in Path(each).name) == (recipe == "cifar100")]
    if named:
        return ["--data", "Arrays", "--data.path", named[0]]
    there = find_spec("torchvision") is not None and (Path("data") / FOLDERS[recipe]).exists()
    return [] if there else None


def trained(recipe: str, epochs: int, words: list[str], report: Report) -> dict[str, Any]:
    """Train for some epochs; return what the run's folder says, and the end of what was printed."""
    folder = report.path.with_suffix("")
    command = [
        sys.executable,
        "-m",
        "likewise",
        "train",
        "--recipe",
        f"supcon-{recipe}-fast",
        "--loss.backend",
        "triton",
    ]
    command += [*words, "--trainer.max_epochs", str(epochs), "--runs", str(folder), "--name", f"{recipe}-{epochs}"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    found: dict[str, Any] = {"command": command[1:], "epochs": epochs, "status": done.returncode}
    found |= {"seconds": round(time.monotonic() - start, 1), "said": (done.stdout + done.stderr)[-2000:]}
    for file in sorted(folder.glob(f"*{recipe}-{epochs}/run.json")):
        seconds = json.loads(file.read_text(encoding="utf-8")).get("seconds", {}).get("training")
        found |= {"run": str(file.parent), "images_a_second": round(IMAGES * epochs / seconds) if seconds else None}
    return found


def main(report: Report, recipe: str, files: list[str]) -> None:
    """Say what is missing, or train."""
    missing, data = [name for name in NEEDED if find_spec(name) is None], source(recipe, files)
    report.say(missing=missing, data=data)
    if missing or (data is None and not report.dry_run):
        report.say(summary=f"not run: missing {', '.join([*missing, *([] if data is not None else ['the images'])])}")
        return
    if report.dry_run:
        found = trained(recipe, FEW, ["--print-config"], report)
        report.add(**found)
        report.say(summary="the recipe is read, nothing trained" if found["status"] == 0 else "the recipe fails")
        return
    first = trained(recipe, FEW, data or [], report)
    report.add(**first)
    report.say(summary="failed: " + first["said"].strip().splitlines()[-1] if first["status"] else "")
    epochs = int((report.left - RESERVE) / (first["seconds"] / FEW))
    if first["status"] == 0:
        report.say(summary=f"{first.get('images_a_second')} images a second with compiling")
    if first["status"] == 0 and epochs > FEW:
        second = trained(recipe, min(epochs, 100), data or [], report)
        report.add(**second)
        report.say(summary=f"{second.get('images_a_second')} images a second, {second['epochs']} epochs")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    asked, its = begun(__doc__ or "", recipe=("cifar10",), data=())
    main(its, asked.recipe[0], asked.data)
