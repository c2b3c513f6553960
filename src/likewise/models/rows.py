"""Rows of tensors in mappings, tuples, lists and dataclasses: a tokenizer's batch, a language model's outputs."""

import copy
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass, replace
from itertools import accumulate
from typing import Any

import torch
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


def parts_of(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """List what containers hold, with names such as "past.0"; what is no container is its own only part."""
    children = _children(value)
    if children is None:
        return [(name, value)]
    named = ((f"{name}.{key}" if name else str(key), child) for key, child in children.items())
    return [part for key, child in named for part in parts_of(child, key)]


def refilled(value: Any, parts: Iterator[Any]) -> Any:
    """Return the same containers, of the same types, with other parts in the order of `parts_of`."""
    children = _children(value)
    if children is None:
        return next(parts)
    made = {key: refilled(child, parts) for key, child in children.items()}
    # also the `ModelOutput` of transformers, a mapping without the fields that are None
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **made)
    if isinstance(value, Mapping):
        if not isinstance(value, MutableMapping):
            return made
        same = copy.copy(value)  # a `BatchEncoding` stays one
        for key, child in made.items():
            same[key] = child
        return same
    kind: Any = type(value)
    return kind(*made.values()) if hasattr(value, "_fields") else kind(made.values())


def tensors_of(value: Any) -> list[Tensor]:
    """List the tensors that containers hold."""
    return [part for _, part in parts_of(value) if isinstance(part, Tensor)]


class Form:
    """Containers, to be filled with other tensors; whatever else they hold stays."""

    def __init__(self, value: Any) -> None:
        parts = [part for _, part in parts_of(value)]
        self._others = [None if isinstance(part, Tensor) else (part,) for part in parts]
        self._empty = refilled(value, iter([...] * len(parts)))  # None would leave no field in a `ModelOutput`

    def filled(self, tensors: Iterable[Tensor]) -> Any:
        """Return the containers with these tensors."""
        left = iter(tensors)
        return refilled(self._empty, iter([next(left) if other is None else other[0] for other in self._others]))


def count_of_rows(inputs: Any) -> int:
    """Return the first dimension on which all tensors agree that have one."""
    parts = parts_of(inputs)
    sizes = [(name, part.shape) for name, part in parts if isinstance(part, Tensor) and part.ndim]
    if not sizes:
        got = ", ".join(sorted({type(part).__name__ for _, part in parts})) or "nothing"
        raise ValueError(f'expected inputs with tensors, got {got}: of a tokenizer ask for return_tensors="pt"')
    if len({shape[0] for _, shape in sizes}) > 1:
        got = ", ".join(f"{name} {tuple(shape)}" for name, shape in sizes)
        raise ValueError(
            f"expected tensors with one row for each input, got {got}: repeat what all rows share, or add it in method="
        )
    return sizes[0][1][0]


class Joined:
    """Outputs of chunks, joined by rows."""

    def __init__(self) -> None:
        self.form = Form(None)
        self._first: list[tuple[str, Any]] = []
        self._made: list[list[Tensor]] = []
        self._spans: list[list[tuple[int, int]]] = []

    def add(self, out: Any) -> None:
        """Add the outputs of the next chunk, without their graph."""
        parts = [(name, part.detach() if isinstance(part, Tensor) else part) for name, part in parts_of(out)]
        if not self._made:
            self._first, self.form = parts, Form(out)
        self._check(parts)
        self._made.append([part for _, part in parts if isinstance(part, Tensor)])

    def _check(self, parts: list[tuple[str, Any]]) -> None:
        if [name for name, _ in self._first] != [name for name, _ in parts]:
            one, other = (", ".join(name for name, _ in named) or "none" for named in (self._first, parts))
            raise ValueError(f"expected outputs of the same names from every chunk, got {one}, then {other}")
        for (name, one), (_, other) in zip(self._first, parts, strict=True):
            if isinstance(other, Tensor):
                alike = other.ndim > 0 and isinstance(one, Tensor) and one.shape[1:] == other.shape[1:]
            else:
                alike = isinstance(other, _PLAIN) and one == other
            if not alike:
                raise ValueError(
                    f"expected outputs with rows, alike in every chunk, got {name and name + ' '}{_said(one)}, then "
                    f"{_said(other)}: return what you need alone, by method="
                )

    def joined(self) -> list[Tensor]:
        """Join the tensors of all chunks, which are let go."""
        columns = list(zip(*self._made, strict=True))
        counts = [[len(rows) for rows in column] for column in columns]
        self._spans = [list(zip(accumulate([0, *by]), by, strict=False)) for by in counts]
        self._made, self._first = [], []
        return [torch.cat(column) for column in columns]

    def rows_of(self, tensors: Iterable[Tensor | None], chunk: int) -> list[Tensor | None]:
        """Return the rows of a chunk, of tensors as they were joined."""
        both = zip(tensors, self._spans, strict=True)
        return [None if tensor is None else tensor.narrow(0, *spans[chunk]) for tensor, spans in both]


def _said(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__
