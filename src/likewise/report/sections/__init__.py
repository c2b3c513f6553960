"""The sections that come with likewise, in their order on a page."""

from likewise.report.sections.classes import ClassesSection, ConfusionSection, LabelsSection
from likewise.report.sections.comparison import (
    ClassDifferencesSection,
    ComparisonSection,
    SampleDifferencesSection,
)
from likewise.report.sections.geometry import GeometrySection, LabelSimilaritySection
from likewise.report.sections.gradients import AnchorSection, GradientsSection, NegativesSection
from likewise.report.sections.maps import MapSection, SubModesSection
from likewise.report.sections.pairs import PairsSection
from likewise.report.sections.samples import HardestPairsSection, MistakesSection, NearestTextsSection
from likewise.report.sections.scores import CalibrationSection, ChoicesSection, RobustnessSection, ScoresSection
from likewise.report.sections.section import Section
from likewise.report.sections.training import ClassMeansSection, CurvesSection, FactsSection, HistogramsSection
from likewise.report.sections.use import UseSection

SECTIONS: tuple[type[Section], ...] = (
    ComparisonSection,
    MapSection,
    SubModesSection,
    HardestPairsSection,
    MistakesSection,
    NearestTextsSection,
    PairsSection,
    ScoresSection,
    ClassDifferencesSection,
    SampleDifferencesSection,
    ClassesSection,
    ConfusionSection,
    LabelsSection,
    CalibrationSection,
    RobustnessSection,
    GeometrySection,
    GradientsSection,
    NegativesSection,
    AnchorSection,
    LabelSimilaritySection,
    HistogramsSection,
    ClassMeansSection,
    CurvesSection,
    ChoicesSection,
    UseSection,
    FactsSection,
)

__all__ = ["SECTIONS"]
__all__ += [section.__name__ for section in SECTIONS]  # pyright: ignore[reportUnsupportedDunderAll]
