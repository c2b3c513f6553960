"""Which trial of each setting is best on validation, and the table of all trials."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from likewise.cli.settings import words_of
from likewise.runs import Run
from likewise.scores import Score, validation_score
from likewise.scores import best as best_score

TABLE = "tuning.csv"


@final
@dataclass(frozen=True)
class Trial:
    """A finished run that tried options.

    Args:
        setting: The setting whose options they are.
        options: The options.
        run: The run.
        score: Its validation score.
    """

    setting: str
    options: list[str]
    run: Run
    score: Score

    @classmethod
    def of(cls, setting: str, options: list[str], run: Run, tuned_by: str | None) -> "Trial":
        """Read the validation score of a run.

        Raises:
            ValueError: It has none.
        """
        score = validation_score(run.scores, tuned_by)
        if score is not None:
            return cls(setting, options, run, score)
        parts = [one for one in run.scores if one.part == "validation" and one.epoch is None]
        known = ", ".join(dict.fromkeys(one.evaluation for one in parts))
        wanted = f" of {tuned_by}" if tuned_by else ""
        raise ValueError(
            f"expected a validation score{wanted} to tune by, got {f'those of {known}' if known else 'none'}: "
            "evaluate what --tune_by names, and train on data with labels and a validation part"
        )


def best(trials: Iterable[Trial]) -> dict[str, Trial]:
    """Return the trial of each setting with the best validation score; of equals the first."""
    found: dict[str, Trial] = {}
    for trial in trials:
        if trial.setting not in found or best_score([found[trial.setting].score, trial.score]) is trial.score:
            found[trial.setting] = trial
    return found


def write_table(path: Path, trials: Sequence[Trial]) -> None:
    """Write every trial with its validation score as CSV."""
    chosen = best(trials).values()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["setting", "options", "evaluation", "metric", "validation", "low", "high", "chosen", "run"])
        for trial in trials:
            of = trial.score
            numbers = (f"{value:.6g}" for value in (of.value, of.low, of.high))
            mark = "chosen" if any(trial is one for one in chosen) else ""
            where = trial.run.folder.relative_to(path.parent)
            writer.writerow([trial.setting, words_of(trial.options), of.evaluation, of.metric, *numbers, mark, where])
