"""Which evaluations apply: all that the labels allow, or those that were asked for."""

from collections.abc import Sequence

from likewise.evaluation.evaluation import Evaluation
from likewise.evaluation.features import FeatureParts
from likewise.evaluation.few_shot import FewShot
from likewise.evaluation.knn import KNN
from likewise.evaluation.linear import LinearProbe
from likewise.evaluation.own_classifier import OwnClassifier
from likewise.evaluation.retrieval import Retrieval

USUAL: tuple[type[Evaluation], ...] = (KNN, LinearProbe, OwnClassifier, Retrieval)


def applicable(parts: FeatureParts, asked: Sequence[Evaluation] | None = None) -> list[Evaluation]:
    """Return the evaluations to make.

    Args:
        parts: The features.
        asked: The evaluations asked for. None: the usual ones that apply, and few-shot episodes of new classes.

    Raises:
        ValueError: One that was asked for doesn't apply.

    Example:
        >>> import torch
        >>> from likewise.evaluation import Features
        >>> part = Features(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> [evaluation.name for evaluation in applicable(FeatureParts(part, part, part))]
        ['kNN', 'linear probe', 'retrieval']
    """
    if asked is None:
        usual = [kind() for kind in USUAL]
        usual += [FewShot()] if parts.test.label_kind == "classes" and not parts.closed else []
        return [evaluation for evaluation in usual if evaluation.refusal(parts) is None]
    names = [evaluation.name for evaluation in asked]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"expected every evaluation once, got {twice} twice: evaluate again with the other settings")
    for evaluation in asked:
        refusal = evaluation.refusal(parts)
        if refusal:
            name = type(evaluation).__name__
            others = ", ".join(type(one).__name__ for one in applicable(parts)) or "none"
            raise ValueError(f"{name} does not apply: {refusal}; those that apply: {others}")
    return list(asked)
