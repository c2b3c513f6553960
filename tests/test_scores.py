"""Scores as values: metrics that say what they are, files, and what selects and pairs by them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from likewise.report.comparison import compared, rows_as_markdown, verdict
from likewise.report.setting import in_settings, settings_of
from likewise.runs import Run
from likewise.runs.score_files import Scores, as_csv, from_csv
from likewise.runs.scores import Group, Metric, Outcomes, Result, Score, best, format_score, remarks, validation_score

DISTANCE = Metric("distance", "plain", "lower", selects=True)


def test_scores_are_found_by_name_and_are_a_table():
    """Of the whole test part, of the encoder unless other features are named; by place as any tuple."""
    accuracy = Metric("accuracy")
    scores = Scores(
        [
            Score("kNN", accuracy, 0.1, 0, 1, 9, part="validation"),
            Score("kNN", accuracy, 0.2, 0, 1, 9, epoch=3),
            Score("kNN", accuracy, 0.3, 0, 1, 9, group=Group("class", "cat")),
            Score("kNN", accuracy, 0.4, 0, 1, 9, features="raw inputs"),
            Score("kNN", accuracy, 0.9, 0, 1, 9),
        ]
    )
    assert scores["kNN", "accuracy"].value == 0.9
    assert scores["kNN", "accuracy", "raw inputs"].value == 0.4
    assert (scores[0].value, scores[-1].value, len(scores[1:3])) == (0.1, 0.9, 2)
    for wrong in (("kNN", "MAP@R"), "kNN", ("probe", "accuracy", "encoder", "test")):
        with pytest.raises(KeyError, match="expected an evaluation and a metric, one of kNN, accuracy; got"):
            scores[wrong]
    frame = scores.frame()
    assert list(frame["value"]) == [0.1, 0.2, 0.3, 0.4, 0.9]
    assert list(frame.columns) == as_csv([]).strip().replace('"', "").split(",")


def test_files_keep_every_field():
    scores = (
        Score("kNN", Metric("a, b|c"), 0.25, 0.1, 0.5, 9, group=Group("class", 'na"me\nx'), epoch=3),
        Score(
            *("few-shot", Metric("x", "nats", "lower", selects=True, shown=False)),
            *(-1.5, -float("inf"), float("inf"), 2, "raw inputs", "validation"),
            counted="episode",
            classes=20,
            settings={"k": 5, "penalty": 1e-5 / 3, "weights": "uniform"},
            protocol={"severities": [1, 3]},
            notes=("one; two", "=3"),
        ),
    )
    assert from_csv(as_csv(scores)) == scores


def test_a_damaged_file_is_named_with_its_row():
    text = as_csv([Score("kNN", DISTANCE, 0.5, 0.4, 0.6, 9)])
    for wrong in (text.replace("0.4", "x"), text.replace('"lower"', '"sideways"'), text.replace('"{}"', '"{"', 1)):
        with pytest.raises(ValueError, match=r"got row 2 with a wrong or missing value .*: restore the file"):
            from_csv(wrong)


def test_a_metric_is_checked():
    for make, told in (
        (partial(Metric, "mine", "percent"), "one of share, rank, points, nats, plain, got 'percent'"),
        (partial(Metric, "mine", better="low"), "one of higher, lower, neither, got 'low'"),
        (partial(Metric, "mine", better="neither", selects=True), "better higher or lower, got 'mine'"),
        (partial(Score, "kNN", "accuracy", 0.5, 0.4, 0.6, 9), "expected a Metric for a score, got 'accuracy': declare"),
    ):
        with pytest.raises(ValueError, match=told):
            make()


def test_the_lowest_is_the_best_where_lower_is_better():
    tried = [Score("mine", DISTANCE, value, 0, 1, 9, part="validation") for value in (0.5, 0.3, 0.4)]
    assert best(tried) is tried[1]
    assert validation_score(tried) is tried[1]
    assert best([]) is None


def runs_of(root, losses):
    """Runs of two settings with seeds, whose distances are given."""
    for name, values in losses.items():
        for seed, value in enumerate(values):
            run = Run.create(root, f"{name}{seed}")
            loss = {"class_path": f"likewise.losses.{name}", "init_args": {}}
            run.describe({"parts": {"loss": loss}, "seed": seed, "samples": {"fingerprint": "f"}})
            yield run, value


def test_a_metric_of_ones_own_is_compared_in_its_own_unit_and_direction(tmp_path, monkeypatch):
    """A distance of 0.3 is no 30 %, and of two settings the one with the lower distance stands first."""
    monkeypatch.setattr("likewise.report.comparison.same_test", lambda *_: True)
    runs = []
    for run, value in runs_of(tmp_path, {"SupConLoss": (0.5, 0.52, 0.54), "NTXentLoss": (0.3, 0.31, 0.33)}):
        run.add(Result((Score("mine", DISTANCE, value, value - 0.1, value + 0.1, 60),)))
        runs.append(run)
    rows = compared(settings_of(in_settings(runs)))
    words = rows_as_markdown(rows, rows[0].setting)
    assert "%" not in words.replace("95 % interval", "")
    assert words.index("| NTXentLoss") < words.index("| SupConLoss")
    assert verdict(rows)[0].startswith("mine, distance (lower is better). Lower than SupConLoss: NTXentLoss (-0.20")


@pytest.mark.parametrize("protocol", [{"outside": "x", "outside samples": 5}, {}])
def test_scores_are_paired_where_protocols_agree_whatever_was_chosen(protocol, tmp_path, monkeypatch):
    monkeypatch.setattr("likewise.report.comparison.same_test", lambda *_: True)
    runs = []
    for run, value in runs_of(tmp_path, {"SupConLoss": (0.5, 0.6), "NTXentLoss": (0.7, 0.9)}):
        score = Score("mine", DISTANCE, value, 0, 1, 60, protocol=protocol, settings={"k": value}, notes=(str(value),))
        run.add(Result((score,)))
        runs.append(run)
    assert compared(settings_of(in_settings(runs)))[1].pairs == 2
    for run in runs[2:]:
        run.add(Result(tuple(replace(score, protocol={"other": 1}) for score in run.scores)))
    row = compared(settings_of(in_settings(runs)))[1]
    assert (row.difference, row.paired_words) == (None, "not paired: evaluated on other data")


def test_episodes_of_other_sizes_stay_and_samples_replace_each_other(tmp_path):
    run = Run.create(tmp_path, "sizes")
    for metric, counted in (("a", "episode"), ("b", "episode"), ("c", "sample"), ("d", "sample")):
        rows = torch.tensor([-1, -2]) if counted == "episode" else torch.tensor([1, 2])
        outcomes = Outcomes("mine", metric, rows, torch.zeros(2))
        run.add(Result((Score("mine", Metric(metric), 0.5, 0.4, 0.6, 2, counted=counted),), outcomes=(outcomes,)))
    assert [score.metric.name for score in run.scores] == ["a", "b", "d"]
    assert [one.metric for one in run.outcomes] == ["a", "b", "d"]


def test_words_are_made_where_they_are_shown():
    score = Score("mine", DISTANCE, 0.3, 0.2, 0.4, 9, settings={"k": 5, "way": "x"}, protocol={"seed": 1}, notes=("n",))
    assert remarks(score) == "k=5, way=x; seed=1; n"
    assert format_score(score) == "0.3000 [0.2000, 0.4000]"
    assert format_score(replace(score, metric=Metric("share"))) == "30.00 % [20.0, 40.0]"
    assert format_score(replace(score, metric=Metric("gain", "points"), value=3.0)) == "3.000 [0.200, 0.400]"


def test_numbers_of_numpy_and_torch_are_written_as_numbers():
    """As somebody's own evaluation may have them."""
    settings = {"width": np.float32(0.5), "k": torch.tensor(3), "way": Metric("x")}
    score = Score("mine", DISTANCE, 0.5, 0.4, 0.6, 9, settings=settings)
    assert from_csv(as_csv([score]))[0].settings == {"width": 0.5, "k": 3, "way": "x"}
