"""What every test runs under: shapes checked at run time, uninitialised memory poisoned, randomness seeded."""

import os
from pathlib import Path

# Before torch is imported: processes of one thread each, of which pytest starts one a core, are faster than threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from jaxtyping import install_import_hook

# Public doors raise their own errors on bad shapes, which is tested; within the house, shapes are checked as annotated.
install_import_hook(
    [
        "likewise.pairs.weight",
        "likewise.pairs.expressions",
        "likewise.pairs.keys",
        "likewise.operator.dense",
        "likewise.operator.tiled",
        "likewise.operator.tiles",
        "likewise.operator.rows",
        "likewise.distributed",
    ],
    "beartype.beartype",
)

import torch  # noqa: E402 - after the hook, so that whatever imports the library finds it in place

if (
    not torch.cuda.is_available()
):  # kernels then run in Triton's interpreter, which has to be known before they are made
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _seeded_and_poisoned():
    """Seed every test, and fill what is allocated and not written with NaN."""
    torch.manual_seed(0)
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms, without importing all of Inductor
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.fixture(scope="session", autouse=True)
def _nothing_kept_for_the_user(tmp_path_factory):
    """Keep what a start leaves for the next, such as headers of images, out of the user's folder."""
    os.environ["LIKEWISE_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def real_data():
    """Return the folder of real data sets that LIKEWISE_DATA names, or skip."""
    folder = os.environ.get("LIKEWISE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("no real data sets: set LIKEWISE_DATA to their folder")
    return Path(folder)
