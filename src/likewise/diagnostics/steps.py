"""Training steps: snapshots of the inputs of the loss, their file, and a check that the loss fell."""

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

SEPARATOR = "|"
TENTHS = 10
MIN_STEPS = 20  # two in each tenth
MIN_ERRORS = 3.0  # standard errors of a fall; by chance, 1 training in 100 exceeds them, 3 with skewed steps
MIN_FALL = 0.001  # relative to the loss; a smaller fall does not count, however regular


@final
@dataclass(frozen=True)
class Snapshot:
    """The input embeddings of a loss in one step.

    Args:
        embeddings: The inputs of the loss, b samples in V views, (b, V, D); for one view each, (b, D).
        sample_index: The samples' rows in the training part, (b,).
        labels: Classes (b,) or label sets (b, L); None where there are none.
        epoch: Epochs trained so far, including this one.
        step: The step, counted in batches from 0.
        samples: The number of samples contrasted in this step; b may be smaller.
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
    """Write snapshots as an .npz file, with each array keyed by the snapshot's name and its own: "first|labels".

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
    with path.open("wb") as file:  # given a path, NumPy would add .npz
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def load_snapshots(path: Path) -> dict[str, Snapshot]:
    """Read the snapshots saved by `save_snapshots`, by their names.

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


class Descent(NamedTuple):
    """The descent of a loss."""

    highest: float
    """The highest of the means over tenths of the steps."""
    last: float
    """The mean of the last tenth."""
    noise: float
    """The standard deviation of its variation from one step to the next, after the first tenth."""
    fell: bool
    """Whether the difference exceeds chance, and a thousandth of the highest."""


def descent(losses: Sequence[float]) -> Descent | None:
    r"""Compare a loss at the end with its highest mean; it falls in every training that learns.

    $$
    m_{\max} - m_{10} > \max\bigl(3\, \sigma \sqrt{2 / n},\ 0.001\, |m_{\max}|\bigr), \qquad
    \sigma^2 = \tfrac12\, \mathrm{mean}\, (\ell_{t+1} - \ell_t)^2
    $$

    with the means m of tenths of n steps each. The highest is compared, not the first: while a queue fills, a loss over
    its keys rises, whether anything is learned or not. σ is from the steps after the first tenth.

    Args:
        losses: The loss of each step, in order. With fewer than 20, None is returned.

    Example:
        >>> descent([5.5, 5.4] * 50).fell, descent([5.5 - 0.01 * step for step in range(100)]).fell
        (False, True)
    """
    if len(losses) < MIN_STEPS:
        return None
    values = torch.tensor(losses, dtype=torch.float64)
    means = torch.stack([tenth.mean() for tenth in values.tensor_split(TENTHS)])
    noise = math.sqrt(float(values[len(values) // TENTHS :].diff().square().mean()) / 2)
    highest, last = float(means.max()), float(means[-1])
    error = noise * math.sqrt(2 * TENTHS / len(values))
    return Descent(highest, last, noise, highest - last > max(MIN_ERRORS * error, MIN_FALL * abs(highest)))
