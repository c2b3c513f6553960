"""Rows of tensors in mappings, tuples, lists and dataclasses: a tokenizer's batch, a language model's outputs."""

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor

_PLAIN = (type(None), bool, int, float, str)


def _children(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def leaves_of(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """List what containers hold, with names such as "past.0"; what is no container is its only leaf."""
    children = _children(value)
    if children is None:
        return [(name, value)]
    named = ((f"{name}.{key}" if name else str(key), child) for key, child in children.items())
    return [leaf for key, child in named for leaf in leaves_of(child, key)]


def tensors_of(value: Any) -> list[Tensor]:
    """List the tensors that containers hold."""
    return [leaf for _, leaf in leaves_of(value) if isinstance(leaf, Tensor)]


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """Return the same containers, of the same types, with other tensors in the order of `tensors_of`."""
    children = _children(value)
    if children is None:
        return next(tensors) if isinstance(value, Tensor) else value
    filled = {key: with_tensors(child, tensors) for key, child in children.items()}
    if is_dataclass(value) and not isinstance(value, type):  # also the `ModelOutput` of transformers, a mapping
        return replace(value, **filled)
    if isinstance(value, Mapping):
        mapping = copy.copy(value) if isinstance(value, MutableMapping) else dict[Any, Any]()
        mapping.update(filled)  # a `BatchEncoding` stays one
        return mapping
    sequence: Any = type(value)
    return sequence(*filled.values()) if hasattr(value, "_fields") else sequence(filled.values())


def count_of_rows(inputs: Any) -> int:
    """Return the first dimension on which all tensors agree that have one."""
    leaves = leaves_of(inputs)
    shapes = [(name, leaf.shape) for name, leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim]
    if not shapes:
        got = ", ".join(sorted({type(leaf).__name__ for _, leaf in leaves})) or "nothing"
        raise ValueError(f'expected inputs with tensors, got {got}: of a tokenizer ask for return_tensors="pt"')
    if len({shape[0] for _, shape in shapes}) > 1:
        got = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes)
        raise ValueError(f"expected tensors with as many rows, got {got}: repeat what all share, or add it in method=")
    return shapes[0][1][0]


def check_alike(first: Any, other: Any) -> None:
    """Check that the outputs of two chunks can be joined by rows."""
    first, other = leaves_of(first), leaves_of(other)
    if [name for name, _ in first] != [name for name, _ in other]:
        names, differing = (", ".join(name for name, _ in leaves) or "none" for leaves in (first, other))
        raise ValueError(f"expected outputs of the same names from every chunk, got {names}, then {differing}")
    for (name, value), (_, its) in zip(first, other, strict=True):
        if isinstance(its, Tensor):
            alike = its.ndim > 0 and isinstance(value, Tensor) and value.shape[1:] == its.shape[1:]
        else:
            alike = isinstance(its, _PLAIN) and value == its
        if not alike:
            raise ValueError(
                f"expected outputs with rows, alike in every chunk, got {name and name + ' '}{_show_leaf(value)}, then "
                f"{_show_leaf(its)}: return what you need alone, by method="
            )


def _show_leaf(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__
