"""What every evaluation demands of the features and labels it receives."""

import torch
from torch import Tensor


def check_features(train_features: Tensor, train_labels: Tensor, test_features: Tensor, test_labels: Tensor) -> None:
    """Check the four arguments of an evaluation.

    Args:
        train_features: (N, D), finite.
        train_labels: (N,), integers of at least two classes.
        test_features: (M, D), finite.
        test_labels: (M,), integers.

    Raises:
        ValueError: A shape, a length or a kind is wrong, an entry is not finite, or there is one class only.

    Example:
        >>> check_features(torch.zeros(2, 3), torch.tensor([0, 1]), torch.zeros(1, 3), torch.tensor([1]))
    """
    for part, features, labels in (("train", train_features, train_labels), ("test", test_features, test_labels)):
        if features.ndim != 2 or labels.shape != features.shape[:1] or len(labels) == 0:
            raise ValueError(
                f"expected {part}_features (N, D) and {part}_labels (N,), got {tuple(features.shape)} "
                f"and {tuple(labels.shape)}: give one label a row"
            )
        if labels.is_floating_point():
            raise ValueError(f"expected {part}_labels of integers, got {labels.dtype}: convert them with .long()")
        if not torch.isfinite(features).all():
            raise ValueError(f"expected finite {part}_features, got NaN or infinity: look at the encoder")
    if train_features.shape[1] != test_features.shape[1]:
        raise ValueError(
            f"expected training and test features of one length, got {train_features.shape[1]} "
            f"and {test_features.shape[1]}: encode both with one encoder"
        )
    if len(train_labels.unique()) < 2:
        raise ValueError("expected at least 2 classes in train_labels, got 1: nothing can be told apart")
