"""Annotations: the members of a union, the class whose subclasses are taken as parts, and a short form for help."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, is_typeddict

from likewise.configuration.classes import Class

LIST_TYPES = {list, tuple, set, Sequence, Iterable}
PLAIN_TYPES = {Any, type(None), object, list, dict, tuple, set, int, float, bool, str, Path, timedelta}


def members(hint: Any) -> tuple[Any, ...]:
    """Return what an annotation is the union of, without tensors."""
    several = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    return tuple(member for member in several if not is_tensor(member))


def is_tensor(hint: Any) -> bool:
    """Tell whether an annotation is a tensor, which no option can give."""
    return "Tensor" in str(hint) and get_origin(hint) is not Annotated


def part_in(hint: Any) -> Class | None:
    """Return the class whose subclasses a member of an annotation takes; None: it takes plain values."""
    if get_origin(hint) is Annotated:
        return next((Class(path) for path in hint.__metadata__ if isinstance(path, str)), None)
    if not inspect.isclass(hint) or get_origin(hint) or hint in PLAIN_TYPES or is_typeddict(hint) or is_tensor(hint):
        return None
    plain = issubclass(hint, Enum | str | tuple) or hint.__module__ == "builtins"
    return None if plain else Class(f"{hint.__module__}.{hint.__qualname__}")


def part_of(hint: Any) -> Class | None:
    """Return the class whose subclasses an annotation takes as parts, or in a list; None: it takes plain values."""
    for member in members(hint):
        inner = get_args(member) if get_origin(member) in LIST_TYPES else ()
        named = part_in(member) or next(filter(None, map(part_of, inner)), None)
        if named:
            return named
    return None


def takes(hint: Any, *types: Any) -> bool:
    """Tell whether a type is among those that an annotation allows."""
    return any((get_origin(member) or member) in types for member in members(hint))


def type_words(hint: Any) -> str:
    """Return what an annotation takes, in short."""
    return "|".join(dict.fromkeys(word for member in members(hint) for word in _describe_member(member)))


def _describe_member(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from (str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in get_args(hint))
    elif part_in(hint) or hint is Any:
        yield "VALUE" if hint is Any else "CLASS"
    else:
        name = "null" if hint is type(None) else getattr(hint, "__name__", str(hint))
        inside = ", ".join("..." if argument is ... else type_words(argument) for argument in get_args(hint))
        yield f"{name}[{inside}]" if inside else name
