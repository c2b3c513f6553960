"""What `train` and `evaluate` share: encode, evaluate, and save and print every score as soon as it is there."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any, final

import torch
from torch import Tensor

from likewise.cli.printing import bar, say, tell
from likewise.data import Parts, Rows, Samples
from likewise.data.unreadable import NAMED, files_of, in_words, unreadable
from likewise.evaluation import (
    Evaluation,
    FeatureParts,
    Features,
    Origin,
    Result,
    Score,
    applicable,
    load_features,
    paired_difference,
    raw_features,
    save_features,
)
from likewise.evaluation.choice import usual_episodes
from likewise.evaluation.features import features_of
from likewise.evaluation.label_scores import MACRO, MEAN_PRECISION
from likewise.models import Encoder
from likewise.parts import build
from likewise.report.words import difference_words, remarks, score_words, settings_words
from likewise.runs import Run
from likewise.scores import ALL, ENCODER, RAW, Outcomes, same_rows

PRINTED_CLASSES = 20  # with more classes, only the report shows them all
LONGEST_NAME = 40  # of a class that is printed
MOST_KEPT = 16
_found_before: dict[str, Result] = {}  # of raw inputs, by what was evaluated and how


@final
@dataclass(frozen=True)
class Settings:
    """Which evaluations, of how many samples.

    Args:
        evaluations: The evaluations; None: the usual ones that apply.
        evaluation_samples: At most so many samples of each part; None: all.
    """

    evaluations: list[Evaluation] | None = None
    evaluation_samples: int | None = None

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> "Settings":
        """Read them from plain options.

        Raises:
            ValueError: The number of samples isn't positive, or what an evaluation says of its parameters.
        """
        asked = chosen.get("evaluations")
        listed = asked if isinstance(asked, list) or asked is None else [asked]
        evaluations = None if listed is None else [build(spec, Evaluation) for spec in listed]
        most = chosen.get("evaluation_samples")
        if most is not None and most < 1:
            raise ValueError(f"expected --evaluation_samples of at least 1, got {most}: --evaluations [] is none")
        return cls(evaluations, most)

    def capped(self, features: FeatureParts) -> FeatureParts:
        """Return at most so many samples of each part; of classes that are not trained on, whole ones."""
        most = self.evaluation_samples
        if most is None:
            return features
        train, validation, test = features
        whole = test.label_kind == "classes" and not features.closed
        return FeatureParts(train.fewer(most), *(of.fewer(most, whole_classes=whole) for of in (validation, test)))


def check_applicable(parts: Parts, settings: Settings, *, predicts: bool = False) -> None:
    """Raise a ValueError for an evaluation that was asked for and doesn't apply, before anything is trained.

    Args:
        parts: The samples.
        settings: The evaluations, and of how many samples.
        predicts: Whether the run has a classifier of its own.
    """
    named = zip(("train", "validation", "test"), (parts.train, parts.validation, parts.test), strict=True)
    blank = FeatureParts(*(Features(torch.zeros(len(of), 1), of.labels, of.names, of.rows, part) for part, of in named))
    if predicts:
        blank = FeatureParts(*(replace(of, predictions=torch.zeros(len(of), len(of.names))) for of in blank))
    applicable(settings.capped(with_origin(blank, parts, _no_encoder)), settings.evaluations)


def encoded(
    run: Run, encoder: Encoder, parts: Parts, predicted: Callable[[Features], Features] = lambda features: features
) -> FeatureParts:
    """Encode the samples and save the features, and note what could not be read; or load those that were saved.

    Args:
        run: The run.
        encoder: Its encoder.
        parts: The samples.
        predicted: Adds what the run's own classifier makes of features, if it has one.
    """
    if run.embeddings.is_file():
        features = load_features(run.embeddings)
    else:
        named = zip(("train", "validation", "test"), (parts.train, parts.validation, parts.test), strict=True)
        features = FeatureParts(*(predicted(_encoded(encoder, samples, part)) for part, samples in named))
        with run.writing(run.embeddings.name) as path:
            save_features(path, features)
        whole = (parts.train, parts.validation, parts.test)
        _note_lost(run, files_of(one for of in whole for one in unreadable(of.inputs, torch.arange(len(of)))))
    return with_origin(features, parts, lambda: encoder)


def _note_lost(run: Run, files: Mapping[int, str]) -> None:
    """Add files that could not be decoded to what a run knows of itself."""
    if files:
        facts = run.facts
        run.describe(facts | {"undecodable": facts.get("undecodable", {}) | {str(item): files[item] for item in files}})


def tell_lost(run: Run, more: Mapping[int, str] | None = None) -> Run:
    """Say which files could not be decoded, and add those to the run that it doesn't know; return the run."""
    _note_lost(run, more or {})
    if files := run.facts.get("undecodable"):
        say(f"warning: {in_words(files)}{'; run.json names all' if len(files) > NAMED else ''}")
    return run


def with_origin(features: FeatureParts, parts: Parts, encoder: Callable[[], Encoder]) -> FeatureParts:
    """Tell features which samples they come from, and how more are encoded.

    Args:
        features: The features.
        parts: The samples that they come from.
        encoder: Returns the encoder; called when inputs are to be encoded.
    """

    def encode(inputs: Tensor | Rows) -> Tensor:
        return encoder().encode(inputs)

    pairs = zip(features, (parts.train, parts.validation, parts.test), strict=True)
    return FeatureParts(*(replace(of, origin=Origin(samples, encode)) for of, samples in pairs))


def evaluate(
    run: Run, features: FeatureParts, samples: Parts | None, asked: Sequence[Evaluation] | None, *, refit: bool
) -> None:
    """Evaluate features, and the raw inputs where there are some; save and print each score as it comes.

    Args:
        run: Where scores are saved.
        features: What the encoder made of the samples.
        samples: The samples themselves. None: raw inputs aren't evaluated.
        asked: The evaluations. None: the usual ones that apply.
        refit: See `Evaluation`.
    """
    evaluations = applicable(features, asked)
    if asked == []:
        return
    left_out = "" if asked is not None else usual_episodes(features)[1]
    if left_out:
        say(left_out)
    if not evaluations:
        say(f"no evaluation applies to {features.test.label_kind or 'samples without labels'}")
        return
    raw = None if samples is None or not len(samples.train) else raw_features(samples, features)
    capped = {} if raw is None else _capped(features, raw)
    fewer = f", with {settings_words(capped)}" if capped else ""
    same = "" if raw is None else f"; the same for raw inputs{fewer}"
    tell(f"\nHeld-out scores, with 95 % intervals{same}")
    for evaluation in evaluations:
        found = evaluation(*features, refit=refit, progress=bar)
        run.add(found)
        other = None if raw is None or evaluation.why_not_applicable(raw) else _of_raw(evaluation, raw, refit=refit)
        if other is not None:
            other = _noting(other, capped)
            run.add(other)
        unseen = features.test.label_kind == "classes" and len(features.train) > 0 and not features.closed
        classes = features.test if unseen else None
        for score in (of for of in found.headline if of.metric.shown):
            tell(_line(score, found, other, classes))
    _print_classes(run, features.test, {evaluation.name for evaluation in evaluations})


def _of_raw(evaluation: Evaluation, raw: FeatureParts, *, refit: bool) -> Result:
    """Evaluate raw inputs; those of a sweep are the same in every run, and are evaluated once."""
    settings = sorted(vars(evaluation).items())
    if not all(isinstance(value, (int, float, str, tuple, type(None))) for _, value in settings):
        return evaluation(*raw, refit=refit, progress=bar)  # what can't be told from others by its words
    said = sha256(repr((type(evaluation), settings, refit, [part.names for part in raw])).encode())
    for part in raw:
        for of in (part.vectors, part.labels, part.rows, part.whole):
            said.update(b"none" if of is None else of.contiguous().numpy().tobytes())
    key = said.hexdigest()
    if key not in _found_before:
        if len(_found_before) >= MOST_KEPT:
            _found_before.pop(next(iter(_found_before)))
        _found_before[key] = evaluation(*raw, refit=refit, progress=bar)
    return _found_before[key]


def _no_encoder() -> Encoder:
    raise ValueError("expected an evaluation that encodes nothing before training, got one that does")


def _encoded(encoder: Encoder, samples: Samples, part: str) -> Features:
    def shown(starts: Iterable[int]) -> Iterable[Any]:
        return bar(starts, f"encoding, {part}")

    return features_of(samples, partial(encoder.encode, progress=shown), part)


def _capped(features: FeatureParts, raw: FeatureParts) -> dict[str, int]:
    """Return of how many samples raw inputs are evaluated, where these are fewer."""
    if all(len(few) == len(whole) for few, whole in zip(raw, features, strict=True)):
        return {}
    return {"training samples": len(raw.train), "test samples": len(raw.test)}


def _noting(found: Result, capped: Mapping[str, int]) -> Result:
    """Note with the scores of raw inputs that they are of fewer samples, so that none is paired with the encoder's."""
    scores = (replace(one, protocol={**one.protocol, **capped}) for one in found.scores)
    return replace(found, scores=tuple(scores))


def _line(score: Score, found: Result, other: Result | None, unseen: Features | None) -> str:
    """Write a score; next to it that of raw inputs, and where both are of the same samples the paired difference."""
    line = f"{score.evaluation}, {score.metric}: {score_words(score)}"
    raw = None if other is None else next((one for one in other.headline if one.metric == score.metric), None)
    if raw is not None and other is not None:
        line += f"; raw inputs {score_words(raw)}"
        ours, theirs = (_outcomes(one, score.metric.name) for one in (found, other))
        if ours is not None and theirs is not None and raw.protocol == score.protocol:
            classes = None if unseen is None or ours.of_episodes else _classes(ours, unseen)
            apart = paired_difference(ours, theirs, classes)
            line += f", difference {difference_words(apart, share=score.metric.is_share)}"
    said = remarks(score)
    return f"{line}; {said}" if said else line


def _classes(outcomes: Outcomes, test: Features) -> Tensor:
    """Return the class of each sample, turns of a class being one."""
    return same_rows(outcomes, replace(outcomes, rows=test.numbers, values=test.groups))[1]


def _outcomes(found: Result, metric: str) -> Outcomes | None:
    return next((one for one in found.outcomes if one.metric == metric), None)


def _print_classes(run: Run, test: Features, evaluations: Collection[str]) -> None:
    """Print the accuracy of classes with many, medium and few training samples, and of each class where few exist."""
    final = [score for score in run.scores if score.epoch is None and score.part == "test" and score.group != ALL]
    final = [score for score in final if score.evaluation in evaluations]
    final = [score for score in final if score.group.kind in {"frequency", "class"}]
    final = [score for score in final if score.metric != MACRO]  # of labels by frequency, mAP says enough
    if len(test.names) > PRINTED_CLASSES:
        final = [score for score in final if score.group.kind != "class"]
    columns = list(dict.fromkeys((score.evaluation, score.features) for score in final))
    rows = list(dict.fromkeys(str(score.group) for score in final))
    if not rows:
        return
    cells = {(str(score.group), score.evaluation, score.features): score_words(score) for score in final}
    corner = MEAN_PRECISION.name if {score.metric for score in final} == {MEAN_PRECISION} else ""
    table = [[corner, *(f"{evaluation}{'' if of == ENCODER else f', {RAW}'}" for evaluation, of in columns)]]
    table += [[_short(row), *(cells.get((row, *column), "") for column in columns)] for row in rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    tell("")
    for first, *others in table:
        aligned = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        tell("  ".join([first.ljust(widths[0]), *aligned]))


def _short(name: str) -> str:
    line = " ".join(name.split())
    return line if len(line) <= LONGEST_NAME else line[: LONGEST_NAME - 1] + "…"
