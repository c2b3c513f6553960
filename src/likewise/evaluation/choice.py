"""The choice of evaluations: all that the labels allow, or those that were asked for."""

from collections.abc import Sequence
from copy import copy

from likewise.data import Batches, Episodes, Parts
from likewise.data.episode_sampler import fitting, fitting_words
from likewise.evaluation.cross_modal import CrossModalRetrieval
from likewise.evaluation.evaluation import Evaluation
from likewise.evaluation.features import FeatureParts
from likewise.evaluation.few_shot import FewShot
from likewise.evaluation.knn import KNN
from likewise.evaluation.linear import LinearProbe
from likewise.evaluation.predictions import OwnClassifier
from likewise.evaluation.retrieval import Retrieval
from likewise.evaluation.within_class import WithinClass

VALIDATED_EPISODES = 600
USUAL_EVALUATIONS: tuple[type[Evaluation], ...] = (CrossModalRetrieval, KNN, LinearProbe, OwnClassifier, Retrieval)
DEFAULT_EVALUATIONS: tuple[type[Evaluation], ...] = (*USUAL_EVALUATIONS, WithinClass, FewShot)


def applicable(parts: FeatureParts, asked: Sequence[Evaluation] | None = None) -> list[Evaluation]:
    """Return the evaluations to make.

    Args:
        parts: The features.
        asked: The evaluations asked for. None: the usual ones that apply.

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
        return [evaluation for evaluation, _ in _defaults(parts) if evaluation is not None]
    names = [evaluation.name for evaluation in asked]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"expected every evaluation once, got {twice} twice: evaluate again with the other settings")
    for evaluation in asked:
        reason = evaluation.why_not_applicable(evaluation.select(parts))
        if reason:
            name = type(evaluation).__name__
            apply = [type(other).__name__ for other in applicable(parts) if type(other) is not type(evaluation)]
            raise ValueError(f"{name} does not apply: {reason}; those that apply: {', '.join(apply) or 'none'}")
    return list(asked)


def _defaults(parts: FeatureParts) -> list[tuple[Evaluation | None, str]]:
    return [usual.default_for(usual.select(parts)) for usual in DEFAULT_EVALUATIONS]


def left_out(parts: FeatureParts) -> str:
    """Say what the usual evaluations leave out for want of samples, and why."""
    return "; ".join(filter(None, (reason for _, reason in _defaults(parts))))


def while_training(
    parts: Parts, batches: Batches, requested: Sequence[Evaluation] | None = None
) -> tuple[list[Evaluation], str]:
    """Return candidate validation metrics while an encoder is trained, in order of preference, and a note.

    Where episodes are evaluated after the training, or trained on, 600 of them come first, of the first of several
    sizes, made smaller where validation has too few classes or samples; the note says so, or why there are none.
    """
    candidates: list[Evaluation] = [CrossModalRetrieval(), OwnClassifier(), KNN(20, "similarity"), Retrieval()]
    validation = parts.validation.as_evaluated()
    wanted = next((evaluation for evaluation in requested or () if isinstance(evaluation, FewShot)), None)
    new = validation.label_kind == "classes" and parts.new_in_validation and validation.counterparts is None
    if requested is None and new:
        wanted = FewShot()
    elif wanted is None and isinstance(batches, Episodes):
        wanted = FewShot(batches.shape.ways, batches.shape.shots, batches.shape.queries)
    if wanted is None:
        return candidates, ""
    counts, names, first = validation.counts, validation.names, wanted.shapes[0]
    shape = fitting(counts, first)
    if shape is None:
        note = "validation during training is not by episodes: they need 2 classes, and more samples of each than shots"
        return candidates, note
    note = fitting_words(counts, names, first, shape)
    episodes = copy(wanted)
    episodes.shapes = (shape._replace(episodes=VALIDATED_EPISODES),)
    return [episodes, *candidates], f"validation during training is {note}" if note else ""
