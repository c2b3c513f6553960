"""The old names of `likewise.training.inputs`, for one release."""

from typing import Any

from likewise.parts import warn_renamed
from likewise.training import inputs

RENAMED = {
    "Asked": "LossSignature",
    "Batch": "BatchInputs",
    "Offer": "LossInput",
    "Offers": "LossInputs",
    "Plan": "InputContext",
}


def __getattr__(name: str) -> Any:
    return renamed(name, 4)


def renamed(name: str, level: int) -> Any:
    """Return what is now in `likewise.training.inputs`, with a warning."""
    new = RENAMED.get(name, name)
    if new not in inputs.__all__:
        raise AttributeError(f"module 'likewise.training.offers' has no attribute {name!r}")
    warn_renamed(f"likewise.training.offers.{name}", f"likewise.training.inputs.{new}", level)
    return getattr(inputs, new)
