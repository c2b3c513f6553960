"""The verdict on a run: right on made runs of every cause, and without a cause where all is well."""

import math
from dataclasses import replace

import pytest
import torch
import yaml

from likewise.diagnostics import Snapshot, save_snapshots
from likewise.evaluation import KNN, FeatureParts, Features
from likewise.report.run_summary import run_verdict
from likewise.report.run_view import RunView
from likewise.runs.scores import BEGUN, RAW
from made_runs import PARTS, made_run

SEEDS = range(3)
CLASSES = 4


def features_of(signal, labels, generator, kind="encoder"):
    """Make three parts of features whose classes are so far apart."""
    means, parts = torch.randn(CLASSES, 16, generator=generator), []
    for place, (part, of) in enumerate(zip(PARTS, labels, strict=True)):
        vectors, rows = signal * means[of] + torch.randn(len(of), 16, generator=generator), torch.arange(len(of))
        parts.append(Features(vectors, of, tuple("abcd"), part=part, kind=kind, rows=rows + 1000 * place))
    return FeatureParts(*parts)


def judged(
    folder, seed, *, ours=2, raw=0.4, begun=None, steps=500, end=1, width=1, each=20, kind="vectors", dead=False, **kept
):
    """Write a run as if it had been trained so, and judge it."""
    generator = torch.Generator().manual_seed(seed)
    labels = [torch.arange(CLASSES * of) % CLASSES for of in (each, 10, 60)]
    went = {"steps": steps, "max_steps": None, "steps_per_epoch": 5, "batch": {"samples": 32, "views": 2}}
    went |= {"encoder": {"parameters": 9, "trained": 9}, "inputs": {"kind": kind}}
    data = {"class_path": "likewise.data.Folder", "init_args": {"path": "photos"}}
    facts = {"parts": {"loss": {"class_path": "likewise.losses.SupConLoss"}, "data": data}, "run_summary": went, **kept}
    noise = torch.randn(steps, generator=generator) * 0.004
    losses = [f"{step},1,{end + float(of)}" for step, of in enumerate(noise)]
    files = {"metrics.csv": "\n".join(["step,epoch,loss", *losses, ""])}
    files["config.yaml"] = yaml.safe_dump({"optimizer": {"init_args": {"lr": 0.01}}})
    encoder = features_of(ours, labels, generator)
    if dead:  # as of units that give 0 for every input: one number is left
        encoder = FeatureParts(*(replace(part, vectors=torch.eye(16)[:1].expand(len(part), -1)) for part in encoder))
    beside = [features_of(raw, labels, generator, RAW)]
    beside += [] if begun is None else [features_of(begun, labels, generator, BEGUN)]
    facts["begins_with"] = "" if begun is None else "somebody"
    run = made_run(folder, encoder, [KNN(5)], beside=beside, files=files, **facts)
    if not dead:  # a loss of logits has no embeddings
        embeddings = torch.randn(32, 2, 8, generator=generator) * width + (1 - width)
        snapshot = Snapshot(embeddings, torch.arange(32), None, epoch=1, step=9, samples=32, temperature=0.1)
        save_snapshots(run.batches, {"last": snapshot})
    return run_verdict(RunView(run))


COLLAPSED = "the embeddings collapsed, with a "
COLDER = "-made/config.yaml --lr 0.001"
UNRELATED = "labels unrelated to the inputs"
MADE = {  # options of a run, and how its verdict and cause begin and its command ends; None is whatever there is
    "well": ({"begun": 0.5}, "Better than the encoder as it began (+", "", ""),
    "narrow": ({"ours": 0.2, "raw": 1.5, "width": 0.02, "end": 4.1}, "Worse than raw inputs (-", COLLAPSED, COLDER),
    "plateau": ({"ours": 0.2, "raw": 1.5, "end": math.log(63)}, "Worse than raw inputs (-", COLLAPSED, COLDER),
    "dead units": (
        {"begun": 1.5, "steps": 100, "dead": True},
        "Worse than the encoder as it began (-",
        f"{COLLAPSED}mean cosine of 1.0000 of the test features",
        COLDER,
    ),
    "few steps": (
        {"ours": 0.7, "begun": 1.2, "raw": 0.3, "steps": 9, "width": 0.02},
        None,
        "too few steps, 9",
        "config.yaml --epochs 20",
    ),
    "fifty steps of a learned network": ({"ours": 0.0, "raw": 0.0, "begun": 0.0, "steps": 50}, None, UNRELATED, None),
    "fifty steps from scratch": ({"ours": 0.0, "raw": 0.0, "steps": 50}, None, "too few steps, 50", None),
    **{
        f"few {kind}": (
            {"ours": 0.3, "raw": 1.0, "kind": kind},
            None,
            f"a network from scratch learns little of 80 {kind}",
            "likewise train photos --encoder auto",
        )
        for kind in ("images", "texts")
    },
    "labels": ({"ours": 0.0, "raw": 0.0}, None, UNRELATED, "--within photos --mistakes"),
    "small classes": (
        {"ours": 0.6, "begun": 2.5, "raw": 0.4, "each": 3},
        "Worse than the encoder as it began",
        "too few samples of a class to train on, 3",
        "likewise embed photos",
    ),
    "kept": (
        {"begun": 2.0, "raw": 0.3, "kept": 0},
        "Kept as it began, since no epoch was better on validation; better than raw inputs",
        None,
        None,
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MADE)
def test_the_verdict_names_the_cause_and_what_to_try(name, seed, tmp_path):
    options, *expected = MADE[name]
    found = judged(tmp_path, seed, **options)
    for said, meets, part in zip(found, (str.startswith, str.startswith, str.endswith), expected, strict=True):
        assert part is None or (meets(said, part) and bool(said) == bool(part)), said
    if name == "well":
        assert " and better than raw inputs (+" in found.words


def test_words_cause_and_command_have_a_line_each_and_without_anything_beside_there_is_no_verdict(tmp_path):
    lines = judged(tmp_path, 0, ours=0.0, raw=0.0).lines
    assert [line.partition(": ")[0] for line in lines] == ["verdict", "most likely cause", "try"]
    assert "the kNN's accuracy, " in lines[0]
    assert run_verdict(RunView(made_run(tmp_path))) is None
