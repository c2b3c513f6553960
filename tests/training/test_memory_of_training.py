"""What a training part of the size of CIFAR-100 takes: it stays uint8 until a step makes floats of a batch."""

import subprocess
import sys

import numpy as np
import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

MEASURED = """
import resource, sys
from likewise.workflows import training
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
from likewise.training import assembly, fitting
before = peak()
chosen = {
    "data": {"class_path": "likewise.data.Arrays", "init_args": {"path": sys.argv[1]}},
    "split": {"class_path": "likewise.data.Stratified"},
    "batches": {"class_path": "likewise.data.Views"},
    "encoder": {"class_path": "likewise.models.ConvNet", "init_args": {"width": 4}},
    "head": {"class_path": "likewise.models.ProjectionHead"},
    "loss": {"class_path": "likewise.losses.SupConLoss"},
    "optimizer": {"class_path": "torch.optim.AdamW"},
    "schedule": {"class_path": "likewise.training.Cosine"},
}
ready = assembly.assemble(chosen, 0)
options = {"accelerator": "cpu", "max_steps": 3, "enable_progress_bar": False, "enable_model_summary": False}
fitting.fit(ready, fitting.trainer_of(options, [], None), None)
print(len(ready.parts.train), round(peak() - before))
"""


def test_a_set_of_the_size_of_cifar_100_trains_in_thrice_its_own_size(tmp_path):
    """60,000 images of 3,072 bytes are 176 MiB; as floats they would be 703 for each copy."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (60_000, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(60_000) % 100
    np.savez(tmp_path / "set.npz", images=images, labels=labels, test=np.arange(60_000) >= 50_000)
    command = [sys.executable, "-W", "ignore", "-c", MEASURED, str(tmp_path / "set.npz")]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    count, mebibytes = map(int, told.stdout.split())
    assert count == 45_000
    assert mebibytes < 3 * 176
