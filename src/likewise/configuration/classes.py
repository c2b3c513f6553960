"""What classes say of themselves, read from their source: nothing is imported, so that mistakes are told at once."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, final

from likewise.configuration.catalogue import listed
from likewise.parts import class_of

MISSING: Final = object()
"""The default of a parameter that has none, or one that only running the code would tell."""
UNNAMED = {("likewise.training.inputs.batch", name) for name in ("BatchInputs", "Pairs")}
"""Inputs of a loss that are always there."""
COPIES = {"Path", "tuple", "list", "set", "frozenset"}
"""What makes of one constant a value that stands in a file as that constant does."""


@final
@dataclass(frozen=True)
class Name:
    """A name that a module imports: where from, and what it is called there ("": the module itself)."""

    module: str
    name: str = ""


@final
@dataclass(frozen=True)
class Value:
    """An expression, and the module whose names it uses: an annotation or a default."""

    node: ast.expr
    module: "Module"

    def plain(self) -> Any:
        """Return its value where it is made of constants, tuples as lists, or MISSING."""
        node, plain_of = self.node, lambda one: Value(one, self.module).plain()
        match node:
            case ast.Constant():
                return node.value
            case ast.Tuple() | ast.List() | ast.Set():
                items = list(map(plain_of, node.elts))
                return MISSING if MISSING in items else items
            case ast.UnaryOp(op=ast.USub()) if isinstance(number := plain_of(node.operand), int | float):
                return -number
            case ast.BinOp(op=ast.Div()) if isinstance(below := plain_of(node.right), int | float):
                above = plain_of(node.left)
                return above / below if isinstance(above, int | float) else MISSING
            case ast.Call(func=ast.Name(id=name), args=[one]) if name in COPIES:
                return plain_of(one)
            case _:
                named = self.module.find(ast.unparse(node)) if isinstance(node, ast.Name | ast.Attribute) else None
                return named.plain() if isinstance(named, Value) else MISSING


@final
@dataclass(frozen=True)
class Parameter:
    """A parameter of a constructor: whether it must be given, its plain default, and what the docstring says of it."""

    name: str
    annotation: Value | None = None
    default: Any = MISSING
    required: bool = False
    said: str = ""

    @cached_property
    def hint(self) -> Any:
        """Its annotation as a type."""
        from likewise.configuration.hints import hint_of  # noqa: PLC0415 - which knows classes

        return hint_of(self.annotation)


@final
class Module:
    """A module's source: the classes, values and imported names of its top level."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self.name = name
        self.path = path
        self.names: dict[str, ast.expr | ast.ClassDef | Name] = {}
        self.docs = {of.name: ast.get_docstring(of) or "" for of in tree.body if isinstance(of, ast.FunctionDef)}
        self.stars: list[str] = []
        self._read(tree.body)

    @property
    def is_package(self) -> bool:
        """Whether it is the file of a package."""
        return self.path.name == "__init__.py"

    def find(self, dotted: str) -> "Class | Module | Value | None":
        """Find what a dotted name means here; None: not told by the source."""
        first, _, rest = dotted.partition(".")
        named = self._one(first)
        if rest:
            return named.find(rest) if isinstance(named, Module) else None
        return named

    def _one(self, name: str) -> "Class | Module | Value | None":
        match self.names.get(name):
            case ast.ClassDef() as node:
                return Class(self, node)
            case Name(module, "") as imported:
                return module_of(imported.module)
            case Name(module, other):
                below = module_of(module)
                inside = below.find(other) if below and (below.name, other) != (self.name, name) else None
                return inside or module_of(f"{module}.{other}")
            case ast.expr() as node:
                inside = self.find(ast.unparse(node)) if isinstance(node, ast.Attribute) else None
                return inside or Value(node, self)
            case _:
                inside = (module.find(name) for star in self.stars if (module := module_of(star)))
                return next((meaning for meaning in inside if meaning), None) or module_of(f"{self.name}.{name}")

    def _read(self, body: list[ast.stmt]) -> None:
        for node in body:
            match node:
                case ast.ClassDef():
                    self.names[node.name] = node
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if node.value:
                    self.names[name] = node.value
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name), attr="__doc__")]):
                    self.docs[name] = "".join(_strings(node.value))
                case ast.Import():
                    for alias in node.names:
                        self.names[alias.asname or alias.name.partition(".")[0]] = Name(
                            alias.name if alias.asname else alias.name.partition(".")[0]
                        )
                case ast.ImportFrom():
                    self._import(node)
                case ast.If() | ast.Try():
                    for part in (node.body, *(handler.body for handler in getattr(node, "handlers", [])), node.orelse):
                        self._read(part)
                case _:
                    pass

    def _import(self, node: ast.ImportFrom) -> None:
        parents = self.name.split(".")
        parents = parents if self.is_package else parents[:-1]
        above = parents[: len(parents) - node.level + 1] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(module)
            else:
                self.names.setdefault(alias.asname or alias.name, Name(module, alias.name))


@final
@dataclass(frozen=True, eq=False)
class Class:
    """A class as its source defines it."""

    module: Module
    node: ast.ClassDef = field(repr=False)

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others: its module and its name."""
        return self.module.name, self.name

    @property
    def path(self) -> str:
        """Its import path, of the module that defines it."""
        return f"{self.module.name}.{self.name}"

    @cached_property
    def lineage(self) -> "list[Class]":
        """The class and all it inherits from, as far as the sources tell, in the order of inheritance."""
        ancestors: dict[tuple[str, str], Class] = {}
        for base in self.node.bases:
            parent = self.module.find(ast.unparse(base.value if isinstance(base, ast.Subscript) else base))
            for ancestor in parent.lineage if isinstance(parent, Class) else []:
                ancestors.pop(ancestor.key, None)
                ancestors[ancestor.key] = ancestor
        return [self, *ancestors.values()]

    def inherits(self, other: "Class") -> bool:
        """Tell whether it is the other class or inherits from it."""
        return any(ancestor.key == other.key for ancestor in self.lineage)

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The functions that it defines itself."""
        return {member.name: member for member in self.node.body if isinstance(member, ast.FunctionDef)}

    def attribute(self, name: str) -> Value | None:
        """Return what the class, or the nearest that it inherits from, sets an attribute to."""
        for kind in self.lineage:
            for node in kind.node.body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
                if named and getattr(node, "value", None):
                    return Value(node.value, kind.module)  # pyright: ignore[reportAttributeAccessIssue]
        return None

    @property
    def abstract(self) -> bool:
        """Whether it leaves something for its subclasses to define."""
        open_: dict[str, bool] = {}
        for kind in self.lineage:
            for name, function in kind.functions.items():
                marks = [ast.unparse(decorator) for decorator in function.decorator_list]
                open_.setdefault(name, any(mark.endswith("abstractmethod") for mark in marks))
            for node in kind.node.body:
                for target in node.targets if isinstance(node, ast.Assign) else ():
                    open_.setdefault(ast.unparse(target), False)
        return any(open_.values())

    @property
    def doc(self) -> str:
        """Its docstring, or what its module assigns as such."""
        return ast.get_docstring(self.node) or self.module.docs.get(self.name, "")

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        return " ".join(self.doc.strip().partition("\n\n")[0].split())

    def parameters(self, function: str = "__init__") -> dict[str, Parameter]:
        """Return the parameters of its constructor, or of another function, with those that it passes on."""
        return _parameters(self.lineage, function)


def _parameters(lineage: list[Class], function: str) -> dict[str, Parameter]:
    for place, kind in enumerate(lineage):
        node = kind.functions.get(function)
        is_record = any("dataclass" in ast.unparse(decorator) for decorator in kind.node.decorator_list)
        if node is None and function == "__init__" and is_record:
            fields = {**_parameters(lineage[place + 1 :], function), **_fields(kind)}
            said = {
                name: words for base in reversed(lineage[: place + 1]) for name, words in _arguments(base.doc).items()
            }
            return {name: replace(of, said=said.get(name, of.said)) for name, of in fields.items()}
        if node is None:
            continue
        docs = [base.doc for base in lineage]
        docs.insert(place + 1, ast.get_docstring(node) or "")
        said = {name: words for doc in reversed(docs) for name, words in _arguments(doc).items()}  # the nearest wins
        plain = node.args.posonlyargs + node.args.args
        defaults = [None] * (len(plain) - len(node.args.defaults)) + list(node.args.defaults)
        pairs = [*zip(plain, defaults, strict=True), *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
        parameters = {arg.arg: _parameter(kind.module, arg, default, said) for arg, default in pairs[1:]}
        if node.args.kwarg is not None:
            parameters = parameters | _passed_on(kind, node, lineage[place + 1 :]) | parameters
        return parameters
    return {}


def _parameter(module: Module, arg: ast.arg, default: ast.expr | None, said: Mapping[str, str]) -> Parameter:
    annotation = Value(arg.annotation, module) if arg.annotation else None
    value = MISSING if default is None else Value(default, module).plain()
    return Parameter(arg.arg, annotation, value, default is None, said.get(arg.arg, ""))


def _passed_on(kind: Class, node: ast.FunctionDef, parents: list[Class]) -> dict[str, Parameter]:
    """Return what `**options` stands for: the keys of a TypedDict, or else the parameters of the parents."""
    annotation = node.args.kwarg.annotation if node.args.kwarg else None
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Unpack"):
        keys = kind.module.find(ast.unparse(annotation.slice))
        return _fields(keys, required=False) if isinstance(keys, Class) else {}
    return _parameters(parents, node.name)


def _fields(record: Class, *, required: bool = True) -> dict[str, Parameter]:
    said, fields = _arguments(record.doc), dict[str, Parameter]()
    if isinstance(workflow := record.attribute("workflow"), Value):  # whose arguments the fields are
        module, _, function = workflow.plain().rpartition(".")
        said = _arguments(found.docs[function]) if (found := module_of(module)) else said
    for node in record.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id != "_":  # KW_ONLY
            name = node.target.id
            value = MISSING if node.value is None else Value(node.value, record.module).plain()
            needed = required and node.value is None
            fields[name] = Parameter(name, Value(node.annotation, record.module), value, needed, said.get(name, ""))
    return fields


def _arguments(doc: str) -> dict[str, str]:
    r"""Return what a docstring says of each argument.

    Example:
        >>> _arguments("Args:\n    x: One,\n        or two. More.\n    y (int): Three.\n\nReturns:\n    z: Four.")
        {'x': 'One, or two. More.', 'y': 'Three.'}
    """
    said, current, inside, depth = dict[str, str](), "", False, 0
    for line in doc.splitlines():
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if re.fullmatch(r"[A-Z]\w+:", text):
            inside, current = text == "Args:", ""
        elif inside and (named := re.match(r"(\**\w+)(?: \(.*?\))?: ?(.*)", text)) and (not current or indent <= depth):
            current, depth = named[1], indent
            said.setdefault(current, named[2])
        elif inside and current and text and indent > depth:
            said[current] += f" {text}"
        elif inside and not text and said.get(current):
            current = ""
    return said


def _strings(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        yield from _strings(child)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def module_of(name: str) -> Module | None:
    """Read a module's source; None where there is none, and a ValueError where it is no Python."""
    path = _file_of(name)
    return None if path is None else _read(name, path, path.stat().st_mtime_ns)


@cache
def _read(name: str, path: Path, _changed: int) -> Module:
    try:
        return Module(name, path, ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ValueError(f"expected Python in {path}, got {getattr(error, 'msg', error)}{line}: correct it") from error


def _file_of(name: str) -> Path | None:
    first, *rest = name.split(".")
    try:
        spec = find_spec(first) if first.isidentifier() else None
    except (ValueError, ImportError):
        return None
    if spec is None or not rest:
        return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None
    for folder in spec.submodule_search_locations or ():
        for file in (Path(folder, *rest, "__init__.py"), Path(folder, *rest[:-1], f"{rest[-1]}.py")):
            if file.is_file():
                return file
    return None


def find(path: str) -> Class | None:
    """Find a class by its import path, module.Name; None: not told by the source."""
    module = module_of(path.rpartition(".")[0])
    kind = module.find(path.rpartition(".")[2]) if module else None
    return kind if isinstance(kind, Class) else None


def kinds(base: Class) -> dict[str, str]:
    """Return the classes of a kind that come with it: for each name the import path, of the outermost package."""
    if (known := listed(base.path)) is not None:
        return known
    names = {name for package in packages_of(base) for name in package.names if name[0].isupper()}
    paths = ((name, kind_named(name, base)) for name in sorted(names))
    return {name: path for name, path in paths if path is not None}


def kind_named(name: str, base: Class) -> str | None:
    """Return the import path of the class of a kind that comes with it and has a name; None: there is none."""
    if (known := listed(base.path)) is not None:
        return known.get(name)
    for package in packages_of(base):
        kind = package.find(name) if name in package.names else None
        if (
            isinstance(kind, Class)
            and kind.key not in {base.key, *UNNAMED}
            and kind.inherits(base)
            and not kind.abstract
        ):
            return f"{package.name}.{name}"
    return None


def packages_of(base: Class) -> list[Module]:
    """Return the packages that a class is in, but for the outermost, which has everything; or else its module."""
    parents = base.module.name.split(".")[:-1]
    above = [".".join(parents[:size]) for size in range(2, len(parents) + 1)] or [base.module.name]
    return [package for name in above if (package := module_of(name))]


def imported(path: str, base: Class) -> None:
    """Import a class that its source does not tell, and raise a ValueError unless it is of a kind."""
    class_of(path, getattr(import_module(base.module.name), base.name))
