"""What frozen features are worth: each evaluation takes features and labels, and knows no trainer."""

from likewise.evaluation.array_file import features_of_file
from likewise.evaluation.choice import applicable
from likewise.evaluation.evaluation import Evaluation
from likewise.evaluation.features import FeatureParts, Features, load_features, save_features
from likewise.evaluation.intervals import Difference, paired_difference
from likewise.evaluation.knn import KNN
from likewise.evaluation.linear import LinearProbe
from likewise.evaluation.raw import raw_features
from likewise.evaluation.retrieval import Retrieval
from likewise.scores import Found, Outcomes, Score

__all__ = [
    "KNN",
    "Difference",
    "Evaluation",
    "FeatureParts",
    "Features",
    "Found",
    "LinearProbe",
    "Outcomes",
    "Retrieval",
    "Score",
    "applicable",
    "features_of_file",
    "load_features",
    "paired_difference",
    "raw_features",
    "save_features",
]
