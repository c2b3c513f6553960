"""All contenders, and one of them by its key."""

from likewise.benchmark.case import Contender
from likewise.benchmark.losses import ours
from likewise.benchmark.rivals import rivals


def contenders(names: list[str], backends: list[str], device: str) -> list[Contender]:
    """Return the contenders for these losses and primitives: the library's with these backends, and others.

    Example:
        >>> [str(each) for each in contenders(["TripletLoss", "InfoNCELoss"], ["tiled"], "cpu")]
        ['TripletLoss likewise', 'InfoNCELoss likewise tiled', 'InfoNCELoss dense form']
    """
    return [*ours(names, backends, device), *rivals(names, device)]


def find(key: tuple[str, str, str], device: str) -> Contender:
    """Return the contender with a key."""
    loss, _, backend = key
    return next(each for each in contenders([loss], [backend], device) if each.key == key)
