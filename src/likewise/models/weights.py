"""Weights of networks: their blocks by depth, their digests, and third-party checkpoints, matched by name and shape."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from likewise.files.detection import describe_pickle
from likewise.models.text_encoder import BagOfTokens, Transformer

MAX_NAMES = 5  # in a message
UNUSED_PART = "pooler"  # of a language model, whose features are taken before it
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
WEIGHT_KEYS = (
    *("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model_state", "model", "ema", "encoder"),
    *("teacher", "student", "net", "network", "backbone", "module", "weights"),
)
"""Keys of the weights in checkpoints, in order of preference: the running average first, as in timm."""
COPY_NAMES = re.compile(r"(^|[._])(momentum|encoder_k|key|target|student)[._]")  # taken if no other copy matches
OWN_TENSORS = {"num_batches_tracked", "mean", "std", "tokenizer"}  # counted or observed by the network itself
BASE_LAYER, ADAPTER = ".base_layer.", ".lora_"  # of peft, which puts adapters beside layers
MAX_DEPTH = 4  # of mappings within mappings
MIN_SHARE = 0.5  # of the network's numbers, required in a file
TENSOR_ROLES = {
    "weight": {"weight", "gamma", "scale", "kernel"},
    "bias": {"bias", "beta"},
    "running_mean": {"running_mean", "moving_mean"},
    "running_var": {"running_var", "moving_var", "moving_variance"},
}
"""Roles of tensors by the last words of their names; other words may mean anything."""
BY_ORDER = "in order, as names differ: tensors of one shape may have each other's place"


class Block(NamedTuple):
    """An undivided part of a network: its dotted name and its parameters."""

    name: str
    parameters: tuple[nn.Parameter, ...]


def blocks_of(network: nn.Module) -> list[Block]:
    """Return the blocks of a network in the order of its submodules, which is the order of depth.

    Modules that only hold blocks are taken apart: containers, modules with one part, and modules with a container of
    modules of one class. Normalisations belong to the preceding block, and a holder's own parameters, such as the class
    token of a vision transformer, to the first block.
    """
    parts: list[tuple[str, list[nn.Parameter]]] = []
    for name, module in _split_blocks(network, ""):
        if name.rpartition(".")[2] == UNUSED_PART:
            continue
        parameters = list(module.parameters())
        if parts and all(parameter.ndim < 2 for parameter in parameters):
            parts[-1][1].extend(parameters)
        else:
            parts.append((name, parameters))
    placed = {parameter for _, parameters in parts for parameter in parameters}
    remaining = [parameter for parameter in network.parameters() if parameter not in placed]
    if remaining:
        parts[:1] = [(parts[0][0], remaining + parts[0][1])] if parts else [("", remaining)]
    return [Block(name, tuple(dict.fromkeys(parameters))) for name, parameters in parts]


def names_of(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    return f"{', '.join(names[:MAX_NAMES])}{f' and {len(names) - MAX_NAMES} more' if len(names) > MAX_NAMES else ''}"


def _split_blocks(module: nn.Module, within: str) -> Iterator[tuple[str, nn.Module]]:
    children = [(name, child) for name, child in module.named_children() if next(child.parameters(), None) is not None]
    alone = len(children) == 1 and not isinstance(module, CONTAINERS)
    for name, child in children:
        where = f"{within}.{name}" if within else name
        if isinstance(child, CONTAINERS) or _holds_blocks(child) or (alone and _has_parts(child)):
            yield from _split_blocks(child, where)
        else:
            yield where, child


def _has_parts(module: nn.Module) -> bool:
    return any(next(child.parameters(), None) is not None for child in module.children())


def _holds_blocks(module: nn.Module) -> bool:
    return any(
        isinstance(child, CONTAINERS) and any(_has_parts(part) for part in child.children())
        for child in module.children()
    )


def digest_of(network: nn.Module) -> str:
    """Return a digest of a network's numbers, in float32 and in their order, regardless of names."""
    digest = blake2b(digest_size=16)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def check_digest(name: str, digest: str | None, expected: str | None) -> None:
    """Warn if weights are not a run's initial weights."""
    if expected is not None and digest != expected:
        warnings.warn(
            f"the weights of {name} are not those that the run began with: their digest is {digest}, not {expected}",
            stacklevel=3,
        )


@final
@dataclass(frozen=True)
class Matched:
    """The tensors loaded from a file into a network, and the unmatched ones on either side."""

    file: str
    taken: int
    missing: tuple[str, ...]  # of the network, also if the file has another shape
    unexpected: tuple[str, ...]  # of the file
    chosen: str = ""  # the copy of the network, if the file has several; and the method, if not by names

    def __str__(self) -> str:
        parts = (("missing", self.missing), ("not used", self.unexpected))
        gaps = "; ".join(f"{status}: {names_of(names)}" for status, names in parts if names)
        how = f" ({self.chosen})" if self.chosen else ""
        return f"{self.taken} of {self.taken + len(self.missing)} tensors from {self.file}{how}{gaps and f'; {gaps}'}"


@torch.no_grad()
def load_weights(network: nn.Module, file: str | Path) -> Matched:
    """Load the weights of a file into a network, as far as the file has them.

    Names are compared without prefixes on either side, such as module., encoder. or backbone.: the two prefixes that
    match most numbers are used. Of two copies of a network, the trained one is loaded: MoCo's encoder_q and not its
    encoder_k, but DINO's teacher. If names have nothing in common, as with `nn.Sequential(*network.children())`,
    tensors are matched in order, if their shapes agree and their names don't show different roles, such as bias and
    weight; not from .safetensors, which sorts tensors by name. Counted and observed values, such as the mean of the
    inputs, are loaded too, and may be missing. So may adapters; the layers that they adapt are matched under their
    names without adapters. A file with less than half of the network's numbers is a ValueError.
    """
    (source, within), target = _read_tensors(Path(file)), network.state_dict()
    pairs, copies = _by_names(source, target)
    how = [within, f"{copies[0]}, not {names_of(copies[1:])}" if copies else ""]
    ordered = Path(file).suffix != ".safetensors"  # in which tensors are sorted by name
    if ordered and _share(target, pairs) < 1 and (matches := _in_order(source, target)):
        pairs, copies, how = matches, [], [within, BY_ORDER]
    missing = tuple(name for name in target if name not in pairs and not _is_own(name))
    passed, used = tuple(f"{start}." for start in copies[1:]), set(pairs.values())
    unexpected = [name for name in source if name not in used and not (_is_own(name) or name.startswith(passed))]
    chosen = "; ".join(filter(None, how))
    matched = Matched(str(file), len(pairs), missing, tuple(unexpected), chosen)
    if (share := _share(target, pairs)) < MIN_SHARE:
        raise ValueError(
            f"expected weights of {type(network).__name__}, got {share:.0%} of its numbers, {matched}: give "
            "a file of this network, or the network that they are of"
        )
    _check_tokens(network, source, file)
    for name, source_name in pairs.items():
        target[name].copy_(source[source_name])
    return matched


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """Read the tensors of a file by name, and say which set was chosen if it has several."""
    if path.is_dir():
        files = sorted(file.name for file in path.iterdir() if file.suffix in {".safetensors", ".pth", ".pt", ".bin"})
        remedy = f"give a file in it, {names_of(files)}" if files else "it has none, so name another"
        raise ValueError(f"expected a file of weights, got the folder {path}: {remedy}")
    if not path.is_file():
        raise ValueError(f"expected a file of weights, got {path}, which does not exist: check the path")
    if objects := describe_pickle(path):
        raise ValueError(f"expected weights in {path}, got {objects}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # noqa: PLC0415 - of an extra

            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(
            f"expected weights in {path}, .safetensors or written by torch.save, got {type(error).__name__}: {reason}"
        ) from error
    chosen = ""
    for _ in range(MAX_DEPTH):
        sets = [name for name in WEIGHT_KEYS if isinstance(content, Mapping) and _has_tensors(content.get(name))]
        if sets:
            content, chosen = content[sets[0]], chosen or (f"{sets[0]}, not {names_of(sets[1:])}" if sets[1:] else "")
    named = content.items() if isinstance(content, Mapping) else ()
    tensors = {str(name): tensor for name, tensor in named if isinstance(tensor, Tensor)}
    if not tensors:
        raise ValueError(f"expected tensors by name in {path}, got none: give a state dict, module.state_dict()")
    return tensors, chosen


def _has_tensors(content: Any, depth: int = MAX_DEPTH) -> bool:
    return isinstance(content, Mapping) and any(
        isinstance(value, Tensor) or (depth > 0 and _has_tensors(value, depth - 1)) for value in content.values()
    )


def _by_names(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> tuple[dict[str, str], list[str]]:
    """Match names after the prefixes that match most numbers; return the file's copies, if several match so."""
    # names without adapters
    theirs, ours = ({name.replace(BASE_LAYER, "."): name for name in names} for names in (source, target))
    shapes, starts = {name: source[full_name].shape for name, full_name in theirs.items()}, _starts(theirs)
    best, chosen, copies = -1, ("", ""), [""]
    for our in _starts(ours):
        ends = {name.removeprefix(our): target[full_name] for name, full_name in ours.items() if name.startswith(our)}
        for their in starts:
            count = sum(tensor.numel() for end, tensor in ends.items() if shapes.get(f"{their}{end}") == tensor.shape)
            if count > best:
                best, chosen, copies = count, (their, our), [their]
            elif count == best and our == chosen[1]:
                copies.append(their)
    their, our = chosen
    pairs = {
        name: theirs[f"{their}{bare.removeprefix(our)}"]
        for bare, name in ours.items()
        if bare.startswith(our) and shapes.get(f"{their}{bare.removeprefix(our)}") == target[name].shape
    }
    return pairs, [start.removesuffix(".") for start in copies] if len(copies) > 1 and all(copies) else []


def _in_order(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> dict[str, str]:
    """Match the network's tensors one by one with those under a prefix, if all have the same role and shape."""
    names = [name for name in target if not _is_own(name)]
    for start in _starts(source):
        below = (name for name in source if name.startswith(start) and not _is_own(name))
        matches = [name for name in below if COPY_NAMES.search(start) or not COPY_NAMES.search(name)][: len(names)]
        if len(matches) == len(names) and all(
            source[their].shape == target[our].shape and len({_classify_name(their), _classify_name(our)} - {None}) < 2
            for their, our in zip(matches, names, strict=True)
        ):
            return dict(zip(names, matches, strict=True))
    return {}


def _classify_name(name: str) -> str | None:
    return next((role for role, synonyms in TENSOR_ROLES.items() if re.split(r"[./]", name)[-1] in synonyms), None)


def _check_tokens(network: nn.Module, source: Mapping[str, Tensor], file: str | Path) -> None:
    """Refuse embeddings of tokens other than those learned by one of our text encoders."""
    if not isinstance(network, BagOfTokens | Transformer):
        return  # others' files have no tokenizer
    tokenizer = next((tensor for name, tensor in source.items() if name.rpartition(".")[2] == "tokenizer"), None)
    if tokenizer is None or not torch.equal(tokenizer, network.tokenizer.cpu()):
        got = "has no tokenizer" if tokenizer is None else "has embeddings of other tokens"
        raise ValueError(
            f"expected weights for the tokens of these texts, got {file}, which {got}: begin with the run, --encoder "
            "FromRun --encoder.run RUN, which brings its tokenizer"
        )


def _starts(names: Iterable[str], depth: int = 4) -> list[str]:
    """Return the prefixes of names, up to `depth` dots: the shortest first, prefixes of less preferred copies last."""
    prefixes = {""}
    for name in names:
        parts = name.split(".")[:-1]
        prefixes |= {".".join(parts[:count]) + "." for count in range(1, min(depth, len(parts)) + 1)}
    return sorted(prefixes, key=lambda start: (bool(COPY_NAMES.search(start)), start.count("."), start))


def _is_own(name: str) -> bool:
    return name.rpartition(".")[2] in OWN_TENSORS or ADAPTER in name


def _share(target: Mapping[str, Tensor], taken: Iterable[str]) -> float:
    """Return the matched share of a network's numbers, out of those required in a file."""
    sizes = {name: tensor.numel() for name, tensor in target.items() if not _is_own(name)}
    return sum(sizes.get(name, 0) for name in taken) / max(1, sum(sizes.values()))
