"""Heads: what training puts between the features and the loss, and evaluation leaves off."""

from abc import ABC, abstractmethod
from typing import final

from jaxtyping import Float
from torch import Tensor, nn


class Head(nn.Module, ABC):
    """A head g: features to the embeddings that a loss contrasts."""

    @property
    @abstractmethod
    def embedding_dim(self) -> int:
        """Length of an embedding, E."""

    @abstractmethod
    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
        """Map a batch of features."""


@final
class ProjectionHead(Head):
    """One hidden layer, z = W₂ · relu(W₁ h), as contrastive learning has used since SimCLR.

    Args:
        feature_dim: Length of a feature vector; the command fills it in from the encoder.
        hidden_dim: Units of the hidden layer; None: as many as features.
        out_dim: Length of an embedding.

    Source:
        T. Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020, section 2.1.

    Example:
        >>> import torch
        >>> ProjectionHead(16, out_dim=4)(torch.zeros(2, 16)).shape
        torch.Size([2, 4])
    """

    def __init__(self, feature_dim: int, hidden_dim: int | None = None, out_dim: int = 64) -> None:
        super().__init__()
        hidden = feature_dim if hidden_dim is None else hidden_dim
        if min(hidden, out_dim) < 1:
            raise ValueError(f"expected hidden_dim and out_dim of at least 1, got {hidden} and {out_dim}: enlarge them")
        self.layers = nn.Sequential(nn.Linear(feature_dim, hidden), nn.ReLU(), nn.Linear(hidden, out_dim))
        self._embedding_dim = out_dim

    @property
    def embedding_dim(self) -> int:
        """Length of an embedding, E."""
        return self._embedding_dim

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
        """Project a batch of features."""
        return self.layers(features)
