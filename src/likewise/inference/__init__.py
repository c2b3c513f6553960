"""Trained encoders in use, with the preprocessing of their inputs."""

from likewise.inference.model import Model, load
from likewise.inference.search import Neighbours, Stored, open_features

__all__ = ["Model", "Neighbours", "Stored", "load", "open_features"]
