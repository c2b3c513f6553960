"""Pictures, drawn with Plotly here alone: each is a figure that any page can show."""

from likewise.diagnostics.plots.figure import COLORS, CONFIG, as_data, as_html, palette, script
from likewise.diagnostics.plots.histograms import heat_maps, histograms, matrix
from likewise.diagnostics.plots.intervals import Dot, Tried, bars, choices, dots
from likewise.diagnostics.plots.lines import Point, curves, scatter, spectra, strengths, with_intervals

__all__ = [
    "COLORS",
    "CONFIG",
    "Dot",
    "Point",
    "Tried",
    "as_data",
    "as_html",
    "bars",
    "choices",
    "curves",
    "dots",
    "heat_maps",
    "histograms",
    "matrix",
    "palette",
    "scatter",
    "script",
    "spectra",
    "strengths",
    "with_intervals",
]
