"""The sections of a page, in their order: each is a function of the runs that the page is about.

It returns None where it has nothing to show, such as pictures of a run whose samples are vectors.
"""

from collections.abc import Callable, Sequence

from likewise.report.section import Section
from likewise.report.sections import (
    calibration,
    choices,
    class_differences,
    class_means,
    classes,
    compared,
    curves,
    episode,
    errors,
    facts,
    geometry,
    gradients,
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
    facts.section,
    compared.section,
    scores.section,
    class_differences.section,
    classes.section,
    labels.section,
    calibration.section,
    robustness.section,
    maps.section,
    geometry.section,
    errors.section,
    episode.section,
    text_neighbours.section,
    label_similarity.section,
    choices.section,
    curves.section,
    gradients.section,
    noted.section,
    class_means.section,
)

__all__ = ["SECTIONS"]
