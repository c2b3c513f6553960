"""What `train` and `evaluate` share: encode, evaluate, and save and print every score as soon as it is there."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from likewise.cli.printing import say, tell
from likewise.cli.progress import bar
from likewise.data import Parts, Samples
from likewise.evaluation import (
    Evaluation,
    FeatureParts,
    Features,
    Found,
    Score,
    applicable,
    load_features,
    paired_difference,
    raw_features,
    save_features,
)
from likewise.models import Encoder
from likewise.parts import build
from likewise.runs import Run
from likewise.scores import ALL, ENCODER, RAW, Outcomes

PRINTED_CLASSES = 20  # with more classes, only the report shows them all
LONGEST_NAME = 40  # of a class that is printed


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
        """Return at most so many samples of each part."""
        most = self.evaluation_samples
        return features if most is None else FeatureParts(*(part.fewer(most) for part in features))


def check_applicable(parts: Parts, asked: Sequence[Evaluation] | None) -> None:
    """Raise a ValueError for an evaluation that was asked for and doesn't apply, before anything is trained."""
    named = zip(("train", "validation", "test"), (parts.train, parts.validation, parts.test), strict=True)
    blank = (Features(torch.zeros(len(of), 1), of.labels, of.names, of.rows, part) for part, of in named)
    applicable(FeatureParts(*blank), asked)


def encoded(run: Run, encoder: Encoder, parts: Parts, most: int | None, *, anew: bool = False) -> FeatureParts:
    """Encode the samples, at most so many of each part, and save the features; or load those that were saved."""
    if run.embeddings.is_file() and not anew:
        return load_features(run.embeddings)
    named = zip(("train", "validation", "test"), (parts.train, parts.validation, parts.test), strict=True)
    features = FeatureParts(*(_encoded(encoder, samples, part, most) for part, samples in named))
    with run.writing(run.embeddings.name) as path:
        save_features(path, features)
    return features


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
    if not evaluations:
        say("no evaluation applies to these labels")
        return
    raw = None if samples is None or not len(samples.train) else raw_features(samples)
    tell(f"\nHeld-out scores, with 95 % intervals{_compared(features, raw)}")
    for evaluation in evaluations:
        found = evaluation(*features, refit=refit, progress=bar)
        run.add(found)
        other = None if raw is None or evaluation.refusal(raw) else evaluation(*raw, refit=refit, progress=bar)
        if other is not None:
            run.add(_noting(other, raw))
        for score in found.headline:
            tell(_line(score, found, other))
    _print_classes(run, features.test, {evaluation.name for evaluation in evaluations})


def words(score: Score) -> str:
    """Say a score with its interval.

    Example:
        >>> words(Score("kNN", "accuracy", 0.9, 0.8, 0.95, 100))
        '90.00 % [80.0, 95.0]'
    """
    return f"{100 * score.value:.2f} % [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def _encoded(encoder: Encoder, samples: Samples, part: str, most: int | None) -> Features:
    if most is not None and len(samples) > most:
        samples = samples[torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:most].sort().values]

    def shown(starts: Iterable[int]) -> Iterable[Any]:
        return bar(starts, f"encoding, {part}")

    vectors = encoder.encode(samples.inputs, progress=shown)
    return Features(vectors, samples.labels, samples.names, samples.rows, part)


def _compared(features: FeatureParts, raw: FeatureParts | None) -> str:
    """Say what raw inputs are, and how many of them are evaluated."""
    if raw is None:
        return ""
    of = [f"{len(few):,} of {len(all_):,} {all_.part}" for few, all_ in zip(raw, features, strict=True)]
    some = any(len(few) < len(all_) for few, all_ in zip(raw, features, strict=True))
    return f"; the same of raw inputs{f' ({of[0]} and {of[2]} samples)' if some else ''}"


def _noting(found: Found, raw: FeatureParts | None) -> Found:
    """Note with the scores of raw inputs of how many training samples they are."""
    if raw is None:
        return found
    noted = f"{len(raw.train)} training samples"
    scores = (replace(one, choices="; ".join(filter(None, (one.choices, noted)))) for one in found.scores)
    return replace(found, scores=tuple(scores))


def _line(score: Score, found: Found, other: Found | None) -> str:
    line = f"{score.evaluation}, {score.metric}: {words(score)}"
    beside = None if other is None else next((one for one in other.headline if one.metric == score.metric), None)
    if beside is not None and other is not None:
        ours, theirs = (_outcomes(one, score.metric) for one in (found, other))
        line += f"; raw inputs {words(beside)}"
        if ours is not None and theirs is not None:
            difference = paired_difference(ours, theirs)
            low, high = 100 * difference.low, 100 * difference.high
            line += f", {100 * difference.value:+.2f} points [{low:+.2f}, {high:+.2f}]"
    return f"{line}; {score.choices}" if score.choices else line


def _outcomes(found: Found, metric: str) -> Outcomes | None:
    return next((one for one in found.outcomes if one.metric == metric), None)


def _print_classes(run: Run, test: Features, evaluations: Collection[str]) -> None:
    """Print the accuracy of classes with many, medium and few training samples, and of each class where few exist."""
    final = [score for score in run.scores if score.epoch is None and score.part == "test" and score.subset != ALL]
    final = [score for score in final if score.evaluation in evaluations]
    if len(test.names) > PRINTED_CLASSES:
        final = [score for score in final if not score.subset.startswith("class ")]
    columns = list(dict.fromkeys((score.evaluation, score.features) for score in final))
    rows = list(dict.fromkeys(score.subset for score in final))
    if not rows:
        return
    cells = {(score.subset, score.evaluation, score.features): words(score) for score in final}
    table = [["", *(f"{evaluation}{'' if of == ENCODER else f', {RAW}'}" for evaluation, of in columns)]]
    table += [[_short(row), *(cells.get((row, *column), "") for column in columns)] for row in rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    tell("")
    for first, *others in table:
        aligned = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        tell("  ".join([first.ljust(widths[0]), *aligned]))


def _short(name: str) -> str:
    line = " ".join(name.split())
    return line if len(line) <= LONGEST_NAME else line[: LONGEST_NAME - 1] + "…"
