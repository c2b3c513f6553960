"""Depth: the blocks of a network from its input on, whatever its library, for freezing and learning rates by layer."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn

MAX_NAMES = 5  # in a message
UNUSED_PART = "pooler"  # of a language model, whose features are taken before it
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Block(NamedTuple):
    """A part of a network that stays whole: where it is, with dots, and what is learned in it."""

    name: str
    parameters: tuple[nn.Parameter, ...]


def blocks_of(network: nn.Module) -> list[Block]:
    """Return the blocks of a network in the order in which it names them, which is that of depth.

    What only holds blocks is taken apart: containers, modules with one part, and those with a container of modules of
    one class. Normalisations belong to the block before, and what such a holder has of its own, as the class token of a
    vision transformer, to the first block.
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
