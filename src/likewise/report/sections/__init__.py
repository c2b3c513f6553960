"""The sections that come with likewise, in their order on a page."""

from likewise.report.sections.classes import ClassesSection, ConfusionSection, LabelsSection
from likewise.report.sections.comparison import ClassDifferencesSection, ComparisonSection
from likewise.report.sections.episode import EpisodeSection
from likewise.report.sections.geometry import GeometrySection, LabelSimilaritySection
from likewise.report.sections.gradients import AnchorSection, GradientsSection
from likewise.report.sections.maps import MapSection
from likewise.report.sections.samples import HardestPairsSection, MistakesSection, NearestTextsSection
from likewise.report.sections.scores import CalibrationSection, ChoicesSection, RobustnessSection, ScoresSection
from likewise.report.sections.section import Section
from likewise.report.sections.training import ClassMeansSection, CurvesSection, FactsSection, HistogramsSection

SECTIONS: tuple[type[Section], ...] = (
    ComparisonSection,
    MapSection,
    HardestPairsSection,
    MistakesSection,
    EpisodeSection,
    NearestTextsSection,
    ScoresSection,
    ClassDifferencesSection,
    ClassesSection,
    ConfusionSection,
    LabelsSection,
    CalibrationSection,
    RobustnessSection,
    GeometrySection,
    GradientsSection,
    AnchorSection,
    LabelSimilaritySection,
    HistogramsSection,
    ClassMeansSection,
    CurvesSection,
    ChoicesSection,
    FactsSection,
)

__all__ = [
    "SECTIONS",
    "AnchorSection",
    "CalibrationSection",
    "ChoicesSection",
    "ClassDifferencesSection",
    "ClassMeansSection",
    "ClassesSection",
    "ComparisonSection",
    "ConfusionSection",
    "CurvesSection",
    "EpisodeSection",
    "FactsSection",
    "GeometrySection",
    "GradientsSection",
    "HardestPairsSection",
    "HistogramsSection",
    "LabelSimilaritySection",
    "LabelsSection",
    "MapSection",
    "MistakesSection",
    "NearestTextsSection",
    "RobustnessSection",
    "ScoresSection",
]
