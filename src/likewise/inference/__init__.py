"""What was learned, in use: a trained encoder with the preprocessing of its inputs."""

from likewise.inference.model import Model, load

__all__ = ["Model", "load"]
