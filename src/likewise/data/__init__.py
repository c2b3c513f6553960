"""Samples and the views that contrast needs."""

from likewise.data.samples import Samples
from likewise.data.source import Source

__all__ = ["Samples", "Source"]
