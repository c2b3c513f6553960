"""The command's verbs as Python functions, with a progress argument in place of a terminal.

Files are named by nouns, such as `evaluation.py` for `evaluate`: a module with the function's name would replace the
function here once imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers; `__getattr__` finds the same names at run time
    from likewise.workflows.comparison import Comparison, compare
    from likewise.workflows.embedding import embed
    from likewise.workflows.evaluation import evaluate
    from likewise.workflows.exports import export
    from likewise.workflows.prediction import predict
    from likewise.workflows.progress import Printed, Progress, Silent
    from likewise.workflows.searches import search
    from likewise.workflows.sweeps import sweep
    from likewise.workflows.training import train
    from likewise.workflows.transfers import transfer

# fmt: off
__all__ = [
    "Comparison", "Printed", "Progress", "Silent", "compare", "embed", "evaluate", "export", "predict", "search",
    "sweep", "train", "transfer",
]
_FILE_OF = {
    **dict.fromkeys(("Comparison", "compare"), "comparison"),
    **dict.fromkeys(("Printed", "Progress", "Silent"), "progress"),
    "embed": "embedding", "evaluate": "evaluation", "export": "exports", "predict": "prediction",
    "search": "searches", "sweep": "sweeps", "train": "training", "transfer": "transfers",
}
# fmt: on


def __getattr__(name: str) -> Any:
    """Import a name at its first use: a comparison doesn't need Lightning, whose import takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'likewise.workflows' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"likewise.workflows.{_FILE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
