"""Accuracy under each corruption and severity."""

from collections.abc import Sequence

from likewise.diagnostics import plots
from likewise.evaluation import Robustness
from likewise.evaluation.robustness import CLEAN
from likewise.report.section import Section, table
from likewise.report.subject import Subject
from likewise.report.words import dot_of, score_words
from likewise.scores import ALL, ENCODER, Score

SENTENCE = (
    "Accuracy of a linear probe, fitted to clean training images, on corrupted test images, with 95 % intervals, from "
    "the mildest severity, 1, to the strongest, 5. Corruptions are this library's own, and numbers can't be compared "
    "with published ones. The axis does not begin at 0."
)


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the accuracies of a single run."""
    if len(subjects) != 1:
        return None
    found = _by_corruption(subjects[0])
    clean = subjects[0].test_scores.get((Robustness.name, CLEAN.name, ENCODER, ALL))
    if not found or clean is None:
        return None
    dots = {"clean": {"clean": dot_of(clean)}}
    dots |= {name: {severity: dot_of(score) for severity, score in of.items()} for name, of in found.items()}
    severities = sorted({severity for of in found.values() for severity in of})
    rows = [[name, *(score_words(of[one]) if one in of else "" for one in severities)] for name, of in found.items()]
    figure = plots.as_html(plots.dots(dots, "accuracy on the test part, %"), "robustness")
    return Section("Robustness", f"{SENTENCE} Clean: {score_words(clean)}.", figure + table(["", *severities], rows))


def _by_corruption(subject: Subject) -> dict[str, dict[str, Score]]:
    """Return for each corruption the accuracy by severity."""
    found: dict[str, dict[str, Score]] = {}
    for (evaluation, _, kind, group), score in subject.test_scores.items():
        if (evaluation, kind, group.kind) == (Robustness.name, ENCODER, "corruption"):
            found.setdefault(score.protocol["corruption"], {})[f"severity {score.protocol['severity']}"] = score
    return found
