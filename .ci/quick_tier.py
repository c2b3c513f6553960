"""Run the quick tests, and tell where they take a fifth more of the processor than is written down.

Seconds differ between processors, so what is written down is a ratio: CPU-seconds of the tests to those of a yardstick,
which imports torch and takes steps of a small loss. `--write` writes down today's.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

KNOWN = Path(__file__).with_name("quick_tier.json")
GROWTH = 1.2
YARDSTICK = """
import torch
x = torch.linspace(-1, 1, 128 * 64).reshape(128, 64).requires_grad_()
for _ in range(4000):
    torch.autograd.grad(torch.logsumexp(x @ x.T, dim=1).sum(), x)
"""


def cpu_seconds(*words: str) -> tuple[float, int]:
    """Run Python with these words, and return the CPU-seconds that it and its processes took, and its exit status."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    status = subprocess.run(
        [sys.executable, *words], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    ).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, status


def main() -> int:
    """Run the tests and the yardstick, tell what they took, and return the exit status of the tests."""
    yardstick, _ = cpu_seconds("-c", YARDSTICK)
    tests, status = cpu_seconds("-m", "pytest")
    ratio = tests / yardstick
    if "--write" in sys.argv:
        KNOWN.write_text(json.dumps({"ratio": round(ratio, 1)}) + "\n", encoding="utf-8")
    known = json.loads(KNOWN.read_text(encoding="utf-8"))["ratio"]
    print(f"quick tests: {tests:.0f} CPU-seconds, {ratio:.1f} of a yardstick that took {yardstick:.1f}; known {known}")
    if ratio > GROWTH * known:
        print(
            f"warning: the quick tests have grown by {ratio / known - 1:.0%}: see the slowest by --durations=30, make "
            f"them smaller or mark them slow; or write the new ratio down, python {Path(__file__).name} --write"
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
