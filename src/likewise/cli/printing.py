"""What the command prints: results to one stream, what is going on to another, and no work lost if either closes."""

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO, final

from tqdm import tqdm

SECONDS = 2.0  # what takes less has no bar


@final
class Terminal:
    """The `Progress` of the command: bars on a terminal alone, on the stream of what is going on."""

    def say(self, doing: str) -> None:
        """Say what is going on, before it takes its time, where the training's progress stands too."""
        _print(doing, sys.stderr)

    def tell(self, result: str) -> None:
        """Print a result; a reader that has gone, such as a pipe that is closed, is no reason to stop."""
        _print(result, sys.stdout)

    def bar(self, walked: Iterable[Any], doing: str) -> Iterable[Any]:
        """Show a bar for what takes over two seconds, with its rate and the time left."""
        return tqdm(walked, desc=doing, delay=SECONDS, leave=False, file=sys.stderr, disable=None)

    def steps(self, total: int | None, doing: str) -> "tqdm[Any] | None":
        """Open a bar over steps."""
        return tqdm(total=total, unit="step", desc=doing, file=sys.stderr) if sys.stderr.isatty() else None


TERMINAL = Terminal()


def _print(words: str, stream: TextIO) -> None:
    """Print words; if nobody reads them, let the stream lead nowhere, so that no later flush fails either."""
    try:
        print(words, file=stream, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
