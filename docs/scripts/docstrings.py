"""A griffe extension for this project's docstrings, which have more sections than Google's."""

import inspect
import re
from typing import Any

import griffe

ARGS = re.compile(r"^Args:\n(?:    .+\n?)+", re.MULTILINE)
ARG = re.compile(r"^    \**(\w+): .+\n?(?:     +.+\n?)*", re.MULTILINE)
LATER = re.compile(r"^(Attributes|Returns|Raises|Memory|Source|Examples):$|\Z", re.MULTILINE)
SECTION = re.compile(r"^(Memory|Source|Returns):\n((?:    .*\n?|\n)+)", re.MULTILINE)


class Sections(griffe.Extension):
    """Render Memory and Source as text, and the example as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite an object's docstring; for a class, Returns describes a call and is rendered as text too."""
        if obj.docstring:
            names = ("Memory", "Source", "Returns") if obj.is_class else ("Memory", "Source")
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            text = _with_shared(obj, text) if isinstance(obj, griffe.Class) else text
            obj.docstring.value = SECTION.sub(lambda match: _text(match) if match[1] in names else match[0], text)


def _with_shared(kind: griffe.Class, text: str) -> str:
    """Add what the classes that it inherits from say of arguments that it has and leaves out."""
    own = ARGS.search(text)
    wanted = {parameter.name.strip("*") for parameter in kind.parameters}
    wanted -= {said[1] for said in ARG.finditer(own[0] if own else "")}
    docs = "\n".join(base.docstring.value for base in reversed(kind.mro()) if base.docstring)
    shared = {said[1]: said[0] for said in ARG.finditer("".join(ARGS.findall(docs))) if said[1] in wanted}
    if own is None:
        later = LATER.search(text)
        place = later.start() if later else len(text)
        added = f"Args:\n{''.join(shared.values())}\n" if shared else ""
        return f"{text[:place].rstrip()}\n\n{added}{text[place:]}" if added else text
    return f"{text[: own.end()].rstrip()}\n{''.join(shared.values())}{text[own.end() :]}"


def _text(match: re.Match[str]) -> str:
    return f"**{match[1]}:** {inspect.cleandoc(match[2])}\n\n"
