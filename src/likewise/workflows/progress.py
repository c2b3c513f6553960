"""What a workflow says while it works, and the results it tells: protocol, printed, and silent."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, final

from likewise.files.formats import CONTROLS

if TYPE_CHECKING:
    from tqdm import tqdm

SECONDS = 1.0  # what takes less has no bar


class Progress(Protocol):
    """Where a workflow's words go: a terminal, a notebook, nowhere, or a class of your own."""

    def say(self, doing: str) -> None:
        """Say what is going on, before it takes its time."""

    def tell(self, result: str) -> None:
        """Tell a result."""

    def bar(self, walked: Iterable[Any], doing: str) -> Iterable[Any]:
        """Show a bar while something is walked through."""
        ...

    def steps(self, total: int | None, doing: str) -> "tqdm[Any] | None":
        """Open a bar that is moved step by step; None where none is drawn, and a line an epoch is said instead."""


@final
class Printed:
    """Print everything, with bars in a notebook or on a terminal: what Python shows unless told otherwise.

    Printing ends no work: what a stream cannot show is escaped, and one that nobody reads any more leads nowhere.

    Args:
        aside: Whether what is going on stands on stderr, where bars do, and not between the results.

    Example:
        >>> progress = Printed()
        >>> progress.say("encoding ...")
        encoding ...
        >>> list(progress.bar(range(3), "counting"))
        [0, 1, 2]
    """

    def __init__(self, *, aside: bool = False) -> None:
        self._aside = aside

    def say(self, doing: str) -> None:
        _print(doing, sys.stderr if self._aside else sys.stdout)

    def tell(self, result: str) -> None:
        _print(result, sys.stdout)

    def bar(self, walked: Iterable[Any], doing: str) -> Iterable[Any]:
        from tqdm.auto import tqdm  # noqa: PLC0415 - looks for a notebook

        return tqdm(walked, desc=doing, delay=SECONDS, leave=False, disable=None)

    def steps(self, total: int | None, doing: str) -> "tqdm[Any] | None":
        from tqdm.auto import tqdm  # noqa: PLC0415 - likewise

        made = tqdm(total=total, unit="step", desc=doing, disable=None)
        return None if made.disable else made


@final
class Silent:
    """Say nothing."""

    def say(self, doing: str) -> None: ...

    def tell(self, result: str) -> None: ...

    def bar(self, walked: Iterable[Any], doing: str) -> Iterable[Any]:
        del doing
        return walked

    def steps(self, total: int | None, doing: str) -> None: ...


def shown(path: Path) -> Path:
    """Write a path as short as it can be copied: from the current folder on where it lies there, else whole.

    Example:
        >>> str(shown(Path("runs").absolute())), shown(Path("/elsewhere")).is_absolute()
        ('runs', True)
    """
    whole, here = path.absolute(), Path.cwd()
    return whole.relative_to(here) if whole.is_relative_to(here) else whole


def _print(words: str, stream: TextIO) -> None:
    """Print words, also where the stream's encoding lacks a letter, or a pipe or a terminal has been closed."""
    words = words.translate(CONTROLS)
    try:
        print(words, file=stream, flush=True)
    except UnicodeEncodeError:
        print(words.encode(stream.encoding, "backslashreplace").decode(stream.encoding), file=stream, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # so that no later flush fails either
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


PRINTED = Printed()
TERMINAL = Printed(aside=True)
"""What the command shows: results alone on stdout."""
