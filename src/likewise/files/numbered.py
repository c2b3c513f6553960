"""Names for what is begun in the same second as something else."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path


def numbered(path: Path) -> Iterator[Path]:
    """Yield a path, and then the same with -2, -3 and so on: to be tried until one can be made."""
    yield path
    for number in count(2):
        yield path.with_name(f"{path.name}-{number}")
