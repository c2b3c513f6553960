"""Snapshots of a training: what the loss received in one step, and the file that keeps them."""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

SEPARATOR = "|"


@final
@dataclass(frozen=True)
class Snapshot:
    """The embeddings that a loss received in one step.

    Args:
        embeddings: Those of b samples in V views, as the loss received them, (b, V, D); one view each, (b, D).
        sample_index: The samples' rows in the training part, (b,).
        labels: Classes (b,) or label sets (b, L); None where there are none.
        epoch: Epochs trained so far, including this one.
        step: The step, counted in batches from 0.
        samples: How many samples the loss contrasted in this step; b may be fewer.
        temperature: The loss's τ; NaN where it has none.
    """

    embeddings: Float[Tensor, "..."]
    sample_index: Int[Tensor, " b"]
    labels: Tensor | None = None
    epoch: int = 0
    step: int = 0
    samples: int = 0
    temperature: float = torch.nan


NUMBERS = {"epoch": int, "step": int, "samples": int, "temperature": float}


def save_snapshots(path: Path, snapshots: Mapping[str, Snapshot]) -> None:
    """Write snapshots as an .npz file, with each array under the snapshot's name and its own, such as "first|labels".

    Example:
        >>> path = Path("batches.npz")
        >>> save_snapshots(path, {"first": Snapshot(torch.ones(3, 2, 4), torch.arange(3), epoch=1)})
        >>> load_snapshots(path)["first"].embeddings.shape
        torch.Size([3, 2, 4])
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, snapshot in snapshots.items():
        for field, value in vars(snapshot).items():
            if value is not None:
                arrays[f"{name}{SEPARATOR}{field}"] = np.asarray(value)
    with path.open("wb") as file:  # to a path NumPy would add .npz
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def load_snapshots(path: Path) -> dict[str, Snapshot]:
    """Read the snapshots that `save_snapshots` wrote, by their names.

    Raises:
        ValueError: The file is missing or damaged, or lacks an array.
    """
    fields: dict[str, dict[str, Any]] = {}
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            for key in file.files:
                name, _, field = key.partition(SEPARATOR)
                converter = NUMBERS.get(field, torch.from_numpy)
                fields.setdefault(name, {})[field] = converter(file[key])
        return {name: Snapshot(**values) for name, values in fields.items()}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, TypeError) as error:
        got, remedy = f"a file that can't be read ({error})", "delete it, or train again"
        raise ValueError(f"expected the snapshots of a training in {path}, got {got}: {remedy}") from error
