"""What measures on a machine with torch, Triton and NumPy alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALONE = """
import sys
from importlib import metadata
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in LACKING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

LACKING = (
    "tqdm plotly jsonargparse beartype docstring_parser lightning torchvision sklearn scipy pandas pyarrow yaml "
    "jinja2 PIL timm safetensors"
).split()
sys.meta_path.insert(0, Missing())

def version(name):
    raise metadata.PackageNotFoundError(name)

metadata.version = version
import benchmarks.compiled, benchmarks.targets, likewise.cli.bench, likewise.operator.backends
assert likewise.operator.backends.triton_is_missing() is None
print(sys.modules["jaxtyping"].__file__)
"""


@pytest.mark.process
@pytest.mark.triton
def test_measurements_import_torch_triton_and_numpy_alone():
    """Nor is anything asked that only an installed package knows; annotations of shapes go by a stand-in."""
    path = os.pathsep.join(map(str, (ROOT / "benchmarks" / "stand_ins", ROOT / "src", ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ROOT / 'benchmarks' / 'stand_ins' / 'jaxtyping.py'}\n"
