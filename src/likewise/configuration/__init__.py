"""Configuration: what somebody gives, on a command line, in files or in Python, as one record, checked once.

Nothing is imported to read it: classes tell their parameters by their source, so that a mistake is told at once.
"""

from likewise.configuration.resolution import resolve, written
from likewise.configuration.words import read

__all__ = ["read", "resolve", "written"]
