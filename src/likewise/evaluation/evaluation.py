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
    """Say why a classifier can't be evaluated on these parts: the refusal that kNN and the linear probe share."""
    kind = parts.test.label_kind
    if kind != "classes":
        return f"it needs one class a sample, and there are {kind or 'no labels'}"
    if len(parts.train) == 0:
        return "it needs a training part to learn from, and there is none"
    if not parts.closed:
        return "it needs test classes that were trained on, and these are others"
    if len(parts.train.classes.unique()) < 2:
        return "it needs at least 2 training classes, and there is 1"
    if len(parts.test) == 0:
        return "it needs a test part, and there is none"
    return None
