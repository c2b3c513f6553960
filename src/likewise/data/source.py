"""The abstract source: where samples come from."""

from abc import ABC, abstractmethod

from likewise.data.samples import Samples


class Source(ABC):
    """Abstract: a data set. A source reads samples and does nothing else."""

    @abstractmethod
    def load(self) -> Samples:
        """Read all samples. Their inputs may be `Rows`, which are read on demand."""


def check_size(size: int | None, memory: float = 0.0) -> None:
    """Raise a ValueError unless images of this size, in pixels, can be held in so many GiB; 0 GiB hold none of them."""
    if size is not None and size < 1:
        raise ValueError(f"expected data.size of at least 1 pixel, got {size}: leave it out to keep the images' own")
    if not memory >= 0:
        raise ValueError(f"expected data.memory of 0 GiB or more, got {memory}: 0 decodes images each time")
