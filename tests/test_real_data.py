"""The whole way on real data that is not ours: handwritten characters, from an array file to a measured encoder."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from likewise.cli import main
from likewise.evaluation import paired_difference
from likewise.runs import Run

pytestmark = [pytest.mark.process, pytest.mark.slow]


def trained(folder, words):
    """Train in a process of its own, in a folder, and return the run's."""
    command = [sys.executable, "-m", "likewise.cli", "train", *words.split()]
    command += ["--trainer.accelerator", "cpu", "--report", "false"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (run,) = (folder / "runs").iterdir()
    return run


def test_new_characters_are_learned_from_one_drawing(real_data, tmp_path):
    """Prototypical networks on six alphabets of Omniglot, for a minute: two others at 5-way 1-shot above 70 %."""
    pack = np.load(real_data / "omniglot" / "omniglot_bits.npz")
    alphabets = [str(name)[2:].rpartition("/")[0] for name in pack["chars"]]
    chosen = sorted(set(alphabets[: len(np.unique(pack["char"][~pack["evaluation"]]))]))[:10]
    parts = {"train": chosen[:2] + chosen[6:], "validation": chosen[4:6], "test": chosen[2:4]}
    rows = np.isin(pack["char"], [number for number, name in enumerate(alphabets) if name in chosen])
    ink = np.unpackbits(pack["bits"][rows], axis=1)[:, : 105 * 105].reshape(-1, 105, 105)[:, :, :] * np.uint8(255)
    names = np.array([str(name)[2:] for name in pack["chars"]])
    np.savez(tmp_path / "characters.npz", images=255 - ink, labels=pack["char"][rows], names=names)
    split = {part: [f"{name}/*" for name in of] for part, of in parts.items()}
    (tmp_path / "split.json").write_text(json.dumps(split))
    words = "--recipe prototypical-omniglot-few-shot --data Arrays --data.path characters.npz --data.size 28 "
    words += "--split ByClass --split.file split.json --split.rotations true --encoder.width 32 --evaluations FewShot "
    run = trained(tmp_path, f"{words} --trainer.max_epochs 2 --batches.ways 30")
    ours, raw = (Run(run).scores["few-shot", "5-way 1-shot accuracy", of] for of in ("encoder", "raw inputs"))
    assert ours.value > 0.7
    assert ours.low > raw.high


def test_characters_are_told_apart_better_than_by_their_pixels(real_data, tmp_path):
    """Thirty characters by twenty drawers, five of them held out: the encoder beats raw pixels, by kNN and linearly."""
    pack = np.load(real_data / "omniglot" / "omniglot_bits.npz")
    chosen = np.isin(pack["char"], np.unique(pack["char"][~pack["evaluation"]])[:30])
    ink = np.unpackbits(pack["bits"][chosen], axis=1)[:, : 105 * 105].reshape(-1, 21, 5, 21, 5)
    images = ink.mean(axis=(2, 4), dtype=np.float32)
    test = pack["drawer"][chosen] > np.sort(np.unique(pack["drawer"]))[14]
    np.savez(tmp_path / "characters.npz", images=images, labels=pack["char"][chosen], test=test)
    run = trained(tmp_path, "--data Arrays --data.path characters.npz --encoder.width 16")
    scores = [
        score for score in Run(run).scores if (str(score.group), score.part, score.epoch) == ("all", "test", None)
    ]
    assert {score.evaluation for score in scores} == {"kNN", "linear probe", "retrieval"}
    outcomes = {of.key: of for of in Run(run).outcomes}
    for score in scores:
        encoder, raw = (
            outcomes[score.evaluation, score.metric.name, kind, "test"] for kind in ("encoder", "raw inputs")
        )
        difference = paired_difference(encoder, raw)
        assert difference.count == 150
        assert difference.low > 0, score


def test_labels_of_music_are_predicted_better_than_from_its_descriptors(real_data, tmp_path):
    """NWS on emotions, official parts: mAP of the probe on frozen features, two points above raw, with three seeds."""
    pack = np.load(real_data / "mulan" / "emotions.npz")
    np.savez(
        tmp_path / "emotions.npz",
        vectors=np.concatenate([pack["x_train"], pack["x_test"]]).astype(np.float32),
        labels=np.concatenate([pack["y_train"], pack["y_test"]]).astype(bool),
        test=np.arange(len(pack["x_train"]) + len(pack["x_test"])) >= len(pack["x_train"]),
    )
    words = ["--recipe", "nws-vectors", "--data.path", str(tmp_path / "emotions.npz"), "--trainer.accelerator", "cpu"]
    words += ["--batches.batch_size", "32", "--validation_epochs", "40", "--evaluations", "LinearProbe"]
    for seed in range(3):
        runs = tmp_path / str(seed)
        assert main(["train", *words, "--seed", str(seed), "--report", "false", "--runs", str(runs)]) == 0
        (run,) = runs.iterdir()
        ours, raw = (Run(run).scores["linear probe", "mAP", of].value for of in ("encoder", "raw inputs"))
        assert ours > raw + 0.02, (seed, ours, raw)
