"""Offers: they supply the arguments of a loss's forward. One offer per file; a new method is a new file."""

from likewise.training.offers.asked import Asked
from likewise.training.offers.batch import Batch
from likewise.training.offers.choice import Offers
from likewise.training.offers.classifier import Classifier
from likewise.training.offers.episode_maps import EpisodeMaps
from likewise.training.offers.episode_means import EpisodeMeans
from likewise.training.offers.key_queue import KeyQueue
from likewise.training.offers.label_prototypes import LabelPrototypes
from likewise.training.offers.momentum import Momentum
from likewise.training.offers.offer import Offer, Plan
from likewise.training.offers.pairs import Pairs
from likewise.training.offers.predictor import Predictor

__all__ = [
    "Asked",
    "Batch",
    "Classifier",
    "EpisodeMaps",
    "EpisodeMeans",
    "KeyQueue",
    "LabelPrototypes",
    "Momentum",
    "Offer",
    "Offers",
    "Pairs",
    "Plan",
    "Predictor",
]
