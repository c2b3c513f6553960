"""The builder of a configuration: options are put into it one by one, each checked as it comes."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from likewise.configuration.classes import MISSING, SECTION_NAMES, Class, Parameter, kinds, part_of, takes
from likewise.configuration.guesses import class_named, near_classes, near_options
from likewise.configuration.options import DEFAULTS, FILLED_OPTIONS, HIDDEN_OPTIONS, RECORDS, TRAINER
from likewise.configuration.values import FLAG, Option, Part, parse, plain
from likewise.files.detection import first_rows, runs_near
from likewise.instantiate import MAIN, as_list, class_of, is_spec


class ConfigBuilder:
    """The options of a verb known so far: parts as {"class_path": ..., "init_args": ...}."""

    def __init__(self, verb: str) -> None:
        if verb == "train" and find_spec("lightning") is None:
            raise ModuleNotFoundError("No module named 'lightning'", name="lightning")
        self.verb = verb
        self.root = Class(f"likewise.configuration.options.{RECORDS[verb][0].__name__}")
        self.values: dict[str, Any] = {"trainer": {"class_path": TRAINER, "init_args": {}}} if verb == "train" else {}

    def put(self, option: Option) -> None:
        """Set an option; raise a ValueError if it doesn't exist, or with the expected value."""
        self._put(self.values, self.root, option.name.split("."), option)

    def completed(self) -> Any:
        """Return the verb's record, with defaults for missing options, or raise if a required option is missing."""
        options = self._completed(self.values, self.root, "")
        if "trainer" in options:
            options["trainer"] = options["trainer"]["init_args"]
        paths = {name for name, field in self.root.parameters.items() if takes(field.hint, Path)}
        return RECORDS[self.verb][0](
            **{name: Path(value) if name in paths else value for name, value in options.items()}
        )

    def _put(self, values: dict[str, Any], owner: Class, names: Sequence[str], option: Option) -> None:
        name, *rest = names
        part, _, last = option.name.rpartition(".")
        if (part, last) in FILLED_OPTIONS:
            raise ValueError(f"--{option.name} is filled in from the {FILLED_OPTIONS[part, last]}; leave it out")
        parameter = parameters_of(owner).get(name)
        if parameter is None:
            raise ValueError(self._unknown(option, owner))
        base = part_of(parameter.hint)
        if not rest:
            values[name] = self._value(option, parameter, base, values.get(name))
            return
        within = _last(values.get(name))
        if is_spec(within):
            self._put(within["init_args"], Class(within["class_path"]), rest, option)
        elif base is not None:
            part = option.name.removesuffix("." + ".".join(rest))
            raise ValueError(
                f"expected --{part} before --{option.name}, got none: name a class, {_suggest_classes(base)}"
            )
        elif takes(parameter.hint, dict, Any):
            before = values.get(name)
            values[name] = {**(before if isinstance(before, dict) else {}), ".".join(rest): parse(option.value)}
        else:
            raise ValueError(self._unknown(option, owner))

    def _unknown(self, option: Option, owner: Class) -> str:
        whose = "" if owner.path in {self.root.path, TRAINER} else f" of {owner.name}"
        near = near_options(option.name, self.values, self.root, owner)
        message = f"unknown option --{option.name}{whose}"
        return message + (f", did you mean {' or '.join(near[:2])}?" if near else f": see {self._help(option.name)}")

    def _help(self, name: str) -> str:
        part = name.partition(".")[0]
        chosen = _last(self.values.get(part))
        if part == "trainer" or not (is_spec(chosen) or (part != name and part in self.root.parameters)):
            return f"likewise {self.verb} --help"
        class_name = f" {chosen['class_path'].rpartition('.')[2]}" if is_spec(chosen) else ""
        return f"likewise {self.verb} --{part}.help{class_name}"

    def _value(self, option: Option, parameter: Parameter, base: Class | None, current: Any) -> Any:
        if base is None:
            value = self._read_value(option, parameter.hint)
            return [*as_list(current), *(value if isinstance(value, list) else [value])] if option.adds else value

        def part(value: Any, base: Class) -> Any:
            kept = None if option.adds else current
            return self._part(option, value, base, kept, optional=takes(parameter.hint, str))

        if not (option.adds and takes(parameter.hint, list, tuple)):
            return self._read_value(option, parameter.hint, part)
        made = part(option.value, base)
        if made is None:
            raise ValueError(
                f"expected the name of a class for --{option.name}+, got {option.value}: {_suggest_classes(base)}"
            )
        if current is None and option.name == "sections":  # a page has them all by default
            names = (f"likewise.report.sections.{name}" for name in SECTION_NAMES.split())
            current = [{"class_path": path, "init_args": {}} for path in names]
        return [*as_list(current), made]

    def _read_value(self, option: Option, hint: Any, part: Part | None = None) -> Any:
        try:
            return plain(option.value, hint, part)
        except ValueError as error:
            if not str(error).startswith("expected ") or str(error).startswith(f"expected {option.name} "):
                raise
            message = f"expected --{option.name}, got none" if option.value is FLAG else f"--{option.name}: {error}"
            raise ValueError(message if ": " in str(error) else f"{message}: see {self._help(option.name)}") from error

    def _part(self, option: Option, value: Any, base: Class, current: Any, *, optional: bool) -> Any:
        """Describe a part from a class's name, keeping the arguments that both classes have, or from a mapping."""
        value = parse(value) if isinstance(value, str) and value.lstrip().startswith("{") else value
        if isinstance(value, str):
            if optional and "." not in value and value not in kinds(base):
                return None
            made: dict[str, Any] = {"class_path": self.class_path(option.name, value, base), "init_args": {}}
            if not is_spec(current):
                return made
            if current["class_path"] == made["class_path"]:
                return current
            owner = Class(made["class_path"])
            for name in (name for name in current["init_args"] if name in parameters_of(owner)):
                with suppress(ValueError):  # it has another meaning there
                    self._put(made["init_args"], owner, [name], Option(name, current["init_args"][name]))
            return made
        if not isinstance(value, Mapping) or not isinstance(value.get("class_path"), str):
            return None
        made = self._part(option, value["class_path"], base, None, optional=False)
        for name, argument in (value.get("init_args") or {}).items():
            self._put(made["init_args"], Class(made["class_path"]), [name], Option(f"{option.name}.{name}", argument))
        return made

    def class_path(self, option: str, name: str, base: Class) -> str:
        """Return the import path of the class named by a word; raise a ValueError with the reason if there is none."""
        known = class_named(name, base)
        if known is not None:
            return known
        if "." not in name or "/" in name:
            raise ValueError(near_classes(option, name, base))
        try:
            cls = class_of(name, base.type)
        except SyntaxError as error:
            where = f"{error.filename}, got {error.msg} in line {error.lineno}"
            raise ValueError(f"expected Python in {where}: correct it") from error
        except ValueError:
            _raise_with_candidates(option, name, base)
            raise
        module, known = name.rpartition(".")[0], kinds(base).get(cls.__name__)
        public = "." in module and hasattr(sys.modules[module], "__path__")
        return known if known and not public and Class(known).type is cls else name

    def _completed(self, values: dict[str, Any], owner: Class, above: str) -> dict[str, Any]:
        complete: dict[str, Any] = {}
        for name, parameter in parameters_of(owner).items():
            if name in values:
                complete[name] = self._whole(values[name], f"{above}{name}")
                if complete[name] is None and parameter.default is None and f"{above}{name}" not in DEFAULTS:
                    del complete[name]
            elif parameter.required:
                rows = first_rows(values["path"]) if above == "data." and "path" in values else None
                remedy = f"choose from {', '.join(rows[0])}" if rows else f"see {self._help(above or name)}"
                raise ValueError(f"expected {self._called(above + name)}, got none: {remedy}")
            elif parameter.default is not MISSING and parameter.default is not None:
                hint, default = parameter.hint, parameter.default
                is_whole = type(default) is int and takes(hint, float) and not takes(hint, int)
                complete[name] = float(default) if is_whole else default
            self._check_path(f"{above}{name}", complete.get(name), parameter, owner)
        return complete

    def _whole(self, value: Any, name: str) -> Any:
        if isinstance(value, list):
            return [self._whole(item, name) for item in value]
        if not is_spec(value):
            return value
        arguments = self._completed(value["init_args"], Class(value["class_path"]), f"{name}.")
        fields = {"init_args": arguments} if arguments or name == "trainer" else {}
        return {"class_path": value["class_path"], **fields}

    def _check_path(self, name: str, value: Any, parameter: Parameter, owner: Class) -> None:
        """Raise if a part's input file does not exist, before anything is imported to read it."""
        reads = parameter.required and takes(parameter.hint, Path)
        if reads and isinstance(value, str) and owner.path.startswith("likewise.") and not Path(value).exists():
            remedy = f"correct it{runs_near(Path(value)) if owner is self.root else ''}"
            raise ValueError(
                f"expected a file or folder for {self._called(name)}, got {value}, which does not exist: {remedy}"
            )

    def _called(self, name: str) -> str:
        """Return an option's name in the help: after two hyphens, or in capitals for a positional argument."""
        return name.upper() if name.upper() in RECORDS[self.verb][1].split() else f"--{name}"


def parameters_of(owner: Class) -> dict[str, Parameter]:
    """Return the parameters of a class that can be options."""
    return {name: parameter for name, parameter in owner.parameters.items() if name not in HIDDEN_OPTIONS}


def _last(value: Any) -> Any:
    return value[-1] if isinstance(value, list) and value else value


def _suggest_classes(base: Class) -> str:
    return "one of " + ", ".join(kinds(base)) if kinds(base) else f"a {base.name}"


def _raise_with_candidates(option: str, path: str, base: Class) -> None:
    """Raise a ValueError that lists a module's other classes, or says how to wrap a network."""
    module = sys.modules.get(path.rpartition(".")[0])
    named = getattr(module, path.rpartition(".")[2], None)
    if module is not None and named is None and path.rpartition(".")[0] != MAIN and (file := module.__file__):
        fit = list(base.concrete(module.__name__)) or sorted(name for name in vars(module) if name[0] != "_")
        raise ValueError(near_classes(f"a class of {Path(file).name}", path, base, fit))
    if option == "encoder" and "Module" in {parent.__name__ for parent in getattr(named, "__mro__", ())}:
        raise ValueError(
            f"expected an encoder, which says how long its features are, got {path}, a torch.nn.Module: "
            f"--encoder Wrapped --encoder.module {path} makes it one"
        )
