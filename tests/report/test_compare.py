"""Runs compared: settings and their names, means over seeds, paired differences, and the page."""

import base64
import csv
import io
import json
import math
import re
import warnings
from dataclasses import replace
from html import escape
from itertools import count

import numpy as np
import pytest
import torch
from scipy import stats

from likewise.cli import main
from likewise.data import Ids
from likewise.evaluation import Features
from likewise.evaluation.intervals import student
from likewise.evaluation.predictions import ACCURACY
from likewise.report import (
    Row,
    RunView,
    Section,
    compared,
    in_settings,
    rows_as_markdown,
    settings_of,
    verdict,
    write_page,
)
from likewise.report.comparison import Over
from likewise.runs import Run
from likewise.runs.scores import ALL, Group, Metric, Outcomes, Result, Score
from likewise.workflows import Silent, compare
from made_runs import made_run, thrice

NUMBER = count()
ROWS = torch.arange(1000, 1060)
LABELS = torch.arange(60) % 3
NAMES = ("<cat>", "dog", "cow")
LOSS = {"class_path": "likewise.losses.SupConLoss", "init_args": {"temperature": 0.1, "num_samples": 60}}
COLD = {"class_path": "likewise.losses.SupConLoss", "init_args": {"temperature": 0.5, "num_samples": 60}}
OTHER = {"class_path": "likewise.losses.NTXentLoss", "init_args": {"temperature": 0.5}}
ENCODER = {"class_path": "likewise.models.MLP", "init_args": {"width": 64}}


def outcomes_of(seed, share):
    return (torch.rand(60, generator=torch.Generator().manual_seed(seed)) < share).float()


def run_of(root, *, loss=LOSS, seed=0, share=0.7, rows=ROWS, labels=LABELS, names=NAMES, ids=None, **facts):
    """Make a run whose kNN predicts about a share of the test samples rightly."""
    parts = {"data": {"class_path": "likewise.data.Digits", "init_args": {}}, "encoder": ENCODER, "loss": loss}
    facts = {"parts": parts, "seed": seed, "samples": {"fingerprint": "f"}} | facts
    test = Features(torch.eye(60), labels, names, rows, "test", ids=ids)
    files = {"metrics.csv": f"step,epoch,loss\n0,0,{2 + (seed or 0)}\n1,0,1.0\n"}
    run = made_run(root, thrice(test), name=f"run{next(NUMBER)}", files=files, **facts)
    values = outcomes_of((seed or 0) + 100 * round(100 * share), share)
    scores = [(ALL, values), *((Group("class", name), values[labels == label]) for label, name in enumerate(names))]
    found = [
        Score("kNN", ACCURACY, float(of.mean()), 0.01, 0.99, len(of), group=group, settings={"k": 5})
        for group, of in scores
    ]
    run.add(Result(tuple(found), outcomes=(Outcomes("kNN", "accuracy", rows, values),)))
    return run.finalize()


def runs_of(root, seeds, **options):
    return [run_of(root, seed=seed, **options) for seed in seeds]


def configured(run, text):
    run.write("config.yaml", text.encode())
    return run


def rows_of(runs):
    return compared(settings_of(in_settings(runs)))


def main_of(runs, path):
    """The body of a page that compares runs."""
    write_page(path, in_settings(runs))
    return path.read_text(encoding="utf-8").split("<main>", 1)[1].split("</main>", 1)[0]


def names_of(runs):
    return [view.setting for view in in_settings(runs)]


def value_of(run, group=ALL):
    return next(score.value for score in run.scores if score.group == group)


def test_samples_that_settings_differ_in_are_listed_by_their_ids(tmp_path):
    """In the file all of them, counted here one by one."""
    ids = [f'cat, "{row}".jpg' for row in range(60)]
    runs = [run_of(tmp_path, loss=loss, ids=Ids.of(ids)) for loss in (LOSS, COLD)]
    generator = torch.Generator().manual_seed(0)
    said = [torch.where(torch.rand(60, generator=generator) < 0.6, LABELS, (LABELS + 1) % 3) for _ in runs]
    for run, of in zip(runs, said, strict=True):
        order = torch.randperm(60, generator=generator)
        run.add(Result((), outcomes=(Outcomes("kNN", "prediction", ROWS[order], of[order].float()),)))
    page = main_of(runs, tmp_path / "page.html")
    (content,) = re.findall(r'download="settings-1-and-2.csv" href="data:text/csv;charset=utf-8;base64,([^"]*)"', page)
    head, *rows = csv.reader(io.StringIO(base64.b64decode(content).decode(), newline=""))
    assert head == ["id", "class", "temperature=0.1", "temperature=0.5"]
    places = [row for row in range(60) if (said[0][row] == LABELS[row]) != (said[1][row] == LABELS[row])]
    assert len(places) > 12
    assert rows == [[ids[row], *(NAMES[int(of[row])] for of in (LABELS, *said))] for row in places]


def test_settings_are_named_by_what_differs(tmp_path):
    """The seed makes none. Not to name what goes with the loss would credit it with what another width did."""
    runs = [*runs_of(tmp_path, range(2)), *(run_of(tmp_path, loss=loss) for loss in (COLD, OTHER))]
    runs[0].add(Result((Score("mine", ACCURACY, 0.5, 0.4, 0.6, 61),)))  # what one alone has is in no name
    assert names_of(runs[:2]) == ["SupConLoss"] * 2
    assert names_of(runs[:3]) == ["temperature=0.1"] * 2 + ["temperature=0.5"]
    assert names_of(runs[1:]) == ["SupConLoss, temperature=0.1", "SupConLoss, temperature=0.5", "NTXentLoss"]
    assert names_of(runs[2:]) == ["SupConLoss", "NTXentLoss"]
    options = [view.options for view in in_settings(runs[1:])]
    assert options[1:] == [{"loss": "SupConLoss", "loss.temperature": "0.5"}, {"loss": "NTXentLoss"}]
    wide = {"class_path": "likewise.models.MLP", "init_args": {"width": 512, "input_shape": [3]}}
    parts = {"data": None, "encoder": wide, "loss": OTHER, "inputs": [{"class_path": "a.Momentum", "init_args": {}}]}
    names = names_of([runs[0], run_of(tmp_path, parts=parts)])
    assert names == ["SupConLoss, inputs=none, width=64", "NTXentLoss, Momentum, width=512"]
    many = [LOSS | {"init_args": {f"argument_{place}": value for place in range(9)}} for value in (1, 2)]
    first, second = names_of([run_of(tmp_path, loss=loss) for loss in many])
    assert first == "argument_0=1, argument_1=1, argument_2=1, argument_3=1, argument_4=1, and 4 more"
    assert second.endswith("argument_4=2, and 4 more")


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_scores_by_another_protocol_are_not_paired(seeds, tmp_path):
    runs, first, other = [], {"severities": [1, 3]}, {"severities": [1]}
    for loss, said, share in ((LOSS, first, 0.5), (OTHER, first, 0.6), (COLD, other, 0.9)):
        for seed in seeds:
            runs.append(run_of(tmp_path, loss=loss, seed=seed, share=share))
            values, value, count = torch.arange(60) % 10 < 10 * share, share - seed / 50, 60 + len(str(said))
            words = {"settings": {"penalty": share}, "protocol": said}
            score = Score("robustness", Metric("mean"), value, 0.01, 0.99, count, **words)
            runs[-1].add(Result((score,), outcomes=(Outcomes("robustness", "mean", ROWS, values.float()),)))
    assert len(set(names_of(runs))) == 3
    assert not any("samples=" in name for name in names_of(runs))
    rows = [row for row in rows_of(runs) if row.evaluation == "robustness"]
    assert rows[1].difference is not None
    assert (rows[2].difference, rows[2].paired_words) == (None, "not paired: evaluated on other data")
    assert all(row.difference is not None for row in rows_of(runs)[1:3])  # of kNN


def test_episodes_that_differ_with_the_seed_are_paired_seed_by_seed(tmp_path):
    """As where every seed splits the classes anew: both runs of a seed have the same episodes."""
    runs = []
    for loss, share in ((LOSS, 0.5), (OTHER, 0.6)):
        for seed in (0, 1):
            runs.append(run_of(tmp_path, loss=loss, seed=seed, share=share))
            value = share + seed * (share - 0.4) / 10
            metric, said = Metric("5-way 1-shot accuracy", selects=True), {"episodes": f"{seed}abc"}
            score = Score("few-shot", metric, value, 0.01, 0.99, 60, counted="episode", protocol=said)
            runs[-1].add(Result((score,)))
    (row,) = [row for row in rows_of(runs)[1:] if row.evaluation == "few-shot" and row.difference is not None]
    assert (str(row.paired), row.difference) == ("2 seeds", pytest.approx(0.105))


def test_options_of_the_trainer_make_settings_but_a_default_that_is_written_out(tmp_path):
    options = ("max_epochs: 10", "max_epochs: 20, logger: true", "max_epochs: 20, logger: false")
    runs = [configured(run_of(tmp_path), f"trainer: {{{words}}}") for words in options]
    assert names_of(runs[:2]) == ["max_epochs=10", "max_epochs=20"]
    assert names_of(runs) == ["max_epochs=10", *(f"max_epochs=20, {run.name}" for run in runs[1:])]
    options = ("", "precision: 32-true", "precision: bf16-mixed")
    runs = [configured(run_of(tmp_path), f"trainer: {{{words}}}") for words in options]
    assert [name.partition(",")[0] for name in names_of(runs)] == [*["precision=none"] * 2, "precision=bf16-mixed"]


def test_data_and_weights_are_known_by_what_they_hold(tmp_path):
    moved = {"class_path": "likewise.data.Arrays", "init_args": {"path": "/there/photos.npz"}}
    parts, run = {"data": moved, "encoder": ENCODER, "loss": LOSS}, run_of(tmp_path)
    same, other = run_of(tmp_path, seed=1, parts=parts), run_of(tmp_path, parts=parts, samples={"fingerprint": "g"})
    assert names_of([run, same]) == ["SupConLoss"] * 2
    assert names_of([run, other]) == ["Digits", "Arrays"]
    early = run_of(tmp_path, checkpoint="runs/RUN/checkpoint.ckpt")
    early = Run(early.folder.rename(tmp_path / "2026-01-01-000000-run-epoch3-2"))
    assert names_of([run, early]) == ["weights=final", "weights=epoch3"]


def test_a_name_that_was_given_is_the_settings_own(tmp_path):
    runs = [configured(run, "name: warm") for run in runs_of(tmp_path, range(2))] + [run_of(tmp_path, loss=OTHER)]
    assert names_of(runs) == ["warm", "warm", "NTXentLoss"]
    assert names_of([*runs[:2], configured(runs[2], "name: warm")]) == ["SupConLoss", "SupConLoss", "NTXentLoss"]
    configured(runs[1], "name: again")  # a name for each seed is none of the setting
    assert names_of([*runs[:2], run_of(tmp_path, loss=COLD)]) == ["temperature=0.1"] * 2 + ["temperature=0.5"]


def test_names_that_are_given_win_and_seeds_stay_different(tmp_path):
    runs = [run_of(tmp_path, seed=seed) for seed in (0, 1, 0)]
    given = {runs[0].folder: "mine", runs[1].folder: "mine", runs[2].folder: "again"}
    assert [view.setting for view in in_settings(runs, given)] == ["mine", "mine", "again"]
    with pytest.raises(ValueError, match="one run for each seed of mine, got 3 runs with the seeds 0, 0, 1"):
        in_settings(runs, dict.fromkeys(given, "mine"))


def test_means_over_seeds_have_students_interval_and_are_paired_by_seed(tmp_path):
    first = runs_of(tmp_path, range(4), share=0.5)
    second = runs_of(tmp_path, range(4), loss=OTHER, share=0.8)
    rows = rows_of([*first, *(second[seed] for seed in (3, 1, 0, 2))])
    ours, theirs = ([value_of(run) for run in runs] for runs in (first, second))
    for row, values in zip(rows, (ours, theirs), strict=True):
        low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
        assert (row.value, row.low, row.high) == pytest.approx((np.mean(values), low, high))
        assert (row.runs, str(row.interval)) == (4, "4 seeds")
    expected = stats.ttest_rel(theirs, ours)
    interval = expected.confidence_interval(0.95)
    found = rows[1].difference, rows[1].difference_low, rows[1].difference_high
    assert found == pytest.approx((np.mean(theirs) - np.mean(ours), interval.low, interval.high))
    assert (rows[0].difference, rows[0].paired_words, rows[1].paired_words) == (None, "", "4 seeds")


def test_classes_with_many_and_few_samples_have_rows_of_their_own_paired_by_seed(tmp_path):
    def with_tail(loss, seed, few):
        run = run_of(tmp_path, loss=loss, seed=seed)
        tail = replace(run.scores[0], group=Group("frequency", "few"), value=few, low=0.0, high=1.0, count=20)
        run.add(Result((*run.scores, tail)))
        return run

    first = [with_tail(LOSS, seed, few) for seed, few in enumerate((0.1, 0.2, 0.3))]
    second = [with_tail(OTHER, seed, few) for seed, few in enumerate((0.35, 0.40, 0.55))]
    rows = {(row.name, row.setting): row for row in rows_of([*first, *second])}
    row = rows["kNN, accuracy, few", "NTXentLoss"]
    interval = stats.ttest_rel((0.35, 0.40, 0.55), (0.1, 0.2, 0.3)).confidence_interval(0.95)
    found = row.difference, row.difference_low, row.difference_high
    assert found == pytest.approx((0.7 / 3, interval.low, interval.high))
    single = {(row.name, row.setting): row for row in rows_of([first[0], second[0]])}
    assert single["kNN, accuracy, few", "NTXentLoss"].difference is None


def row(setting, value, each=(), metric=ACCURACY, evaluation="kNN", unpaired=""):
    """A row whose difference is the mean of some, each of a seed."""
    bounds = {}
    if each:
        low, high = student(each)
        bounds = {"difference": float(np.mean(each)), "difference_low": low, "difference_high": high}
        bounds["paired"] = Over(len(each), "seed")
    rest = {"unpaired": unpaired} | bounds
    return Row(setting, evaluation, metric, 3, value, value - 0.1, value + 0.1, Over(3, "seed"), **rest)


def groups_of(told):
    """The settings of each group in a verdict."""
    parts = [part.split(": ") for part in told.partition(". ")[2].partition(". Tested")[0].split(". ")]
    return {words: [setting[0] for setting in of.split("; ")] for words, of in parts}


def test_the_verdict_is_holms_of_the_paired_differences():
    each = {
        "B": (0.10, 0.11, 0.12, 0.10, 0.11),
        "C": (-0.2, -0.21, -0.19, -0.2, -0.22),
        "D": (0.01, -0.02, 0.03, 0.0, 0.01),
        "E": (0.0, 0.07, 0.09, 0.11, 0.03),  # its own interval leaves out 0, but not that of four together
        "G": (0.0, 0.0, 0.0, 0.0, 0.0),
        "H": (0.02, 0.02, 0.02, 0.02, 0.02),  # no spread to judge by
    }
    rows = [row("A", 0.5), *(row(name, 0.5, of) for name, of in each.items())]
    rows += [row("F", 0.9, unpaired="other test samples"), row("B", 0.2, (0.1, 0.1, 0.2), metric=Metric("another"))]
    rows += [row("A", 0.5, evaluation="linear probe")]
    values = {name: stats.ttest_1samp(of, 0).pvalue for name, of in each.items() if np.std(of) > 1e-9}
    for name, expected in values.items():
        assert next(of for of in rows if of.setting == name).p_value == pytest.approx(expected)
    assert values["E"] < 0.05 < 3 * values["E"]
    (told,) = verdict(rows)
    assert groups_of(told) == {
        "Higher than A": ["B"],
        "Lower than A": ["C"],
        "No difference from A larger than chance": ["D", "E", "G"],
        "Not judged, as all differences are equal": ["H"],
        "Not paired": ["F"],
    }
    assert told.endswith("Tested together, 6 differences.")


def test_the_verdict_names_evaluations_without_a_difference_together():
    same = (0.01, -0.02, 0.03, 0.0, 0.01)
    rows = [row("A", 0.5), row("B", 0.6, (0.1, 0.11, 0.12, 0.1, 0.11)), row("C", 0.5, same)]
    for evaluation in ("linear probe", "retrieval"):
        rows += [row("A", 0.5, evaluation=evaluation), row("B", 0.5, same, evaluation=evaluation)]
    told = verdict(rows)
    assert told[0].startswith("kNN, accuracy. Higher than A: B (")
    assert told[1:] == ["No difference from A larger than chance in linear probe, accuracy; retrieval, accuracy."]
    assert verdict(rows[3:]) == told[1:]
    equal = row("D", 0.6, (0.5, 0.5, 0.5), evaluation="retrieval")
    assert "all differences are equal: D" in verdict([*rows, equal])[1]


def test_the_verdict_on_pairs_is_of_both_directions():
    """Tested together: what suffices among two does not among four. Other depths of a direction are not judged."""
    clear, doubtful = (0.10, 0.11, 0.12, 0.10, 0.11), (0.0, 0.07, 0.09, 0.11, 0.03)
    p_value = stats.ttest_1samp(doubtful, 0).pvalue
    assert 0.025 < p_value < 0.05
    rows = []
    for direction, each in (("first to second", doubtful), ("second to first", clear)):
        for k, of in ((1, each), (5, clear)):
            metric = Metric(f"recall@{k}, {direction}")
            more = {"evaluation": "cross-modal retrieval", "metric": metric}
            rows += [row("A", 0.5, **more), row("B", 0.6, of, **more)]
    told = verdict(rows)
    assert told[0].startswith("cross-modal retrieval, recall@1, first to second. Higher than A: B (")
    assert told[1].startswith("cross-modal retrieval, recall@1, second to first. Higher than A: B (")
    assert all(one.endswith("Tested together, 2 differences.") for one in told)
    third = [replace(of, setting="C") for of in rows if of.setting == "B"]
    none = [replace(of, difference=0.0, difference_low=-0.1, difference_high=0.1) for of in third]
    told = verdict([*rows, *none])
    assert told[0].startswith("cross-modal retrieval, recall@1, second to first. Higher than A: B (")
    assert told[1] == "No difference from A larger than chance in cross-modal retrieval, recall@1, first to second."


def test_the_interval_of_a_mean_rank_holds_no_rank_below_the_first(tmp_path):
    runs = []
    for seed, value in enumerate((1.0, 1.0, 3.0)):
        run = run_of(tmp_path, seed=seed)
        run.add(Result((Score("ranking", Metric("median rank", "rank", "lower"), value, value, value, 60),)))
        runs.append(run)
    of = next(row for row in rows_of(runs) if row.evaluation == "ranking")
    assert (of.low, of.high) == (1.0, pytest.approx(student([1.0, 1.0, 3.0])[1]))


def test_seeds_in_common_are_paired_and_without_two_the_verdict_says_why(tmp_path):
    runs, others = runs_of(tmp_path, range(3), share=0.5), runs_of(tmp_path, (1, 2), loss=OTHER)
    row = rows_of([*runs, *others])[1]
    each = [value_of(other) - value_of(run) for run, other in zip(runs[1:], others, strict=True)]
    assert (row.difference, row.paired) == (pytest.approx(np.mean(each)), Over(2, "seed"))
    for few in ([*runs[:2], *others], [*runs[:2], others[0]]):  # one seed in common; neither by seed nor by sample
        told = ["No verdict, as nothing is paired with SupConLoss: fewer than 2 seeds in common."]
        assert verdict(rows_of(few)) == told
        assert rows_of(few)[1].paired_words == "not paired: fewer than 2 seeds in common"
    assert verdict(rows_of(runs)) == []


def test_equal_seeds_have_no_interval():
    """A width of 0 would look like certainty."""
    equal = replace(row("B", 0.5, (0.02, 0.02, 0.02)), low=0.5, high=0.5, runs=3)
    assert (equal.score_words, equal.difference_words) == ("50.00 %, all 3 equal", "+2.00, all 3 equal")


def test_of_a_folder_what_can_be_compared_is_and_what_not_is_told_in_a_line(tmp_path, capsys):
    """As with runs/*, where an export, an unfinished run and evaluated files stand beside trained runs."""
    one, other = run_of(tmp_path, seed=0), run_of(tmp_path, loss=OTHER)
    again = run_of(tmp_path, parts={}, source="again.npz", seed=None)
    elsewhere = run_of(tmp_path, parts={}, source="clip.npz", seed=None, rows=ROWS + 7)
    Run.create(tmp_path, "ended").describe({"seed": 0})
    (tmp_path / "export.onnx").touch()
    (tmp_path / "notes").mkdir()
    runs = sorted(str(path) for path in tmp_path.iterdir())
    assert main(["compare", *runs, "--output", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr()
    (left,) = [line for line in said.err.splitlines() if line.startswith("left out: ")]
    (ended,) = tmp_path.glob("*.partial")
    told = [f"{ended.stem} (unfinished, likewise train --resume {ended})", "export.onnx, notes (no run)"]
    told.append(f"{elsewhere.name} (evaluated files of other test samples than the runs')")
    assert sorted(left.removeprefix("left out: ").split("; ")) == sorted(told)
    table = [line.split("  ")[1] for line in said.out.splitlines() if " samples" in line]
    assert table == ["SupConLoss", "NTXentLoss", "again.npz"]
    assert all(row.score_words in said.out and row.difference_words in said.out for row in rows_of([one, other, again]))
    assert "paired differences to SupConLoss" in said.out
    assert str(tmp_path / "page.html") in said.out
    assert again.name in (tmp_path / "page.html").read_text(encoding="utf-8")
    compare([one, elsewhere], tmp_path / "two.html")  # with a single trained run all are
    assert f"{other.name}" not in (tmp_path / "two.html").read_text(encoding="utf-8")


def test_warnings_are_said_as_all_else(tmp_path):
    said = []
    progress = Silent()
    progress.log = said.append

    class Losing(Section):
        runs = "any"

        def content(self, views):
            warnings.warn(f"images of {len(views)} runs\n  are lost", stacklevel=1)

    runs = [run_of(tmp_path), run_of(tmp_path, loss=OTHER)]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        compare(runs, tmp_path / "page.html", sections=[Losing()], progress=progress)
    assert "warning: images of 2 runs are lost" in said


def test_no_verdict_of_many_settings_without_an_effect_is_wrong_more_often_than_said():
    generator, wrong = np.random.default_rng(0), 0
    for _ in range(200):
        noise = generator.normal(size=(8, 5))
        rows = [row("A", 0.5), *(row(str(place), 0.5, tuple(of - noise[0])) for place, of in enumerate(noise[1:]))]
        wrong += "than A:" in verdict(rows)[0]
    assert wrong <= stats.binom.ppf(0.999, 200, 0.05)


def test_a_table_in_markdown_has_the_highest_first_and_the_mean_time_of_training(tmp_path):
    runs = [
        run_of(tmp_path, loss=loss, seed=seed, share=share, seconds={"training": 10.0 + seed, "evaluation": 1.0})
        for loss, share in ((LOSS, 0.5), (OTHER, 0.8))
        for seed in (0, 2)
    ]
    lines = rows_as_markdown(rows_of(runs), "SupConLoss").splitlines()
    assert lines[0] == "**kNN, accuracy**"
    assert [line.split(" | ")[0] for line in lines[4:6]] == ["| NTXentLoss", "| SupConLoss"]
    assert all(line.endswith("| 11 s |") for line in lines[4:6])


def test_single_runs_are_paired_by_sample(tmp_path):
    """Against Agresti and Min's interval, written out."""
    runs = [run_of(tmp_path, share=0.5, seed=3), run_of(tmp_path, loss=OTHER, share=0.8)]
    first, second = rows_of(runs)
    ours, theirs = (RunView(run).outcomes["kNN", "accuracy", "encoder", "test"].values for run in reversed(runs))
    gained = sum(a > b for a, b in zip(ours.tolist(), theirs.tolist(), strict=True))
    lost = sum(a < b for a, b in zip(ours.tolist(), theirs.tolist(), strict=True))
    centre = (gained - lost) / 62
    spread = 1.959964 * math.sqrt((gained + lost + 1) - (gained - lost) ** 2 / 62) / 62
    assert second.difference == pytest.approx((gained - lost) / 60)
    interval = second.difference_low, second.difference_high
    assert interval == pytest.approx((centre - spread, centre + spread), abs=1e-6)
    assert second.paired == Over(60, "sample")
    assert (first.low, first.high, first.interval) == (0.01, 0.99, Over(60, "sample"))
    for run, value in zip(runs, (3.0, 5.0), strict=True):  # no shares: they keep their unit
        values = torch.full((60,), value) + torch.arange(60) % 2
        score = Score("mine", Metric("rank", "plain"), value, 0.5, 9.0, 60)
        run.add(Result((score,), outcomes=(Outcomes("mine", "rank", ROWS, values),)))
    row = [row for row in rows_of(runs) if row.metric.name == "rank"][1]
    assert (row.score_words, row.difference_words) == ("5.000 [0.500, 9.000]", "+2.000 [+2.000, +2.000]")


@pytest.mark.parametrize("seeds", [1, 2])
def test_other_test_samples_are_not_paired_and_the_page_says_why(tmp_path, seeds):
    """Rows are compared where one has no ids."""
    ids = [f"cat/{row}.jpg" for row in range(60)]
    first = runs_of(tmp_path, range(seeds), ids=Ids.of(ids))
    others = [{"rows": ROWS + 1}, {"labels": LABELS.flip(0)}, {"names": ("<cat>", "dog", "pig")}]
    others += [{"ids": Ids.of([*ids[1:], ids[0]])}]
    for changed, unpaired in (({"ids": Ids.of(ids)}, ""), ({}, ""), *((of, "other test samples") for of in others)):
        runs = [*first, *runs_of(tmp_path, range(seeds), loss=OTHER, **changed)]
        assert {row.unpaired for row in rows_of(runs)[1:]} == {unpaired}, changed
    page = main_of(runs, tmp_path / "page.html")
    assert "Where the test samples, which have rows and ids, or their labels differ, no difference is given" in page
    assert 'id="differences-' not in page


def test_scores_that_the_first_setting_lacks_are_shown_unpaired(tmp_path):
    runs = [run_of(tmp_path), run_of(tmp_path, loss=COLD), run_of(tmp_path, loss=OTHER)]
    for run in runs[1:]:
        run.add(Result((Score("retrieval", Metric("MAP@R"), 0.5, 0.4, 0.6, 60, classes=12),)))
    rows = [row for row in rows_of(runs) if row.evaluation == "retrieval"]
    assert [row.interval for row in rows] == [Over(12, "class")] * 2
    assert {row.unpaired for row in rows} == {"the first setting lacks it"}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return runs_of(root, range(2), share=0.5) + runs_of(root, range(2), loss=OTHER, share=0.8)


@pytest.fixture(scope="module")
def page(two, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "of" / "both.html"
    compare(two, path)
    return path


def test_the_page_compares_scores_curves_and_classes(page, two):
    text = page.read_text(encoding="utf-8")
    after = text.split("<main>", 1)[1].split("</main>", 1)[0]
    figures = re.findall(r'<div class="(?:figure|map)" id="([\w-]+)"', after)
    assert figures == ["compared", "map", "map-within", "differences-kNN-accuracy", "curves"]
    for row in rows_of(two):
        assert f"<td>{row.score_words}</td>" in after
        assert f"<td>{row.difference_words}</td>" in after
    for run in two:
        assert run.name in after
    assert after.count(">SupConLoss</td>") == 3
    assert not re.search(r"""(src|href)=(?!"#)""", after)  # links within the page alone
    said = json.loads(re.search(r'id="map-data">(.*?)</script>', text)[1])
    assert [panel["name"] for panel in said["panels"]] == ["SupConLoss", "NTXentLoss"]
    assert len({len(layout["x"]) for panel in said["panels"] for layout in panel["layouts"].values()}) == 1
    for name in NAMES:
        of = [value_of(run, Group("class", name)) for run in two]
        each = [of[2] - of[0], of[3] - of[1]]
        low, high = stats.t.interval(0.95, 1, np.mean(each), stats.sem(each))
        words = f"{100 * np.mean(each):+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"
        assert f"class {escape(name)}</td><td>{words}</td>" in after


def test_single_runs_differ_by_class_on_the_samples_of_the_class(tmp_path):
    runs = [run_of(tmp_path, share=0.5), run_of(tmp_path, loss=OTHER, share=0.8)]
    after = main_of(runs, tmp_path / "page.html")
    for name in NAMES:
        first, second = (value_of(run, Group("class", name)) for run in runs)
        assert f"<td>class {escape(name)}</td><td>{100 * (second - first):+.2f} [" in after


def test_the_table_is_saved_as_it_is_shown(page, two):
    with page.with_suffix(".csv").open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    for line, row in zip(read, rows_of(two), strict=True):
        assert (line["setting"], line["interval"], line["paired"]) == (row.setting, str(row.interval), row.paired_words)
        assert float(line["value"]) == row.value
        assert line["difference"] == ("" if row.difference is None else str(row.difference))


def test_mistakes_are_told_in_one_line(two, tmp_path, capsys):
    bare = Run.create(tmp_path, "bare")
    bare.describe({"seed": 0})
    first = str(two[0].folder)
    for words, expected in (
        ([], "two or more runs to compare, got 0"),
        ([first], "two or more runs to compare, got 1"),
        ([first, first], "got .* twice"),
        ([first, str(bare.folder)], r"got 1: .*; left out: .*bare \(unfinished, .* --resume /.*bare.partial\)"),
        ([first, str(tmp_path)], "which holds runs: name"),
        ([first, str(tmp_path / "none")], "does not exist: likewise train makes one"),
        ([first, first, "--outputs", "x"], "unknown option --outputs, did you mean --output?"),
    ):
        assert main(["compare", *words]) == 2
        said = capsys.readouterr().err
        assert re.search(expected, said)
        assert said.count("\n") == 1
    assert list(tmp_path.glob("*.html")) == []
