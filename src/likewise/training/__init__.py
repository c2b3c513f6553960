"""Training: the Lightning module of encoder, head, loss and inputs, and checkpoints.

Names are imported on first use: Lightning takes seconds to import, and the command's help does not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from likewise.training.assembly import Assembled, assemble
    from likewise.training.callbacks import Collapse, Snapshots, Statistics
    from likewise.training.checkpoints import Checkpoints, Terminated
    from likewise.training.data import TrainingData
    from likewise.training.inputs import (
        Guide,
        InputContext,
        KeyQueue,
        LabelPrototypes,
        LossInput,
        Momentum,
        Predictor,
        SecondTower,
    )
    from likewise.training.inputs.loss_input import Step
    from likewise.training.pretraining import Pretraining
    from likewise.training.schedule import Constant, Cosine, Schedule, Steps
    from likewise.training.validation import Validation

__all__ = [
    "Assembled", "Checkpoints", "Collapse", "Constant", "Cosine", "Guide", "InputContext", "KeyQueue",
    "LabelPrototypes", "LossInput", "Momentum", "Predictor", "Pretraining", "Schedule", "SecondTower", "Snapshots",
    "Statistics", "Step", "Steps", "Terminated", "TrainingData", "Validation", "assemble",
]  # fmt: skip
_MODULES = (
    "schedule", "inputs", "inputs.loss_input", "checkpoints", "callbacks", "data", "validation", "pretraining",
    "assembly",
)  # fmt: skip
"""The modules in lookup order: those with few imports first."""


def __getattr__(name: str) -> Any:
    """Import the module that defines a name."""
    for module in _MODULES if name in __all__ else ():
        if hasattr(imported := import_module(f"likewise.training.{module}"), name):
            value = globals()[name] = getattr(imported, name)
            return value
    raise AttributeError(f"module 'likewise.training' has no attribute {name!r}")
