"""Pictures: the one place that draws, with Plotly; each picture is a figure, and any page can show it."""

from likewise.diagnostics.plots.choices import Tried, choices
from likewise.diagnostics.plots.costs import costs
from likewise.diagnostics.plots.curves import curves
from likewise.diagnostics.plots.figure import COLORS, CONFIG, as_data, as_html, palette, script
from likewise.diagnostics.plots.heat_maps import heat_maps
from likewise.diagnostics.plots.histogram import histogram
from likewise.diagnostics.plots.images import image_rows
from likewise.diagnostics.plots.intervals import Dot, bars, dots
from likewise.diagnostics.plots.matrix import matrix
from likewise.diagnostics.plots.reliability import reliability
from likewise.diagnostics.plots.scatter import Point, scatter
from likewise.diagnostics.plots.similarities import similarities
from likewise.diagnostics.plots.spectra import spectra
from likewise.diagnostics.plots.strengths import strengths

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
    "costs",
    "curves",
    "dots",
    "heat_maps",
    "histogram",
    "image_rows",
    "matrix",
    "palette",
    "reliability",
    "scatter",
    "script",
    "similarities",
    "spectra",
    "strengths",
]
