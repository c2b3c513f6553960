"""The abstract augmentation: how a view differs from its sample."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Shaped
from torch import Tensor

from likewise.data.augmentation.draw import Draw


class Augmentation(ABC):
    """Abstract: a random change of a whole batch at once, on its device, that keeps the labels valid."""

    @abstractmethod
    def __call__(self, inputs: Shaped[Tensor, "n ..."], draw: Draw) -> Float[Tensor, "n ..."]:
        """Change every input independently.

        Args:
            inputs: Images (N, channels, height, width), uint8 or floating from 0 to 1, or vectors (N, F).
            draw: The random numbers, for N rows and on the inputs' device.

        Returns:
            Floating inputs; images from 0 to 1.
        """

    def fit(self, inputs: Tensor) -> None:  # noqa: B027 - most have nothing to fit
        """Fit to inputs of the training part, once before training, if the change depends on their statistics."""
