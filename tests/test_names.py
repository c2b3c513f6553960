"""Names within functions: the thing's noun, not a word that could be anything; a helper's name says what it does."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import likewise

HOUSE = Path(likewise.__file__).parent
BANNED = {"found", "given", "kind", "of", "one", "others", "own", "place", "words"}
MOST = 3  # modules that may have a private function of the same name


def modules() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(HOUSE.rglob("*.py")):
        yield file.relative_to(HOUSE).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def bound(scope: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a module binds in its functions, and its functions' own, with their lines; no fields."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(scope, ast.ClassDef) and isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif not isinstance(scope, ast.ClassDef):  # functions, `as` and `case`; not methods
            yield getattr(node, "name", None) or "", getattr(node, "lineno", 0)
        yield from bound(node)


def test_no_variable_is_called_by_a_word_that_could_be_anything():
    vague = [f"{module}:{line} {name}" for module, tree in modules() for name, line in bound(tree) if name in BANNED]
    assert not vague


def test_a_private_helper_is_called_by_what_it_does():
    homes = defaultdict(set)
    for module, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("_") and not node.name.startswith("__"):
                homes[node.name].add(module)
    assert not {name: sorted(files) for name, files in homes.items() if len(files) > MOST}
