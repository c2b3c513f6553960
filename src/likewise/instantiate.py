"""Instantiation of classes from a configuration: a class path with its arguments.

A configuration names classes, and making an object runs code: trust a configuration like code. But each place accepts
only subclasses of the class expected there.
"""

import inspect
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Self, TypedDict, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
MAIN = "__main__"
GUARD = re.compile(r"^if\s*\(?\s*__name__\s*==", re.MULTILINE)
PLAIN_TYPES = {type(None), object, list, dict, int, float, bool, str}


class Described:
    """Base class of parts that remember their constructor's arguments, for a run to record."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Make the part and keep its arguments; its class then initialises it."""
        made = super().__new__(cls)
        made.__dict__["_made_with"] = args, options
        return made


class Spec(TypedDict):
    """A part in a configuration: its class, as module.Name, and its arguments, including Specs of nested parts."""

    class_path: str
    init_args: dict[str, Any]


def path_of(cls: type) -> str:
    """Return the import path of a class; for the running script, by its file, if importing that runs nothing.

    Without `if __name__ == "__main__":`, as in a notebook, it is __main__.Name, which other processes don't find.
    """
    main = sys.modules[MAIN]
    file, module = Path(getattr(main, "__file__", None) or ""), cls.__module__
    if module == MAIN and file.suffix == ".py" and GUARD.search(file.read_text(encoding="utf-8")):
        name = main.__spec__.name if main.__spec__ else file.stem
        if name.replace(".", "").isidentifier() and sys.modules.setdefault(name, main) is main:  # it isn't run again
            module = name
    return f"{module}.{cls.__qualname__}"


def class_of(class_path: str, base: type | tuple[type, ...]) -> type:
    """Find a class by its path, and check that it is concrete and inherits from one of `base`; nothing is called."""
    names = " or ".join(kind_of_part.__name__ for kind_of_part in (base if isinstance(base, tuple) else (base,)))
    module, _, name = class_path.rpartition(".")
    try:
        named = getattr(import_module(module), name) if module else None
    except (ImportError, AttributeError) as error:
        missing = getattr(error, "name", None)
        if isinstance(error, ImportError) and missing and not f"{module}.".startswith(f"{missing}."):
            raise  # the module exists, but one of its imports does not
        lacks = f"the module {module} does not have" if isinstance(error, AttributeError) else "is not found"
        remedy = "give module.Name of an installed module, or of a file in this folder"
        if module == MAIN:
            lacks = "is of another script or notebook"
            remedy = "put it in a file, or give likewise.load(run, module=...)"
        raise ValueError(f"expected a class of kind {names}, got {class_path}, which {lacks}: {remedy}") from error
    if not (inspect.isclass(named) and issubclass(named, base)):
        raise ValueError(f"expected a class of kind {names}, got {class_path}, which is not one: name a subclass")
    if inspect.isabstract(named):
        raise ValueError(f"expected a class of kind {names}, got {class_path}, which is abstract: name a subclass")
    return named


def instantiate(spec: Mapping[str, Any], base: type | tuple[type, ...] = object, **filled: Any) -> Any:
    """Make a part that inherits from `base`, after the parts nested in it; `filled` arguments take precedence."""
    cls = class_of(spec["class_path"], base)
    init_args = arguments(cls, spec.get("init_args") or {}) | filled
    if lacks := _required(cls) - init_args.keys():
        raise ValueError(
            f"expected the arguments of {spec['class_path']}, got no {', '.join(sorted(lacks))}: name them, or give "
            "the object itself, encoder=... to likewise.train and module=... to likewise.load"
        )
    return cls(**init_args)


def _required(cls: type) -> set[str]:
    """Return the names of a class's required arguments, as far as its signature tells."""
    with suppress(ValueError, TypeError):  # some classes in C have no signature
        return {
            name
            for name, parameter in inspect.signature(cls).parameters.items()
            if parameter.default is parameter.empty and parameter.kind.name in {"POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY"}
        }
    return set()


def instantiate_all(values: Any, base: type[T]) -> list[T] | None:
    """Return the parts of an option that takes one or several, and instantiate its specs; None: not given."""
    if values is None:
        return None
    return [part if isinstance(part, base) else instantiate(part, base) for part in as_list(values)]


def as_list(values: Any) -> list[Any]:
    """Return the values of an option that takes one or several, as a list: empty for a switch or None."""
    if isinstance(values, list | tuple):
        return list(values)
    return [] if values is None or isinstance(values, bool) else [values]


def arguments(owner: type, init_args: Mapping[str, Any]) -> dict[str, Any]:
    """Make the arguments of a class: instantiate nested specs, and convert lists to tuples where annotated."""
    return {name: _make(value, owner, name) for name, value in init_args.items()}


def describe(self: object) -> str:
    """Return `Class(name=value, ...)` on one line, also as a `__repr__`."""
    settings = (f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
    return f"{type(self).__name__}({', '.join(settings)})"


def spec_of(part: object) -> dict[str, Any]:
    """Return the spec of a part: its attributes as the arguments of the same names, and defaults for the others."""
    init_args = defaults(type(part), vars(part))
    return {"class_path": _public_path(type(part)), **({"init_args": init_args} if init_args else {})}


def defaults(cls: type, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the arguments of a class that have plain values, from the overrides or else by default."""
    known = inspect.signature(cls).parameters
    values = {name: (overrides or {}).get(name, parameter.default) for name, parameter in known.items()}
    plain = {
        name: value for name, value in values.items() if isinstance(value, bool | int | float | str | list | tuple)
    }
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def recorded_spec(part: Any) -> tuple[Spec, bool]:
    """Return the class path and recorded arguments of an object, and whether these suffice to make it again."""
    cls = type(part)
    path = _public_path(cls) if cls.__module__.startswith("likewise.") else path_of(cls)
    if not isinstance(part, Described):
        return Spec(class_path=path, init_args={}), False
    args, options = part.__dict__["_made_with"]
    signature = inspect.signature(cls)
    named = {name: value for name, value in signature.bind(*args, **options).arguments.items() if name not in options}
    kinds = {name: signature.parameters[name].kind.name for name in named}
    known = {
        name: plain_value(value) for name, value in {**named, **options}.items() if kinds.get(name) != "VAR_KEYWORD"
    }
    again = all(value is not _LOST for value in known.values())
    again = again and not {"VAR_POSITIONAL", "POSITIONAL_ONLY"} & set(kinds.values())
    return Spec(class_path=path, init_args={name: value for name, value in known.items() if value is not _LOST}), again


_LOST = object()


def plain_value(value: Any) -> Any:
    """Return a value as plain configuration data; `_LOST` if that is impossible."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if getattr(value, "ndim", None) == 0 and not getattr(value, "requires_grad", False):  # a scalar of NumPy or torch
        return value.item()
    if isinstance(value, list | tuple):
        several = [plain_value(entry) for entry in value]
        return _LOST if _LOST in several else several
    if isinstance(value, Mapping):
        several = {name: plain_value(entry) for name, entry in value.items()}
        return _LOST if _LOST in several.values() else several
    spec, again = recorded_spec(value)
    return spec if again else _LOST


def _public_path(cls: type) -> str:
    """Return a class's import path by the outermost package that exports it, other than likewise itself."""
    packages = cls.__module__.split(".")
    for end in range(2, len(packages)):
        if getattr(import_module(package := ".".join(packages[:end])), cls.__name__, None) is cls:
            return f"{package}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__name__}"


def is_spec(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a value describes a part."""
    return isinstance(value, Mapping) and isinstance(value.get("class_path"), str)


def _make(value: Any, owner: type, parameter: str) -> Any:
    if is_spec(value):
        return instantiate(value, _find_classes(owner, parameter))
    hint = _hint(owner, parameter) if isinstance(value, list | str) else None
    kinds = (hint, *get_args(hint))
    if isinstance(value, list):
        made = [_make(item, owner, parameter) for item in value]  # a file of options writes tuples as lists
        return tuple(made) if any(get_origin(annotation) is tuple for annotation in kinds) else made
    if isinstance(value, str) and timedelta in kinds and str not in kinds:
        hours, minutes, seconds = map(float, value.split(":"))
        return timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return value


def replaced(value: Any, part: object) -> Any:
    """Replace every spec of a part's class by the part itself."""
    if is_spec(value) and value["class_path"].rpartition(".")[2] == type(part).__name__:
        return part
    return {name: replaced(nested, part) for name, nested in value.items()} if isinstance(value, Mapping) else value


def rebuilding(spec: Any, base: type = object) -> Any:
    """Return the spec of a part, and those nested in it, without arguments that would download weights."""
    if not is_spec(spec):
        return spec
    instead = getattr(class_of(spec["class_path"], base), "rebuilt_with", {})
    init_args = {name: rebuilding(argument) for name, argument in (spec.get("init_args") or {}).items()}
    return Spec(class_path=spec["class_path"], init_args=init_args | instead)


def _find_classes(owner: type, parameter: str) -> tuple[type, ...]:
    """Find the classes in a parameter's annotation, within optional types and lists too."""
    waiting, kinds = [_hint(owner, parameter)], list[type]()
    while waiting:
        hint = waiting.pop(0)
        if inspect.isclass(hint) and hint not in PLAIN_TYPES and not get_args(hint):
            kinds.append(hint)
        waiting += get_args(hint)
    if not kinds:
        raise ValueError(
            f"expected a plain value for {parameter} of {owner.__name__}, got a class_path: its annotation names no "
            "class"
        )
    return tuple(kinds)


def _hint(owner: type, parameter: str) -> Any:
    """Return the annotation of a constructor's parameter, or that of a parent class's if the parameter is passed on."""
    for cls in owner.__mro__:
        try:
            hints = get_type_hints(cls.__init__)
        except (NameError, TypeError):  # the annotation is imported only for type checkers
            continue
        if parameter in hints:
            return hints[parameter]
    return None
