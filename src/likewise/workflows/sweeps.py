"""Sweeps: runs trained one after another, the best of tuned options, and a comparison of the finished runs."""

import csv
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack, final

from tqdm import tqdm

from likewise.configuration import read
from likewise.configuration.recipes import studies, study
from likewise.data.lazy_inputs import use_progress
from likewise.data.reload import loaded_once
from likewise.files.formats import PARTIAL_SUFFIX
from likewise.report.run_summary import INDENT
from likewise.runs import Run
from likewise.runs.scores import Score, best, format_count, format_score, validation_score
from likewise.workflows import plan, training
from likewise.workflows.arguments import TrainArguments
from likewise.workflows.comparison import Comparison, compare
from likewise.workflows.progress import PRINTED, Progress

TABLE = "tuning.csv"
Comparing = Callable[[Sequence[Run], Path, Mapping[Path, str], Progress], Comparison]
"""Compares runs in a sweep's folder, each with the name of its setting."""


@final
@dataclass(frozen=True)
class _Trial:
    """A finished run that tried options of a setting, with its validation score."""

    setting: str
    options: list[str]
    run: Run
    score: Score

    @classmethod
    def of(cls, setting: str, options: list[str], run: Run, tuned_by: str | None) -> "_Trial":
        score = validation_score(run.scores, tuned_by)
        if score is not None:
            return cls(setting, options, run, score)
        parts = [score for score in run.scores if score.part == "validation" and score.epoch is None]
        known = ", ".join(dict.fromkeys(score.evaluation for score in parts))
        wanted = f" of {tuned_by}" if tuned_by else ""
        expected = f"expected a validation score{wanted} to tune by, got {f'those of {known}' if known else 'none'}"
        raise ValueError(f"{expected}: evaluate what --tune_by names, on labels and a validation part")


def sweep(
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    seeds: int | Sequence[int] = 3,
    grid: Mapping[str, Sequence[Any]] | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    trials: int | None = None,
    tune_by: str | None = None,
    split_seeds: bool = False,
    output: Path | str | None = None,
    progress: Progress = PRINTED,
    **common: Unpack[TrainArguments],
) -> Comparison | None:
    """Train several settings with several seeds, one after another, and compare them.

    The same call with the same `output` resumes an interrupted sweep.

    Args:
        settings: By the name of each setting, its own options of `likewise train`, optionally with "tune" as below.
        seeds: N for the seeds 0 to N-1, or a list of seeds.
        grid: Options with several values; every combination is a setting.
        tune: Options whose value validation chooses for each setting, with the values to try.
        trials: The number of combinations of `tune` to try, drawn at random. None: all.
        tune_by: The evaluation that chooses, such as kNN. None: the linear probe, or the first.
        split_seeds: Whether the data is split anew with each seed.
        output: The sweep's folder. None: sweeps/DATE.
        progress: Receives messages during the work, and the scores.
        **common: Options of all runs, without objects, including recipe, which may be a study.

    Returns:
        The comparison; None if fewer than two runs have scores.

    Raises:
        ValueError: An option is not as expected, or a run failed; the others have been finished and compared.
        KeyboardInterrupt: The user ended it.
    """
    of_study = study(common.pop("recipe")) if common.get("recipe") in studies() else {}
    every = [plan.GivenSetting(name, shlex.split(options)) for name, options in of_study.items()]
    for name, options in (settings or {}).items():
        fixed_options = {option: value for option, value in options.items() if option != "tune"}
        every.append(plan.GivenSetting(name, plan.options_of(fixed_options), plan.axes_of(options.get("tune"))))
    made = plan.plan_sweep(
        every,
        plan.options_of(common),
        list(range(seeds)) if isinstance(seeds, int) else list(seeds),
        grid=plan.axes_of(grid),
        tune=plan.axes_of(tune),
        trials=trials,
        tune_by=tune_by,
        split_seeds=split_seeds,
    )
    return run_sweep(made, plan.folder_of(made, output), progress)


def compare_sweep(runs: Sequence[Run], folder: Path, names: Mapping[Path, str], progress: Progress) -> Comparison:
    """Compare the runs of a sweep, on a page in its folder."""
    return compare(runs, folder / "compare.html", names=names, progress=progress)


@loaded_once()
def run_sweep(
    sweep_plan: plan.Sweep,
    folder: Path,
    progress: Progress = PRINTED,
    *,
    compare_runs: Comparing = compare_sweep,
    least: int = 2,
    again: str = "resume the sweep with likewise sweep --resume {}",
) -> Comparison | None:
    """Train the remaining runs, one after another, and compare; see `sweep`. `again` says how to resume."""
    if not (folder / plan.PLAN).is_file():
        with use_progress(progress.bar):  # settings and data must fit together: each first trial is assembled
            for name, config in plan.configurations(sweep_plan).items():
                with plan.in_setting(name, sweep_plan):
                    training.check(config)
        folder = plan.write(sweep_plan, folder)
    tuned = f", {sum(map(len, sweep_plan.trials.values()))} trials to tune them" if sweep_plan.trials else ""
    settings, seeds = format_count(len(sweep_plan.settings), "setting"), format_count(len(sweep_plan.seeds), "seed")
    progress.log(f"{settings} x {seeds}{tuned} in {folder}")
    counts = {name: len(sweep_plan.trials.get(name, [[]])) for name in sweep_plan.settings}
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{name} {count}" for name, count in counts.items())
        progress.log(f"settings have unequal numbers of trials ({each}): differences are also those of tuning")
    try:
        comparison = _train_all(sweep_plan, folder, progress, compare_runs, least)
    except BaseException as error:
        if any(_existing_run(planned_run.root) for planned_run in sweep_plan.everything(folder)):
            error.add_note(again.format(folder))
        else:
            plan.remove_traces(sweep_plan, folder)
        raise
    if comparison is None:
        progress.result(f"\nsweep: {folder}; fewer than two runs have scores to compare")
    return comparison


def _existing_run(root: Path) -> Run | None:
    """Return the run in a folder, finished or not; None if there is none."""
    for path in sorted(root.iterdir(), key=lambda path: path.suffix == PARTIAL_SUFFIX) if root.is_dir() else ():
        if (path / "run.json").is_file():
            return Run(path)
    return None


def _train_all(
    sweep_plan: plan.Sweep, folder: Path, progress: Progress, compare_runs: Comparing, least: int
) -> Comparison | None:
    work = _Work(len(sweep_plan.everything(folder)), progress)
    tuned = _tune(sweep_plan, folder, work)
    whole = {trial.run.folder: name for name, trial in tuned.items()}
    runs = sweep_plan.runs(folder, {name: trial.options for name, trial in tuned.items()})
    possible = [run for run in runs if run.setting in tuned or run.setting not in sweep_plan.trials]
    whole |= {made.folder: run.setting for run, made in work.train_each(possible)}
    order = list(sweep_plan.settings)
    runs = [Run(path) for path in sorted(whole, key=lambda path: order.index(whole[path]))]
    runs = [run for run in runs if any(score.part == "test" and score.epoch is None for score in run.scores)]
    comparison = compare_runs(runs, folder, whole, progress) if len(runs) >= least else None
    if work.failed:
        raise ValueError(f"{len(work.failed)} of {work.count} runs failed; {work.failed[0]}")
    return comparison


@final
class _Once:
    """A sweep's progress: lines common to several runs are logged only once, and each run's next steps not at all."""

    def __init__(self, progress: Progress) -> None:
        self.bar, self.steps = progress.bar, progress.steps
        self._progress = progress
        self._logged: set[str] = set()

    def log(self, doing: str) -> None:
        if doing not in self._logged:
            self._progress.log(doing)
        if doing.startswith(INDENT):
            self._logged.add(doing)

    def result(self, result: str) -> None:
        if not result.strip().startswith(training.NEXT):
            self._progress.result(result)


@final
class _Work:
    """Runs trained one after another; a failure is noted, and the other runs go on."""

    def __init__(self, count: int, progress: Progress) -> None:
        self.count = count
        self.progress = _Once(progress)
        self.number = 0
        self.failed: list[str] = []
        self._seconds: list[float] = []

    def train_each(self, runs: Sequence[plan.PlannedRun]) -> Iterator[tuple[plan.PlannedRun, Run]]:
        befores = [_existing_run(planned_run.root) for planned_run in runs]
        finished = sum(run is not None and run.stage == "finished" for run in befores)
        if finished:
            self.progress.log(f"already finished: {finished} of {len(runs)} runs")
        for planned_run, before in zip(runs, befores, strict=True):
            made = self._train_one(planned_run, before)
            if made is not None:
                yield planned_run, made

    def _train_one(self, planned_run: plan.PlannedRun, before: Run | None) -> Run | None:
        self.number += 1
        if before is not None and before.stage == "finished":
            return before
        self.progress.log(f"\nrun {self.number} of {self.count}: {planned_run.name}{self._left()}")
        start = time.monotonic()
        try:
            arguments = planned_run.words if before is None else ["--resume", str(before.folder)]
            made = training.train(read(arguments), progress=self.progress)
        except Exception as error:
            if self.number == 1 and _existing_run(planned_run.root) is None:
                raise ValueError(f"{planned_run.name}, the first run: {error or type(error).__name__}") from error
            self.failed.append(f"{planned_run.name}: {error or type(error).__name__}")
            self.progress.log(f"failed: {self.failed[-1]}")
            return None
        self._seconds.append(time.monotonic() - start)
        return made

    def _left(self) -> str:
        if not self._seconds:
            return ""
        seconds = sum(self._seconds) / len(self._seconds) * (self.count - self.number + 1)
        return f", about {tqdm.format_interval(seconds)} left"


def _tune(sweep_plan: plan.Sweep, folder: Path, work: _Work) -> dict[str, _Trial]:
    """Train the trials, return each setting's best; one may fail, as by diverging, unless all of its setting fail."""
    trials: list[_Trial] = []
    for planned_run, run in work.train_each(list(sweep_plan.tuning(folder))):
        tuned_by = sweep_plan.tuned_by.get(planned_run.setting)
        trials.append(_Trial.of(planned_run.setting, planned_run.tried, run, tuned_by))
        _write_table(folder / TABLE, trials)
    chosen = _best(trials)
    work.failed = [f"{name}: every trial failed" for name in sweep_plan.trials if name not in chosen]
    for name, trial in chosen.items():
        tried = sum(trial.setting == name for trial in trials)
        score = f"{trial.score.evaluation}, {trial.score.metric} {format_score(trial.score)} on validation"
        work.progress.log(f"{name}: {plan.options_line(trial.options)}, the best of {tried} trials by {score}")
    return chosen


def _best(trials: Iterable[_Trial]) -> dict[str, _Trial]:
    best_of: dict[str, _Trial] = {}
    for trial in trials:
        if trial.setting not in best_of or best([best_of[trial.setting].score, trial.score]) is trial.score:
            best_of[trial.setting] = trial
    return best_of


def _write_table(path: Path, trials: Sequence[_Trial]) -> None:
    chosen = _best(trials)
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["setting", "options", "evaluation", "metric", "validation", "low", "high", "chosen", "run"])
        for trial in trials:
            score, options = trial.score, plan.options_line(trial.options)
            numbers = (f"{value:.6g}" for value in (score.value, score.low, score.high))
            mark = "chosen" if trial is chosen[trial.setting] else ""
            where = trial.run.folder.relative_to(path.parent)
            writer.writerow([trial.setting, options, score.evaluation, score.metric, *numbers, mark, where])
