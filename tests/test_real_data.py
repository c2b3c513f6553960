"""The whole way on real data that is not ours: handwritten characters, from an array file to a measured encoder."""

import os
import subprocess
import sys

import numpy as np
import pytest

from likewise.evaluation import paired_difference
from likewise.runs import Run

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_characters_are_told_apart_better_than_by_their_pixels(real_data, tmp_path):
    """Thirty characters by twenty drawers, five of them held out: the encoder beats raw pixels, by kNN and linearly."""
    pack = np.load(real_data / "omniglot" / "omniglot_bits.npz")
    chosen = np.isin(pack["char"], np.unique(pack["char"][~pack["evaluation"]])[:30])
    ink = np.unpackbits(pack["bits"][chosen], axis=1)[:, : 105 * 105].reshape(-1, 21, 5, 21, 5)
    file = tmp_path / "characters.npz"
    images = ink.mean(axis=(2, 4), dtype=np.float32)
    np.savez(
        file,
        images=images,
        labels=pack["char"][chosen],
        test=pack["drawer"][chosen] > np.sort(np.unique(pack["drawer"]))[14],
    )
    command = [sys.executable, "-m", "likewise.cli", "train", "--data", "Arrays", "--data.path", str(file)]
    command += ["--encoder.width", "16", "--trainer.accelerator", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    scores = [score for score in Run(run).scores if (score.subset, score.part, score.epoch) == ("all", "test", None)]
    assert {score.evaluation for score in scores} == {"kNN", "linear probe", "retrieval"}
    outcomes = {of.key: of for of in Run(run).outcomes}
    for score in scores:
        encoder, raw = (outcomes[score.evaluation, score.metric, kind, "test"] for kind in ("encoder", "raw inputs"))
        difference = paired_difference(encoder, raw)
        assert difference.count == 150
        assert difference.low > 0, score
