"""What the command prints: results to one stream, what is going on to another, and no work lost if either closes."""

import os
import sys
from typing import TextIO, final

from likewise.workflows.progress import PRINTED


@final
class Terminal:
    """The `Progress` of the command: what is going on, and bars on a terminal alone, stand on another stream."""

    bar, steps = PRINTED.bar, PRINTED.steps

    def say(self, doing: str) -> None:
        """Say what is going on, before it takes its time, where the training's progress stands too."""
        _print(doing, sys.stderr)

    def tell(self, result: str) -> None:
        """Print a result; a reader that has gone, such as a pipe that is closed, is no reason to stop."""
        _print(result, sys.stdout)


TERMINAL = Terminal()


def _print(words: str, stream: TextIO) -> None:
    """Print words; if nobody reads them, let the stream lead nowhere, so that no later flush fails either."""
    try:
        print(words, file=stream, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
