"""Names within functions: the thing's noun, not a word that could be anything; a helper's name says what it does."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import likewise

HOUSE = Path(likewise.__file__).parent
BANNED = {"found", "given", "kind", "of", "one", "others", "own", "place", "words"}
MOST = 3  # modules that may have a private function of the same name


def bound(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names that a module binds in its functions, and its functions' own, with their lines; no fields."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        scope = waiting.pop()
        in_class = isinstance(scope, ast.ClassDef)
        for node in ast.iter_child_nodes(scope):
            if in_class and isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            waiting.append(node)
            if isinstance(node, ast.Name):
                yield from [(node.id, node.lineno)] if isinstance(node.ctx, ast.Store) else []
            elif isinstance(node, ast.arg):
                yield node.arg, node.lineno
            elif not in_class and getattr(node, "name", None):  # functions, `as` and `case`; not methods
                yield node.name, node.lineno


def test_names_say_what_they_name():
    """In one test, since reading all modules is what takes its time."""
    vague, homes = [], defaultdict(set)
    for file in sorted(HOUSE.rglob("*.py")):
        module, tree = file.relative_to(HOUSE).as_posix(), ast.parse(file.read_text(encoding="utf-8"))
        vague += [f"{module}:{line} {name}" for name, line in bound(tree) if name in BANNED]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("_") and not node.name.startswith("__"):
                homes[node.name].add(module)
    assert vague == []
    assert {name: sorted(files) for name, files in homes.items() if len(files) > MOST} == {}
