"""Configuration: options from a command line, from files and from Python as one record, checked once.

A mistake in an option or in the name of a class is reported before torch is imported, one in an argument of a class
after it.
"""

from likewise.configuration.command_line import read
from likewise.configuration.resolution import resolve, written

__all__ = ["read", "resolve", "written"]
