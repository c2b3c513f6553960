"""The trainer's options as help shows them, read from Lightning's source: importing it takes too long for help."""

import ast
import textwrap
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

WIDTH = 100


def trainer_help(without: Collection[str | int]) -> str:
    """Return the section of `likewise train --help` on the trainer.

    Args:
        without: Names to leave out.

    Raises:
        ModuleNotFoundError: Lightning is not installed.

    Example:
        >>> "--trainer.max_epochs" in trainer_help(set())
        True
    """
    arguments, told = _constructor()
    lines = ["trainer:", "  Lightning's trainer."]
    for name, default in arguments:
        if name in without:
            continue
        words = " ".join(told.get(name, "").split())
        lines.append(f"  --trainer.{name}")
        lines += textwrap.wrap(
            f"{words} (default: {default})", WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8
        )
    return "\n".join(lines) + "\n"


def _constructor() -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Return the names and defaults of the trainer's arguments, and what its docstring says of each."""
    package = find_spec("lightning")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'lightning'", name="lightning")
    source = Path(package.origin).parent / "pytorch" / "trainer" / "trainer.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    trainer = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Trainer")
    made = next(node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    defaults = [None if of is None else ast.unparse(of) for of in made.args.kw_defaults]
    names = [of.arg for of in made.args.kwonlyargs]
    return list(zip(names, map(str, defaults), strict=True)), _paragraphs(ast.get_docstring(made) or "", names)


def _paragraphs(text: str, names: list[str]) -> dict[str, str]:
    """Return the first paragraph of a docstring on each of its arguments."""
    told: dict[str, str] = {}
    current: str | None = None
    for line in text.splitlines():
        name, colon, rest = line.strip().partition(":")
        if colon and name in names:
            current = name
            told[name] = rest.strip()
        elif not line.strip():
            current = current if current and not told[current] else None
        elif current:
            told[current] += f" {line.strip()}"
    return told
