"""What `likewise sweep` does: run after run, each once, and a comparison of those that finished."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from likewise.cli import training
from likewise.cli.compare import compare
from likewise.cli.options import arranged, options, parse
from likewise.cli.plan import Planned, Sweep, standing
from likewise.cli.printing import say
from likewise.cli.settings import words_of
from likewise.cli.tuning import TABLE, Trial, best, write_table
from likewise.report.formatting import score_words
from likewise.runs import Run


def check(sweep: Sweep) -> None:
    """Raise a ValueError unless every setting fits together with its data, before anything is trained.

    Of trials, the first of a setting is put together, and of the others only the options are read.
    """
    for name, words in sweep.settings.items():
        for number, trial in enumerate(sweep.trials.get(name, [[]])):
            try:
                arguments = arranged([*sweep.common, *words, *trial, "--seed", str(sweep.seeds[0])])
                if number:
                    parse(options(arguments), arguments)
                else:
                    training.check(arguments)
            except ValueError as error:
                common = [word for word in sweep.common if word.startswith("--") and f"{word} " in str(error)]
                hint = (
                    f" (or give {common[0]} in the settings that have it)" if common and len(sweep.settings) > 1 else ""
                )
                raise ValueError(f"setting {name!r}: {error}{hint}") from error


def carry_out(sweep: Sweep, folder: Path) -> Path:
    """Train what isn't trained yet, and compare.

    Args:
        sweep: What is trained.
        folder: Where.

    Returns:
        The page that compares the runs.

    Raises:
        ValueError: The first run failed before training, or another one; the others have been finished and compared.
    """
    work = _Work(len(sweep.everything(folder)))
    tuned = _tuned(sweep, folder, work)
    whole = {trial.run.folder: name for name, trial in tuned.items()}
    runs = sweep.runs(folder, {name: trial.options for name, trial in tuned.items()})
    possible = [one for one in runs if one.setting in tuned or one.setting not in sweep.trials]
    whole |= {made.folder: one.setting for one, made in work.done(possible)}
    page = folder / "compare.html"
    order = list(sweep.settings)
    runs = [Run(path) for path in sorted(whole, key=lambda path: order.index(whole[path]))]
    runs = [run for run in runs if any(score.part == "test" and score.epoch is None for score in run.scores)]
    if len(runs) > 1:
        compare(runs, page, whole)
    if work.failed:
        raise ValueError(f"{len(work.failed)} of {work.count} runs failed; {work.failed[0]}")
    return page


class _Work:
    """Runs that are trained one after another; what fails is noted, and the others go on.

    Args:
        count: How many there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.number = 0
        self.failed: list[str] = []
        self._seconds: list[float] = []

    def done(self, planned: Sequence[Planned]) -> Iterator[tuple[Planned, Run]]:
        """Train what isn't trained yet, and yield each run that is finished."""
        befores = [standing(one.root) for one in planned]
        finished = sum(run is not None and run.stage == "finished" for run in befores)
        if finished:
            say(f"already finished: {finished} of {len(planned)} runs")
        for one, before in zip(planned, befores, strict=True):
            made = self._one(one, before)
            if made is not None:
                yield one, made

    def _one(self, one: Planned, before: Run | None) -> Run | None:
        self.number += 1
        if before is not None and before.stage == "finished":
            return before
        say(f"\nrun {self.number} of {self.count}: {one.name}{self._left()}")
        start = time.monotonic()
        try:
            made = training.run(one.words if before is None else ["--resume", str(before.folder)])
            self._seconds.append(time.monotonic() - start)
        except Exception as error:
            if self.number == 1 and standing(one.root) is None:
                raise ValueError(f"{one.name}, the first run: {error or type(error).__name__}") from error
            self.failed.append(f"{one.name}: {error or type(error).__name__}")
            say(f"failed: {self.failed[-1]}")
            return None
        return made

    def _left(self) -> str:
        """Say how long this run and those after it take, if each takes as long as those before."""
        if not self._seconds:
            return ""
        seconds = sum(self._seconds) / len(self._seconds) * (self.count - self.number + 1)
        return f", about {tqdm.format_interval(seconds)} left"


def _tuned(sweep: Sweep, folder: Path, work: _Work) -> dict[str, Trial]:
    """Train the trials, write their table as they come, and return the best of each setting.

    A trial that fails, as one may that diverges, is no failure of the sweep unless all of its setting's fail.

    Raises:
        ValueError: A trial has no validation score.
    """
    trials: list[Trial] = []
    for one, run in work.done(list(sweep.tuning(folder))):
        trials.append(Trial.of(one.setting, one.tried, run, sweep.tuned_by.get(one.setting)))
        write_table(folder / TABLE, trials)
    found = best(trials)
    work.failed = [f"{name}: every trial failed" for name in sweep.trials if name not in found]
    for name, trial in found.items():
        tried = sum(one.setting == name for one in trials)
        of = f"{trial.score.evaluation}, {trial.score.metric} {score_words(trial.score)} on validation"
        say(f"{name}: {words_of(trial.options)}, the best of {tried} trials by {of}")
    return found
