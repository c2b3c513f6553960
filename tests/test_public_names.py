"""The package's names: each resolves when it is asked for, type checkers are told the same, and no help loads torch."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import likewise
from likewise import losses

PACKAGE = Path(likewise.__file__).parent
CORE, EXTRAS = {"torch", "jaxtyping"}, {"lightning", "yaml", "sklearn", "plotly"}
FEW = {"PIL", "datasets", "onnxruntime", "timm", "torchvision"}  # what some sources and encoders alone need
HEAVY = {"numpy", *CORE, *EXTRAS, *FEW}


def test_type_checkers_are_told_the_same_names():
    """What stands under TYPE_CHECKING is what __all__ lists, and each is found at run time where it says."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    told = {name.name: line.module for line in block.body for name in line.names}
    assert sorted(told) == sorted(likewise.__all__)
    assert len(set(likewise.__all__)) == len(likewise.__all__)
    for name, module in told.items():
        value = getattr(likewise, name)
        assert value is getattr(sys.modules[module], name)
        assert vars(likewise)[name] is value  # found once, and kept
        assert name in dir(likewise)


STAGES = [
    "import likewise; dir(likewise); likewise.__version__",
    "from likewise.cli import main; main(['dance'])",
    "with contextlib.suppress(SystemExit): main(['--help'])",
    "for room in ('memory', 'pairs', 'losses'): assert getattr(likewise, room) is sys.modules[f'likewise.{room}']",
    "from likewise import SupConLoss, contrast, data, models",
    "from likewise.workflows import embedding, evaluation, prediction, searches",
]


@pytest.mark.process
def test_nothing_heavy_is_loaded_before_it_is_needed():
    """Nothing by the package and the command's help; by losses, data and models what the core needs.

    Nor do verbs that train nothing load libraries of training, or of some sources and encoders alone.
    """
    loaded = f"sorted({{name.partition('.')[0] for name in sys.modules}} & {HEAVY!r})"
    script = "\n".join(["import contextlib, sys", *(f"{stage}\nprint('loaded', *{loaded})" for stage in STAGES)])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    *before, _, core, verbs = [set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("loaded")]
    assert before == [set()] * 3
    assert core >= CORE
    assert not core & (EXTRAS | FEW)
    assert not verbs & {"lightning", "sklearn", "timm", "torchvision", "datasets"}


def test_every_loss_and_similarity_is_public():
    """What the losses' room has is in the package, but the abstract classes and their options."""
    assert set(losses.__all__) - {"ContrastiveLoss", "Loss", "LossOptions"} <= set(likewise.__all__)


def test_what_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'likewise' has no attribute 'SupConLos'"):
        likewise.SupConLos  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from likewise import nothing  # noqa: F401, PLC0415
    assert not hasattr(likewise, "torch")


def test_the_version_is_the_distributions():
    """It stands in the package, so that the command need not look it up, and once more where it is built."""
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert likewise.__version__ == project["version"]
