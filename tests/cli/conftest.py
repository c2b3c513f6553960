"""What several tests of the command share: a few digits, and the line that says why it refused."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from likewise.cli import main


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Options of a very short training on a few digits."""
    pixels, labels = load_digits(return_X_y=True)
    file = tmp_path_factory.mktemp("few") / "few.npz"
    np.savez(file, images=pixels[:160].reshape(-1, 8, 8) / 16, labels=labels[:160])
    short = ["--trainer.max_epochs", "1", "--encoder.width", "4", "--trainer.accelerator", "cpu"]
    return ["--data", "Arrays", "--data.path", str(file), "--batches.batch_size", "36", *short]


@pytest.fixture
def refused(capsys):
    """Return a function that gives the command some words, and returns the one line that says why it refused."""

    def line(*arguments):
        assert main(list(map(str, arguments))) == 2
        (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        return told

    return line
