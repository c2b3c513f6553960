"""An MkDocs hook that fills the reference of options and the glossary from the command's own help.

A page says ``<!-- options: train -->`` for a verb, ``<!-- classes: loss -->`` for the options of each class that an
option may name, or ``<!-- glossary: loss -->`` for the names and first lines of these classes.
"""

import contextlib
import io
import re
from typing import Any

from likewise.cli import OWN_PARSERS, main
from likewise.configuration.command_line import requested_help

ASKED = re.compile(r"<!-- (options|classes|glossary): (\w+) -->")


def options(verb: str) -> str:
    """Write the help of a verb: its introduction, its options, its parts and the trainer's."""
    if verb in OWN_PARSERS:
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([verb, "--help"])
        return f"```text\n{text.getvalue()}```"
    blocks = []
    for block in _help(["--help"], verb).split("\n\n"):
        heading, _, body = block.partition("\n")
        if body.startswith("  --"):
            blocks.append(f"**{heading.partition(';')[0].rstrip(':').capitalize()}**\n\n{_table(body)}")
        else:
            blocks.append(f"```text\n{block}\n```" if block.startswith(("    ", "usage:")) else block)
    return "\n\n".join(blocks)


def classes(part: str) -> str:
    """Write the options of every class that an option of `train` may name."""
    entries = []
    for name, summary in _listed(part):
        table = _table(_help([f"--{part}.help", name], "train").partition("\n\n")[2])
        entries.append(f"#### {name}\n\n{summary}\n\n{table}")
    return "\n\n".join(entries)


def glossary(part: str) -> str:
    """Write the names and the first lines of these classes."""
    return "\n".join(["| class | |", "|---|---|", *(f"| `{name}` | {_cell(text)} |" for name, text in _listed(part))])


def _help(words: list[str], verb: str) -> str:
    text = requested_help(words, verb)
    if text is None:
        raise ValueError(f"expected help of {verb}, got none for {' '.join(words)}")
    return text


def _listed(part: str) -> list[tuple[str, str]]:
    listed = _help([f"--{part}.help"], "train").partition("\n")[2]
    entries = re.findall(r"^  (\S+)\n((?: {8}.*\n?)+)", listed, re.MULTILINE)
    return [(name, " ".join(text.split())) for name, text in entries]


def _table(body: str) -> str:
    rows = re.findall(r"^  (--\S+)(.*)\n((?: {8}.*\n?)*)", f"{body}\n", re.MULTILINE)
    if not rows:
        return "No options."
    lines = [f"| `{name}` | {_cell(kind)} | {_cell(text)} |" for name, kind, text in rows]
    return "\n".join(["| option | takes | what it is |", "|---|---|---|", *lines])


def _cell(text: str) -> str:
    return re.sub(r"([|<*])", r"\\\1", " ".join(text.split()))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill a page."""
    written = {"options": options, "classes": classes, "glossary": glossary}
    return ASKED.sub(lambda match: written[match[1]](match[2]), markdown)
