"""The classifier that a run trained with its encoder: its logits, or its similarities to label prototypes."""

from dataclasses import replace
from typing import ClassVar, final

from likewise.evaluation.accuracy import accuracy
from likewise.evaluation.evaluation import Evaluation, needs_seen_labels
from likewise.evaluation.features import Bar, FeatureParts, Features, silent
from likewise.evaluation.label_scores import Predicted, label_set_scores
from likewise.scores import Result


@final
class OwnClassifier(Evaluation):
    """Predict classes or label sets as the run itself does, end to end, without learning anything more.

    A run with a loss of logits has a linear classifier; one with label prototypes predicts by the cosine of an
    embedding and a prototype. Classes: the highest score. Label sets: the sigmoid of a logit is a probability, a cosine
    is none; see `label_set_scores`.

    Example:
        >>> import torch
        >>> part = Features(torch.eye(2), torch.tensor([0, 1]), predictions=torch.tensor([[2.0, 0.0], [1.0, 0.0]]))
        >>> OwnClassifier()(part, part, part).scores[0].value
        0.5
    """

    name: ClassVar[str] = "own classifier"

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        """Say why these parts can't be evaluated."""
        if parts.test.predictions is None:
            return "it needs a run that trained a classifier or label prototypes, and this one has none"
        return needs_seen_labels(parts)

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        """Score the predictions."""
        del refit, progress
        train, validation, test = parts
        found = self._found(train, validation, test)
        tried = self._found(train, validation, validation).selecting if len(validation) else ()
        return replace(found, candidates=tried)

    def _found(self, train: Features, validation: Features, part: Features) -> Result:
        if part.label_kind == "classes":
            return accuracy(self.name, part.predicted.argmax(dim=1), part, train.frequencies)
        return label_set_scores(self.name, _scored(part), _scored(validation), train.frequencies)


def _scored(features: Features) -> Predicted:
    if features.logits:  # in float64 only logits above 36 become equal
        return Predicted(features.predicted.double().sigmoid(), features)
    return Predicted(features.predicted, features, probabilities=False)
