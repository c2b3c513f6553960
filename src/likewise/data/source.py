"""The abstract source: where samples come from."""

from abc import ABC, abstractmethod

from likewise.data.samples import Samples


class Source(ABC):
    """Abstract: somebody's data. A source reads its samples, and does nothing else with them."""

    @abstractmethod
    def load(self) -> Samples:
        """Read every sample, or what reads them when they are asked for."""
