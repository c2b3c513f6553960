"""The verdict on a run: right on made runs of every cause, and without a cause where all is well."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from likewise.diagnostics import Snapshot, save_snapshots
from likewise.evaluation import KNN, FeatureParts, Features, save_features
from likewise.report.run_verdict import run_verdict
from likewise.report.run_view import RunView
from likewise.runs import Run
from likewise.runs.scores import BEGUN, RAW

SEEDS = range(10)
CLASSES = 4


def features_of(signal, labels, generator, kind="encoder"):
    """Make three parts of features whose classes are so far apart."""
    means = torch.randn(CLASSES, 16, generator=generator)
    parts = [
        Features(
            signal * means[of] + torch.randn(len(of), 16, generator=generator),
            of,
            tuple("abcd"),
            part=part,
            kind=kind,
            rows=torch.arange(len(of)) + 1000 * place,
        )
        for place, (part, of) in enumerate(zip(("train", "validation", "test"), labels, strict=True))
    ]
    return FeatureParts(*parts)


def judged(
    folder,
    seed,
    *,
    ours=2.0,
    raw=0.4,
    begun=None,
    steps=500,
    end=1.0,
    width=1.0,
    each=20,
    kind="vectors",
    kept=None,
    dead=False,
):
    """Write a run as if it had been trained so, and judge it."""
    generator = torch.Generator().manual_seed(seed)
    run = Run.create(Path(folder), "made")
    labels = [torch.arange(CLASSES * of) % CLASSES for of in (each, 10, 60)]
    spec = {"class_path": "likewise.data.Folder", "init_args": {"path": "photos"}}
    went = {
        "steps": steps,
        "max_steps": None,
        "steps_per_epoch": 5,
        "batch": {"samples": 32, "views": 2},
        "encoder": {"parameters": 9, "trained": 9},
        "inputs": {"kind": kind},
    }
    run.describe(
        {
            "parts": {"loss": {"class_path": "likewise.losses.SupConLoss"}, "data": spec},
            "run_summary": went,
            "begins_with": "" if begun is None else "somebody",
            **({} if kept is None else {"kept": kept}),
        }
    )
    run.write("config.yaml", yaml.safe_dump({"optimizer": {"init_args": {"lr": 0.01}}}).encode())
    noise = torch.randn(steps, generator=generator) * 0.004
    losses = [f"{step},1,{end + float(of)}" for step, of in enumerate(noise)]
    run.write("metrics.csv", "\n".join(["step,epoch,loss", *losses, ""]).encode())
    encoder = features_of(ours, labels, generator)
    if dead:  # as of units that give 0 for every input: one number is left
        encoder = FeatureParts(*(replace(part, vectors=torch.eye(16)[:1].expand(len(part), -1)) for part in encoder))
    save_features(run.embeddings, encoder)
    every = [encoder, features_of(raw, labels, generator, RAW)]
    every += [] if begun is None else [features_of(begun, labels, generator, BEGUN)]
    for parts in every:
        run.add(KNN(5)(*parts))
    if dead:  # a loss of logits has no embeddings
        return run_verdict(RunView(run))
    embeddings = torch.randn(32, 2, 8, generator=generator) * width + (1 - width)
    snapshot = Snapshot(embeddings, torch.arange(32), None, epoch=1, step=9, samples=32, temperature=0.1)
    save_snapshots(run.batches, {"last": snapshot})
    return run_verdict(RunView(run))


@pytest.mark.parametrize("seed", SEEDS)
def test_where_all_is_well_no_cause_is_sought(seed, tmp_path):
    found = judged(tmp_path, seed, begun=0.5)
    assert found.words.startswith("Better than the encoder as it began (+")
    assert " and better than raw inputs (+" in found.words
    assert (found.cause, found.command) == ("", "")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_collapse_is_seen_in_the_embeddings_or_in_the_loss(seed, tmp_path):
    for name, more in {"narrow": {"width": 0.02, "end": 4.1}, "plateau": {"end": math.log(63)}}.items():
        found = judged(tmp_path / name, seed, ours=0.2, raw=1.5, **more)
        assert found.words.startswith("Worse than raw inputs (-")
        assert found.cause.startswith("the embeddings collapsed, with a ")
        assert found.command.endswith("-made/config.yaml --lr 0.001")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_network_that_died_is_seen_in_its_features(seed, tmp_path):
    found = judged(tmp_path, seed, begun=1.5, steps=100, each=20, dead=True)
    assert found.words.startswith("Worse than the encoder as it began (-")
    assert found.cause == "the embeddings collapsed, with a mean cosine of 1.0000 of the test features"
    assert found.command.endswith("-made/config.yaml --lr 0.001")


@pytest.mark.parametrize("seed", SEEDS)
def test_too_few_steps_are_told(seed, tmp_path):
    found = judged(tmp_path, seed, ours=0.7, begun=1.2, raw=0.3, steps=9, width=0.02)
    assert found.cause == "too few steps, 9"
    assert found.command.endswith("config.yaml --epochs 20")


@pytest.mark.parametrize("seed", SEEDS)
def test_fifty_steps_are_few_only_for_a_network_from_scratch(seed, tmp_path):
    found = {
        name: judged(tmp_path / name, seed, ours=0.0, raw=0.0, begun=begun, steps=50).cause
        for name, begun in {"learned": 0.0, "scratch": None}.items()
    }
    assert found["learned"].startswith("labels that do not follow from the inputs")
    assert found["scratch"] == "too few steps, 50"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["images", "texts"])
def test_few_photos_or_texts_from_scratch_are_told(kind, seed, tmp_path):
    found = judged(tmp_path, seed, ours=0.3, raw=1.0, kind=kind)
    assert found.cause == f"a network from scratch learns little of 80 {kind}"
    assert found.command == "likewise train photos --encoder auto"


@pytest.mark.parametrize("seed", SEEDS)
def test_labels_that_the_inputs_do_not_tell_are_told(seed, tmp_path):
    found = judged(tmp_path, seed, ours=0.0, raw=0.0)
    assert found.cause.startswith("labels that do not follow from the inputs")
    assert "--within photos --mistakes" in found.command


@pytest.mark.parametrize("seed", SEEDS)
def test_too_few_samples_of_a_class_are_told(seed, tmp_path):
    found = judged(tmp_path, seed, ours=0.6, begun=2.5, raw=0.4, each=3)
    assert found.words.startswith("Worse than the encoder as it began")
    assert found.cause == "too few samples of a class to train on, 3"
    assert found.command == "likewise embed photos"


@pytest.mark.parametrize("seed", SEEDS)
def test_an_encoder_that_was_kept_as_it_began_is_called_so(seed, tmp_path):
    found = judged(tmp_path, seed, ours=2.0, begun=2.0, raw=0.3, kept=0)
    assert found.words.startswith("Kept as it began, since no epoch was better on validation; better than raw inputs")


def test_words_cause_and_command_have_a_line_each(tmp_path):
    lines = judged(tmp_path, 0, ours=0.0, raw=0.0).lines
    assert [line.partition(": ")[0] for line in lines] == ["verdict", "most likely cause", "try"]
    assert "the kNN's accuracy, " in lines[0]


def test_without_anything_beside_there_is_no_verdict(tmp_path):
    run = Run.create(tmp_path, "made")
    run.describe({})
    assert run_verdict(RunView(run)) is None
