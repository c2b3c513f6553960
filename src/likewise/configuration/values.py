"""Options and their values: words and file values, converted by pydantic to plain values according to annotations."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, is_typeddict

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError, ValidationInfo
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from likewise.configuration.classes import PLAIN_TYPES, members, part_in
from likewise.instantiate import path_of

FLAG: Final = object()
"""The value of an option given without one."""
TYPE_NAMES = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "a text", "list": "a list",
    "tuple": "a list", "dict": "a mapping", "path": "a text",
}  # fmt: skip
"""Names of types in errors, by the beginning of pydantic's error types."""
Part = Callable[[Any, Any], Any]
"""A function that describes a part, from a value and the expected class; None: the value is for another type."""


class Option(NamedTuple):
    """An option: its dotted name, its value (a word, a file's value, or `FLAG`), and whether a "+" adds to a list."""

    name: str
    value: Any
    adds: bool = False


def flat(options: Mapping[str, Any], above: str = "") -> Iterator[Option]:
    """Yield nested options one by one: each class before its arguments."""
    for name, value in options.items():
        option = f"{above}{name}"
        if not isinstance(value, dict) or (above and not value.keys() & {"class_path", "init_args"}):
            yield Option(option, value)
            continue
        if value.get("class_path") is not None:
            yield Option(option, value["class_path"])
        remaining = {key: argument for key, argument in value.items() if key not in {"class_path", "init_args"}}
        yield from flat({**remaining, **(value.get("init_args") or {})}, f"{option}.")


def plain(value: Any, hint: Any, part: Part | None = None) -> Any:
    """Return a value in an annotation's type, or raise: "expected a number, got x"; `part` describes parts.

    Conversion is strict, as in JSON: a list may be a tuple, a text a path, 1 a float; true is no number, and 1 no text.
    """
    if value is FLAG and bool not in members(hint):
        raise ValueError("expected a value, got none")
    texts = value if isinstance(value, list | tuple) else [value]
    paths = [str(text) for text in texts if isinstance(text, str | Path)]
    if any(path != path.encode(errors="replace").decode() for path in paths):
        return list(map(str, texts)) if texts is value else str(value)  # file names that JSON can't hold
    wanted = {"a plain value": None}
    for meaning in [True] if value is FLAG else _meanings(value, texts=not {str, Path}.isdisjoint(members(hint))):
        try:
            text = to_json(meaning, inf_nan_mode="constants", fallback=_named)
            return to_jsonable_python(_adapter(hint, part is None).validate_json(text, strict=True, context=part))
        except ValidationError as error:
            wanted = dict.fromkeys(filter(None, map(_wanted, error.errors(include_url=False))))
        except PydanticSerializationError:
            break
        except _RaisedError as raised:
            (error,) = raised.args
            raise error from error.__cause__
    raise ValueError(f"expected {' or '.join(wanted) or 'nothing'}, got {value}")


def _named(value: Any) -> str:
    if inspect.isclass(value):
        return path_of(value)
    raise TypeError


def _meanings(value: Any, *, texts: bool) -> Iterator[Any]:
    """Yield a word's meanings, likeliest first: a number or list rather than a text, words with commas a list."""
    if not isinstance(value, str):
        yield value
        return
    bracketed = value.lstrip().startswith(("[", "{"))
    try:
        yield parse(value)
    except ValueError:  # unclosed brackets
        if not texts:
            raise
    yield value
    if not bracketed:
        tokens = [word.strip() for word in value.split(",")]
        yield from (list(map(parse, tokens)), tokens)


def _wanted(error: Any) -> str:
    error_type = error["type"]
    wanted = TYPE_NAMES.get(error_type.partition("_")[0], "")
    if error_type == "literal_error":
        wanted = f"one of {error['ctx']['expected'].replace(' or ', ', ')}"
    elif error_type == "value_error":
        wanted = str(error["ctx"]["error"])
    elif error_type in {"missing", "too_long"}:
        return f"a list of {error['ctx']['max_length']}" if error_type == "too_long" else "a longer list"
    return f"a list of {wanted}" if wanted and any(isinstance(step, int) for step in error["loc"]) else wanted


@cache
def _adapter(hint: Any, plainly: bool) -> TypeAdapter[Any]:
    return TypeAdapter(_readable(hint, plainly), config=ConfigDict(arbitrary_types_allowed=True))


def _readable(hint: Any, plainly: bool) -> Any:
    """Return an annotation for values from files: without tensors, with parts described, and texts tried last."""
    origin: Any = get_origin(hint)
    inner = get_args(hint)
    if (base := part_in(hint)) is not None:
        return Any if plainly else Annotated[Any, PlainValidator(partial(_describe_part, base))]
    if origin is Literal:
        return Annotated[hint, BeforeValidator(partial(_choice, inner))]
    if origin in {Union, UnionType}:
        several = sorted(
            set(members(hint)) - {type(None)}, key=lambda member: (member in {str, Any}, inner.index(member))
        )
        either: Any = Union[tuple(_readable(member, plainly) for member in several) or (Any,)]  # noqa: UP007
        if get_origin(either) is Union:
            either = Annotated[either, Field(union_mode="left_to_right")]
        return either | None if type(None) in inner else either
    if is_typeddict(hint) or origin is Mapping:
        return dict[str, Any]
    if origin in {Iterable, Sequence}:  # pydantic would make it a generator
        origin = list
    if origin in {list, tuple, set, dict} and inner:
        return origin[tuple(argument if argument is ... else _readable(argument, plainly) for argument in inner)]  # pyright: ignore[reportInvalidTypeArguments]
    return hint if hint in PLAIN_TYPES - {timedelta} or (inspect.isclass(hint) and issubclass(hint, Enum)) else Any


def _choice(choices: Sequence[Any], value: Any) -> Any:
    folds = {folded(str(choice)): choice for choice in choices}
    return value if value in choices or not isinstance(value, str) else folds.get(folded(value), value)


def _describe_part(base: Any, value: Any, info: ValidationInfo) -> Any:
    describe: Part = info.context  # pyright: ignore[reportAssignmentType]
    try:
        described = describe(value, base)
    except ValueError as error:  # pydantic would take it for "not of this type"
        raise _RaisedError(error) from error
    if described is None:
        raise ValueError("the name of a class")
    return described


class _RaisedError(Exception):
    """An exception that carries a ValueError past pydantic, as its argument."""


def parse(value: Any) -> Any:
    """Return the meaning of a word of unknown type: a number, a list, a mapping, or the word itself."""
    if not isinstance(value, str) or value == "None":
        return None if value == "None" else value
    for number in (int, float):
        with suppress(ValueError):
            return number(value)
    bracketed = value.lstrip().startswith(("[", "{"))
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError as error:
        if bracketed:
            raise ValueError(f"expected a list or a mapping, got {value}: close its brackets") from error
        return value
    return read if bracketed or isinstance(read, bool) or read is None else value


def folded(name: str) -> str:
    """Return a name without case, hyphens and underscores."""
    return name.replace("-", "").replace("_", "").replace(" ", "").lower()
