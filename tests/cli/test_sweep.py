"""`likewise sweep`: what it trains, resumes and tunes, and what it refuses."""

import csv
import json
import statistics
import warnings

import pytest

from likewise.cli import main
from likewise.cli.verbs import axis
from likewise.data import Arrays, reload
from likewise.evaluation import KNN
from likewise.runs import Run
from likewise.workflows import training
from likewise.workflows.plan import GivenSetting, Sweep, plan_sweep

pytestmark = pytest.mark.slow
SETTINGS = ["--setting", "SupCon: --loss SupConLoss", "--setting", "--loss NTXentLoss"]


def test_a_sweep_that_was_interrupted_goes_on_where_it_was(digits, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "sweep"
    train, count = training.train, iter(range(100))

    def interrupted(*arguments, **named):
        if next(count) == 2:
            raise KeyboardInterrupt
        return train(*arguments, **named)

    monkeypatch.setattr(training, "train", interrupted)
    words = [*digits, "--evaluations", "KNN", "--report", "false"]
    assert main(["sweep", "--seeds", "2", *SETTINGS, "--output", str(folder), *words]) == 130
    assert f"likewise sweep --resume {folder}" in capsys.readouterr().err
    done = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/*/encoder.safetensors")}
    assert len(done) == 2
    assert main(["sweep", "--resume", str(folder)]) == 0
    runs = [Run(path.parent) for path in sorted(folder.glob("*/*/*/run.json"))]
    assert [run.metadata["seed"] for run in runs] == [0, 1, 0, 1]
    losses = [run.metadata["parts"]["loss"]["class_path"].rpartition(".")[2] for run in runs]
    assert losses == ["SupConLoss", "SupConLoss", "NTXentLoss", "NTXentLoss"]
    assert all(path.stat().st_mtime_ns == time for path, time in done.items())
    with (folder / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    of_knn = [row for row in rows if row["evaluation"] == "kNN" and row["metric"] == "accuracy"]
    values = [statistics.mean(run.scores["kNN", "accuracy"].value for run in pair) for pair in (runs[:2], runs[2:])]
    assert [row["setting"] for row in of_knn] == ["SupCon", "loss=NTXentLoss"]
    assert [float(row["value"]) for row in of_knn] == pytest.approx(values)
    assert (folder / "compare.html").is_file()


def test_a_run_that_fails_does_not_end_a_sweep(digits, tmp_path, refused):
    settings = ["--setting", "diverges: --optimizer SGD --optimizer.lr 1e30", "--setting", "trains: --seed_of_none 1"]
    line = refused("sweep", "--seeds", "1", *settings, "--output", tmp_path / "sweep", *digits)
    assert "setting 'trains'" in line
    assert "seed_of_none" in line
    assert not (tmp_path / "sweep").exists()
    settings[-1] = "trains: --loss SupConLoss"
    quick = [*digits, "--evaluations", "KNN", "--report", "false"]
    line = refused("sweep", "--seeds", "1", *settings, "--output", tmp_path / "sweep", *quick)
    assert "1 of 2 runs failed; diverges, seed 0: " in line
    assert len([path for path in (tmp_path / "sweep").glob("*/*/*") if path.suffix != ".partial"]) == 1


def test_a_sweep_that_trained_nothing_removes_nothing_that_is_not_its_own(digits, tmp_path, monkeypatch, refused):
    folder = tmp_path / "sweep"
    folder.mkdir()
    monkeypatch.chdir(folder)
    words = ["--seeds", "1", *SETTINGS, "--output", ".", *digits]

    def noted(*_, **__):
        (folder / "notes.txt").write_text("mine")
        raise ValueError("expected views")

    monkeypatch.setattr(training, "train", noted)
    assert "expected views" in refused("sweep", *words)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("place", [0, 1])
def test_settings_that_do_not_fit_together_are_refused_before_the_first_is_trained(digits, tmp_path, place, refused):
    settings = ["fits: --loss SupConLoss", "fits too: --loss NTXentLoss"]
    settings[place] = "bad: --loss SupConLoss --batches.views 0"
    given = [word for setting in settings for word in ("--setting", setting)]
    line = refused("sweep", "--seeds", "5", *given, "--output", tmp_path / "sweep", *digits)
    assert "setting 'bad': expected views of at least 1" in line
    assert "--resume" not in line
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "none"], "expected --seeds as a number above 0"),
        (["--seeds", "1,1"], "once"),
        (["--grid", "loss.temperature"], "NAME=VALUE"),
        (["--setting", "SupConLoss it is"], "a setting as options"),
        (["--setting", "a: --loss SupConLoss", "--setting", "a: --loss NTXentLoss"], "two called 'a'"),
        (["--seed", "3"], "--seeds"),
        (["--resume", "nowhere"], "sweep.json"),
        (["--resume", "nowhere", "--seeds", "2"], "no other option"),
        (["--los", "SupConLoss"], "unknown option --los"),
        (["--trials", "3"], "expected --trials with --tune"),
        (["--tune", "loss.temperature=0.1", "--trials", "no"], "expected --trials as a number above 0"),
        (["--tune", "loss.temperature=0.1,0.2", "--split_seeds"], "without --split_seeds"),
        (["--setting", "a: --loss SupConLoss --tune_by kNN"], "expected --tune_by with --tune"),
        (["--tune", "seed=1,2"], "which a sweep sets itself"),
        (["--tune", "loss.warmth=1,2", "--loss", "SupConLoss"], "warmth"),
        (
            ["--loss.form", "in", "--setting", "--loss SupConLoss", "--setting", "b: --loss CrossEntropyLoss"],
            "option --loss.form of CrossEntropyLoss, did you mean --loss SupConLoss? (or give --loss.form in the",
        ),
    ],
    ids=range(16),
)
def test_sweeps_that_are_not_as_expected_are_refused(arguments, words, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    assert words in refused("sweep", *arguments)
    assert not list(tmp_path.iterdir())


def test_a_grid_takes_every_combination_with_every_setting(tmp_path):
    sweep = Sweep(["--x", "1"], {"a": ["--y", "2"], "b": []}, [5])
    assert [(one.setting, one.name, one.words) for one in sweep.runs(tmp_path)] == [
        ("a", "a, seed 5", ["--x", "1", "--y", "2", "--seed", "5", "--runs", str(tmp_path / "1-a" / "seed-5")]),
        ("b", "b, seed 5", ["--x", "1", "--seed", "5", "--runs", str(tmp_path / "2-b" / "seed-5")]),
    ]
    assert json.loads(json.dumps(sweep.settings)) == sweep.settings


def test_a_sweep_loads_its_data_and_evaluates_raw_inputs_once(digits, tmp_path, monkeypatch):
    """Each run warns of the data, has the scores of raw inputs, and is the same when it is trained alone."""
    calls, loads, evaluate, load = [], [], KNN.__call__, Arrays.load

    def counted(self, train, *others, **options):
        calls.append(train.kind)
        return evaluate(self, train, *others, **options)

    def loaded(self):
        loads.append(self)
        warnings.warn("something about the data", stacklevel=1)
        return load(self)

    monkeypatch.setattr(KNN, "__call__", counted)
    monkeypatch.setattr(Arrays, "load", loaded)
    words = ["--evaluations", "KNN", "--evaluations.k", "13", "--report", "false", "--validation_epochs", "0", *digits]
    with pytest.warns(UserWarning, match="something about the data") as said:
        assert main(["sweep", "--seeds", "2", *SETTINGS, *words, "--output", str(tmp_path / "sweep")]) == 0
    assert (calls.count("encoder"), calls.count("raw inputs"), len(loads)) == (4, 1, 1)
    assert sum("something about the data" in str(of.message) for of in said) == 4
    runs = [Run(path.parent) for path in (tmp_path / "sweep").glob("*/*/*/run.json")]
    raw = {tuple(score for score in run.scores if score.features == "raw inputs") for run in runs}
    assert (len(runs), len(raw)) == (4, 1)
    calls.clear()
    assert not runs[0].report.exists()
    monkeypatch.setattr(Arrays, "load", load)
    assert main(["evaluate", str(runs[0].folder), "--evaluations", "[]", "--device", "cpu"]) == 0
    assert (runs[0].report.exists(), calls) == (True, [])
    words = ["--config", str(runs[0].configuration), "--evaluations.k", "11", "--runs", str(tmp_path / "again")]
    assert main(["train", *words]) == 0
    again = Run(next((tmp_path / "again").iterdir()))
    assert again.weights.read_bytes() == runs[0].weights.read_bytes()
    assert again.metadata["samples"] == runs[0].metadata["samples"]
    assert calls.count("raw inputs") == 1  # with other settings, anew


def test_data_too_large_to_keep_are_loaded_by_each_run(digits, tmp_path, monkeypatch):
    loads, load = [], Arrays.load
    monkeypatch.setattr(Arrays, "load", lambda self: (loads.append(self), load(self))[1])
    monkeypatch.setattr(reload, "MAX_KEPT_BYTES", 0)
    words = ["--evaluations", "[]", "--report", "false", *digits]
    assert main(["sweep", "--seeds", "1", *SETTINGS, *words, "--output", str(tmp_path / "sweep")]) == 0
    assert len(loads) >= 4  # two checks, two runs


# --- tuning ----------------------------------------------------------------------------------------------------------

TUNED = [
    *["--setting", "SupCon: --loss SupConLoss --tune loss.temperature=0.05,0.5"],
    *["--setting", "NT-Xent: --loss NTXentLoss --tune optimizer.lr=0.01,0.001"],
]


def best_on_validation(run, evaluation):
    scores = (score for score in run.scores if (score.evaluation, score.features) == (evaluation, "encoder"))
    return max(score.value for score in scores if score.part == "validation" and score.epoch is None)


def test_validation_chooses_what_further_seeds_are_trained_with(digits, tmp_path):
    folder = tmp_path / "sweep"
    words = ["--seeds", "4,5", *TUNED, "--tune", "encoder.depth=1,2", "--trials", "3", "--tune_by", "kNN"]
    assert main(["sweep", *words, "--output", str(folder), "--evaluations", "KNN", "--report", "false", *digits]) == 0
    with (folder / "tuning.csv").open(newline="") as file:
        trials = list(csv.DictReader(file))
    assert [row["setting"] for row in trials] == ["SupCon", "NT-Xent"] * 3
    assert len({(row["setting"], row["options"]) for row in trials}) == 6
    for name, option in (("SupCon", "loss.temperature"), ("NT-Xent", "optimizer.lr")):
        own = [row for row in trials if row["setting"] == name]
        runs = [Run.open(folder / row["run"]) for row in own]
        assert {run.metadata["seed"] for run in runs} == {4}
        values = [best_on_validation(run, "kNN") for run in runs]
        assert [float(row["validation"]) for row in own] == pytest.approx(values, rel=1e-5)
        place = values.index(max(values))
        assert [row["chosen"] for row in own] == ["chosen" if at == place else "" for at in range(3)]
        (home,) = {run.folder.parent.parent for run in runs}
        assert sorted(path.name for path in home.iterdir()) == ["seed-5", "trial-1", "trial-2", "trial-3"]
        (other,) = (Run(path) for path in (home / "seed-5").iterdir())
        part, argument = option.split(".")
        chosen, repeated = (
            (of.metadata["parts"][part]["init_args"][argument], of.metadata["parts"]["encoder"]["init_args"]["depth"])
            for of in (runs[place], other)
        )
        assert chosen == repeated
        with (folder / "compare.csv").open(newline="") as file:
            (row,) = (row for row in csv.DictReader(file) if row["setting"] == name and row["metric"] == "accuracy")
        tests = [of.scores["kNN", "accuracy"].value for of in (runs[place], other)]
        assert row["runs"] == "2"
        assert float(row["value"]) == pytest.approx(statistics.mean(tests))


def test_a_trial_that_diverges_is_no_failure_unless_all_do(digits, tmp_path, capsys, refused):
    words = ["--seeds", "2", "--optimizer", "SGD", *digits, "--evaluations", "KNN", "--report", "false"]
    one = ["--setting", "SupCon: --loss SupConLoss --tune optimizer.lr=1e30,0.01"]
    assert main(["sweep", *words, *one, "--output", str(tmp_path / "one")]) == 0
    told = capsys.readouterr().err
    assert "failed: SupCon, trial 1 of 2 (optimizer.lr=1e30), seed 0: " in told
    assert "SupCon: optimizer.lr=0.01, the best of 1 trials" in told
    all_of_it = ["--setting", "SupCon: --loss SupConLoss --tune optimizer.lr=1e30,2e30"]
    line = refused("sweep", *words, *all_of_it, "--output", tmp_path / "all")
    assert "SupCon: every trial failed" in line


def test_what_cannot_tune_ends_after_the_first_trial(digits, tmp_path, refused):
    by_none = [word.replace("--tune optimizer", "--tune_by kNN --tune optimizer") for word in TUNED]
    by_none = [word.replace("--tune loss", "--tune_by=kNM --tune loss") for word in by_none]
    words = ["--seeds", "2", *by_none, "--evaluations", "KNN", "--report", "false", *digits]
    line = refused("sweep", *words, "--output", tmp_path / "sweep")
    assert "expected a validation score of kNM to tune by, got those of kNN" in line
    assert len(list((tmp_path / "sweep").glob("*/*/*"))) == 1


def test_trials_are_all_combinations_or_some_of_them_drawn_once():
    tune = [axis("--tune", "x=1,2"), axis("--tune", "y=[1,2],[3]")]
    settings = [GivenSetting("a", ["--loss", "A"], tune), GivenSetting("b", ["--loss", "B"])]
    everywhere = [axis("--tune", "z=5,6")]
    whole = plan_sweep(settings, [], [0], tune=everywhere)
    assert whole.settings == {"a": ["--loss", "A"], "b": ["--loss", "B"]}
    trials = whole.trials
    assert trials["b"] == [["--z", "5"], ["--z", "6"]]
    assert sorted(map(tuple, trials["a"])) == sorted(
        ("--z", z, "--x", x, "--y", y) for z in "56" for x in "12" for y in ("[1,2]", "[3]")
    )
    few = plan_sweep(settings, [], [0], tune=everywhere, trials=3).trials
    assert [len(of) for of in few.values()] == [3, 2]
    assert all(trial in trials["a"] for trial in few["a"])
    assert len(set(map(tuple, few["a"]))) == 3
    assert plan_sweep(settings, [], [0], tune=everywhere, trials=3).trials == few
    own = plan_sweep([GivenSetting("c", [], [axis("--tune", "z=7")])], [], [0], tune=everywhere)
    assert own.trials == {"c": [["--z", "7"]]}
