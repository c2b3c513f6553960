"""The tools that a training can be looked at in, and whether they are installed."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec

PACKAGES = ("tensorboard", "wandb", "mlflow")  # called as the tools are
TOOLS = (*PACKAGES, "csv")


def check_tools(tools: Iterable[str]) -> None:
    """Raise a ValueError unless all tools are known and installed; it says which there are, or how one is installed."""
    for tool in tools:
        if tool not in TOOLS:
            near = get_close_matches(tool, TOOLS, 1)
            remedy = f", did you mean {near[0]}?" if near else ": choose some of these"
            raise ValueError(f"expected --log to be {', '.join(TOOLS[:-1])} or {TOOLS[-1]}, got {tool}{remedy}")
        if tool in PACKAGES and find_spec(tool) is None:
            raise ValueError(f"expected {tool} for --log {tool}, got none installed: pip install {tool}")
