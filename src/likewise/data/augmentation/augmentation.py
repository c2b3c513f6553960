"""The abstract augmentation: how a view differs from its sample."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Shaped
from torch import Tensor

from likewise.data.augmentation.draw import Draw


class Augmentation(ABC):
    """Abstract: a random change that leaves a sample's labels alone, of a whole batch at once, wherever it is."""

    @abstractmethod
    def __call__(self, inputs: Shaped[Tensor, "n ..."], draw: Draw) -> Float[Tensor, "n ..."]:
        """Change every input by a draw of its own.

        Args:
            inputs: Images (N, channels, height, width), uint8 or floating from 0 to 1, or vectors (N, F).
            draw: The random numbers, of N rows and on the inputs' device.

        Returns:
            Floating inputs; images from 0 to 1.
        """

    def fit(self, inputs: Tensor) -> None:  # noqa: B027 - most need no look
        """Look at inputs of the training part, once before training, if the change is measured in their spread."""
