"""Weights from a file of anybody's: matched with a network by names and shapes, whatever stands before the names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from likewise.models.depth import names_of
from likewise.pickled import pickled

WITHIN = ("state_dict", "model", "model_state_dict", "encoder", "teacher", "student", "net", "weights")
"""Where files of checkpoints have the weights."""
OWN = {"num_batches_tracked", "mean", "std"}  # which a network has counted or observed itself
LEAST = 0.5  # of the network's numbers that a file has to have


@final
@dataclass(frozen=True)
class Matched:
    """What of a file went into a network.

    Args:
        file: The file.
        taken: How many of the network's tensors are those of the file.
        missing: Names of the network's tensors that the file does not have, or has in another shape.
        unexpected: Names of the file's tensors that the network has no place for.
    """

    file: str
    taken: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    def __str__(self) -> str:
        """Say it in a line."""
        parts = (("missing", self.missing), ("not used", self.unexpected))
        told = "; ".join(f"{words}: {names_of(names)}" for words, names in parts if names)
        return f"{self.taken} of {self.taken + len(self.missing)} tensors from {self.file}{told and f'; {told}'}"


@torch.no_grad()
def load_weights(network: nn.Module, file: str | Path) -> Matched:
    """Give a network the weights of a file, as far as it has them.

    Names are compared after what stands before them on either side, such as module., encoder. or backbone.: the two
    beginnings with which most numbers match are taken. What a network counts or observes itself, such as the mean of
    its inputs, is taken too, and may be missing.

    Args:
        network: Takes the weights, in its own dtype.
        file: A state dict, .safetensors or what `torch.save` writes, also within a checkpoint.

    Returns:
        What matched.

    Raises:
        ValueError: There is no such file, it is no file of tensors, or has less than half of the network's numbers.

    Example:
        >>> import tempfile
        >>> from likewise.models import MLP
        >>> trained = MLP((3,), width=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = f"{folder}/trained.pth"
        ...     torch.save({"state_dict": {f"module.{name}": of for name, of in trained.state_dict().items()}}, file)
        ...     print(str(load_weights(MLP((3,), width=4), file)).partition(" from ")[0])
        19 of 19 tensors
    """
    given, own = _read(Path(file)), network.state_dict()
    theirs, ours = _beginnings(given, own)
    pairs = {f"{ours}{name.removeprefix(theirs)}": name for name in given if name.startswith(theirs)}
    taken = {name: pairs[name] for name in own if name in pairs and given[pairs[name]].shape == own[name].shape}
    missing = tuple(name for name in own if name not in taken and not _is_own(name))
    share = _numbers(own, taken) / max(1, _numbers(own, own))
    matched = Matched(
        str(file),
        len(taken),
        missing,
        tuple(name for name in given if name not in taken.values() and not _is_own(name)),
    )
    if share < LEAST:
        raise ValueError(
            f"expected weights of {type(network).__name__}, got {share:.0%} of its numbers, {matched}: give "
            "a file of this network, or the network that they are of"
        )
    for name, of in taken.items():
        own[name].copy_(given[of])
    return matched


def _read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file by name."""
    if not path.is_file():
        raise ValueError(f"expected a file of weights, got {path}, which does not exist: check the path")
    if objects := pickled(path):
        raise ValueError(f"expected weights in {path}, got {objects}")
    try:
        found = _loaded(path)
    except Exception as error:
        told = " ".join(str(error).split())[:120]
        raise ValueError(
            f"expected weights in {path}, .safetensors or written by torch.save, got {type(error).__name__}: {told}: "
            "give another file"
        ) from error
    while isinstance(found, Mapping) and (
        within := next((found[name] for name in WITHIN if isinstance(found.get(name), Mapping)), None)
    ):
        found = within
    tensors = (
        {str(name): of for name, of in found.items() if isinstance(of, Tensor)} if isinstance(found, Mapping) else {}
    )
    if not tensors:
        raise ValueError(f"expected tensors by name in {path}, got none: give a state dict, module.state_dict()")
    return tensors


def _loaded(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file  # noqa: PLC0415 - of an extra

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _beginnings(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> tuple[str, str]:
    """Return what stands before the names of a file and of a network, so that most numbers match."""
    shapes = {name: of.shape for name, of in given.items()}
    best, chosen = -1, ("", "")
    for ours in _starts(own):
        ends = {name.removeprefix(ours): of for name, of in own.items() if name.startswith(ours)}
        for theirs in _starts(given):
            count = sum(of.numel() for end, of in ends.items() if shapes.get(f"{theirs}{end}") == of.shape)
            if count > best:
                best, chosen = count, (theirs, ours)
    return chosen


def _starts(names: Iterable[str], depth: int = 4) -> list[str]:
    """Return what names begin with, up to some dots, the shortest first."""
    found = {""}
    for name in names:
        parts = name.split(".")[:-1]
        found |= {".".join(parts[:count]) + "." for count in range(1, min(depth, len(parts)) + 1)}
    return sorted(found, key=lambda start: (start.count("."), start))


def _is_own(name: str) -> bool:
    return name.rpartition(".")[2] in OWN


def _numbers(own: Mapping[str, Tensor], names: Iterable[str]) -> int:
    return sum(own[name].numel() for name in names)
