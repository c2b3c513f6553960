"""From words and files to one record: defaults, then the recipe, then configurations, then the command line."""

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import yaml

from likewise.configuration import recipes
from likewise.configuration.aliases import ALIASES
from likewise.configuration.classes import Class, kinds
from likewise.configuration.draft import ConfigBuilder, Option
from likewise.configuration.guesses import are_texts, class_named, expanded, fitting_pairs, flat, kind_of_data
from likewise.configuration.hints import part_of
from likewise.configuration.options import DEFAULTS, OF_LOSSES, PARTS, RESUMED_WITH, SOURCES, VERBS, TrainOptions
from likewise.configuration.starts import AUTO, SCRATCH, STARTS, TEXT_PAIRS, options_of, published
from likewise.configuration.values import FLAG, folded
from likewise.files.formats import PARTIAL
from likewise.parts import listed, path_of

SEEDS = 2**32  # NumPy takes no more
# of Lightning's; those that part the model, or start processes of their own, are not among them
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")


def resolve(given: Any, *, verb: str = "train") -> Any:
    """Return the record of a verb's options, checked, each with its default where it is not given.

    Args:
        given: A mapping of options, by their full or short names, dotted or nested; config, recipe and resume among
            them. Or the verb's record, to which neither a file nor a recipe nor the data adds anything.
        verb: One of `likewise.configuration.options.VERBS`.

    Returns:
        The verb's record, one of `likewise.configuration.options`.

    Raises:
        ValueError: There is no such option, class, file or recipe, or a value is not as expected.

    Example:
        >>> resolve({"loss": "supcon", "epochs": 3}).trainer["max_epochs"]
        3
    """
    if isinstance(given, VERBS[verb][0]):
        return _filled(ConfigBuilder(verb), [Option(*pair) for pair in flat(_plain(given))])
    return resolved([Option(*pair) for pair in flat(dict(given))], verb)


def written(options: Any) -> str:
    """Return a record as the text of a file that `--config` reads.

    Args:
        options: What `resolve` returned. What brought other options, such as a recipe, is left out: those are here.
    """
    said = {name: value for name, value in _plain(options).items() if name not in SOURCES and value is not None}
    return yaml.safe_dump(said, sort_keys=False, allow_unicode=True)


def _plain(options: Any) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


def resolved(given: Sequence[Option], verb: str) -> Any:
    """Return the record of a verb, of options in their order; see `resolve`."""
    draft = ConfigBuilder(verb)
    given = [canonical(option, draft.root) for option in given]
    if any(option.name == "resume" and option.value is not None for option in given):
        given = _resumed(given)
    said = in_files(given, draft.root)
    words = [option for option in given if option.name != "config"]
    layers, rule = _begins([*_expanded(said, draft.root), *_expanded(words, draft.root)])
    _tell_slips(verb, layers)
    below = _defaults_and_recipe([*said, *words], layers, draft.root, rule) if verb == "train" else []
    if verb == "embed":
        below = _published(layers)
    below += _without_end(below, layers)
    return _filled(draft, [option for option in (*below, *layers) if option.name != "recipe" or option in below])


def _filled(draft: ConfigBuilder, options: Sequence[Option]) -> Any:
    for option in options:
        draft.put(option)
    if draft.verb == "train":
        _split_device(draft)
        _fill_loss(draft)
        _check(draft.completed())
    return draft.completed()


def _tell_slips(verb: str, options: Sequence[Option]) -> None:
    """Raise a ValueError for a slip that can be told before a class is imported: in an option or a class's name."""
    draft = ConfigBuilder(verb)
    for option in options:
        part, _, within = option.name.partition(".")
        if not within or part == "trainer" or part not in draft.root.parameters:
            try:
                draft.put(option)
            except ValueError as error:
                if not str(error).startswith("unknown option") or "did you mean" in str(error):
                    raise  # of others, an argument of a class may be meant


def in_files(given: Sequence[Option], root: Class) -> list[Option]:
    """Return the options that the files of options among the given ones have, each by its own name."""
    files = [file for option in given if option.name == "config" for file in listed(option.value)]
    return [canonical(option, root) for file in files for option in _of_file(file)]


def canonical(option: Option, root: Class) -> Option:
    """Return an option by its own name, where it is given by a short one; root has the options of the verb."""
    name, options = option.name.replace("-", "_"), root.parameters
    for alias, own in ALIASES.items():
        if alias not in options and own.partition(".")[0] in options and f"{name}.".startswith(f"{alias}."):
            return option._replace(name=own + name.removeprefix(alias))
    return option._replace(name=name)


def _resumed(given: Sequence[Option]) -> list[Option]:
    """Return the options that a run began with, and those that it is resumed with, which change no training."""
    folder = str(next(option.value for option in reversed(given) if option.name == "resume"))
    others = [option.name for option in given if option.name.partition(".")[0] not in ("resume", *RESUMED_WITH)]
    if others:
        raise ValueError(
            f"expected with --resume no option but {', '.join(f'--{name}' for name in RESUMED_WITH)}.*, got "
            f"--{others[0]}: a run goes on as it began; leave it out, or train anew with --config"
        )
    place = Path(folder) if Path(folder).is_dir() else Path(folder.removesuffix(PARTIAL))  # it has been finished since
    lacks = "does not exist" if not place.is_dir() else "has no run.json"
    if not (place / "run.json").is_file():
        raise ValueError(f"expected the folder of a run for --resume, got {folder}, which {lacks}: correct it")
    return [Option("config", str(place / "config.yaml")), *given]


def _of_file(file: Any) -> list[Option]:
    if isinstance(file, str) and not file.lstrip().startswith("{"):
        path = Path(file).expanduser()
        if not path.is_file():
            raise ValueError(f"expected a file of options for --config, got {file}, which does not exist: correct it")
        file = path.read_bytes()  # YAML tells its encoding
    try:
        said = yaml.safe_load(file) if isinstance(file, str | bytes) else file
    except yaml.YAMLError as error:
        raise ValueError(f"expected options in YAML for --config, got {' '.join(str(error).split())}") from error
    if not isinstance(said, Mapping):
        raise ValueError(  # noqa: TRY004 - bad input is always a ValueError
            f"expected options in --config, as in 'loss: SupConLoss', got {type(said).__name__}: name them"
        )
    return [Option(*pair) for pair in flat(dict(said))]


def _expanded(options: Sequence[Option], root: Class) -> list[Option]:
    """Spell out the words that stand for a class and more; what is given beside them wins."""
    given, spelt_out = {option.name: option.value for option in options}, list[Option]()
    for option in options:
        more = None
        base = _base(option.name, root) if option.name in PARTS and not option.adds else None
        if base and isinstance(option.value, str):
            more = expanded(option.name, option.value, base, given)
        if more is None:
            spelt_out.append(option)
        else:
            spelt_out += [Option(name, value) for name, value in more if name == option.name or name not in given]
    return spelt_out


def _base(part: str, root: Class) -> Class | None:
    parameter = root.parameters.get(part)
    return part_of(parameter.hint) if parameter else None


def _published(layers: Sequence[Option]) -> list[Option]:
    """Return the encoder that others trained, where neither a run nor an encoder is named."""
    last = {option.name: option.value for option in layers if not option.adds}
    kind = kind_of_data(last)
    if kind not in STARTS or last.keys() & {"run", "encoder"}:
        return []
    return [Option(*pair) for pair in flat(published(kind, weights="weights" in last))]


def _begins(layers: list[Option]) -> tuple[list[Option], str | None]:
    """Return options without the words for rules by which an encoder is found, and the word that holds, if one does."""
    named = [place for place, option in enumerate(layers) if option.name == "encoder"]
    word = layers[named[-1]].value if named else None
    if word not in (AUTO, SCRATCH):
        return [option for option in layers if option.name != "encoder" or option.value not in (AUTO, SCRATCH)], None
    before = [option for option in layers[: named[-1]] if option.name.partition(".")[0] != "encoder"]
    return [*before, *layers[named[-1] + 1 :]], word


def _without_end(below: Sequence[Option], layers: Sequence[Option]) -> list[Option]:
    """Return what leaves out the steps or epochs of a default, where a training is ended by something else."""
    ends = {f"trainer.max_{what}": -1 for what in ("steps", "epochs")}
    given, known = ({option.name for option in options} for options in (layers, below))
    if given & {*ends, "trainer.max_time"}:
        return [Option(name, none) for name, none in ends.items() if name in known - given]
    return [Option("trainer.max_epochs", -1)] if "trainer.max_steps" in known else []


def _defaults_and_recipe(
    given: Sequence[Option], layers: Sequence[Option], root: Class, rule: str | None
) -> list[Option]:
    """Return what lies below the given options, spelt out in `layers`: defaults, what fits the data, and the recipe.

    Without an encoder it is found by a rule; options of one that is not named are those of the network from scratch.
    """
    last = {option.name: option.value for option in layers if not option.adds}
    source = _base("data", root)
    if isinstance(last.get("data"), str) and source:
        last["data"] = class_named(last["data"], source) or last["data"]
    data = kind_of_data(last)
    chosen: dict[str, Any] = {}
    if last.get("recipe") is not None:
        if not isinstance(last["recipe"], str):
            got = "none" if last["recipe"] is FLAG else repr(last["recipe"])
            raise ValueError(f"expected the name of a recipe, got {got}: supcon-digits is one")
        name = recipes.named(last["recipe"], data)
        chosen = {"recipe": name, **recipes.recipe(name)}
        if rule == AUTO and data in STARTS:
            chosen |= {part: of for part, of in options_of(data, rule, last).items() if part in {"data", "encoder"}}
    elif data == "pairs":
        chosen = _fitting_pairs(last, rule)
    elif data and "data.path" in last:
        chosen = _fitting(data, given, last, rule)
    chosen_options = list(flat(chosen))
    if ("data", "likewise.data.Pairs") in chosen_options and "encoder" not in chosen:
        chosen_options += fitting_pairs(last)
    below = _without_replaced(chosen_options, layers, root)
    if data == "image-folder" and ("data", "likewise.data.Folder") in chosen_options:  # whichever source reads them
        below += [Option(*pair) for pair in chosen_options if pair[0] == "data.size"]
    named = {option.name for option in (*below, *layers) if option.name in PARTS}
    defaults = [
        Option(*pair) for pair in DEFAULTS.items() if pair[0] in PARTS or pair[0].partition(".")[0] not in named
    ]
    below = [*defaults, *below]
    said = any(option.name == "batches" for option in layers)
    needed = None if said else _batches_for([*below, *layers], root)
    return [*below, Option("batches", needed)] if needed else below


def _fitting(data: str, given: Sequence[Option], last: Mapping[str, Any], rule: str | None) -> dict[str, Any]:
    """Return what fits a kind of data; where an encoder and the source of the data are named, nothing."""
    if "encoder" not in last:
        own = any(name.startswith("encoder.") for name in last)
        return options_of(data, rule or (SCRATCH if own else AUTO), last)
    return {} if any(option.name == "data.path" for option in given) else recipes.fitting(data)


def _fitting_pairs(last: Mapping[str, Any], rule: str | None) -> dict[str, Any]:
    """Return what fits pairs: where both sides are texts, and nothing else is named, a language model is tuned."""
    encoder, given = last.get("encoder"), {name for name in last if name.startswith(("encoder.", "inputs.encoder"))}
    named = isinstance(encoder, str) and folded(encoder.rpartition(".")[2]) in {"pretrainedtransformer", "fromrun"}
    if not are_texts(last) or not (named or (encoder is None and not given)):
        return recipes.fitting("pairs")
    options = recipes.load_fragment("starts", TEXT_PAIRS) if named else options_of(TEXT_PAIRS, rule or AUTO, last)
    if any(name.startswith(("inputs.encoder", "inputs.head", "inputs.rate")) for name in last):  # two towers
        options = {**options, "inputs": {"class_path": options["inputs"]["class_path"]}}
    return options


def _without_replaced(below: list[tuple[str, Any]], above: Sequence[Option], root: Class) -> list[Option]:
    """Leave out what is said of parts that options above name another class for: it would mean something else there."""
    over = {option.name: option.value for option in above if not option.adds}
    replaced = [
        f"{name}." for name, value in below if name in over and not _is_same(value, over[name], _base(name, root))
    ]
    return [Option(name, value) for name, value in below if not name.startswith(tuple(replaced))]


def _is_same(path: Any, value: Any, base: Class | None) -> bool:
    if not isinstance(path, str) or not isinstance(value, str):
        return path == value
    if base is not None and class_named(value, base) == path:
        return True
    ours = value.startswith("likewise.") or "." not in value
    return value == path or (ours and folded(value.rpartition(".")[2]) == folded(path.rpartition(".")[2]))


def _batches_for(options: Sequence[Option], root: Class) -> str | None:
    """Return the batches that only will do for what the inputs of the loss read; None: any will."""
    losses, inputs = _base("loss", root), _base("inputs", root)
    value = next((option.value for option in reversed(options) if option.name == "loss"), None)
    if losses is None or inputs is None or not isinstance(value, str):
        return None
    forward = signature(getattr(Class(class_named(value, losses) or value).type, "forward", None) or object)
    asked = {name for name, argument in forward.parameters.items() if argument.default is argument.empty}
    words = [option.value for option in options if option.name == "inputs" and isinstance(option.value, str)]
    given = [word for word in words if "." in word]
    for supplier in (Class(path).type for path in (*given, *kinds(inputs).values())):
        names = {name for kind in supplier.__mro__ if issubclass(kind, inputs.type) for name in vars(kind)}
        needed, base = getattr(supplier, "batches", None), _base("batches", root)
        if needed and base and needed is not base.type and names & asked:
            return kinds(base).get(needed.__name__) or path_of(needed)
    return None


def _split_device(draft: ConfigBuilder) -> None:
    """Give Lightning a device with a number, such as cuda:1, as an accelerator and devices."""
    kind, _, number = str(draft.values["trainer"]["init_args"].get("accelerator")).partition(":")
    if number:
        draft.put(Option("trainer.accelerator", kind))
        draft.put(Option("trainer.devices", [int(number) if number.isdigit() else number]))


def _fill_loss(draft: ConfigBuilder) -> None:
    """Give a loss the arguments that the command has other defaults of, where it takes them."""
    asked = Class(draft.values["loss"]["class_path"]).parameters
    for name, value in OF_LOSSES.items():
        if name in asked and name not in draft.values["loss"]["init_args"]:
            draft.put(Option(f"loss.{name}", value))


def _check(options: TrainOptions) -> None:
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
            at_least = f"of {least} or more" if least == 0 else f"of at least {least}"
            raise ValueError(f"expected --{name} {at_least}, got {value}: {remedy}")
    if options.name is not None and Path(options.name).name != options.name:
        raise ValueError(f"expected --name without slashes, got {options.name}: --runs is the folder around it")
    strategy = options.trainer.get("strategy")
    if isinstance(strategy, str) and strategy not in STRATEGIES:
        raise ValueError(
            f"expected --trainer.strategy to be one of {', '.join(STRATEGIES)}, got {strategy}: every process has the "
            "whole model; to start several, see likewise train --help, and for memory --chunk_size"
        )
