"""The choice of evaluations, and `evaluate` for arrays, with results as a table and by name."""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from html import escape
from typing import Any, final

from likewise.data import Batches, Episodes, Parts, Stratified
from likewise.data.episode_sampler import fitting, fitting_words
from likewise.evaluation.arrays import Given, can_be_cut, cut, features_of_parts, gather_samples, three_parts
from likewise.evaluation.class_structure import WithinClass
from likewise.evaluation.cross_modal import CrossModalRetrieval
from likewise.evaluation.evaluation import Evaluation
from likewise.evaluation.features import Bar, FeatureParts, silent
from likewise.evaluation.few_shot import FewShot
from likewise.evaluation.knn import KNN
from likewise.evaluation.linear import LinearProbe
from likewise.evaluation.predictions import OwnClassifier
from likewise.evaluation.probe_quality import Calibration
from likewise.evaluation.retrieval import Retrieval
from likewise.files.formats import first_of
from likewise.runs.scores import Result, aligned, format_count, format_score, marked, remarks

VALIDATED_EPISODES = 600
USUAL_EVALUATIONS: tuple[type[Evaluation], ...] = (CrossModalRetrieval, KNN, LinearProbe, OwnClassifier, Retrieval)
DEFAULT_EVALUATIONS: tuple[type[Evaluation], ...] = (*USUAL_EVALUATIONS, WithinClass, FewShot)
HEAD = ("evaluation", "metric", "value, 95 % interval", "of", "settings and notes")
NAMED_EVALUATIONS: tuple[type[Evaluation], ...] = (*DEFAULT_EVALUATIONS, Calibration)


def applicable(parts: FeatureParts, asked: Sequence[Evaluation] | None = None) -> list[Evaluation]:
    """Return the evaluations to make.

    Args:
        parts: The features.
        asked: The requested evaluations. None: the usual ones that apply.

    Raises:
        ValueError: A requested evaluation doesn't apply.

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
    """Return a note on usual evaluations and settings omitted for lack of samples, with the reasons."""
    return "; ".join(filter(None, (reason for _, reason in _defaults(parts))))


def while_training(
    parts: Parts, batches: Batches, requested: Sequence[Evaluation] | None = None
) -> tuple[list[Evaluation], str]:
    """Return candidate metrics for validation during training, in order of preference, and a note.

    If episodes are evaluated after training, or trained on, the first candidate is 600 episodes of the first of their
    shapes, reduced where validation has too few classes or samples; the note says so, or why there are none.
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


@final
class Results(dict[str, Result]):
    """The results of several evaluations, by name; a table when printed or shown in a notebook.

    Look-ups ignore case, spaces and hyphens: "knn" finds "kNN", "LinearProbe" finds "linear probe".

    Args:
        results: The name and result of each evaluation.
        note: A sentence that applies to all of them.
    """

    def __init__(self, results: Iterable[tuple[str, Result]] = (), note: str = "") -> None:
        super().__init__(results)
        self.note = note

    def __missing__(self, name: str) -> Result:
        """Find a name in another spelling."""
        for key, result in self.items():
            if _normalize_name(key) == _normalize_name(name):
                return result
        raise KeyError(f"expected one of {', '.join(self)}, got {name!r}")

    def __contains__(self, name: object) -> bool:
        return _normalize_name(str(name)) in map(_normalize_name, self)

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return the result with a name, in any spelling, or the default."""
        try:
            return self[name]
        except KeyError:
            return default

    def __repr__(self) -> str:
        return "\n".join(filter(None, [*aligned(self._table), self.note]))

    def _repr_html_(self) -> str:
        head, *rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self._table)
        table = "".join(f"<tr>{row}</tr>" for row in (head.replace("td>", "th>"), *rows))
        return f"<table>{table}</table><p>{escape(self.note)}</p>"

    @property
    def _table(self) -> list[list[str]]:
        table = [[*HEAD]]
        for score in (score for result in self.values() for score in result.headline if score.metric.shown):
            value, count = format_score(score), format_count(score.count, score.counted)
            table.append([score.evaluation, marked(score.metric.name, score.metric), value, count, remarks(score)])
        return table


def evaluate(
    x: Any,
    y: Any,
    x_test: Any,
    y_test: Any,
    *,
    x_validation: Any = None,
    y_validation: Any = None,
    evaluations: Evaluation | str | Sequence[Evaluation | str] | None = None,
    names: Sequence[str] | None = None,
    refit: bool | None = None,
    seed: int = 0,
    progress: Bar = silent,
) -> Results:
    """Evaluate labelled vectors by kNN, a linear probe and retrieval, or by the evaluations that apply.

    Arrays, tensors, data frames and lists are accepted, and copied to the CPU in float32. Settings such as k and the
    penalty are chosen on the validation part. Without one, a tenth of each training class is set aside for the choice,
    and used in the final fit. A test part with other classes is evaluated by retrieval and few-shot episodes.

    Args:
        x: The vectors to learn from, (N, D).
        y: Their classes, (N,), integers or strings; or label sets, (N, L), booleans or 0 and 1.
        x_test: The vectors to report on, (M, D).
        y_test: Their classes or label sets.
        x_validation: Vectors for choosing settings. None: a part of x.
        y_validation: Their classes or label sets.
        evaluations: Names such as "kNN", or objects such as `KNN(k=5)`; one or several. None: the usual ones.
        names: The names of classes 0 to C - 1, or of L labels.
        refit: Whether to fit again to both parts together after the choices. None: if validation was cut from x. The
            command does not refit.
        seed: Seed for cutting validation from x.
        progress: Wraps the slow loops, as tqdm does.

    Returns:
        The `Result` of each evaluation, by name; `result["accuracy"]` is a `Score` with its interval.

    Raises:
        ValueError: Shapes, lengths or kinds disagree, a vector isn't finite, or an evaluation doesn't apply.

    Memory:
        Three times the vectors in float32, and the memory of the evaluations.

    Example:
        >>> import numpy as np
        >>> y = np.arange(200) % 2
        >>> x = np.random.default_rng(0).normal(size=(200, 4)) + y[:, None]
        >>> results = evaluate(x[:120], y[:120], x[120:], y[120:], evaluations=["kNN", "retrieval"])
        >>> round(results["knn"]["accuracy"].value, 2)
        0.79
    """
    arrays: dict[str, Given] = {"train": ("x", x, "y", y), "test": ("x_test", x_test, "y_test", y_test)}
    if x_validation is not None or y_validation is not None:
        arrays["validation"] = ("x_validation", x_validation, "y_validation", y_validation)
    samples = gather_samples(arrays, names)
    requested = None if evaluations is None else _as_evaluations(evaluations)
    whole = x_validation is None and not can_be_cut(samples)
    parts = three_parts(samples) if whole else features_of_parts(cut(samples, Stratified(seed=seed)))
    if requested is None:
        _check_trained(parts)
    has_cut = x_validation is None and len(parts.validation) > 0
    if has_cut:
        train, validation, _ = parts
        parts = parts._replace(train=replace(train, whole=train.counts + validation.counts))
    refit = has_cut if refit is None else refit
    made = applicable(parts, requested)
    note = _describe_parts(parts, seed if has_cut else None, refit=refit)
    lacking = left_out(parts) if requested is None else ""
    results = [(evaluation.name, evaluation(*parts, refit=refit, progress=progress)) for evaluation in made]
    return Results(results, "; ".join(filter(None, (note, lacking))))


def _as_evaluations(evaluations: Evaluation | str | Sequence[Evaluation | str]) -> list[Evaluation]:
    known = {_normalize_name(name): named for named in NAMED_EVALUATIONS for name in (named.name, named.__name__)}
    made: list[Evaluation] = []
    for evaluation in [evaluations] if isinstance(evaluations, Evaluation | str) else evaluations:
        if isinstance(evaluation, Evaluation):
            made.append(evaluation)
        elif (name := _normalize_name(str(evaluation))) in known:
            made.append(known[name]())
        else:
            names = ", ".join(named.__name__ for named in NAMED_EVALUATIONS)
            raise ValueError(f"expected evaluations by name or made, got {evaluation!r}: name one of {names}")
    return made


def _normalize_name(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def _check_trained(parts: FeatureParts) -> None:
    """Reject a mix of seen and new test classes: neither the usual evaluations nor those of new classes apply."""
    missing = [name for name in parts.test.names if name not in parts.train.names]
    if 0 < len(missing) < len(parts.test.names):
        expected = f"expected test classes that were trained on, got no training sample of {first_of(missing)}"
        raise ValueError(f"{expected}: drop them or give evaluations=Retrieval(), which learns nothing")


def _describe_parts(parts: FeatureParts, seed: int | None, *, refit: bool) -> str:
    train, validation, test = (len(part) for part in parts)
    if seed is None and validation == 0:
        return f"{train:,} training and {test:,} test samples; no validation part to choose settings by"
    if seed is None:
        return f"{train:,} training, {validation:,} validation and {test:,} test samples"
    chosen = f"settings chosen on {validation:,} of the training samples (seed {seed})"
    after = ", then learned from all" if refit else ""
    return f"{train + validation:,} training and {test:,} test samples; {chosen}{after}"
