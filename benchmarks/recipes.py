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

FEW, RESERVE = 2, 10.0
"""Epochs of the first training; seconds that the second leaves beside those that the first needed around its epochs."""


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
    for file in sorted(folder.glob(f"*{recipe}-{epochs}/run.json")) if done.returncode == 0 else ():
        facts = json.loads(file.read_text(encoding="utf-8"))
        training, images = facts["seconds"]["training"], epochs * facts["samples"]["train"]
        found |= {"run": file.parent.name, "training": training, "images_a_second": round(images / training)}
    return found


def _last(said: str) -> str:
    """Return the last line of what was printed."""
    return (said.strip().splitlines() or [""])[-1]


def main(report: Report, recipe: str, files: list[str]) -> None:
    """Say what is missing, or train."""
    missing, data = [name for name in NEEDED if find_spec(name) is None], source(recipe, files)
    report.say(missing=missing, data=data)
    if missing or (data is None and not report.dry_run):
        lacking = ", ".join([*missing, *([] if data is not None else ["the images"])])
        report.say(summary=f"not run: missing {lacking}", complete=report.dry_run)
        return
    if report.dry_run:
        found = trained(recipe, FEW, ["--print-config"], report)
        report.add(**found)
        report.say(summary="the recipe is read, nothing trained" if found["status"] == 0 else "the recipe fails")
        return
    first = trained(recipe, FEW, data or [], report)
    report.add(**first)
    if "training" not in first:
        report.say(summary=f"failed: {_last(first['said'])}", complete=False)
        return
    report.say(summary=f"{first['images_a_second']} images a second, with compiling")
    around = first["seconds"] - first["training"] + RESERVE
    epochs = min(100, int((report.left - around) / (first["training"] / FEW)))
    if epochs > FEW:
        second = trained(recipe, epochs, data or [], report)
        report.add(**second)
        if "training" in second:
            report.say(summary=f"{second['images_a_second']} images a second, {epochs} epochs")
        else:
            report.say(summary=f"{report.said['summary']}; failed in {epochs} epochs: {_last(second['said'])}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    asked, its = begun(__doc__ or "", recipe=("cifar10",), data=())
    main(its, asked.recipe[0], asked.data)
