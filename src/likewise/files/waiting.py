"""Bars over what takes long while data is read; whether one is drawn is decided by whoever asked for the data."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_bar: ContextVar[Callable[[Iterable[Any], str], Iterable[Any]] | None] = ContextVar("bar", default=None)


def track(walked: Iterable[T], doing: str) -> Iterator[T]:
    """Walk through something that may take long."""
    bar = _bar.get()
    return iter(walked if bar is None else bar(walked, doing))


@contextmanager
def use_progress(bar: Callable[[Iterable[Any], str], Iterable[Any]] | None) -> Generator[None]:
    """Let a function draw a bar over what is waited for in the block; None: none is drawn."""
    before = _bar.set(bar)
    try:
        yield
    finally:
        _bar.reset(before)
