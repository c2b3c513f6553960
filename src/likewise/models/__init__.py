"""Encoders, and the heads that training puts on them."""

from likewise.models.encoders import MLP, ConvNet, Encoder
from likewise.models.heads import Head, ProjectionHead

__all__ = ["MLP", "ConvNet", "Encoder", "Head", "ProjectionHead"]
