"""The linear probe: are the classes apart by hyperplanes?"""

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from likewise.evaluation.accuracy import Accuracy
from likewise.evaluation.features import check_features

PREDICTED = 1024  # samples at a time, in float64


def linear(
    train_features: Float[Tensor, "n d"],
    train_labels: Int[Tensor, "n"],
    test_features: Float[Tensor, "m d"],
    test_labels: Int[Tensor, "m"],
    *,
    inverse_penalty: float = 1.0,
) -> Accuracy:
    """Fit multinomial logistic regression on standardised training features and predict the test's classes.

    Args:
        train_features: (N, D).
        train_labels: (N,).
        test_features: (M, D).
        test_labels: (M,).
        inverse_penalty: scikit-learn's C. 1 is what cross-validation on the training part of the digits' raw pixels
            chooses from 0.001 to 10.

    Returns:
        The predictions beside the truth.

    Raises:
        ValueError: Features and labels do not fit together, or the penalty is not positive.

    Example:
        >>> train, labels = torch.tensor([[1.0], [2.0], [5.0], [6.0]]), torch.tensor([0, 0, 1, 1])
        >>> linear(train, labels, torch.tensor([[0.0], [7.0]]), torch.tensor([0, 1])).overall.value
        1.0
    """
    check_features(train_features, train_labels, test_features, test_labels)
    if inverse_penalty <= 0:
        raise ValueError(f"expected inverse_penalty above 0, got {inverse_penalty}: 1 is usual")
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=inverse_penalty, max_iter=2000))
    probe.fit(train_features.double().numpy(), train_labels.numpy())
    parts = [probe.predict(part.double().numpy()) for part in test_features.split(PREDICTED)]
    return Accuracy(torch.from_numpy(np.concatenate(parts)), test_labels)
