"""Scores: what an evaluation found, as flat rows, with the outcome of every sample for paired comparison."""

import csv
import io
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

ENCODER = "encoder"
RAW = "raw inputs"
ALL = "all"
# classes and labels by the number of their training samples
SUBSETS = ("many", "medium", "few", "head labels", "middle labels", "tail labels")
FEWER = "samples only"  # says in `choices` that raw inputs were evaluated on fewer samples than the encoder
SEPARATOR = "|"
PREFERRED = "linear probe"
WORDS = ("evaluation", "metric", "features", "part", "subset", "choices")


@final
@dataclass(frozen=True)
class Score:
    """One number with its 95 % interval.

    Args:
        evaluation: What was evaluated, such as "linear probe".
        metric: What the number is, such as "accuracy".
        value: The number; a share is between 0 and 1.
        low: Lower end of its 95 % interval.
        high: Upper end.
        count: Samples that it is the mean of.
        features: "encoder", or "raw inputs", the same evaluation without an encoder.
        part: "test" or "validation".
        subset: "all"; one of `SUBSETS`; or "class NAME" or "label NAME".
        epoch: Epochs trained so far, for scores taken during training; None for the final encoder.
        choices: The settings chosen on validation, such as "penalty=0.001", and what else to know about the number.

    Example:
        >>> Score("kNN", "accuracy", 0.9, 0.8, 0.95, 100).part
        'test'
    """

    evaluation: str
    metric: str
    value: float
    low: float
    high: float
    count: int
    features: str = ENCODER
    part: str = "test"
    subset: str = ALL
    epoch: int | None = None
    choices: str = ""

    @property
    def group(self) -> tuple[str | int | None, ...]:
        """Evaluation, features and epoch, of episodes also metric and part: rows of a group are replaced together."""
        own = (self.metric, self.part) if _of_episodes(self.metric) else ()
        return self.evaluation, self.features, self.epoch, *own


@final
@dataclass(frozen=True)
class Outcomes:
    """What each sample contributed to a score.

    Args:
        evaluation: See `Score`.
        metric: See `Score`; also "prediction", the predicted class.
        rows: The samples' rows in their source, (M,). Of episodes, which have many samples, -1 less their number.
        values: One value a sample, (M,): 0 or 1 of an accuracy, a precision of a query. Or one an episode.
        classes: Of episodes the classes that they were drawn from, (M, N), where turns of a class are one; others may
            have been drawn. None of samples.
        features: See `Score`.
        part: See `Score`.
        shares: Of episodes what each of these classes contributed, (M, N), of which the value is the mean.

    Raises:
        ValueError: A name has a "|" in it, which separates the names of arrays in a file.
    """

    evaluation: str
    metric: str
    rows: Int[Tensor, " m"]
    values: Float[Tensor, " m"]
    features: str = ENCODER
    part: str = "test"
    classes: Int[Tensor, "m n"] | None = None
    shares: Float[Tensor, "m n"] | None = None

    def __post_init__(self) -> None:
        """Check the names."""
        wrong = [name for name in self.key if SEPARATOR in name]
        if wrong:
            raise ValueError(f"expected a name of an evaluation or metric without {SEPARATOR!r}, got {wrong[0]!r}")

    @property
    def of_episodes(self) -> bool:
        """Whether they are of episodes, and not of samples."""
        return len(self.rows) > 0 and bool((self.rows < 0).all())

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What identifies the outcomes within a run."""
        return self.evaluation, self.metric, self.features, self.part

    @property
    def group(self) -> tuple[str, ...]:
        """Evaluation, features and part, of episodes also the metric: outcomes of a group are replaced together."""
        own = (self.metric,) if _of_episodes(self.metric) else ()
        return self.evaluation, self.features, self.part, *own


@final
@dataclass(frozen=True)
class Found:
    """What one evaluation found.

    Args:
        scores: The scores of the chosen settings.
        candidates: The validation scores of all settings that were tried.
        outcomes: What each sample contributed.
    """

    scores: tuple[Score, ...]
    candidates: tuple[Score, ...] = ()
    outcomes: tuple[Outcomes, ...] = ()

    def at(self, epoch: int) -> "Found":
        """Return the scores as those of an epoch, without candidates and outcomes."""
        return Found(tuple(replace(score, epoch=epoch) for score in self.scores))

    @property
    def headline(self) -> tuple[Score, ...]:
        """The scores of all samples together, not those of subsets."""
        return tuple(score for score in self.scores if score.subset == ALL)


def is_quality(metric: str) -> bool:
    """Tell whether runs and epochs are chosen by a metric: accuracy, mAP or precision@1.

    Example:
        >>> is_quality("5-way 1-shot accuracy"), is_quality("macro-F1")
        (True, False)
    """
    return metric in {"accuracy", "mAP", "precision@1"} or _of_episodes(metric)


def _of_episodes(metric: str) -> bool:
    """Tell whether a metric is of few-shot episodes, which have many sizes."""
    return "-shot accuracy" in metric


def validation_score(scores: Iterable[Score], evaluation: str | None = None) -> Score | None:
    """Return the accuracy, mAP or precision@1 on validation, by which one run is preferred to another.

    Args:
        scores: A run's scores.
        evaluation: The evaluation's name. None: the linear probe, or the first one that has such a score.

    Returns:
        The best of the settings that the evaluation tried, by its first such metric; None where there is no such score.

    Example:
        >>> tried = [Score("kNN", "accuracy", value, 0, 1, 9, part="validation") for value in (0.7, 0.8)]
        >>> validation_score([*tried, Score("kNN", "accuracy", 0.9, 0, 1, 9)]).value
        0.8
    """
    final = (score for score in scores if score.part == "validation" and score.epoch is None and score.subset == ALL)
    known = [score for score in final if score.features == ENCODER and is_quality(score.metric)]
    names = list(dict.fromkeys(score.evaluation for score in known))
    if evaluation is None and names:
        evaluation = PREFERRED if PREFERRED in names else names[0]
    own = [score for score in known if score.evaluation == evaluation]
    return max((score for score in own if score.metric == own[0].metric), key=lambda score: score.value, default=None)


def as_csv(scores: Iterable[Score]) -> str:
    """Write scores as CSV, one row each, with a header.

    Example:
        >>> text = as_csv([Score("kNN", "accuracy", 0.9, 0.8, 0.95, 100, epoch=3)])
        >>> text.splitlines()[1]
        '"kNN","accuracy",0.9,0.8,0.95,100,"encoder","test","all",3,""'
        >>> from_csv(text)[0].epoch
        3
    """
    text = io.StringIO()
    names = [field.name for field in fields(Score)]
    writer = csv.DictWriter(text, names, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writeheader()
    writer.writerows(asdict(score) for score in scores)
    return text.getvalue()


def from_csv(text: str) -> tuple[Score, ...]:
    """Read scores from CSV.

    Raises:
        ValueError: A column is missing or a value isn't of its kind.

    Example:
        >>> from_csv(as_csv([]))
        ()
    """
    scores: list[Score] = []
    for row in csv.DictReader(io.StringIO(text, newline="")):
        try:
            value, low, high = (float(row[name]) for name in ("value", "low", "high"))
            evaluation, metric, features, part, subset, choices = (row[name] or "" for name in WORDS)
            epoch = int(row["epoch"]) if row["epoch"] else None
            count = int(row["count"])
            scores.append(Score(evaluation, metric, value, low, high, count, features, part, subset, epoch, choices))
        except (KeyError, TypeError, ValueError) as error:
            expected = ", ".join(field.name for field in fields(Score))
            raise ValueError(
                f"expected scores as CSV with the columns {expected}, got row {len(scores) + 2} with a wrong or "
                f"missing value ({error}): restore the file, or evaluate again"
            ) from error
    return tuple(scores)


def save_outcomes(path: Path, outcomes: Iterable[Outcomes]) -> None:
    """Write outcomes as an .npz file: for each arrays of rows, values, classes and shares, named by what identifies it.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name) / "outcomes.npz"
        >>> save_outcomes(path, [Outcomes("kNN", "accuracy", torch.tensor([3]), torch.tensor([1.0]))])
        >>> outcomes_of(path)[0].key
        ('kNN', 'accuracy', 'encoder', 'test')
        >>> folder.cleanup()
    """
    import numpy as np  # noqa: PLC0415 - of an extra

    found = ((one, of, getattr(one, of)) for one in outcomes for of in ("rows", "values", "classes", "shares"))
    arrays = {SEPARATOR.join((*one.key, of)): array.numpy() for one, of, array in found if array is not None}
    content = io.BytesIO()
    np.savez(content, **arrays)
    path.write_bytes(content.getvalue())


def outcomes_of(path: Path) -> tuple[Outcomes, ...]:
    """Read the outcomes that `save_outcomes` wrote.

    Raises:
        ValueError: The file is damaged.
    """
    import numpy as np  # noqa: PLC0415 - of an extra

    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"expected the outcomes of a run in {path}, got {error}: evaluate the run again") from error
    keys = dict.fromkeys(name.rpartition(SEPARATOR)[0] for name in arrays)
    outcomes: list[Outcomes] = []
    for key in keys:
        evaluation, metric, features, part = key.split(SEPARATOR)
        rows, values = arrays[f"{key}{SEPARATOR}rows"], arrays[f"{key}{SEPARATOR}values"]
        classes, shares = (arrays.get(f"{key}{SEPARATOR}{of}") for of in ("classes", "shares"))
        outcomes.append(Outcomes(evaluation, metric, rows, values, features, part, classes, shares))
    return tuple(outcomes)


def same_rows(first: Outcomes, second: Outcomes) -> tuple[Tensor, Tensor]:
    """Return the values of the samples that two outcomes share, in the same order.

    Example:
        >>> first = Outcomes("kNN", "accuracy", torch.tensor([3, 5, 9]), torch.tensor([1.0, 0.0, 1.0]))
        >>> second = Outcomes("kNN", "accuracy", torch.tensor([9, 3]), torch.tensor([0.0, 1.0]))
        >>> same_rows(first, second)
        (tensor([1., 1.]), tensor([1., 0.]))
    """
    ordered, order = second.rows.sort()
    if len(ordered) == 0:
        return first.values[:0], second.values[:0]
    place = torch.searchsorted(ordered, first.rows).clamp(max=len(ordered) - 1)
    shared = ordered[place] == first.rows
    return first.values[shared], second.values[order][place[shared]]
