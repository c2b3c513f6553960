"""The merging of words and files into a record: defaults, the recipe, configurations, then the command line."""

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import yaml

from likewise.configuration import recipes
from likewise.configuration.classes import Class, kinds
from likewise.configuration.draft import ConfigBuilder
from likewise.configuration.guesses import ALIASES, are_texts, class_named, expanded, kind_of_data, pair_options
from likewise.configuration.options import DEFAULTS, OF_LOSSES, PARTS, RECORDS, RESUMED_WITH, SOURCES, TrainOptions
from likewise.configuration.recipes import AUTO, SCRATCH, STARTS, TEXT_PAIRS, options_of, published_options
from likewise.configuration.values import FLAG, Option, flat, folded
from likewise.files.detection import runs_near
from likewise.files.formats import PARTIAL_SUFFIX
from likewise.instantiate import as_list, path_of

SEEDS = 2**32  # NumPy's limit
# Lightning's, except those that shard the model or start processes themselves
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")


def resolve(options: Any, *, verb: str = "train") -> Any:
    """Return the checked record of a verb's options, with defaults for missing ones.

    Args:
        options: A mapping of them, by their full or short names, dotted or nested, including config, recipe and
            resume. Or the verb's complete record: no file, recipe or data adds to it.
        verb: One of `likewise.configuration.options.RECORDS`.

    Returns:
        The verb's record, one of `likewise.configuration.options`.

    Raises:
        ValueError: An option, class, file or recipe doesn't exist, or a value is not as expected.

    Example:
        >>> resolve({"loss": "supcon", "epochs": 3}).trainer["max_epochs"]
        3
    """
    if isinstance(options, RECORDS[verb][0]):
        return _fill(ConfigBuilder(verb), flat(_stringify_paths(options)))
    return resolved(list(flat(dict(options))), verb)


def written(options: Any) -> str:
    """Return a record as the text of a file that `--config` reads.

    Args:
        options: A record from `resolve`. Its config, recipe and resume are left out: their options are written instead.
    """
    values = {
        name: value for name, value in _stringify_paths(options).items() if name not in SOURCES and value is not None
    }
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _stringify_paths(options: Any) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


def resolved(options: Sequence[Option], verb: str) -> Any:
    """Return a verb's record, from options in order; see `resolve`."""
    draft = ConfigBuilder(verb)
    options = [canonical(option, draft.root) for option in options]
    if any(option.name == "resume" and option.value is not None for option in options):
        options = _resumed(options)
    file_options = in_files(options, draft.root)
    arguments = [option for option in options if option.name != "config"]
    layers, rule = _split_encoder_rule([*_expanded(file_options, draft.root), *_expanded(arguments, draft.root)])
    _check_names(verb, layers)
    below: list[Option] = []
    if verb == "train":
        below = _defaults_and_recipe([*file_options, *arguments], layers, draft.root, rule)
    elif verb == "embed":
        below = _published(_last_values(layers))
    below += _without_end(below, layers)
    return _fill(draft, [option for option in (*below, *layers) if option.name != "recipe" or option in below])


def _fill(draft: ConfigBuilder, options: Iterable[Option]) -> Any:
    for option in options:
        draft.put(option)
    if draft.verb == "train":
        _split_device(draft)
        _fill_loss(draft)
    record = draft.completed()
    if draft.verb == "train":
        _check_options(record)
    return record


def _check_names(verb: str, options: Sequence[Option]) -> None:
    """Raise a ValueError for a typo in the name of an option or a class, before any class is imported."""
    draft = ConfigBuilder(verb)
    for option in options:
        part, _, within = option.name.partition(".")
        if not within or part == "trainer" or part not in draft.root.parameters:
            try:
                draft.put(option)
            except ValueError as error:
                if not str(error).startswith("unknown option") or "did you mean" in str(error):
                    raise  # otherwise it may be the argument of a class


def in_files(options: Sequence[Option], root: Class) -> list[Option]:
    """Return the options in the files named by `config`, each under its full name."""
    files = [file for option in options if option.name == "config" for file in as_list(option.value)]
    return [canonical(option, root) for file in files for option in _load_options(file)]


def canonical(option: Option, root: Class) -> Option:
    """Return an option under its full name where it has a short one; root has the options of the verb."""
    name, options = option.name.replace("-", "_"), root.parameters
    for alias, target in ALIASES.items():
        if alias not in options and target.partition(".")[0] in options and f"{name}.".startswith(f"{alias}."):
            return option._replace(name=target + name.removeprefix(alias))
    return option._replace(name=name)


def _resumed(options: Sequence[Option]) -> list[Option]:
    """Return a run's original options, and the options given on resuming, which don't change the training."""
    folder = str(next(option.value for option in reversed(options) if option.name == "resume"))
    unexpected = [option.name for option in options if option.name.partition(".")[0] not in ("resume", *RESUMED_WITH)]
    if unexpected:
        raise ValueError(
            f"expected with --resume no option but {', '.join(f'--{name}' for name in RESUMED_WITH)}.*, got "
            f"--{unexpected[0]}: a run goes on as it began; leave it out, or train anew with --config"
        )
    path = Path(folder) if Path(folder).is_dir() else Path(folder.removesuffix(PARTIAL_SUFFIX))  # finished since
    lacks = "does not exist" if not path.is_dir() else "has no run.json"
    if not (path / "run.json").is_file():
        remedy = f"correct it{runs_near(path)}"
        raise ValueError(f"expected the folder of a run for --resume, got {folder}, which {lacks}: {remedy}")
    return [Option("config", str(path / "config.yaml")), *options]


def _load_options(file: Any) -> list[Option]:
    if isinstance(file, str) and not file.lstrip().startswith("{"):
        path = Path(file).expanduser()
        if not path.is_file():
            raise ValueError(f"expected a file of options for --config, got {file}, which does not exist: correct it")
        file = path.read_bytes()  # YAML detects the encoding
    try:
        content = yaml.safe_load(file) if isinstance(file, str | bytes) else file
    except yaml.YAMLError as error:
        raise ValueError(f"expected options in YAML for --config, got {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping):
        raise ValueError(  # noqa: TRY004 - bad input is always a ValueError
            f"expected options in --config, as in 'loss: SupConLoss', got {type(content).__name__}: name them"
        )
    return list(flat(content))


def _expanded(options: Sequence[Option], root: Class) -> list[Option]:
    """Expand words that stand for a class with arguments; explicitly named options win."""
    values, spelt_out = {option.name: option.value for option in options}, list[Option]()
    for option in options:
        base = root.part(option.name) if option.name in PARTS and not option.adds else None
        more = expanded(option.name, option.value, base, values) if base and isinstance(option.value, str) else None
        spelt_out += [each for each in more or [option] if each.name == option.name or each.name not in values]
    return spelt_out


def _last_values(options: Sequence[Option]) -> dict[str, Any]:
    return {option.name: option.value for option in options if not option.adds}


def _published(last: Mapping[str, Any]) -> list[Option]:
    """Return a published encoder where neither a run nor an encoder is named."""
    data = kind_of_data(last)
    if data not in STARTS or last.keys() & {"run", "encoder"}:
        return []
    return list(flat(published_options(data, weights="weights" in last)))


def _split_encoder_rule(layers: list[Option]) -> tuple[list[Option], str | None]:
    """Return the options without `auto` and `scratch` as encoder, and the one of them in force, if any."""
    named = [index for index, option in enumerate(layers) if option.name == "encoder"]
    word = layers[named[-1]].value if named else None
    if word not in (AUTO, SCRATCH):
        return [option for option in layers if option.name != "encoder" or option.value not in (AUTO, SCRATCH)], None
    before = [option for option in layers[: named[-1]] if option.name.partition(".")[0] != "encoder"]
    return [*before, *layers[named[-1] + 1 :]], word


def _without_end(below: Sequence[Option], layers: Sequence[Option]) -> list[Option]:
    """Return options that switch off the default steps or epochs where something else ends the training."""
    ends = {f"trainer.max_{what}": -1 for what in ("steps", "epochs")}
    named, known = ({option.name for option in options} for options in (layers, below))
    if named & {*ends, "trainer.max_time"}:
        return [Option(name, none) for name, none in ends.items() if name in known - named]
    return [Option("trainer.max_epochs", -1)] if "trainer.max_steps" in known else []


def _defaults_and_recipe(
    options: Sequence[Option], layers: Sequence[Option], root: Class, rule: str | None
) -> list[Option]:
    """Return the options below the given ones, expanded in `layers`: defaults, options for the data, the recipe."""
    last, source = _last_values(layers), root.part("data")
    if isinstance(last.get("data"), str) and source:
        last["data"] = class_named(last["data"], source) or last["data"]
    data = kind_of_data(last)
    chosen: dict[str, Any] = {}
    if last.get("recipe") is not None:
        if not isinstance(last["recipe"], str):
            got = "none" if last["recipe"] is FLAG else repr(last["recipe"])
            raise ValueError(f"expected the name of a recipe, got {got}: supcon-digits is one")
        name = recipes.complete_name(last["recipe"], data)
        chosen = {"recipe": name, **recipes.recipe(name)}
        if rule == AUTO and data in STARTS:
            chosen |= {part: spec for part, spec in options_of(data, rule, last).items() if part in {"data", "encoder"}}
    elif data == "pairs":
        chosen = _pair_options(last, rule)
    elif data and "data.path" in last:
        chosen = _input_options(data, options, last, rule)
    chosen_options = list(flat(chosen))
    if Option("data", "likewise.data.Pairs") in chosen_options and "encoder" not in chosen:
        chosen_options += pair_options(last)
    below = _without_replaced(chosen_options, layers, root)
    if data == "image-folder" and Option("data", "likewise.data.Folder") in chosen_options:  # for any source
        below += [option for option in chosen_options if option.name == "data.size"]
    named = {option.name for option in (*below, *layers) if option.name in PARTS}
    defaults = (Option(*pair) for pair in DEFAULTS.items())
    below = [*(each for each in defaults if each.name in PARTS or each.name.partition(".")[0] not in named), *below]
    names_batches = any(option.name == "batches" for option in layers)
    needed = None if names_batches else _batches_for([*below, *layers], root)
    return [*below, Option("batches", needed)] if needed else below


def _input_options(data: str, options: Sequence[Option], last: Mapping[str, Any], rule: str | None) -> dict[str, Any]:
    """Return the options that fit the data; none where both an encoder and a source are named."""
    if "encoder" not in last:
        has_options = any(name.startswith("encoder.") for name in last)
        return options_of(data, rule or (SCRATCH if has_options else AUTO), last)
    return {} if any(option.name == "data.path" for option in options) else recipes.input_options(data)


def _pair_options(last: Mapping[str, Any], rule: str | None) -> dict[str, Any]:
    """Return the options that fit pairs: for texts on both sides, and nothing else named, a tuned language model."""
    encoder, arguments = last.get("encoder"), {name for name in last if name.startswith(("encoder.", "inputs.encoder"))}
    named = isinstance(encoder, str) and folded(encoder.rpartition(".")[2]) in {"pretrainedtransformer", "fromrun"}
    if not are_texts(last) or not (named or (encoder is None and not arguments)):
        return recipes.input_options("pairs")
    options = recipes.load_fragment("starts", TEXT_PAIRS) if named else options_of(TEXT_PAIRS, rule or AUTO, last)
    if any(name.startswith(("inputs.encoder", "inputs.head", "inputs.rate")) for name in last):  # two towers
        options = {**options, "inputs": {"class_path": options["inputs"]["class_path"]}}
    return options


def _without_replaced(below: Sequence[Option], above: Sequence[Option], root: Class) -> list[Option]:
    """Drop the arguments of parts whose class the options above replace: they would mean something else there."""
    over = _last_values(above)
    replaced = tuple(
        f"{name}." for name, value, _ in below if name in over and not _is_same(value, over[name], root.part(name))
    )
    return [option for option in below if not option.name.startswith(replaced)]


def _is_same(path: Any, value: Any, base: Class | None) -> bool:
    if not isinstance(path, str) or not isinstance(value, str):
        return path == value
    if base is not None and class_named(value, base) == path:
        return True
    ours = value.startswith("likewise.") or "." not in value
    return value == path or (ours and folded(value.rpartition(".")[2]) == folded(path.rpartition(".")[2]))


def _batches_for(options: Sequence[Option], root: Class) -> str | None:
    """Return the only batches that supply the data for the inputs of the loss; None: any batches do."""
    losses, inputs, base = root.part("loss"), root.part("inputs"), root.part("batches")
    value = next((option.value for option in reversed(options) if option.name == "loss"), None)
    if losses is None or inputs is None or base is None or not isinstance(value, str):
        return None
    forward = signature(getattr(Class(class_named(value, losses) or value).type, "forward", None) or object)
    required = {name for name, argument in forward.parameters.items() if argument.default is argument.empty}
    class_names = [option.value for option in options if option.name == "inputs" and isinstance(option.value, str)]
    import_paths = [word for word in class_names if "." in word]
    for supplier in (Class(path).type for path in (*import_paths, *kinds(inputs).values())):
        names = {name for parent in supplier.__mro__ if issubclass(parent, inputs.type) for name in vars(parent)}
        needed = getattr(supplier, "batches", None)
        if needed and needed is not base.type and names & required:
            return kinds(base).get(needed.__name__) or path_of(needed)
    return None


def _split_device(draft: ConfigBuilder) -> None:
    """Give Lightning a device with a number, such as cuda:1, as an accelerator and devices."""
    accelerator, _, number = str(draft.values["trainer"]["init_args"].get("accelerator")).partition(":")
    if number:
        draft.put(Option("trainer.accelerator", accelerator))
        draft.put(Option("trainer.devices", [int(number) if number.isdigit() else number]))


def _fill_loss(draft: ConfigBuilder) -> None:
    """Give a loss the arguments that have other defaults on the command line, where it takes them."""
    parameters = Class(draft.values["loss"]["class_path"]).parameters
    for name, value in OF_LOSSES.items():
        if name in parameters and name not in draft.values["loss"]["init_args"]:
            draft.put(Option(f"loss.{name}", value))


def _check_options(options: TrainOptions) -> None:
    if not 0 <= options.seed < SEEDS:
        raise ValueError(f"expected --seed between 0 and {SEEDS - 1}, got {options.seed}: 0 is the default")
    for name, least, remedy in (
        ("chunk_size", 1, "leave it out to encode all at once"),
        ("validation_epochs", 0, "0 is none"),
        ("min_per_class", 1, "1 keeps every class"),
        ("workers", 0, "0 is none, and without it there are as many as help"),
    ):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"expected --{name} of at least {least}, got {value}: {remedy}")
    if options.name is not None and Path(options.name).name != options.name:
        raise ValueError(f"expected --name without slashes, got {options.name}: --runs is the folder around it")
    strategy = options.trainer.get("strategy")
    if isinstance(strategy, str) and strategy not in STRATEGIES:
        raise ValueError(
            f"expected --trainer.strategy to be one of {', '.join(STRATEGIES)}, got {strategy}: every process has the "
            "whole model; for memory see --chunk_size"
        )
