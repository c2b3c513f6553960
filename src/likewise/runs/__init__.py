"""Runs: their folders, scores and curves, and the machine they were made on."""

from pathlib import Path

from torch import nn

from likewise.runs.run import Run, Side, Stage, fsync

__all__ = ["Run", "Side", "Stage", "fsync", "load_encoder"]


def load_encoder(run: Path | str, module: nn.Module | None = None) -> nn.Module:
    """Load the trained encoder of a run: a module in evaluation mode, from inputs (N, ...) to features (N, D).

    Images may be uint8, or floating from 0 to 1: the encoder has the mean and standard deviation of its training part.

    Args:
        run: The run's folder.
        module: The trained network, if its class is not found; see `load`.

    Raises:
        ValueError: The folder is not a run's, the run has trained no encoder yet, or the encoder's class is not found.

    Memory:
        The encoder.

    Example:
        >>> import torch
        >>> from likewise.models import MLP
        >>> run = Run.create(Path("runs"), "mine")
        >>> spec = {"class_path": "likewise.models.MLP", "init_args": {"input_shape": [3], "width": 8}}
        >>> run.describe({"parts": {"encoder": spec}})
        >>> run.save_encoder(MLP((3,), width=8))
        >>> load_encoder(run.folder)(torch.zeros(2, 3)).shape
        torch.Size([2, 8])
    """
    return Run.open(run).encoder(module=module)
