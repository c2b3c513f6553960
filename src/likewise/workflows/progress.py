"""The messages and results of a workflow: a protocol, one that prints, and a silent one."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, final

from likewise.files.formats import CONTROLS

if TYPE_CHECKING:
    from tqdm import tqdm

MIN_BAR_SECONDS = 1.0  # shorter work has no bar


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
        """Open a bar advanced step by step; None where no bar is drawn and each epoch has a line instead."""


@final
class Printed:
    """Print everything, with bars in a notebook or on a terminal: the default in Python.

    Printing never fails: characters that a stream cannot encode are escaped, and a closed stream is ignored.

    Args:
        aside: Whether messages go to stderr, like bars, instead of between the results.

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
        from tqdm.auto import tqdm  # noqa: PLC0415 - as above

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
    """Shorten a path for display: relative to the current folder if it is inside, else absolute."""
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
        nowhere = os.open(os.devnull, os.O_WRONLY)  # a later flush must not fail either
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


PRINTED = Printed()
TERMINAL = Printed(aside=True)
"""The progress of the command, which writes only results to stdout."""
