"""Trainings on pairs by the command: killed and resumed, on several processes, in chunks, and what is kept of them."""

import json

import numpy as np
import pytest
import torch
from command_worker import end_of, killed_and_resumed, start, start_together
from safetensors.torch import load_file
from trainings import save_pairs

from likewise.data import Texts
from likewise.report.run_summary import summary_table
from likewise.runs import Run

pytestmark = [pytest.mark.process, pytest.mark.slow]

COMMON = ["--data", "Pairs", "--data.path", "pairs.jsonl", "--data.first", "one", "--loss.temperature", "learned"]
COMMON += ["--encoder", "BagOfTokens", "--encoder.width", "8", "--encoder.vocabulary", "200", "--head.out_dim", "6"]
COMMON += ["--batch_size", "24", "--trainer.accelerator", "cpu"]
COMMON += ["--epochs", "3", "--report", "false", "--checkpoint_minutes", "1e-9", "--validation_epochs", "1"]
VECTORS = ["--data.second", "counts", "--data.negatives", "wrong", "--inputs", "SecondTower", "--inputs.encoder", "MLP"]
VECTORS += ["--inputs.encoder.width", "10", "--inputs.rate_factor", "0.5"]
TEXTS = ["--data.second", "other", "--inputs", "SecondTower", "--inputs.rate_factor", "0.5"]
FORM = ["--loss", "InfoNCELoss", "--loss.symmetric", "true"]
EXACT = ["--encoder.dropout", "0", "--trainer.precision", "64-true", "--optimizer", "SGD", "--optimizer.lr", "0.1"]


def _trained(folder, *words, processes=1):
    folder.mkdir(exist_ok=True)
    save_pairs(folder)
    arguments = ["train", *COMMON, *words]
    started = [start(arguments, folder)] if processes == 1 else start_together(arguments, folder, processes)
    assert [end_of(process) for process in started] == [0] * processes
    (run,) = (folder / "runs").iterdir()
    return Run.open(run)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    return _trained(tmp_path_factory.mktemp("whole"), *FORM, *VECTORS)


def _check_same_files(one, two):
    for file in ("weights", "second_weights", "metrics_file", "scores_file"):
        assert getattr(one, file).read_bytes() == getattr(two, file).read_bytes(), file


def _check_alike(one, two):
    for file in ("weights", "second_weights"):
        ours, theirs = (load_file(getattr(run, file)) for run in (one, two))
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert torch.allclose(value, theirs[name], rtol=1e-10, atol=1e-10), name


def test_a_run_of_pairs_that_was_killed_ends_as_if_it_had_not_been(whole, tmp_path):
    save_pairs(tmp_path)
    moments = [("batch", 0), ("batch", 4), ("checkpoint", 0), ("batch", 8)]
    moments += [("file", name) for name in ("second-encoder.safetensors", "encoder.safetensors", "embeddings.npz")]
    resumed = Run.open(killed_and_resumed([*COMMON, *FORM, *VECTORS], tmp_path, *moments))
    _check_same_files(resumed, whole)
    ours, theirs = (np.load(of.embeddings) for of in (resumed, whole))
    assert sorted(ours.files) == sorted(theirs.files)
    for name in ours.files:
        assert np.array_equal(ours[name], theirs[name]), name


@pytest.mark.parametrize(("form", "count"), [(FORM, 3), (["--loss", "SupConLoss"], 2)], ids=["InfoNCE", "SupCon"])
def test_several_processes_train_both_towers_as_one_does(form, count, tmp_path):
    words = [*form, *VECTORS, *EXACT, "--loss.gather_distributed", "true"]
    _check_alike(*(_trained(tmp_path / str(processes), *words, processes=processes) for processes in (1, count)))


def test_a_guided_run_is_resumed_and_trained_by_two_processes(whole, tmp_path):
    words = [*FORM, "--data.second", "counts", "--inputs", "Guide", "--inputs.run", str(whole.folder), *EXACT]
    words += ["--loss.guide_margin", "0.2", "--loss.gather_distributed", "true"]
    one, two = (_trained(tmp_path / str(count), *words, processes=count) for count in (1, 2))
    _check_alike(one, two)
    save_pairs(tmp_path)
    _check_same_files(Run.open(killed_and_resumed([*COMMON, *words], tmp_path, ("batch", 5))), one)


def test_chunks_and_accumulation_train_both_towers(tmp_path):
    words = [*FORM, *TEXTS, *EXACT, "--trainer.accumulate_grad_batches", "2"]
    whole = _trained(tmp_path / "whole", *words)
    _check_alike(whole, _trained(tmp_path / "chunked", *words, "--chunk_size", "7"))


def test_a_shared_tower_trains_in_bf16_is_kept_once_and_keeps_its_tokens_in_a_later_run(tmp_path):
    words = [*FORM, *TEXTS[:-2], "--inputs.shared", "true", "--trainer.precision", "bf16-mixed"]
    run = _trained(tmp_path / "first", *words)
    assert not run.second_weights.exists()
    assert run.metadata["second"]["encoder"] is None
    assert run.metadata["run_summary"]["second"]["encoder"] is None
    assert dict(summary_table(run.metadata))["augmentation"] == "TokenDropout(probability=0.1, mask_id=1)"
    assert torch.equal(*(run.encoder(side).encode(Texts(["red cat", "a dog"])) for side in ("first", "second")))
    (folder := tmp_path / "second").mkdir()
    rows = [{"one": f"other words {row}", "other": f"and more of them {row * 7}"} for row in range(60)]
    (folder / "others.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--data", "Pairs", "--data.path", "others.jsonl", "--data.first", "one", "--inputs.shared", "true"]
    words += [*FORM, *TEXTS[:-2], "--epochs", "1", "--report", "false", "--batch_size", "16"]
    words += ["--encoder", "FromRun", "--encoder.run", str(run.folder)]
    path = killed_and_resumed(words, folder)
    assert torch.equal(Run.open(path).encoder().tokenizer, run.encoder().tokenizer)
