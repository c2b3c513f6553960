"""Inputs of losses: they supply the arguments of a loss's forward. A new method is a new input."""

from likewise.training.inputs.batch import BatchInputs, EpisodeMaps, EpisodeMeans, ViewPairs
from likewise.training.inputs.learned import Classifier, KeyQueue, LabelPrototypes, Momentum, Predictor
from likewise.training.inputs.loss_input import InputContext, LossInput, LossSignature
from likewise.training.inputs.pairs import Guide, SecondTower
from likewise.training.inputs.resolution import LossInputs

__all__ = [
    "BatchInputs", "Classifier", "EpisodeMaps", "EpisodeMeans", "Guide", "InputContext", "KeyQueue",
    "LabelPrototypes", "LossInput", "LossInputs", "LossSignature", "Momentum", "Predictor", "SecondTower", "ViewPairs",
]  # fmt: skip
