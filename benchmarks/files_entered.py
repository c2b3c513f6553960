"""How many of the library's files a call enters, as a measure of how far its data travel.

    python benchmarks/files_entered.py [--list]

A file counts if a function of it runs during the call; what an import runs doesn't count. Three calls: `likewise train
FOLDER` of photos until its first step, `likewise evaluate RUN` until its page, and SupCon forward and backward, of
which also the deepest stack of the library's frames is printed. With --list, the files are printed, too.
"""

import argparse
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch import Callback
from PIL import Image

import likewise as lw

HOUSE = str(Path(lw.__file__).parent)


class Entered:
    """The files that were entered, and the deepest stack of the library's frames."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.depth = 0

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call, as `sys.setprofile` wants it."""
        if event != "call" or not frame.f_code.co_filename.startswith(HOUSE):
            return
        depth, caller = 0, frame
        while caller is not None:
            if caller.f_code.co_name == "<module>" and caller.f_code.co_filename.startswith(HOUSE):
                return  # an import
            depth, caller = depth + caller.f_code.co_filename.startswith(HOUSE), caller.f_back
        self.files.add(frame.f_code.co_filename[len(HOUSE) + 1 :])
        self.depth = max(self.depth, depth)


@contextmanager
def noted() -> Generator[Entered]:
    """Note what is entered within the block, in all threads."""
    entered = Entered()
    threading.setprofile(entered.note)
    sys.setprofile(entered.note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


class FirstStep(Callback):
    """Keep the files that were entered until the end of the first step."""

    entered: ClassVar[Entered]
    files: ClassVar[set[str]] = set()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        type(self).files = type(self).files or set(self.entered.files)


def photos(folder: Path) -> Path:
    """Write 24 photos of two classes."""
    random = np.random.default_rng(0)
    for name in ("apple", "pear"):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(0, 256, (80, 100, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.jpg")
    return folder


def sup_con() -> None:
    """Run SupCon forward and backward."""
    embeddings = torch.randn(256, 64, requires_grad=True)
    lw.SupConLoss()(embeddings, torch.arange(256) % 10).backward()


def calls(folder: Path) -> dict[str, Callable[[], Entered]]:
    """Return the calls to measure, by name."""

    def train() -> Entered:
        with noted() as entered:
            FirstStep.entered = entered
            options: Any = {"trainer": {"callbacks": "files_entered.FirstStep", "accelerator": "cpu"}}
            lw.train(photos(folder / "photos"), steps=2, batch_size=8, runs=str(folder / "runs"), **options)
        entered.files = FirstStep.files
        return entered

    def evaluate() -> Entered:
        with noted() as entered:
            lw.evaluate(next(folder.glob("runs/*")))
        return entered

    def loss() -> Entered:
        with noted() as entered:
            sup_con()
        return entered

    return {"train, to the first step": train, "evaluate, to the page": evaluate, "SupCon": loss}


def main() -> None:
    """Run the calls and print how many files each entered."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        for call, run in calls(Path(name)).items():
            entered = run()
            print(f"{call}: {len(entered.files)} files, {entered.depth} frames deep")
            if asked.list:
                print("", *sorted(entered.files), sep="\n    ")


if __name__ == "__main__":
    import files_entered  # the class that the trainer imports is that of this module's import

    files_entered.main()
