"""Evaluations of frozen features; each takes features and labels, and none depends on a trainer."""

from likewise.evaluation.choice import Results, applicable, evaluate
from likewise.evaluation.class_structure import Clustering, WithinClass
from likewise.evaluation.cross_modal import CrossModalRetrieval, Widths
from likewise.evaluation.encoding import raw_features
from likewise.evaluation.evaluation import Evaluation, ScoreCollector
from likewise.evaluation.feature_files import features_of_file, load_features, save_features
from likewise.evaluation.features import FeatureParts, Features, Origin
from likewise.evaluation.few_shot import FewShot
from likewise.evaluation.intervals import Difference, paired_difference
from likewise.evaluation.knn import KNN
from likewise.evaluation.linear import LinearProbe
from likewise.evaluation.out_of_distribution import NoveltyScore, OutOfDistribution
from likewise.evaluation.predictions import OwnClassifier, Predictor
from likewise.evaluation.probe_quality import Calibration, Robustness
from likewise.evaluation.retrieval import Retrieval
from likewise.evaluation.run_predictors import Predictions, RunPredictors
from likewise.evaluation.zero_shot import ZeroShot
from likewise.runs.scores import Group, Metric, Outcomes, Result, Score

__all__ = [
    "KNN", "Calibration", "Clustering", "CrossModalRetrieval", "Difference", "Evaluation", "FeatureParts", "Features",
    "FewShot", "Group", "LinearProbe", "Metric", "NoveltyScore", "Origin", "OutOfDistribution", "Outcomes",
    "OwnClassifier", "Predictions", "Predictor", "Result", "Results", "Retrieval", "Robustness", "RunPredictors",
    "Score", "ScoreCollector", "Widths", "WithinClass", "ZeroShot", "applicable", "evaluate", "features_of_file",
    "load_features", "paired_difference", "raw_features", "save_features",
]  # fmt: skip
