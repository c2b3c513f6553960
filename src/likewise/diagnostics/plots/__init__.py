"""Pictures: the one place that draws, with Plotly; each picture is a figure, and any page can show it."""

from likewise.diagnostics.plots.figure import COLORS, CONFIG, as_data, as_html, palette, script
from likewise.diagnostics.plots.histograms import heat_maps, histogram, matrix, similarities
from likewise.diagnostics.plots.intervals import Dot, Tried, bars, choices, dots, reliability
from likewise.diagnostics.plots.lines import Point, by_number, curves, scatter, spectra, strengths

__all__ = [
    "COLORS",
    "CONFIG",
    "Dot",
    "Point",
    "Tried",
    "as_data",
    "as_html",
    "bars",
    "by_number",
    "choices",
    "curves",
    "dots",
    "heat_maps",
    "histogram",
    "matrix",
    "palette",
    "reliability",
    "scatter",
    "script",
    "similarities",
    "spectra",
    "strengths",
]
