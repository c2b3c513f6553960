"""Values of options: what a word or a value of a file is for the annotation of its parameter, as plain values."""

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from likewise.configuration.classes import Class, Value

FLAG: Final = object()
"""The value of an option that is given without one."""
YES, NO = ("true", "yes", "on"), ("false", "no", "off")
LISTS = ("list", "List", "Sequence", "Iterable", "tuple", "Tuple", "set", "Set")
MAPPINGS = ("dict", "Dict", "Mapping")
UNIONS = ("Optional", "Union")
PLAIN = ("None", "bool", "int", "float", "str", "Path", "Any", "object", *LISTS, *MAPPINGS)


def members(annotation: Value | None) -> Iterator[Value]:
    """Yield what an annotation is the union of, in its order; aliases are looked up, and tensors left out."""
    if annotation is None:
        return
    node, module = annotation.node, annotation.module
    named = module.find(ast.unparse(node)) if _is_name(node) and head(node) not in PLAIN else None
    inside: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        inside = [node.left, node.right]
    elif isinstance(node, ast.Subscript) and head(node) in UNIONS:
        inside = [*_inner(node), *([ast.Constant(None)] if head(node) == "Optional" else [])]
    elif head(node) == "Annotated":  # a description of a part, and the class of which it is
        inside = _inner(node)[1:]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        inside = [ast.parse(node.value, mode="eval").body]
    elif isinstance(named, Value):
        yield from members(named)
    elif "Tensor" not in ast.unparse(node):
        yield annotation
    for part in inside:
        yield from members(Value(part, module))


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)


def head(node: ast.expr) -> str:
    """Return the last name of a type: list of list[int], Path of pathlib.Path."""
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node).rpartition(".")[2]


def part_of(annotation: Value | None) -> Class | None:
    """Return the class whose kinds a parameter takes as parts, or as a list of parts; None: it takes plain values."""
    for member in members(annotation):
        kind = member.module.find(ast.unparse(member.node)) if _is_name(member.node) else None
        if isinstance(kind, Class) and _is_part(kind):
            return kind
        inner = _inner(member.node) if isinstance(member.node, ast.Subscript) and head(member.node) in LISTS else []
        nested = next((kind for part in inner if (kind := part_of(Value(part, member.module)))), None)
        if nested:
            return nested
    return None


def _is_part(kind: Class) -> bool:
    bases = {ast.unparse(base) for ancestor in kind.lineage for base in ancestor.node.bases}
    plain = bases & {"Enum", "TypedDict", "str", "NamedTuple", "LightningEnum", "StrEnum"}
    return head(ast.Name(kind.name)) not in PLAIN and not plain and kind.module.name not in {"datetime", "pathlib"}


def takes(annotation: Value | None, name: str) -> bool:
    """Tell whether a type is among those that an annotation allows."""
    return any(head(member.node) == name for member in members(annotation))


def plain(value: Any, annotation: Value | None, part: Callable[[Any], Any] | None = None) -> Any:
    """Return a value as its annotation wants it, or raise: "expected a number, got x"; `part` describes parts."""
    kinds = list(members(annotation))
    if value is FLAG:
        if takes(annotation, "bool"):
            return True
        raise ValueError("expected a value, got none")
    if not kinds:
        return parsed(value)
    wanted: list[str] = []
    for kind in sorted(kinds, key=lambda kind_of_value: _turn(kind_of_value, value)):
        try:
            return _as(kind, value, part)
        except _OtherKindError as error:
            wanted += [str(error)] if str(error) else []
    raise ValueError(f"expected {' or '.join(dict.fromkeys(wanted)) or 'nothing'}, got {value}")


class _OtherKindError(Exception):
    """A value is not of one of the types that an annotation allows; says what that type would be."""


def _turn(kind: Value, value: Any) -> int:
    """Return when a type is tried: strings after what else a word may mean, lists last unless it has brackets."""
    name = head(kind.node)
    if name in {*LISTS, *MAPPINGS}:
        return 0 if not isinstance(value, str) or value.lstrip().startswith(("[", "{")) else 4
    return {"str": 3, "Path": 3, "Any": 5, "object": 5}.get(name, 1 if name in {*SCALARS, "Literal"} else 2)


def _as(kind: Value, value: Any, part: Callable[[Any], Any] | None) -> Any:
    name, node = head(kind.node), kind.node
    if name in SCALARS:
        return SCALARS[name](value)
    if name == "Literal":
        return _choice([Value(choice, kind.module).plain() for choice in _inner(node)], value)
    if name in LISTS:
        return _items(kind, value, part)
    named = kind.module.find(ast.unparse(node)) if name not in PLAIN else None
    if name in MAPPINGS or (isinstance(named, Class) and "TypedDict" in map(ast.unparse, named.node.bases)):
        read = parsed(value)
        return dict(read) if isinstance(read, Mapping) else _refuse("a mapping")
    if part is not None and part_of(kind):
        made = part(value)
        return _refuse("the name of a class") if made is None else made
    return parsed(value)


def _refuse(wanted: str) -> Any:
    raise _OtherKindError(wanted)


def _bool(value: Any) -> Any:
    folded = value.lower() if isinstance(value, str) else ""
    if isinstance(value, bool):
        return value
    return True if folded in YES else False if folded in NO else _refuse("true or false")


def _read_as(make: Callable[[Any], Any], types: Any, wanted: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return make(value) if isinstance(value, types) and not isinstance(value, bool) else _refuse(wanted)
        except ValueError:
            return _refuse(wanted)

    return read


SCALARS: dict[str, Callable[[Any], Any]] = {
    "None": lambda value: None if value is None or value in ("null", "None") else _refuse(""),
    "bool": _bool,
    "int": _read_as(int, str | int, "a whole number"),
    "float": _read_as(float, str | int | float, "a number"),
    "str": _read_as(str, str | Path, "a text"),
    "Path": _read_as(str, str | Path, "a text"),
}


def _choice(choices: list[Any], value: Any) -> Any:
    for choice in choices:
        if value is choice or (value == choice and type(value) is type(choice)):
            return choice
    for choice in choices:
        if isinstance(value, str) and folded(value) == folded(str(choice)):
            return choice
    return _refuse(f"one of {', '.join(map(repr, choices))}")


def _items(kind: Value, value: Any, part: Callable[[Any], Any] | None) -> list[Any]:
    """Return a list, from a list, or from words with commas between them, with or without brackets."""
    node = kind.node
    if isinstance(value, str):
        read = parsed(value) if value.lstrip().startswith("[") else [word.strip() for word in value.split(",")]
        value = read
    if not isinstance(value, list | tuple):
        return _refuse("a list")
    inner = _inner(node) if isinstance(node, ast.Subscript) else []
    types = [Value(item_type, kind.module) for item_type in inner if ast.unparse(item_type) != "..."]
    fixed = head(node) in {"tuple", "Tuple"} and len(types) > 1
    if fixed and len(types) != len(value):
        return _refuse(f"a list of {len(types)}")
    try:
        return [plain(item, types[at if fixed else 0] if types else None, part) for at, item in enumerate(value)]
    except ValueError as error:
        if part is not None:
            raise
        return _refuse(f"a list of {str(error).removeprefix('expected ').partition(', got ')[0]}")


def _inner(node: ast.expr) -> list[ast.expr]:
    inside = node.slice if isinstance(node, ast.Subscript) else None
    return list(inside.elts) if isinstance(inside, ast.Tuple) else [] if inside is None else [inside]


def parsed(value: Any) -> Any:
    """Return what a word means where nothing tells its type: a number, a list, a mapping, or the word itself.

    Example:
        >>> parsed("1e-3"), parsed("[1, a]"), parsed("x: y"), parsed(3)
        (0.001, [1, 'a'], 'x: y', 3)
    """
    if not isinstance(value, str):
        return value
    try:
        return float(value) if not value.lstrip("+-").isdecimal() else int(value)
    except ValueError:
        pass
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError as error:
        if value.lstrip().startswith(("[", "{")):
            raise ValueError(f"expected a list or a mapping, got {value}: close its brackets") from error
        return value
    bracketed = value.lstrip().startswith(("[", "{"))
    return read if bracketed or isinstance(read, bool) or read is None else value


def folded(name: str) -> str:
    """Return a name without case, hyphens and underscores."""
    return name.replace("-", "").replace("_", "").replace(" ", "").lower()
