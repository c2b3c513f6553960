"""A run's folder: its names, atomic writes, and an encoder rebuilt from it."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import likewise as lw
from likewise.configuration import resolve
from likewise.instantiate import class_of, instantiate
from likewise.models import MLP, ConvNet, Encoder, FromRun, Wrapped
from likewise.runs import Run
from likewise.runs.run import remove_if_idle
from likewise.runs.scores import Metric, Outcomes, Result, Score

PLAIN = {"class_path": "likewise.models.MLP", "init_args": {"input_shape": [3]}}


def _run(tmp_path, encoder=None, spec=PLAIN):
    run = Run.create(tmp_path / "runs", "SupConLoss", "Digits")
    run.describe({"parts": {"encoder": spec}})
    run.save_encoder(encoder or MLP((3,)))
    return run


def test_a_run_takes_its_name_when_it_is_whole_and_is_found_by_either(tmp_path):
    run = Run.create(tmp_path / "runs", "SupConLoss", "Digits")
    stages = [run.stage]
    run.describe({"parts": {"encoder": PLAIN}})
    run.save_encoder(MLP((3,)))
    stages.append(run.stage)
    partial = run.folder
    assert partial.suffix == ".partial"
    whole = run.finalize()
    assert [*stages, whole.stage] == ["training", "evaluation", "finished"]
    assert whole.folder == partial.with_name(run.name)
    assert Run.open(partial) == Run.open(whole.folder) == whole
    assert whole.finalize() == whole


def test_runs_started_in_the_same_second_have_different_names(tmp_path):
    runs = [Run.create(tmp_path, "same") for _ in range(3)]
    runs += [Run.create(tmp_path, "same").finalize() for _ in range(3)]
    assert len({run.name for run in runs}) == len(list(tmp_path.iterdir())) == 6
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="expected a folder to write runs into"):
        Run.create(tmp_path / "file", "x")


def test_of_a_run_that_is_not_there_the_newest_nearby_are_named(tmp_path, monkeypatch):
    """Beside it, or in runs where it would be; at most five."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"got runs/gone, which does not exist: likewise train makes one$"):
        Run.open("runs/gone")
    for number in range(7):
        run = Run.create(Path("runs"), str(number))
        run.describe({})
        os.utime(run.folder / "run.json", (number, number))
    names = [str(path) for path in sorted(Path("runs").iterdir(), key=lambda path: path.name[-9:], reverse=True)]
    for name in ("runs/gone", "gone"):
        told = rf"does not exist: .*; nearby: {re.escape(', '.join(names[:5]))}$"
        with pytest.raises(ValueError, match=told):
            Run.open(name)
        for verb, options in (("train", {"resume": name}), ("evaluate", {"source": name}), ("export", {"run": name})):
            with pytest.raises(ValueError, match=told):
                resolve(options, verb=verb)
    with pytest.raises(ValueError, match=r"got gone, which does not exist: correct it$"):  # data are no runs
        resolve({"data": "Arrays", "data.path": "gone"})


@pytest.mark.parametrize("trained", [False, True])
def test_a_run_that_fails_stays_only_if_it_did_work(tmp_path, trained):
    run = Run.create(tmp_path, "half")
    run.describe({"seed": 0})
    with pytest.raises(RuntimeError) as caught, remove_if_idle(run, "left in {}"):  # noqa: PT012 - as a run goes
        if trained:
            run.write("metrics.csv", b"step\n")
        raise RuntimeError
    assert run.folder.exists() == trained
    assert getattr(caught.value, "__notes__", []) == [f"left in {run.folder}"] * trained


def test_a_file_is_complete_or_absent(tmp_path):
    run = Run.create(tmp_path, "whole")
    run.write("scores.csv", b"before")
    with pytest.raises(RuntimeError), run.writing("scores.csv") as beside:  # noqa: PT012 - as a writer fails
        beside.write_bytes(b"half")
        raise RuntimeError
    assert run.scores_file.read_bytes() == b"before"
    for content in (b"one", b"two", b"three"):  # the previous checkpoint is kept
        beside = run.folder / "beside"
        beside.write_bytes(content)
        run.adopt_checkpoint(beside)
    assert (run.checkpoint.read_bytes(), run.checkpoint_before.read_bytes()) == (b"three", b"two")


def _found(value, *, epoch=None, metric="accuracy"):
    score = Score("kNN", Metric(metric, selects=True), value, 0.0, 1.0, 2, epoch=epoch)
    tried = replace(score, epoch=None, part="validation", settings={"k": 1})
    outcome = Outcomes("kNN", metric, torch.tensor([4, 9]), torch.tensor([value, 0.0]))
    return Result((score,), () if epoch else (tried,), () if epoch else (outcome,))


def test_what_an_evaluation_finds_again_replaces_what_it_found(tmp_path):
    run = Run.create(tmp_path, "scores")
    other = Result((Score("retrieval", Metric("MAP@R"), 0.7, 0.6, 0.8, 2),))
    for found in (_found(0.1, epoch=5), _found(0.5), other, _found(0.9), _found(0.2, epoch=10)):
        run.add(found)
    read = [(score.evaluation, score.value, score.part, score.epoch) for score in Run(run.folder).scores]
    by_knn = {(0.1, "test", 5), (0.2, "test", 10), (0.9, "test", None), (0.9, "validation", None)}
    assert len(read) == 5
    assert set(read) == {("retrieval", 0.7, "test", None), *(("kNN", *rest) for rest in by_knn)}
    (outcome,) = run.outcomes
    assert (outcome.rows.tolist(), outcome.values.tolist()) == ([4, 9], pytest.approx([0.9, 0.0]))


def test_scores_that_were_damaged_are_told(tmp_path):
    run = Run.create(tmp_path, "damaged")
    run.add(_found(0.5))
    for text in ("evaluation,metric\nkNN,accuracy\n", run.scores_file.read_text().replace("0.5", "half", 1)):
        run.write("scores.csv", text.encode())
        with pytest.raises(ValueError, match=r"columns evaluation, .* row 2 .*evaluate again"):
            _ = run.scores
    run.write("outcomes.npz", b"PK cut")
    with pytest.raises(ValueError, match="evaluate the run again"):
        _ = run.outcomes


LINEAR = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 3, "out_features": 5}}


@pytest.mark.parametrize(
    ("encoder", "arguments"),
    [
        (MLP((3,), width=8), {"width": 8}),
        (ConvNet((1, 8, 8), width=4), {"width": 4}),
        (Wrapped((3,), nn.Linear(3, 5)), {"module": LINEAR}),
    ],
)
def test_an_encoder_is_rebuilt_with_its_weights_mean_and_deviation_without_the_data(encoder, arguments, tmp_path):
    path, shape = f"likewise.models.{type(encoder).__name__}", list(encoder.input_shape)
    spec = {"class_path": path, "init_args": {"input_shape": shape, **arguments}}
    inputs = torch.rand(40, *shape)
    encoder.observe(inputs)
    encoder(inputs)
    again = lw.load_encoder(_run(tmp_path, encoder, spec).folder)
    assert isinstance(again, Encoder)
    assert not again.training
    assert torch.equal(again.encode(inputs), encoder.encode(inputs))


def test_an_encoder_is_rebuilt_whatever_parts_are_nested_in_it(tmp_path):
    inner = {"class_path": "torch.nn.Flatten"}  # without arguments, as a configuration may have it
    spec = {"class_path": "likewise.models.Wrapped", "init_args": {"input_shape": [3], "module": inner}}
    again = lw.load_encoder(_run(tmp_path, Wrapped((3,), nn.Flatten()), spec).folder)
    assert again.encode(torch.eye(3)).shape == (3, 3)
    run = Run.create(tmp_path, "other")
    size = {"class_path": "datetime.timedelta", "init_args": {"days": 1}}
    run.describe({"parts": {"encoder": {"class_path": "likewise.models.MLP", "init_args": {"size": size}}}})
    assert run.encoder_spec()["init_args"] == {"size": size}  # a part that is no network


def test_an_encoder_from_a_run_has_its_weights_and_refuses_other_shapes(tmp_path):
    encoder = MLP((3,))
    run = _run(tmp_path, encoder)
    mine = FromRun((3,), run.folder)
    mine.observe(torch.rand(5, 3) + 100)
    inputs = torch.rand(6, 3)
    assert mine.training
    assert torch.equal(mine.encode(inputs), encoder.encode(inputs))
    with pytest.raises(ValueError, match=r"expected inputs of shape \(3,\).*got \(4,\)"):
        FromRun((4,), run.folder)


def test_a_run_without_an_encoder_or_with_a_damaged_one_is_refused_with_the_remedy(tmp_path):
    run = Run.create(tmp_path, "young")
    with pytest.raises(ValueError, match=r"expected the folder of a run, got .*, which has no run\.json"):
        lw.load_encoder(run.folder)
    run.describe({"parts": {"encoder": PLAIN}})
    with pytest.raises(ValueError, match=r"has no encoder\.safetensors: finish it with likewise train --resume"):
        lw.load_encoder(run.folder)
    run.save_encoder(MLP((3,)))
    run.weights.write_bytes(run.weights.read_bytes()[:-40])
    with pytest.raises(ValueError, match="expected the weights of this run's encoder in"):
        lw.load_encoder(run.folder)
    (run.folder / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"expected run\.json of plain JSON"):
        lw.load_encoder(run.folder)


def test_curves_are_read_back_with_the_loss_first(tmp_path):
    run = Run.create(tmp_path, "curves")
    assert (run.metrics, run.histograms, run.class_means, list(run.scores)) == ({}, {}, [], [])
    run.write("metrics.csv", b"step,epoch,accuracy,loss\n0,0,,2.5\n1,0,0.5,1.5\n")
    assert list(run.metrics.items()) == [("loss", [(0, 2.5), (1, 1.5)]), ("accuracy", [(1, 0.5)])]


class Taker:
    """Takes parts and plain values."""

    def __init__(
        self,
        module: nn.Module | None = None,
        modules: list[nn.Module] | None = None,
        pair: tuple[float, float] = (0.0, 1.0),
        make: Callable[[], int] | None = None,
        plain: float = 0.0,
    ) -> None:
        self.taken = module, modules, pair, make, plain


def test_nested_parts_are_made_by_their_annotated_class_and_nothing_else():
    relu = {"class_path": "torch.nn.ReLU"}
    spec = {"class_path": f"{__name__}.Taker", "init_args": {"module": relu, "modules": [relu, relu], "pair": [1, 2]}}
    module, modules, pair, *_ = instantiate(spec, Taker).taken
    assert [type(made) for made in (module, *modules)] == [nn.ReLU] * 3
    assert pair == (1, 2)
    code = {"class_path": "os.system", "init_args": {"command": "exit 1"}}
    for name, value in (("module", code), ("modules", [code]), ("plain", code)):
        with pytest.raises(ValueError, match="expected a"):
            instantiate({"class_path": f"{__name__}.Taker", "init_args": {name: value}}, Taker)


def test_a_path_to_anything_but_a_class_of_the_kind_is_refused():
    for path, told in (
        *((path, "which is") for path in ("os.system", "json.JSONDecoder", "nowhere.Net", "Net", "os")),
        ("torch.nn.Nothing", "which the module torch.nn does not have"),
        ("likewise.models.Encoder", "which is abstract: name a subclass"),
    ):
        with pytest.raises(ValueError, match=f"got {path}, {told}"):
            class_of(path, nn.Module)


def test_facts_are_plain_json(tmp_path):
    run = Run.create(tmp_path, "facts")
    run.describe({"seed": 3, "names": ["a", "b"]})
    assert json.loads((run.folder / "run.json").read_text()) == run.metadata == {"seed": 3, "names": ["a", "b"]}
    run.describe({"largest": np.inf})
    assert run.metadata == {"largest": np.inf}
