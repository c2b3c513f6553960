"""What a part of `first_gpu.py` found: a JSON file, whole at any time, with the device and the versions it ran with."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, final

import torch

DRIVER = Path("/proc/driver/nvidia/version")
POISONED = 3
"""The exit status of a process whose GPU context an error has made useless: another one can go on."""


def written(path: Path, content: Any) -> None:
    """Write JSON as a whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


@final
@dataclass
class Report:
    """The file of a part, written anew with every result.

    A part that is begun again goes on with what it had found.
    """

    path: Path
    dry_run: bool
    seconds: float
    results: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    said: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.seconds
        self._facts = facts(dry_run=self.dry_run)

    @property
    def device(self) -> str:
        """Where to measure."""
        return "cpu" if self.dry_run else "cuda"

    @property
    def left(self) -> float:
        """The seconds that are left of the part's time."""
        return self._end - time.monotonic()

    def go_on(self) -> None:
        """Take up the results of an earlier process of this part."""
        if self.path.exists():
            held = json.loads(self.path.read_text(encoding="utf-8"))
            self.results = held.get("results", [])

    def say(self, **facts: Any) -> None:
        """State something about the whole part."""
        self.said |= facts
        self._write()

    def add(self, **result: Any) -> None:
        """Add a result."""
        self.results.append(result)
        self._write()

    def _write(self) -> None:
        written(self.path, {"state": "running", "facts": self._facts, **self.said, "results": self.results})


def begun(description: str, **lists: Sequence[object]) -> tuple[argparse.Namespace, Report]:
    """Read the options of a part, of which those in ``lists`` are lists of words; return them and its report."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--go-on", action="store_true")
    for name, choices in lists.items():
        parser.add_argument(f"--{name}", nargs="+", default=[*choices])
    given = parser.parse_args()
    report = Report(given.out, given.dry_run, given.seconds)
    if given.go_on:
        report.go_on()
    report.say()
    return given, report


def facts(*, dry_run: bool) -> dict[str, Any]:
    """Return what results depend on: the device, its driver, versions, the commit, the file of tiles."""
    found: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "dry_run": dry_run}
    if dry_run:
        found |= {"device": f"{platform.machine()}, Triton's interpreter"}
    else:
        of = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {
            "device": of.name,
            "capability": 10 * of.major + of.minor,
            "multiprocessors": of.multi_processor_count,
            "memory_gb": round(of.total_memory / 1e9, 1),
            "driver": DRIVER.read_text(encoding="utf-8").splitlines()[0] if DRIVER.exists() else None,
        }
    return found | {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "triton": str(import_module("triton").__version__),
        "numpy": str(import_module("numpy").__version__),
        "python": platform.python_version(),
        "shapes": "stand-in" if "stand_ins" in str(import_module("jaxtyping").__file__) else "jaxtyping",
        "commit": commit(),
        "tiles": os.environ.get("LIKEWISE_TILES"),
    }


def commit() -> str | None:
    """Return the commit of this clone, with a + if files differ from it; None if git or its folder is not there."""
    said: list[str] = []
    for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        try:
            command = ["git", "-C", str(Path(__file__).parent), *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)  # noqa: S603 - git
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            return None
        said.append(done.stdout.strip())
    return said[0] + "+" * bool(said[1])


def in_words(error: BaseException) -> str:
    """Describe an error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def leave_if_poisoned() -> None:
    """End this process if the GPU answers no more, as after an illegal access; another one can go on."""
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing runs here any more
            print(f"the GPU answers no more: {in_words(error)}", file=sys.stderr)
            sys.stderr.flush()
            os._exit(POISONED)


if __name__ == "__main__":
    print(json.dumps(facts(dry_run="--dry-run" in sys.argv)))
