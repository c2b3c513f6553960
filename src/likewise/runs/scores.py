"""Scores: an evaluation's results as flat rows and in words, with every sample's outcome for paired comparison."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, final, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

ENCODER = "encoder"
RAW = "raw inputs"
BEGUN = "as it began"
"""Features of the encoder before its training, if it was pretrained."""
SEPARATOR = "|"
PREFERRED_EVALUATIONS = ("cross-modal retrieval", "linear probe")
DIGITS = 4  # of numbers other than shares
MAX_NAME_LETTERS = 40
PLURALS = {"class": "classes", "query": "queries"}

Unit = Literal["share", "rank", "points", "nats", "plain"]
Better = Literal["higher", "lower", "neither"]
Counted = Literal["sample", "query", "episode"]


@final
@dataclass(frozen=True)
class Metric:
    """A metric. Evaluations declare their metrics; nothing is inferred from a name or a value.

    Args:
        name: The metric's name, such as "accuracy".
        unit: "share", between 0 and 1 and written in percent; "rank", from 1; "points"; "nats"; or "plain".
        better: Whether "higher" or "lower" is better, or "neither".
        selects: Whether runs, settings and epochs are chosen by it, on validation.
        shown: Whether a terminal shows it; a page shows everything.

    Raises:
        ValueError: A word is none of these, or a metric that selects has no better direction.

    Example:
        >>> loss = Metric("log loss", "nats", "lower", selects=True)
        >>> max([0.7, 0.3, 0.5], key=loss.rank)
        0.3
    """

    name: str
    unit: Unit = "share"
    better: Better = "higher"
    selects: bool = field(default=False, kw_only=True)
    shown: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        for what, word, known in (("unit", self.unit, get_args(Unit)), ("better", self.better, get_args(Better))):
            if word not in known:
                raise ValueError(f"expected {what} of a metric as one of {', '.join(known)}, got {word!r}")
        if self.selects and self.better == "neither":
            raise ValueError(f"expected a metric that selects to be better higher or lower, got {self.name!r}")

    def __str__(self) -> str:
        return self.name

    @property
    def is_share(self) -> bool:
        """Whether it is written in percent."""
        return self.unit == "share"

    def rank(self, value: float) -> float:
        """Return a number that is higher for better values."""
        return -value if self.better == "lower" else value


@final
@dataclass(frozen=True)
class Group:
    """The samples or labels of a score.

    Args:
        kind: "all"; "class" or "label"; "frequency", classes or labels by their number of training samples; or a kind
            of an evaluation's own, such as "corruption".
        name: The name within the kind, such as the class's name.

    Example:
        >>> str(Group("class", "cat")), str(Group("frequency", "many")), str(ALL)
        ('class cat', 'many', 'all')
    """

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.kind if self.kind in {"all", "frequency", "corruption"} else f"{self.kind} {self.name}"


ALL = Group("all")
FREQUENCIES = tuple(
    Group("frequency", name) for name in ("many", "medium", "few", "head labels", "middle labels", "tail labels")
)
Key = tuple[str, str, str, str]
"""Evaluation, name of the metric, features and part."""


@final
@dataclass(frozen=True)
class Score:
    """One number with its 95 % interval.

    Args:
        evaluation: The evaluation's name, such as "linear probe".
        metric: The metric of the number.
        value: The number.
        low: Lower end of its interval.
        high: Upper end.
        count: The number of averaged samples, queries or episodes.
        features: "encoder"; "as it began", by the encoder before training; or "raw inputs", without an encoder.
        part: "test" or "validation".
        group: The samples or labels of the score.
        epoch: Epochs trained so far, for scores taken during training; None for the final encoder.
        counted: The unit of `count`.
        classes: The number of classes, or of groups of queries, that the interval is over. None: it is over `count`
            units.
        settings: The evaluation's settings, chosen on validation or given, such as {"penalty": 0.001}.
        protocol: Details of the evaluation beyond its samples; scores with different protocols are not compared.
        notes: Remarks on the number, in sentences for display only.

    Example:
        >>> Score("kNN", Metric("accuracy"), 0.9, 0.8, 0.95, 100, settings={"k": 5}).key
        ('kNN', 'accuracy', 'encoder', 'test')
    """

    evaluation: str
    metric: Metric
    value: float
    low: float
    high: float
    count: int
    features: str = ENCODER
    part: str = "test"
    group: Group = ALL
    epoch: int | None = None
    counted: Counted = field(default="sample", kw_only=True)
    classes: int | None = field(default=None, kw_only=True)
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any], kw_only=True, hash=False)
    protocol: Mapping[str, Any] = field(default_factory=dict[str, Any], kw_only=True, hash=False)
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.metric, Metric):  # pyright: ignore[reportUnnecessaryIsInstance]
            got = f"got {self.metric!r}: declare Metric(name, unit, better) once"
            raise ValueError(f"expected a Metric for a score, {got}")  # noqa: TRY004 - as at every public entry

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def __float__(self) -> float:
        return float(self.value)

    @property
    def key(self) -> Key:
        """The key of its outcomes."""
        return self.evaluation, self.metric.name, self.features, self.part

    @property
    def over(self) -> tuple[int, str]:
        """The number and the unit of the values that the interval is over."""
        within = "group" if self.counted == "query" else "class"
        return (self.count, self.counted) if self.classes is None else (self.classes, within)

    @property
    def what(self) -> tuple[str, str, str, str, Group]:
        """The common key of scores of several epochs or settings, with the group."""
        return *self.key, self.group

    @property
    def written_with(self) -> tuple[str | int | None, ...]:
        """The key of scores replaced together: all of an evaluation; for episodes, of many sizes, all of a metric."""
        episode_key = (self.metric.name, self.part) if self.counted == "episode" else ()
        return self.evaluation, self.features, self.epoch, *episode_key


@final
@dataclass(frozen=True)
class Outcomes:
    """The contribution of each sample to a score.

    Args:
        evaluation: See `Score`.
        metric: The name of a score's metric; also "prediction", the predicted class.
        rows: The samples' rows in their source, (M,). For episodes, which have many samples, -1 less their number.
        values: One value per sample, (M,): 0 or 1 for an accuracy, or a query's precision. Or one per episode.
        classes: The classes of each episode, (M, N), a sample of all classes; rotations of a class count as one. Or the
            groups of dependent queries, (M,). None for samples.
        features: See `Score`.
        part: See `Score`.
        shares: The contribution of each of these classes to an episode, (M, N); the value is their mean.

    Raises:
        ValueError: A name contains "|", which separates the names of arrays in a file.
    """

    evaluation: str
    metric: str
    rows: Int[Tensor, " m"]
    values: Float[Tensor, " m"]
    features: str = ENCODER
    part: str = "test"
    classes: Int[Tensor, "m *n"] | None = None
    shares: Float[Tensor, "m n"] | None = None

    def __post_init__(self) -> None:
        if wrong := [name for name in self.key if SEPARATOR in name]:
            raise ValueError(f"expected a name of an evaluation or metric without {SEPARATOR!r}, got {wrong[0]!r}")

    def __repr__(self) -> str:
        return f"Outcomes({self.evaluation}: {self.metric} of {len(self.rows):,}, {self.features}, {self.part})"

    @property
    def of_episodes(self) -> bool:
        """Whether the outcomes are of episodes, not of samples."""
        return len(self.rows) > 0 and bool((self.rows < 0).all())

    @property
    def key(self) -> Key:
        """The key of the outcomes within a run, as `Score.key`."""
        return self.evaluation, self.metric, self.features, self.part

    @property
    def written_with(self) -> tuple[str, ...]:
        """The key of outcomes replaced together: all of an evaluation; for episodes, all of a metric."""
        episode_key = (self.metric,) if self.of_episodes else ()
        return self.evaluation, self.features, self.part, *episode_key


class Serializable(Protocol):
    """An object that a run keeps in a file."""

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        ...


@final
@dataclass(frozen=True)
class Result:
    """The result of one evaluation.

    Args:
        scores: The scores of the chosen settings.
        candidates: The validation scores of all tried settings.
        outcomes: The contribution of each sample.
        predictor: The predictor learned from features, for new samples, if a run keeps it.
    """

    scores: tuple[Score, ...]
    candidates: tuple[Score, ...] = ()
    outcomes: tuple[Outcomes, ...] = ()
    predictor: Serializable | None = None

    def __getitem__(self, metric: str) -> Score:
        """Return the score of all samples by its metric's name.

        Raises:
            KeyError: It has no such metric.
        """
        match = next((score for score in self.headline if score.metric.name == metric), None)
        if match is None:
            raise KeyError(f"expected one of {', '.join(score.metric.name for score in self.headline)}, got {metric!r}")
        return match

    def __repr__(self) -> str:
        evaluation = self.scores[0].evaluation if self.scores else "nothing"
        return f"Result({', '.join([evaluation, *map(str, self.headline)])})"

    def at(self, epoch: int) -> "Result":
        """Return the scores as those of an epoch, without candidates and outcomes."""
        return Result(tuple(replace(score, epoch=epoch) for score in self.scores))

    @property
    def headline(self) -> tuple[Score, ...]:
        """The scores of all samples together."""
        return tuple(score for score in self.scores if score.group == ALL)

    @property
    def selecting(self) -> tuple[Score, ...]:
        """The headline scores by which runs, settings and epochs are chosen."""
        return tuple(score for score in self.headline if score.metric.selects)


def validation_score(scores: Iterable[Score], evaluation: str | None = None) -> Score | None:
    """Return the validation score by which one run is preferred to another, or None.

    It is the best of an evaluation's tried settings, by its first metric that selects.

    Args:
        scores: A run's scores.
        evaluation: The evaluation's name. None: cross-modal retrieval, the linear probe, or the first with a score.

    Example:
        >>> accuracy = Metric("accuracy", selects=True)
        >>> tried = [Score("kNN", accuracy, value, 0, 1, 9, part="validation") for value in (0.7, 0.8)]
        >>> validation_score([*tried, Score("kNN", accuracy, 0.9, 0, 1, 9)]).value
        0.8
    """
    last = [score for score in scores if score.part == "validation" and score.epoch is None and score.group == ALL]
    known = [score for score in last if score.features == ENCODER and score.metric.selects]
    names = list(dict.fromkeys(score.evaluation for score in known))
    if evaluation is None and names:
        evaluation = next((name for name in PREFERRED_EVALUATIONS if name in names), names[0])
    candidates = [score for score in known if score.evaluation == evaluation]
    return best(score for score in candidates if score.metric == candidates[0].metric)


def best(scores: Iterable[Score]) -> Score | None:
    """Return the best of several scores of one metric, ties going to the first; None if there is none."""
    return max(scores, key=lambda score: score.metric.rank(score.value), default=None)


def places_of(rows: Int[Tensor, " n"], among: Int[Tensor, " m"]) -> Int[Tensor, " n"]:
    """Return the index of each row in `among`, (N,); -1 for a missing row.

    Example:
        >>> places_of(torch.tensor([7, 2, 5]), torch.tensor([5, 7]))
        tensor([ 1, -1,  0])
    """
    ordered, order = among.sort()
    if len(ordered) == 0:
        return torch.full_like(rows, -1)
    position = torch.searchsorted(ordered, rows).clamp(max=len(ordered) - 1)
    return order[position].where(ordered[position] == rows, -1)


def marked(name: str, metric: Metric) -> str:
    """Return the name of a row of scores, with a remark if lower is better."""
    return f"{name} (lower is better)" if metric.better == "lower" else name


def format_score(score: Score) -> str:
    """Write a score with its interval."""
    if score.metric.is_share:
        return f"{100 * score.value:.2f} % [{100 * score.low:.1f}, {100 * score.high:.1f}]"
    return format_number(score.value, score.low, score.high)


def remarks(score: Score) -> str:
    """Write the remarks on a number: settings, the units of the interval, protocol and notes."""
    over = "" if score.classes is None else f"interval over {format_count(*score.over)}"
    sentences = [format_settings(score.settings), over, format_settings(score.protocol), *score.notes]
    return "; ".join(filter(None, sentences))


def format_settings(settings: Mapping[str, Any]) -> str:
    """Write settings, such as "k=5, weights=uniform"."""
    return ", ".join(f"{name}={_value_words(value)}" for name, value in settings.items())


def _value_words(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value_words, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_number(value: float, low: float, high: float, sign: str = "") -> str:
    """Write a number with its interval, all with equally many decimals: four digits for the largest; "+" shows a plus.

    Example:
        >>> format_number(1.83, 1.66412, 2.0), format_number(0.0, 0.0, 0.0, "+")
        ('1.830 [1.664, 2.000]', '+0.000 [+0.000, +0.000]')
        >>> format_number(12345.6, 2.0, float("inf")), format_number(-1e-7, -2e-7, 0.0)
        ('12346 [2, inf]', '-1.000e-07 [-2.000e-07, 0.000e+00]')
    """
    largest = max((abs(number) for number in (value, low, high) if math.isfinite(number)), default=0.0)
    exponent = math.floor(math.log10(largest)) if largest else 0
    form = f"{sign}.{max(0, DIGITS - 1 - exponent)}f" if exponent > -DIGITS else f"{sign}.{DIGITS - 1}e"
    value, low, high = (number + 0.0 for number in (value, low, high))  # adding 0 makes -0 a 0
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def one_line(text: str, most: int = MAX_NAME_LETTERS) -> str:
    """Return a text, such as the name of a class, in one line of at most `most` letters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def format_count(number: int, noun: str, several: str = "") -> str:
    """Format a count with its noun, pluralised, as "1,200 classes"."""
    return f"{number:,} {noun if number == 1 else several or PLURALS.get(noun, noun + 's')}"


def aligned(table: Sequence[Sequence[str]], *, right: bool = False) -> list[str]:
    """Write rows of cells as lines of aligned columns: left, or all but the first right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    pads = [(str.rjust if right and column else str.ljust) for column in range(len(widths))]
    padded = ([pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)] for row in table)
    return ["  ".join(cells).rstrip() for cells in padded]
