"""The command's verbs as Python functions, and what receives their messages and results: a terminal, or nothing.

Files are called by nouns, as `evaluation.py` for `evaluate`: a module of the function's name would take its place here
once it is imported.
"""

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, final

from likewise.files.formats import CONTROLS

if TYPE_CHECKING:  # for type checkers; `__getattr__` finds the same names at run time
    from tqdm import tqdm

    from likewise.workflows.comparison import Comparison, compare
    from likewise.workflows.embedding import embed
    from likewise.workflows.evaluation import evaluate
    from likewise.workflows.exports import export
    from likewise.workflows.prediction import predict
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
    "embed": "embedding", "evaluate": "evaluation", "export": "exports", "predict": "prediction",
    "search": "searches", "sweep": "sweeps", "train": "training", "transfer": "transfers",
}
# fmt: on
MIN_BAR_SECONDS = 1.0  # shorter work has no bar


def __getattr__(name: str) -> Any:
    """Import a name at its first use: a comparison doesn't need Lightning, which takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'likewise.workflows' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"likewise.workflows.{_FILE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class Progress(Protocol):
    """The receiver of a workflow's messages: a terminal, a notebook, nothing, or a class of your own."""

    def log(self, doing: str) -> None:
        """Announce a step before it begins."""

    def result(self, result: str) -> None:
        """Report a result."""

    def bar(self, walked: Iterable[Any], doing: str) -> Iterable[Any]:
        """Wrap an iterable in a progress bar."""
        ...

    def steps(self, total: int | None, doing: str) -> "tqdm[Any] | None":
        """Open a bar that is advanced step by step; None where none is drawn, and each epoch has a line instead."""


@final
class Printed:
    """Print everything, with bars in a notebook or on a terminal: the default in Python.

    Printing never fails: what a stream cannot encode is escaped, and one that has been closed is ignored.

    Args:
        aside: Whether messages go to stderr, as bars do, and not between the results.

    Example:
        >>> progress = Printed()
        >>> progress.log("encoding ...")
        encoding ...
        >>> list(progress.bar(range(3), "counting"))
        [0, 1, 2]
    """

    def __init__(self, *, aside: bool = False) -> None:
        self._aside = aside

    def log(self, doing: str) -> None:
        _print(doing, sys.stderr if self._aside else sys.stdout)

    def result(self, result: str) -> None:
        _print(result, sys.stdout)

    def bar(self, walked: Iterable[Any], doing: str) -> Iterable[Any]:
        from tqdm.auto import tqdm  # noqa: PLC0415 - looks for a notebook

        return tqdm(walked, desc=doing, delay=MIN_BAR_SECONDS, leave=False, disable=None)

    def steps(self, total: int | None, doing: str) -> "tqdm[Any] | None":
        from tqdm.auto import tqdm  # noqa: PLC0415 - likewise

        made = tqdm(total=total, unit="step", desc=doing, disable=None)
        return None if made.disable else made


@final
class Silent:
    """Say nothing."""

    def log(self, doing: str) -> None: ...

    def result(self, result: str) -> None: ...

    def bar(self, walked: Iterable[Any], doing: str) -> Iterable[Any]:
        del doing
        return walked

    def steps(self, total: int | None, doing: str) -> None: ...


def shown(path: Path) -> Path:
    """Shorten a path that is shown: relative to the current folder if it is inside, else absolute."""
    whole, here = path.absolute(), Path.cwd()
    return whole.relative_to(here) if whole.is_relative_to(here) else whole


def _print(text: str, stream: TextIO) -> None:
    """Print text, even if the stream's encoding lacks a character, or its pipe or terminal has been closed."""
    text = text.translate(CONTROLS)
    try:
        print(text, file=stream, flush=True)
    except UnicodeEncodeError:
        print(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding), file=stream, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # so that no later flush fails either
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


PRINTED = Printed()
TERMINAL = Printed(aside=True)
"""The progress of the command, which writes results alone to stdout."""
