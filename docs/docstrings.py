"""A griffe extension for this project's docstrings, which have more sections than Google's."""

import inspect
import re
from typing import Any

import griffe

SECTION = re.compile(r"^(Memory|Source|Returns):\n((?:    .*\n?|\n)+)", re.MULTILINE)


class Sections(griffe.Extension):
    """Render Memory and Source as text, and the example as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite an object's docstring; for a class, Returns describes a call and is rendered as text too."""
        if obj.docstring:
            names = ("Memory", "Source", "Returns") if obj.is_class else ("Memory", "Source")
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = SECTION.sub(lambda match: _text(match) if match[1] in names else match[0], text)


def _text(match: re.Match[str]) -> str:
    return f"**{match[1]}:** {inspect.cleandoc(match[2])}\n\n"
