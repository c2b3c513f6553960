"""The abstract source: where samples come from."""

from abc import ABC, abstractmethod

from likewise.data.samples import Samples


class Source(ABC):
    """Abstract: a data set. A source reads samples and does nothing else."""

    @abstractmethod
    def load(self) -> Samples:
        """Read all samples. Their inputs may be `Rows`, which are read on demand."""
