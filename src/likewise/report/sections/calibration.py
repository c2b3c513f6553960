"""Reliability diagram of the linear probe."""

from collections.abc import Sequence

from likewise.diagnostics import plots
from likewise.evaluation import Calibration
from likewise.evaluation.accuracy import ACCURACY
from likewise.evaluation.calibration import CONFIDENCE
from likewise.report.section import Section
from likewise.report.subject import KINDS, Subject
from likewise.report.words import dot_of

SENTENCE = (
    "How often the linear probe is right, over the mean of its largest probability, in bins of equal width; whiskers "
    "are 95 % intervals. On the dotted line, probabilities are what they say; below it, the probe is too confident."
)


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the bins of a single run."""
    if len(subjects) != 1:
        return None
    lines = {kind: _bins(subjects[0], kind) for kind in KINDS}
    lines = {kind: bins for kind, bins in lines.items() if bins}
    if not lines:
        return None
    return Section("Calibration", SENTENCE, plots.as_html(plots.reliability(lines), "reliability"))


def _bins(subject: Subject, kind: str) -> list[tuple[float, plots.Dot]]:
    """Return the mean confidence of each bin, in percent, and its accuracy."""
    of = {
        (metric, group): score
        for (evaluation, metric, features, group), score in subject.test_scores.items()
        if (evaluation, features, group.kind) == (Calibration.name, kind, CONFIDENCE.name)
    }
    bins = sorted({group for _, group in of}, key=lambda group: of[CONFIDENCE.name, group].value)
    return [(100 * of[CONFIDENCE.name, group].value, dot_of(of[ACCURACY.name, group])) for group in bins]
