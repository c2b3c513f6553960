"""Configuration: what somebody gives, on a command line, in files or in Python, as one record, checked once.

A slip in an option or in the name of a class is told before torch is imported, one in an argument of a class after it.
"""

from likewise.configuration.resolution import resolve, written
from likewise.configuration.words import read

__all__ = ["read", "resolve", "written"]
