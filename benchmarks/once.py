"""Train a run of a name in a folder, unless it is there: what long measurements go on with after an interruption."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import likewise


def trained(folder: Path, name: str, options: Mapping[str, Any]) -> Path:
    """Return the folder of the finished run of a name, which is trained first if there is none."""
    there = [run for run in folder.glob(f"*-{name}") if run.suffix != ".partial"]
    if there:
        return there[0]
    run = likewise.train({"report": False, **options, "name": name, "runs": str(folder)})
    if run is None:
        raise SystemExit("expected a single process")
    return run.folder
