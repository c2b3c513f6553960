"""Evaluation of arrays in one call: the results of several evaluations, as a table and by name."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from typing import Any, final

from likewise.data import Stratified
from likewise.evaluation.arrays import Given, can_be_cut, cut, features_of_parts, gather_samples, three_parts
from likewise.evaluation.calibration import Calibration
from likewise.evaluation.choice import DEFAULT_EVALUATIONS, applicable, left_out
from likewise.evaluation.evaluation import Evaluation
from likewise.evaluation.features import Bar, FeatureParts, silent
from likewise.files.formats import first_of
from likewise.runs.score_format import aligned, format_count, format_score, marked, remarks
from likewise.runs.scores import Result, Score

HEAD = ("evaluation", "metric", "value, 95 % interval", "of", "settings and notes")
NAMED_EVALUATIONS: tuple[type[Evaluation], ...] = (*DEFAULT_EVALUATIONS, Calibration)


@final
class Results(dict[str, Result]):
    """The results of several evaluations, by name; printed, and in a notebook, a table.

    Names are found without regard to case, spaces and hyphens: "kNN" by "knn", "linear probe" by "LinearProbe".

    Args:
        results: What each of them returned.
        note: What to know about all of them, in a sentence.
    """

    def __init__(self, results: Iterable[tuple[str, Result]] = (), note: str = "") -> None:
        super().__init__(results)
        self.note = note

    def __missing__(self, name: str) -> Result:
        """Find a name that is written otherwise."""
        for key, result in self.items():
            if _normalize_name(key) == _normalize_name(name):
                return result
        raise KeyError(f"expected one of {', '.join(self)}, got {name!r}")

    def __contains__(self, name: object) -> bool:
        return _normalize_name(str(name)) in map(_normalize_name, self)

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return what is found by a name, or the default."""
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
        scores = [score for result in self.values() for score in result.headline if score.metric.shown]
        return [[*HEAD], *map(_row, scores)]


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
    """Evaluate vectors with their labels: by kNN, a linear probe and retrieval, or whatever applies.

    Arrays, tensors, data frames or lists are taken, and copied to the CPU in float32. Settings such as k and the
    penalty are chosen on the validation part. Where none is given, a tenth of each training class is set aside for the
    choice; then it is learned from too. A test part of other classes is evaluated by retrieval and few-shot episodes.

    Args:
        x: The vectors to learn from, (N, D).
        y: Their classes, (N,), integers or strings; or label sets, (N, L), booleans or 0 and 1.
        x_test: The vectors to report on, (M, D).
        y_test: Their classes or label sets.
        x_validation: Vectors to choose settings by. None: a part of x.
        y_validation: Their classes or label sets.
        evaluations: Names such as "kNN", or objects such as `KNN(k=5)`; one or several. None: the usual ones.
        names: The names of classes 0 to C - 1, or of L labels.
        refit: Whether to learn again from both parts together, after the choices. None: where validation was cut from
            x. The command does not.
        seed: Seed of that cut.
        progress: Wraps what takes time, as tqdm does.

    Returns:
        A `Result` of each evaluation, by name, of which `result["accuracy"]` is a `Score` with its interval.

    Raises:
        ValueError: Shapes, lengths or kinds disagree, a vector isn't finite, or an evaluation doesn't apply.

    Memory:
        Three times the vectors in float32, and what the evaluations take.

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


def _row(score: Score) -> list[str]:
    cells = marked(score.metric.name, score.metric), format_score(score), format_count(score.count, score.counted)
    return [score.evaluation, *cells, remarks(score)]


def _normalize_name(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def _check_trained(parts: FeatureParts) -> None:
    """Refuse a few test classes without a training sample: neither all evaluations nor those of new classes apply."""
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
