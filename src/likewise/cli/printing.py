"""What the command prints: results to one stream, what is going on to another, and no work lost if either closes."""

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from tqdm import tqdm

SECONDS = 2.0  # what takes less has no bar


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


def bar(walked: Iterable[Any], doing: str) -> Iterable[Any]:
    """Show a bar for what takes over two seconds, with its rate and the time left, on a terminal.

    Example:
        >>> list(bar(range(3), "counting"))
        [0, 1, 2]
    """
    return tqdm(walked, desc=doing, delay=SECONDS, leave=False, file=sys.stderr, disable=not sys.stderr.isatty())


def _silence(stream: TextIO) -> None:
    """Let a stream lead nowhere from now on, so that nothing fails when it is flushed at the end either."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
