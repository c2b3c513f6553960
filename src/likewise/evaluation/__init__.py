"""What frozen features are worth: each evaluation takes features and labels, and knows no trainer."""

from likewise.evaluation.accuracy import Accuracy, Difference, Proportion, paired_difference
from likewise.evaluation.knn import knn
from likewise.evaluation.linear import linear

__all__ = ["Accuracy", "Difference", "Proportion", "knn", "linear", "paired_difference"]
