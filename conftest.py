"""Which tests run, and which examples are slow as a whole.

Without files and without `-m`, the quick tier runs; `-m rest` runs what it leaves out, `-m all` everything. Files that
are named run whole.
"""

import ast
from collections import defaultdict
from itertools import combinations

import pytest

TIERS = {
    "quick": "not process and not triton and not slow and not product",
    "rest": "process or triton or slow or product",
    "all": "",
}
"""What -m takes besides expressions of markers."""
ROOMS = ("__init__.py", "cli", "data", "diagnostics", "evaluation", "models", "report", "training", "workflows")
"""Where modules import Lightning, scikit-learn or torchvision, which takes many seconds, and so do their examples."""
SLOW = {"slow", "process", "triton"}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Let -m name a tier, and take the quick one where nothing is asked for."""
    asked = config.option.markexpr
    if not asked and config.args_source is not config.ArgsSource.ARGS:
        asked = "quick"
    config.option.markexpr = TIERS.get(asked, asked)


@pytest.fixture(autouse=True)
def _examples_may_write(request):
    """Run each example of a docstring in an empty folder of its own."""
    if isinstance(request.node, pytest.DoctestItem) and request.path.suffix == ".py":
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))


def _in_slow_room(path, config):
    return any(path.is_relative_to(config.rootpath / "src" / "likewise" / room) for room in ROOMS)


def _is_marked_slow(path):
    """Tell whether a file says of all its tests that they are no quick ones, without importing it."""
    if path.suffix != ".py" or "\npytestmark" not in (text := path.read_text(encoding="utf-8")):
        return False
    marks = (node for node in ast.parse(text).body if isinstance(node, ast.Assign) and "pytestmark" in ast.dump(node))
    return any(getattr(node, "attr", None) in SLOW for mark in marks for node in ast.walk(mark))


def pytest_ignore_collect(collection_path, config):
    """Do not even import them where slow tests are left out."""
    if "not slow" not in config.option.markexpr:
        return None
    return True if _in_slow_room(collection_path, config) or _is_marked_slow(collection_path) else None


def pytest_collection_modifyitems(items, config):
    """Mark examples of slow rooms, and cases beyond every pair of parameters."""
    tests = defaultdict(list)
    for item in items:
        if _in_slow_room(item.path, config):
            item.add_marker(pytest.mark.slow)
        if hasattr(item, "callspec"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        kept = pairwise([{name: id(value) for name, value in item.callspec.params.items()} for item in cases])
        for number, item in enumerate(cases):
            if number not in kept:
                item.add_marker(pytest.mark.product)


def pairwise(cases):
    """Return the numbers of cases in which every two values of different parameters that meet in one meet again.

    Args:
        cases: For each case, what tells a parameter's value from its others. With two parameters, all cases are kept.
    """
    parameters = set()  # those given together count as one
    for name in cases[0]:
        order = {}
        parameters.add(tuple(order.setdefault(case[name], len(order)) for case in cases))
    if sum(len(set(values)) > 1 for values in parameters) < 3:
        return set(range(len(cases)))
    pairs = [set(combinations(enumerate(values), 2)) for values in zip(*sorted(parameters), strict=True)]
    missing, kept = set().union(*pairs), set()
    while missing:
        best = max(range(len(cases)), key=lambda number: len(pairs[number] & missing))
        kept.add(best)
        missing -= pairs[best]
    return kept
