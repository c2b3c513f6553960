"""k nearest neighbours: is a sample among its own class?"""

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from torch.nn import functional

from likewise.evaluation.accuracy import Accuracy
from likewise.evaluation.features import check_features

PREDICTED = 1024  # samples at a time


def knn(
    train_features: Float[Tensor, "n d"],
    train_labels: Int[Tensor, "n"],
    test_features: Float[Tensor, "m d"],
    test_labels: Int[Tensor, "m"],
    *,
    neighbors: int = 3,
) -> Accuracy:
    """Predict the class that most of the nearest training features have, weighted by inverse distance.

    Nearest is by cosine similarity: features are L2-normalised first.

    Args:
        train_features: (N, D).
        train_labels: (N,).
        test_features: (M, D).
        test_labels: (M,).
        neighbors: How many vote, k; all where there are fewer. The default is a compromise: cross-validated on the
            digits' training part, raw pixels prefer 1 and learned features hardly care.

    Returns:
        The predictions beside the truth.

    Raises:
        ValueError: Features and labels do not fit together, or k is below 1.

    Memory:
        O((N + M)·D) and chunks of distances, never M·N.

    Example:
        >>> train, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
        >>> knn(train, labels, torch.tensor([[2.0, 0.1]]), torch.tensor([0]), neighbors=1).overall.value
        1.0
    """
    check_features(train_features, train_labels, test_features, test_labels)
    if neighbors < 1:
        raise ValueError(f"expected neighbors of at least 1, got {neighbors}: 3 is usual")
    classifier = KNeighborsClassifier(min(neighbors, len(train_labels)), weights="distance", algorithm="brute")
    classifier.fit(functional.normalize(train_features).numpy(), train_labels.numpy())
    parts = [classifier.predict(functional.normalize(part).numpy()) for part in test_features.split(PREDICTED)]
    return Accuracy(torch.from_numpy(np.concatenate(parts)), test_labels)
