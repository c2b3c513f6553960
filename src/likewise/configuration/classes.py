"""Classes by their import paths, with parameters from signatures and docstrings; each is imported when it is needed."""

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Unpack, final, get_args, get_origin, get_type_hints

from likewise.configuration.catalogue import listed_subclasses
from likewise.instantiate import class_of

MISSING: Final = object()
"""The default of a parameter that has none, or none that a file can hold."""


@final
@dataclass(frozen=True)
class Parameter:
    """A parameter of a constructor: annotation, plain default, whether it must be given, and description."""

    hint: Any = Any
    default: Any = MISSING
    required: bool = False
    description: str = ""


@final
@dataclass(frozen=True)
class Class:
    """A class by its import path."""

    path: str

    @property
    def name(self) -> str:
        """Its name."""
        return self.path.rpartition(".")[2]

    @cached_property
    def type(self) -> type:
        """The class itself, imported."""
        module, _, name = self.path.rpartition(".")
        try:
            return getattr(import_module(module), name)
        except AttributeError as error:
            raise ValueError(f"expected a class that {module} has, got {name}: install a version with it") from error

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring."""
        return " ".join(_doc(self.type).partition("\n\n")[0].split())

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters of its constructor, with those that it passes on."""
        return _parameters(self.type)

    def concrete(self, module: str) -> dict[str, str]:
        """Return the concrete subclasses that a module has: import paths by name."""
        fit = {
            name: cls for name, cls in vars(import_module(module)).items() if inspect.isclass(cls) and name[0] != "_"
        }
        fit = {name: cls for name, cls in fit.items() if issubclass(cls, self.type) and not inspect.isabstract(cls)}
        return {name: f"{module}.{name}" for name in sorted(fit) if fit[name] is not self.type}


def kinds(base: Class) -> Mapping[str, str]:
    """Return the known subclasses of a class by name, each with its import path in the outermost package."""
    known = listed_subclasses(base.path)
    return _around(base) if known is None else known


@cache
def _around(base: Class) -> Mapping[str, str]:
    parents = base.type.__module__.split(".")[:-1]
    above = [".".join(parents[:size]) for size in range(2, len(parents) + 1)] or [base.type.__module__]
    several = {name: path for module in reversed(above) for name, path in base.concrete(module).items()}
    return dict(sorted(several.items()))


def import_class(path: str, base: Class) -> type:
    """Import a class, and raise a ValueError unless it inherits from the base."""
    try:
        return class_of(path, base.type)
    except SyntaxError as error:
        where = f"{error.filename}, got {error.msg} in line {error.lineno}"
        raise ValueError(f"expected Python in {where}: correct it") from error


@cache
def _parameters(cls: type) -> Mapping[str, Parameter]:
    several: dict[str, Parameter] = {}
    docs: dict[str, str] = {}
    for doc in (doc for owner in reversed(cls.__mro__[:-1]) for doc in _docs(owner)):
        docs |= argument_docs(doc)
    for owner in cls.__mro__[:-1]:
        if "__init__" not in vars(owner):
            continue
        hints, passes_on = _hints(owner.__init__), False
        for name, parameter in list(inspect.signature(owner.__init__).parameters.items())[1:]:
            hint = hints.get(name, Any)
            if parameter.kind is parameter.VAR_KEYWORD and get_origin(hint) is Unpack:
                (keys,) = get_args(hint)
                texts = argument_docs(_doc(keys))
                for key, annotation in get_type_hints(keys, include_extras=True).items():
                    several.setdefault(key, Parameter(annotation, description=texts.get(key, "")))
            elif parameter.kind is parameter.VAR_KEYWORD:
                passes_on = True
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                required = parameter.default is parameter.empty
                default = MISSING if required else plain_default(parameter.default)
                several.setdefault(name, Parameter(hint, default, required, docs.get(name, "")))
        if not passes_on:
            break
    return several


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError):  # some are imported for type checkers alone
        return {name: hint for name, hint in function.__annotations__.items() if not isinstance(hint, str)}


def plain_default(value: Any) -> Any:
    """Return a default as it stands in a file: tuples as lists, paths as texts; or MISSING."""
    if isinstance(value, list | tuple | set | frozenset):
        items = list(map(plain_default, value))
        return MISSING if MISSING in items else items
    if isinstance(value, Path):
        return str(value)
    return value if value is None or type(value) in {bool, int, float, str} else MISSING


def _doc(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "")


def _docs(cls: type) -> list[str]:
    """Return the docstrings that describe a class's arguments, the nearest last."""
    workflow = vars(cls).get("workflow")  # its arguments are the fields; importing it would import torch
    if isinstance(workflow, str):
        module, _, name = workflow.removeprefix("likewise.").rpartition(".")
        file = Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
        tree = ast.parse(file.read_text(encoding="utf-8"))
        return [
            ast.get_docstring(node) or ""
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
    return [inspect.cleandoc(getattr(vars(cls).get("__init__"), "__doc__", None) or ""), _doc(cls)]


def argument_docs(doc: str) -> dict[str, str]:
    r"""Return a docstring's description of each argument."""
    texts, current, inside, depth = dict[str, str](), "", False, 0
    for line in doc.splitlines():
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if re.fullmatch(r"[A-Z]\w+:", text):
            inside, current = text == "Args:", ""
        elif inside and (named := re.match(r"(\**\w+)(?: \(.*?\))?: ?(.*)", text)) and (not current or indent <= depth):
            current, depth = named[1], indent
            texts.setdefault(current, named[2])
        elif inside and current and text and indent > depth:
            texts[current] += f" {text}"
        elif inside and not text and texts.get(current):
            current = ""
    return texts
