"""Prototypes: one learned vector for each label, used by a loss as references."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.memory.checks import check_size


@final
class Prototypes(nn.Module):
    """One learned vector w_k for each of K labels or classes, row k for label k.

    Call the module to get the rows, and pass them to a loss: ``loss(queries, labels, prototypes())``. They are learned
    with the encoder, so add their parameters to the optimiser. They are not normalised here; losses normalise them.

    Args:
        num_prototypes: K, the number of rows, one for each label or class.
        feature_dim: D, the number of features of a row, the same as for queries.

    Returns:
        From a call: the rows, (K, D), which are the parameter ``weight`` itself.

    Memory:
        O(K·D).

    Source:
        Initialised as in Glorot, Bengio, "Understanding the difficulty of training deep feedforward neural networks",
        2010, equation 16 (Xavier uniform): a row's length is about √(2D / (K + D)); a longer one turns less in a step.

    Example:
        >>> prototypes = Prototypes(num_prototypes=10, feature_dim=32)
        >>> prototypes().shape
        torch.Size([10, 32])
    """

    def __init__(self, num_prototypes: int, feature_dim: int) -> None:
        super().__init__()
        num_prototypes = check_size("num_prototypes", num_prototypes, remedy="use one for each label or class")
        feature_dim = check_size("feature_dim", feature_dim, remedy="pass the features of an embedding")
        self.weight = nn.Parameter(torch.empty(num_prototypes, feature_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the rows at random."""
        nn.init.xavier_uniform_(self.weight)

    def forward(self) -> Float[Tensor, "k d"]:
        """Return the rows."""
        return self.weight

    def extra_repr(self) -> str:
        """Return what ``repr`` shows."""
        return "num_prototypes={}, feature_dim={}".format(*self.weight.shape)
