"""The whole way on real data that is not ours, from an array file to a measured encoder: characters, and music."""

import json

import numpy as np
import pytest

from likewise.cli import main
from likewise.runs import Run

pytestmark = pytest.mark.slow


def test_new_characters_are_learned_from_one_drawing(real_data, tmp_path, monkeypatch):
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
    words += "--trainer.max_epochs 1 --batches.ways 30 --trainer.accelerator cpu --report false"
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words.split()]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    ours, raw = (Run(run).scores["few-shot", "5-way 1-shot accuracy", of] for of in ("encoder", "raw inputs"))
    assert ours.value > 0.7
    assert ours.low > raw.high


def test_labels_of_music_are_predicted_better_than_from_its_descriptors(real_data, tmp_path):
    """NWS on emotions, official parts: mAP of the probe on frozen features, two points above raw."""
    pack = np.load(real_data / "mulan" / "emotions.npz")
    np.savez(
        tmp_path / "emotions.npz",
        vectors=np.concatenate([pack["x_train"], pack["x_test"]]).astype(np.float32),
        labels=np.concatenate([pack["y_train"], pack["y_test"]]).astype(bool),
        test=np.arange(len(pack["x_train"]) + len(pack["x_test"])) >= len(pack["x_train"]),
    )
    words = ["--recipe", "nws-vectors", "--data.path", str(tmp_path / "emotions.npz"), "--trainer.accelerator", "cpu"]
    words += ["--batches.batch_size", "32", "--validation_epochs", "40", "--evaluations", "LinearProbe"]
    assert main(["train", *words, "--report", "false", "--runs", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    ours, raw = (Run(run).scores["linear probe", "mAP", of].value for of in ("encoder", "raw inputs"))
    assert ours > raw + 0.02
