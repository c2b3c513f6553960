"""The base class of evaluations, the collector of their scores, and checks that several of them share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, final

from torch import Tensor

from likewise.evaluation.features import Bar, FeatureParts, Features, silent
from likewise.instantiate import Described, describe
from likewise.runs.scores import Metric, Outcomes, Result, Score


class Evaluation(Described, ABC):
    """Abstract: an evaluation of frozen features. Parameters go to the constructor, features to the call.

    A custom evaluation needs a name, `why_not_applicable`, and `evaluate`; the command then accepts its class path.

    Attributes:
        name: The name of its scores, such as "linear probe".
        of_pairs: Whether it uses all pairs; otherwise each input of the first side is used once, from its first pair.
        accelerated: Whether vectors may lie on an accelerator. Labels, rows and results never do.
        gallery_includes_queries: Whether the gallery includes the queries, whose own rows are then left out.
    """

    name: ClassVar[str]
    of_pairs: ClassVar[bool] = False
    accelerated: ClassVar[bool] = False
    gallery_includes_queries: bool = False

    @abstractmethod
    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        """Return why these parts can't be evaluated, as "it needs ..., and there is ..."; None if they can."""

    @classmethod
    def default_for(cls, parts: FeatureParts) -> tuple[Self | None, str]:
        """Return the default evaluation, or None if it doesn't apply, and a note on omissions with their reasons."""
        made = cls()
        return (made if made.why_not_applicable(parts) is None else None), ""

    def __repr__(self) -> str:
        return describe(self)

    @abstractmethod
    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        """Evaluate parts that `__call__` has checked; its arguments are documented there."""

    def on_validation(self, parts: FeatureParts) -> FeatureParts | None:
        """Return the parts with validation as the test part; None if it is the test part or can't be evaluated."""
        by = parts._replace(test=parts.validation)
        return by if by.test.part != parts.test.part and self.why_not_applicable(by) is None else None

    @classmethod
    def select(cls, parts: FeatureParts) -> FeatureParts:
        """Return the samples to evaluate: all pairs, or each input of the first side once; see `of_pairs`."""
        return parts if cls.of_pairs else FeatureParts(*(part.unique() for part in parts))

    def __call__(
        self, train: Features, validation: Features, test: Features, *, refit: bool = False, progress: Bar = silent
    ) -> Result:
        """Evaluate.

        Args:
            train: The part to learn from.
            validation: The part to choose settings on.
            test: The part to report on.
            refit: Whether to fit again to the training and validation parts together after the choices.
            progress: Wraps the slow loops.

        Returns:
            The scores, and the outcome of each sample.

        Raises:
            ValueError: These parts can't be evaluated.
        """
        parts = self.select(FeatureParts(train, validation, test))
        if reason := self.why_not_applicable(parts):
            raise ValueError(f"{type(self).__name__} does not apply: {reason}")
        return self.evaluate(parts, refit=refit, progress=progress)


@final
class ScoreCollector:
    """A collector of an evaluation's scores on one part, and of the samples' outcomes.

    Args:
        evaluation: The evaluation's name.
        part: The evaluated samples.
        settings: The evaluation's settings, for all scores.

    Example:
        >>> import torch
        >>> collector = ScoreCollector("kNN", Features(torch.eye(2), torch.tensor([0, 1])))
        >>> collector.add(Metric("accuracy"), 0.5, 0.0, 1.0, 2).part
        'test'
    """

    def __init__(self, evaluation: str, part: Features, settings: Mapping[str, Any] | None = None) -> None:
        self.scores: list[Score] = []
        self.outcomes: list[Outcomes] = []
        self._evaluation, self._part, self._settings = evaluation, part, settings or {}

    def add(
        self,
        metric: Metric,
        value: float,
        low: float,
        high: float,
        count: int,
        *,
        settings: Mapping[str, Any] | None = None,
        **details: Any,
    ) -> Score:
        """Add a score and return it; `settings` extend the common ones, `details` are further fields of `Score`."""
        where = (self._part.kind, self._part.part)
        chosen = {**self._settings, **(settings or {})}
        score = Score(self._evaluation, metric, value, low, high, count, *where, settings=chosen, **details)
        self.scores.append(score)
        return score

    def add_outcomes(
        self, metric: str, values: Tensor, among: Tensor | slice = slice(None), groups: Tensor | None = None
    ) -> None:
        """Add the samples' outcomes, `values` (M,), or those at the indices or mask `among`, with their groups."""
        rows, where = self._part.numbers[among], (self._part.kind, self._part.part)
        self.outcomes.append(Outcomes(self._evaluation, metric, rows, values[among].float(), *where, groups))

    def result(self, candidates: tuple[Score, ...] = ()) -> Result:
        """Return the collected scores and outcomes."""
        return Result(tuple(self.scores), candidates, tuple(self.outcomes))


def as_int_list(name: str, value: int | Sequence[int]) -> list[int]:
    """Return one whole number, or several distinct ones, as a list."""
    numbers = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    if not numbers or not whole or len(set(numbers)) < len(numbers):
        raise ValueError(f"expected {name} as a whole number, or as different ones, got {value!r}")
    return [int(number) for number in numbers]


def needs_seen_classes(parts: FeatureParts) -> str | None:
    """Return why a classifier of classes can't be evaluated on these parts; None if it can."""
    return needs_classes(parts.test) or needs_seen_labels(parts)


def needs_classes(test: Features) -> str | None:
    """Return why samples don't have one class each; None if they do."""
    got = test.label_kind or "no labels"
    return None if got == "classes" else f"it needs one class a sample, and there are {got}"


def needs_seen_labels(parts: FeatureParts) -> str | None:
    """Return why a classifier such as kNN or the linear probe can't be evaluated on these parts; None if it can."""
    train, _, test = parts
    label_kind = test.label_kind
    if label_kind is None:
        return "it needs classes or label sets, and there are no labels"
    if len(train) == 0 or len(test) == 0:
        return f"it needs a {'test part' if len(train) else 'training part to learn from'}, and there is none"
    if not parts.closed:
        named = "classes" if label_kind == "classes" else "labels"
        return f"it needs test {named} that were trained on, and these are others"
    if train.label_kind == "classes":
        return "it needs at least 2 training classes, and there is 1" if len(train.classes.unique()) < 2 else None
    if not bool(((train.counts > 0) & (train.counts < len(train))).any()):
        return "it needs a label that some training samples have and others don't, and there is none"
    return None if bool(test.sets.any()) else "it needs test samples with a label, and there is none"
