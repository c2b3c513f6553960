"""The built-in sections, in their order on a page."""

from likewise.report.run_view import Section
from likewise.report.sections.comparison import ClassDifferencesSection, ComparisonSection, SampleDifferencesSection
from likewise.report.sections.geometry import (
    AnchorSection,
    GeometrySection,
    GradientsSection,
    LabelSimilaritySection,
    NegativesSection,
)
from likewise.report.sections.maps import MapSection, SubModesSection
from likewise.report.sections.samples import HardestPairsSection, MistakesSection, NearestTextsSection, PairsSection
from likewise.report.sections.scores import (
    CalibrationSection,
    ChoicesSection,
    ClassesSection,
    ConfusionSection,
    LabelsSection,
    RobustnessSection,
    ScoresSection,
)
from likewise.report.sections.training import (
    ClassMeansSection,
    CurvesSection,
    FactsSection,
    HistogramsSection,
    UseSection,
)

SECTIONS: tuple[type[Section], ...] = (
    ComparisonSection, MapSection, SubModesSection, HardestPairsSection, MistakesSection, NearestTextsSection,
    PairsSection, ScoresSection, ClassDifferencesSection, SampleDifferencesSection, ClassesSection, ConfusionSection,
    LabelsSection, CalibrationSection, RobustnessSection, GeometrySection, GradientsSection, NegativesSection,
    AnchorSection, LabelSimilaritySection, HistogramsSection, ClassMeansSection, CurvesSection, ChoicesSection,
    UseSection, FactsSection,
)  # fmt: skip

__all__ = ["SECTIONS"]
__all__ += [section.__name__ for section in SECTIONS]  # pyright: ignore[reportUnsupportedDunderAll]
