"""Which tests run: the root's conftest, on tests of its own."""

import re
import shutil
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = "[pytest]\ntestpaths = .\nmarkers =\n  process: p\n  triton: t\n  slow: s\n  product: x\n"
TESTS = """
import pytest
@pytest.mark.slow
def test_slow(): pass
@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize("b", [1, 2, 3])
@pytest.mark.parametrize(("c", "d"), [(1, 2), (3, 4)])
def test_three(a, b, c, d): pass
@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize("b", [1, 2, 3])
def test_two(a, b): pass
"""


def collected(folder, *words):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "error" not in done.stdout, done.stdout
    return set(re.findall(r"^test_a\.py::(.*)$", done.stdout, re.MULTILINE))


@pytest.mark.process
def test_the_quick_tier_the_rest_and_all(tmp_path):
    """A file that is named runs whole; one that says that it is slow isn't even imported in the quick tier."""
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "test_a.py").write_text(TESTS)
    shutil.copy(ROOT / "conftest.py", tmp_path)
    rest, every = collected(tmp_path, "-m", "rest"), collected(tmp_path, "test_a.py")
    (tmp_path / "test_b.py").write_text("import nothing_of_that_name\nimport pytest\npytestmark = [pytest.mark.slow]\n")
    quick = collected(tmp_path)
    assert len(every) == 1 + 12 + 6
    assert quick | rest == every
    assert not quick & rest
    assert [sum(name.startswith(f"test_{kind}") for name in quick) for kind in ("two", "three")] == [6, 6]
    assert "test_slow" in rest


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 2, 4), (2, 3, 2, 5), (1, 4, 1, 3)], ids=str)
def test_every_two_values_that_meet_in_a_product_meet_in_what_is_kept(sizes, request):
    (pairwise,) = {
        plugin.pairwise for plugin in request.config.pluginmanager.get_plugins() if hasattr(plugin, "pairwise")
    }
    cases = [dict(enumerate(case)) for case in product(*map(range, sizes)) if case != (1,) * len(sizes)]
    kept = pairwise(cases)

    def pairs(numbers):
        return {pair for number in numbers for pair in combinations(cases[number].items(), 2)}

    assert pairs(kept) == pairs(range(len(cases)))
    if sum(size > 1 for size in sizes) >= 3:
        assert len(kept) < len(cases)
