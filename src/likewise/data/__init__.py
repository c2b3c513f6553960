"""Labelled sources, their split into training and test samples, and the views that contrast needs."""

from likewise.data.arrays import Arrays
from likewise.data.augmentation import Augmentation, FeatureDropout, RandomAffine
from likewise.data.digits import Digits
from likewise.data.samples import Batch, Samples
from likewise.data.source import LabelledData

__all__ = [
    "Arrays",
    "Augmentation",
    "Batch",
    "Digits",
    "FeatureDropout",
    "LabelledData",
    "RandomAffine",
    "Samples",
]
