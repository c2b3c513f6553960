"""Progress bars while data is read, drawn only if whoever asked for the data wants them."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_bar: ContextVar[Callable[[Iterable[Any], str], Iterable[Any]] | None] = ContextVar("bar", default=None)


def track(items: Iterable[T], doing: str) -> Iterator[T]:
    """Iterate over something that may take long, with a bar if one is drawn."""
    bar = _bar.get()
    return iter(items if bar is None else bar(items, doing))


@contextmanager
def use_progress(bar: Callable[[Iterable[Any], str], Iterable[Any]] | None) -> Generator[None]:
    """Let a function draw the progress bars within the block; None: none are drawn."""
    before = _bar.set(bar)
    try:
        yield
    finally:
        _bar.reset(before)
