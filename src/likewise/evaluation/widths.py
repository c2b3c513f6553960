"""Widths: what the first features alone are worth, of an encoder that was trained so that they are (Matryoshka)."""

from dataclasses import replace
from typing import ClassVar, final

from likewise.evaluation.cross_modal import CrossModalRetrieval
from likewise.evaluation.evaluation import Evaluation, as_int_list
from likewise.evaluation.features import Bar, FeatureParts, Features, silent
from likewise.evaluation.retrieval import Retrieval
from likewise.runs.scores import Outcomes, Result, Score


@final
class Widths(Evaluation):
    """Evaluate the first features alone, at several widths, in one table.

        score at w = score of (x_1, ..., x_w),   which the evaluation normalises anew

    Args:
        widths: How many of the first features; each at most as many as there are.
        evaluation: What evaluates them. None: cross-modal retrieval of pairs, else retrieval.

    Raises:
        ValueError: A width is below 1.

    Memory:
        That of the evaluation, and the features once more.

    Source:
        A. Kusupati et al., Matryoshka Representation Learning, 2022, section 4; trained by `likewise.Matryoshka`.

    Example:
        >>> import torch
        >>> part = Features(torch.tensor([[1.0, 0], [0.9, 5], [-1, 0.1], [-0.8, 5]]), torch.tensor([0, 0, 1, 1]))
        >>> [f"{score.metric} {score.value}" for score in Widths([1, 2])(part, part, part).headline][::3]
        ['precision@1, first 1 1.0', 'precision@1, first 2 0.5']
    """

    name: ClassVar[str] = "widths"
    of_pairs: ClassVar[bool] = True

    def __init__(self, widths: list[int], evaluation: Evaluation | None = None) -> None:
        self.widths = sorted(as_int_list("widths", widths))
        if self.widths[0] < 1:
            raise ValueError(f"expected widths of at least 1, got {self.widths[0]}")
        if evaluation is not None and (getattr(evaluation, "among", None) or hasattr(evaluation, "outside")):
            got = f"{evaluation}: leave out its other source"
            raise ValueError(f"expected an evaluation of the run's own samples, got {got}")
        self.evaluation = evaluation

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        width = parts.test.vectors.shape[1]
        if 1 < width < self.widths[-1]:  # 1 stands for features that are not there yet
            return f"it needs {self.widths[-1]} features, and there are {width}"
        evaluation = self._choose(parts)
        return evaluation.why_not_applicable(evaluation.select(parts))

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        evaluation, scores, outcomes = self._choose(parts), list[Score](), list[Outcomes]()
        for width in self.widths:
            few = evaluation.select(FeatureParts(*(_first(part, width) for part in parts)))
            result = evaluation.evaluate(few, refit=refit, progress=progress)
            for score in result.headline:
                metric = replace(score.metric, name=f"{score.metric}, first {width}", selects=False)
                scores.append(replace(score, evaluation=self.name, metric=metric))
            for outcome in result.outcomes:
                outcomes.append(replace(outcome, evaluation=self.name, metric=f"{outcome.metric}, first {width}"))
        return Result(tuple(scores), outcomes=tuple(outcomes))

    def _choose(self, parts: FeatureParts) -> Evaluation:
        return self.evaluation or (Retrieval() if parts.test.counterparts is None else CrossModalRetrieval())


def _first(part: Features, width: int) -> Features:
    beside = None if part.counterparts is None else _first(part.counterparts, width)
    return replace(part, vectors=part.vectors[:, :width], counterparts=beside, origin=None)
