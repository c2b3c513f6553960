"""What the command prints: results to one stream, what is going on to another, and no work lost if either closes."""

import os
import sys
from typing import TextIO


def tell(result: str) -> None:
    """Print a result; a reader that has gone, such as a pipe that is closed, is no reason to stop."""
    try:
        print(result, flush=True)
    except BrokenPipeError:
        _silence(sys.stdout)


def say(doing: str) -> None:
    """Say what is going on, before it takes its time, where the training's progress stands too."""
    try:
        print(doing, file=sys.stderr, flush=True)
    except BrokenPipeError:
        _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    """Let a stream lead nowhere from now on, so that nothing fails when it is flushed at the end either."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
