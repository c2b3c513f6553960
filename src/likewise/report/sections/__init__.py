"""The sections of a page, in their order: each is a function of the runs that the page is about.

It returns None where it has nothing to show, such as pictures of a run whose samples are vectors.
"""

from collections.abc import Callable, Sequence

from likewise.report.section import Section
from likewise.report.sections import (
    anchors,
    calibration,
    choices,
    class_differences,
    class_means,
    classes,
    compared,
    confusion,
    curves,
    episode,
    errors,
    facts,
    geometry,
    gradients,
    hardest,
    label_similarity,
    labels,
    maps,
    noted,
    robustness,
    scores,
    text_neighbours,
)
from likewise.report.subject import Subject

SECTIONS: tuple[Callable[[Sequence[Subject]], Section | None], ...] = (
    compared.section,
    maps.section,
    hardest.section,
    errors.section,
    episode.section,
    text_neighbours.section,
    scores.section,
    class_differences.section,
    classes.section,
    confusion.section,
    labels.section,
    calibration.section,
    robustness.section,
    geometry.section,
    gradients.section,
    anchors.section,
    label_similarity.section,
    noted.section,
    class_means.section,
    curves.section,
    choices.section,
    facts.section,
)

__all__ = ["SECTIONS"]
