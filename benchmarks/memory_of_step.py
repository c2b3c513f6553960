"""What a training step is predicted to take beside what it takes: `likewise train` in a process for each network.

    python benchmarks/memory_of_step.py [NAME ...]

Measured is how far the peak of resident memory grows over four steps, from just before the first. The data is random.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 4
LITE = {"encoder": "Timm", "encoder.name": "tf_efficientnet_lite0", "freeze": "batch statistics"}
CASES: dict[str, tuple[int, dict[str, Any]]] = {  # pixels, 0 for texts, and options
    "ResNet-18, 512 views of 64 px": (64, {"encoder": "ResNet", "batch_size": 256}),
    "ResNet-18, 256 views of 32 px": (32, {"encoder": "ResNet", "batch_size": 128}),
    "timm resnet50, 32 views of 224 px": (224, {"encoder": "Timm", "encoder.name": "resnet50", "batch_size": 16}),
    "timm lite0, 64 views of 160 px": (160, {**LITE, "batch_size": 32}),
    "timm lite0, 64 views of 160 px, bf16": (160, {**LITE, "batch_size": 32, "trainer.precision": "bf16-mixed"}),
    "timm vit_tiny, 64 views of 224 px": (
        224,
        {"encoder": "Timm", "encoder.name": "vit_tiny_patch16_224", "batch_size": 32},
    ),
    "timm convnext_atto, 128 views of 128 px": (
        128,
        {"encoder": "Timm", "encoder.name": "convnext_atto", "batch_size": 64},
    ),
    "ConvNet, 512 views of 64 px": (64, {"encoder": "ConvNet", "batch_size": 256}),
    "MiniLM, 128 texts": (0, {"batch_size": 64}),
    "MiniLM, 512 texts": (0, {"batch_size": 256}),
    "MiniLM, 128 texts, bf16": (0, {"batch_size": 64, "trainer.precision": "bf16-mixed"}),
    "ConvNet, 16 views of 16 px": (16, {"encoder": "ConvNet", "batch_size": 8}),
    "Transformer, 512 texts": (0, {"encoder": "scratch", "batch_size": 256}),
}


def data(pixels: int, folder: Path) -> Path:
    """Write random images or texts, and return their file."""
    drawing = np.random.default_rng(0)
    labels = np.arange(800) % 10
    if pixels:
        images = drawing.integers(0, 256, (800, pixels, pixels, 3), dtype=np.uint8)
        np.savez(folder / "data.npz", images=images, labels=labels)
        return folder / "data.npz"
    lengths = np.minimum(60, drawing.lognormal(2.4, 0.6, 800).astype(int) + 1)  # as long as a bank's questions
    texts = (" ".join(f"word {number}" for number in drawing.integers(0, 999, length // 2 + 1)) for length in lengths)
    rows = [f"{text},{label}" for text, label in zip(texts, labels, strict=True)]
    (folder / "data.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return folder / "data.csv"


def peak() -> int:
    """Return the most resident memory of this process since it was last reset, in bytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in status if line.startswith("VmHWM")))


def measure(name: str) -> tuple[int, int]:
    """Return what is predicted and what is taken, in bytes."""
    import likewise  # noqa: PLC0415 - in a process for each
    from likewise.training import memory  # noqa: PLC0415

    seen: dict[str, int] = {}
    predict = memory.need

    def noted(*given: Any) -> Any:
        found = predict(*given)
        seen["predicted"] = found.of(10**9)
        Path("/proc/self/clear_refs").write_text("5")
        seen["before"] = peak()
        return found

    def after(*_: Any) -> None:  # and before a checkpoint is saved
        seen["taken"] = peak() - seen["before"]

    memory.need = noted
    memory.MemoryOfStep.on_train_batch_end = after  # pyright: ignore[reportAttributeAccessIssue]
    pixels, options = CASES[name]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        common = {"data": str(data(pixels, folder)), "steps": STEPS, "evaluations": [], "report": False}
        likewise.train({**common, **options, "validation_epochs": 0, "keep": "last", "runs": str(folder / "runs")})
    return seen["predicted"], seen["taken"]


def main() -> None:
    """Measure the named cases, or all, each in a process of its own."""
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2])))
        return
    for name in sys.argv[1:] or CASES:
        done = subprocess.run(  # noqa: S603 - this file
            [sys.executable, __file__, "--one", name], capture_output=True, text=True, check=True
        )
        predicted, taken = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name:<40} predicted {predicted / 1e6:6,.0f} MB, taken {taken / 1e6:6,.0f} MB: {predicted / taken:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
