"""The base class of evaluations: what is learned from, chosen by and reported on, and what an evaluation refuses."""

from abc import ABC, abstractmethod
from typing import ClassVar

from likewise.evaluation.features import FeatureParts, Features, Progress, silent
from likewise.scores import Found


class Evaluation(ABC):
    """Abstract: what frozen features are worth. Parameters go to the constructor, features to the call.

    An evaluation of your own needs a name, `refusal`, and `__call__`; the command then takes it by its class path.

    Attributes:
        name: What its scores are called, such as "linear probe".
    """

    name: ClassVar[str]

    @abstractmethod
    def refusal(self, parts: FeatureParts) -> str | None:
        """Say why these parts can't be evaluated, as "it needs ..., and there is ..."; None if they can."""

    def check(self, parts: FeatureParts) -> None:
        """Raise a ValueError if these parts can't be evaluated."""
        refusal = self.refusal(parts)
        if refusal:
            raise ValueError(f"{type(self).__name__} does not apply: {refusal}")

    @abstractmethod
    def __call__(
        self,
        train: Features,
        validation: Features,
        test: Features,
        *,
        refit: bool = False,
        progress: Progress = silent,
    ) -> Found:
        """Evaluate.

        Args:
            train: What is learned from.
            validation: What settings are chosen by.
            test: What is reported on.
            refit: Whether to learn again from the training and validation parts together, after the choices are made.
            progress: Wraps what takes time.

        Returns:
            The scores, and what each sample contributed.
        """


def needs_seen_classes(parts: FeatureParts) -> str | None:
    """Say why a classifier of classes can't be evaluated on these parts."""
    kind = parts.test.label_kind
    return (
        needs_seen_labels(parts)
        if kind == "classes"
        else f"it needs one class a sample, and there are {kind or 'no labels'}"
    )


def needs_seen_labels(parts: FeatureParts) -> str | None:
    """Say why a classifier can't be evaluated on these parts: the refusal that kNN and the linear probe share."""
    train, _, test = parts
    kind = test.label_kind
    if kind is None:
        return "it needs classes or label sets, and there are no labels"
    named = "classes" if kind == "classes" else "labels"
    wrong = {
        "it needs a training part to learn from, and there is none": len(train) == 0,
        "it needs a test part, and there is none": len(test) == 0,
        f"it needs test {named} that were trained on, and these are others": not parts.closed,
    }
    return next((words for words, holds in wrong.items() if holds), None) or _needs_variety(train, test)


def _needs_variety(train: Features, test: Features) -> str | None:
    """Say why labels that all samples share teach and test nothing."""
    if train.label_kind == "classes":
        return "it needs at least 2 training classes, and there is 1" if len(train.classes.unique()) < 2 else None
    if not bool(((train.counts > 0) & (train.counts < len(train))).any()):
        return "it needs a label that some training samples have and others don't, and there is none"
    return None if bool(test.sets.any()) else "it needs test samples with a label, and there is none"
