"""Vectors with some features replaced by their mean, and token rows with some tokens masked."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.data.augmentation.augmentation import Augmentation, Draw, check_size, uniform

PADDING = 0  # fills a row after its last token


@final
class FeatureDropout(Augmentation):
    """Vectors with some features replaced by their mean over the training part, and noise scaled to each feature.

    Floating vectors (N, F) become views (N, V, F) of the same dtype.

    Args:
        probability: Probability that a feature is replaced.
        noise: Standard deviation of Gaussian noise, relative to that of the feature over the training part.

    Example:
        >>> augmentation = FeatureDropout()
        >>> augmentation.fit(torch.rand(100, 3))
        >>> augmentation(torch.zeros(4, 3)).shape
        torch.Size([4, 2, 3])
    """

    def __init__(self, *, probability: float = 0.2, noise: float = 0.1, seed: int | None = None) -> None:
        super().__init__(seed)
        check_size("probability", probability, most=1)
        check_size("noise", noise)
        self.probability, self.noise = probability, noise
        self._mean_and_spread: Float[Tensor, "2 f"] | None = None

    def fit(self, inputs: Float[Tensor, "n f"]) -> None:
        """Compute every feature's mean and standard deviation."""
        vectors = self._vectors(inputs)
        self._mean_and_spread = torch.stack([vectors.mean(dim=0), vectors.std(dim=0, correction=0)])

    def change(self, inputs: Float[Tensor, "n f"], draw: Draw) -> Float[Tensor, "n f"]:
        vectors = self._vectors(inputs)
        mean, spread = self._fitted(vectors)
        dropped = uniform(draw, vectors, vectors.shape[1]) < self.probability
        noisy = torch.addcmul(vectors, spread, draw.normal(vectors.shape[1]).to(vectors.dtype), value=self.noise)
        return torch.where(dropped, mean, noisy).to(inputs.dtype)

    def _fitted(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        if self._mean_and_spread is None:
            raise ValueError("FeatureDropout expected fit first, got other inputs: call fit(training inputs) once")
        if self._mean_and_spread.shape[1] != vectors.shape[1]:
            fitted = self._mean_and_spread.shape[1]
            raise ValueError(f"FeatureDropout expected {fitted} features as in fit, got {vectors.shape[1]}")
        if self._mean_and_spread.device != vectors.device:  # kept there: a copy in each step would synchronise a GPU
            self._mean_and_spread = self._mean_and_spread.to(vectors.device)
        mean, spread = self._mean_and_spread.to(vectors.dtype)
        return mean, spread

    @staticmethod
    def _vectors(inputs: Tensor) -> Float[Tensor, "n f"]:
        if inputs.ndim != 2 or not inputs.is_floating_point():
            got = f"{tuple(inputs.shape)} of {inputs.dtype}: choose SimCLRViews for images, TokenDropout for token rows"
            raise ValueError(f"FeatureDropout expected vectors (N, F), floating, got {got}")
        return inputs.float() if inputs.dtype.itemsize < 4 else inputs


@final
class TokenDropout(Augmentation):
    """Token rows, integers (N, T), as views (N, V, T) with some tokens replaced by a mask; padding, 0, stays.

    Args:
        probability: Probability that a token is replaced.
        mask_id: What replaces it: the vocabulary's mask, or its unknown word, above 0.

    Example:
        >>> TokenDropout(probability=1.0, mask_id=3)(torch.tensor([[5, 7, 0]]), views=1)
        tensor([[[3, 3, 0]]])
    """

    def __init__(self, *, probability: float = 0.1, mask_id: int = 1, seed: int | None = None) -> None:
        super().__init__(seed)
        check_size("probability", probability, most=1)
        if mask_id <= PADDING:
            raise ValueError(f"expected mask_id above 0, which is padding, got {mask_id}: use the vocabulary's mask")
        self.probability, self.mask_id = probability, mask_id

    def change(self, inputs: Int[Tensor, "n t"], draw: Draw) -> Int[Tensor, "n t"]:
        if inputs.ndim != 2 or inputs.is_floating_point() or inputs.dtype == torch.bool:
            got = f"{tuple(inputs.shape)} of {inputs.dtype}: choose FeatureDropout for vectors, SimCLRViews for images"
            raise ValueError(f"TokenDropout expected token rows (N, T) of integers, got {got}")
        masked = (uniform(draw, inputs, inputs.shape[1]) < self.probability) & (inputs != PADDING)
        return inputs.masked_fill(masked, self.mask_id)
