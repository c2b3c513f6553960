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


def loaded_by(*words):
    """Return the heavy packages that a fresh interpreter has after running some words."""
    loaded = "{name.partition('.')[0] for name in sys.modules}"
    script = "\n".join(["import sys", *words, f"print(*{loaded} & {HEAVY!r})"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


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


@pytest.mark.process
def test_rooms_and_losses_are_found_after_the_package_alone():
    """In an interpreter that has imported nothing but the package; losses load the core's libraries, and no more.

    Nor do the rooms of data and of models, before a source or an encoder is made that needs more.
    """
    rooms = [f"assert likewise.{room} is sys.modules['likewise.{room}']" for room in ("memory", "pairs", "losses")]
    loaded = loaded_by("import likewise", *rooms, "from likewise import SupConLoss, contrast, data, models")
    assert loaded >= CORE
    assert not loaded & (EXTRAS | FEW)


@pytest.mark.process
def test_verbs_that_train_nothing_load_no_library_of_training():
    """Embed, search, predict and evaluate begin with what reads data and draws pages."""
    verbs = ", ".join(f"likewise.workflows.{verb}" for verb in ("embedding", "searches", "prediction", "evaluation"))
    assert not loaded_by(f"import {verbs}") & {"lightning", "sklearn", "timm", "torchvision", "datasets"}


def test_every_loss_and_similarity_is_public():
    """What the losses' room has is in the package, but the abstract classes and their options."""
    assert set(losses.__all__) - {"ContrastiveLoss", "Loss", "LossOptions"} <= set(likewise.__all__)


def test_what_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'likewise' has no attribute 'SupConLos'"):
        likewise.SupConLos  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from likewise import nothing  # noqa: F401, PLC0415
    assert not hasattr(likewise, "torch")


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [
        "import likewise; dir(likewise); likewise.__version__",
        "from likewise.cli import main; sys.argv = ['likewise', '--help']\ntry: main()\nexcept SystemExit: pass",
        "from likewise.cli import main; main(['dance'])",
    ],
)
def test_the_package_and_the_commands_help_load_nothing_heavy(words):
    assert loaded_by(words) == set()


def test_the_version_is_the_distributions():
    """It stands in the package, so that the command need not look it up, and once more where it is built."""
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert likewise.__version__ == project["version"]
