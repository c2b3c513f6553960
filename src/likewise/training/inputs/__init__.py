"""Inputs of losses: they supply the arguments of a loss's forward. A new method is a new input, in one file."""

from likewise.training.inputs.batch import BatchInputs, ViewPairs
from likewise.training.inputs.episodes import EpisodeMaps, EpisodeMeans
from likewise.training.inputs.guide import Guide
from likewise.training.inputs.learned import Classifier, LabelPrototypes
from likewise.training.inputs.loss_input import InputContext, LossInput, LossSignature
from likewise.training.inputs.momentum import KeyQueue, Momentum, Predictor
from likewise.training.inputs.resolution import LossInputs
from likewise.training.inputs.second_tower import SecondTower

__all__ = [
    "BatchInputs",
    "Classifier",
    "EpisodeMaps",
    "EpisodeMeans",
    "Guide",
    "InputContext",
    "KeyQueue",
    "LabelPrototypes",
    "LossInput",
    "LossInputs",
    "LossSignature",
    "Momentum",
    "Predictor",
    "SecondTower",
    "ViewPairs",
]
