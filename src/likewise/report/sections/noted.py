"""The histograms that the loss recorded of its steps, such as RASCAL's of rank drift."""

from collections.abc import Sequence

from likewise.diagnostics import plots
from likewise.report.section import Section
from likewise.report.subject import Subject

MOST = 6  # heat maps on a page


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the histograms of one run, or of the first run of each setting."""
    firsts = {subject.setting: subject for subject in reversed(subjects)}
    noted = {
        (f"{setting}: {name}" if len(firsts) > 1 else name): pairs
        for setting, subject in reversed(firsts.items())
        for name, pairs in subject.histograms.items()
    }
    if not noted:
        return None
    some = dict(list(noted.items())[:MOST])
    sentence = (
        "Histograms that the loss recorded, summed over the steps of each epoch: a column is an epoch, its colours the "
        "shares of the bins, the lowest values at the bottom."
    )
    if len(some) < len(noted):
        sentence += f" {MOST} of {len(noted)} are shown."
    return Section("Histograms of the loss", sentence, plots.as_html(plots.heat_maps(some), "noted"))
