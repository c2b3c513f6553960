"""An MkDocs hook that fills the reference: every public name of a room, with its entry or a link to its page.

A page of the reference says ``<!-- reference: likewise.pairs -->``. Public are the names in the room's ``__all__``, or
what a single module defines. A new public name appears by itself.
"""

import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent
ENTRY = re.compile(r"^::: ([\w.]+)", re.MULTILINE)
ASKED = re.compile(r"<!-- reference: ([\w.]+) -->")


def public(room: str) -> list[str]:
    """Return the public names of a room."""
    module = importlib.import_module(room)
    if hasattr(module, "__all__"):
        return sorted(module.__all__, key=str.casefold)
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == room]
    return sorted((name for name in own if not name.startswith("_")), key=str.casefold)


@cache
def elsewhere() -> frozenset[str]:
    """Return the names that have an entry on some page."""
    return frozenset(name for page in DOCS.rglob("*.md") for name in ENTRY.findall(page.read_text(encoding="utf-8")))


def reference(room: str) -> str:
    """Write a table of a room's names, and the entries that no other page has."""
    rows, entries = ["| name | |", "|---|---|"], list[str]()
    for name in public(room):
        thing = getattr(importlib.import_module(room), name)
        if inspect.ismodule(thing):
            continue
        known = [path for path in (f"{room}.{name}", f"likewise.{name}") if path in elsewhere()]
        if not known:
            entries.append(f"::: {room}.{name}\n    options:\n      members: true\n")
        rows.append(f"| [`{name}`][{known[0] if known else f'{room}.{name}'}] | {_first_line(thing)} |")
    return "\n".join(rows) + "\n\n" + "\n".join(entries)


def _first_line(thing: Any) -> str:
    described = inspect.isclass(thing) or inspect.isroutine(thing)
    lines = (inspect.getdoc(thing) or "").splitlines() if described else []
    return lines[0].replace("|", "\\|") if lines else ""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill a page of the reference."""
    return ASKED.sub(lambda match: reference(match[1]), markdown)
