"""Annotations: what they are the union of, the class whose kinds they take as parts, and in short what they take."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin

from likewise.configuration.classes import Class, Value

LISTS = ("list", "List", "Sequence", "Iterable", "set", "Set")
NAMES: dict[str, Any] = {
    **dict.fromkeys(("Any", "object"), Any), **dict.fromkeys(LISTS, list), "tuple": tuple, "Tuple": tuple,
    "dict": dict, "Dict": dict, "Mapping": dict, "bool": bool, "int": int, "float": float, "str": str, "Path": Path,
    "None": None, "Optional": Optional, "Union": Union, "Literal": Literal,
}  # fmt: skip


def hint_of(annotation: Value | None) -> Any:
    """Return an annotation of a source as a type; a class of parts as Annotated with it, others as Any."""
    if annotation is None:
        return Any
    node, module = annotation.node, annotation.module
    match node:
        case ast.BinOp():
            return Union[hint_of(Value(node.left, module)), hint_of(Value(node.right, module))]  # noqa: UP007
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str(text)):
            return hint_of(Value(ast.parse(text, mode="eval").body, module))
        case ast.Subscript():
            return _of_subscript(node, module)
        case _:
            return _of_name(annotation)


def _of_subscript(node: ast.Subscript, module: Any) -> Any:
    name = ast.unparse(node.value).rpartition(".")[2]
    inner = [Value(of, module) for of in (node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])]
    if name == "Annotated":
        return hint_of(inner[1])
    if name not in NAMES:
        return Any
    if name == "Literal":
        choices: Any = tuple(choice.plain() for choice in inner)
        return Literal[choices]
    types: tuple[Any, ...] = tuple(... if ast.unparse(of.node) == "..." else hint_of(of) for of in inner)
    return NAMES[name][types if len(types) > 1 else types[0]]


def _of_name(annotation: Value) -> Any:
    name = ast.unparse(annotation.node)
    if name.rpartition(".")[2] in NAMES:
        return NAMES[name.rpartition(".")[2]]
    named = annotation.module.find(name) if "Tensor" not in name else None
    if isinstance(named, Value):
        return hint_of(named)
    if not isinstance(named, Class):
        return Annotated[Any, name]
    bases = {ast.unparse(base) for ancestor in named.lineage for base in ancestor.node.bases}
    if "TypedDict" in bases:
        return dict[str, Any]
    plain = bases & {"Enum", "str", "NamedTuple", "LightningEnum", "StrEnum"}
    return Annotated[Any, name if plain or named.module.name == "datetime" else named]


def members(hint: Any) -> tuple[Any, ...]:
    """Return what an annotation is the union of, without tensors.

    Example:
        >>> members(int | None), members(str)
        ((<class 'int'>, <class 'NoneType'>), (<class 'str'>,))
    """
    several = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    return tuple(of for of in several if "Tensor" not in str(of))


def part_in(hint: Any) -> Class | None:
    """Return the class whose kinds a member of an annotation takes; None: it takes plain values."""
    named = hint.__metadata__[0] if get_origin(hint) is Annotated else None
    return named if isinstance(named, Class) else None


def part_of(hint: Any) -> Class | None:
    """Return the class whose kinds an annotation takes as parts, or as a list of parts; None: it takes plain values."""
    for member in members(hint):
        inner = get_args(member) if get_origin(member) in {list, tuple} else ()
        named = part_in(member) or next(filter(None, map(part_of, inner)), None)
        if named:
            return named
    return None


def takes(hint: Any, *types: Any) -> bool:
    """Tell whether a type is among those that an annotation allows.

    Example:
        >>> takes(list[int] | None, list), takes(str, list)
        (True, False)
    """
    return any((get_origin(member) or member) in types for member in members(hint))


def type_words(hint: Any) -> str:
    """Return what an annotation takes, in short.

    Example:
        >>> type_words(float | Literal["learned"] | None), type_words(list[int])
        ('float|learned|null', 'list[int]')
    """
    return "|".join(dict.fromkeys(word for member in members(hint) for word in _words(member)))


def _words(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from (str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in get_args(hint))
    elif part_in(hint) or hint is Any:
        yield "VALUE" if hint is Any else "CLASS"
    elif get_origin(hint) is Annotated:
        yield str(hint.__metadata__[0])
    else:
        name = "null" if hint is type(None) else hint.__name__
        inside = ", ".join("..." if of is ... else type_words(of) for of in get_args(hint))
        yield f"{name}[{inside}]" if inside else name
