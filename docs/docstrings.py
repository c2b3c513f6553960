"""An extension of griffe: it reads this house's docstrings, whose sections are more than Google's."""

import inspect
import re
from typing import Any

import griffe

SECTION = re.compile(r"^(Memory|Source|Returns):\n((?:    .*\n?|\n)+)", re.MULTILINE)


class Sections(griffe.Extension):
    """Show memory and source as text, and the example as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite an object's docstring. What a call on a class returns is text too: no type is to be read from it."""
        if obj.docstring:
            names = ("Memory", "Source", "Returns") if obj.is_class else ("Memory", "Source")
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = SECTION.sub(lambda match: _text(match) if match[1] in names else match[0], text)


def _text(match: re.Match[str]) -> str:
    return f"**{match[1]}:** {inspect.cleandoc(match[2])}\n\n"
