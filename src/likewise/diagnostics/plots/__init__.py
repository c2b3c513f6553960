"""Plotly figures for any page; only this package uses Plotly."""

from likewise.diagnostics.plots.charts import (
    Dot,
    Point,
    Tried,
    bars,
    choices,
    curves,
    dots,
    heat_maps,
    histograms,
    matrix,
    scatter,
    spectra,
    strengths,
    with_intervals,
)
from likewise.diagnostics.plots.figure import COLORS, CONFIG, as_data, as_html, palette, script

__all__ = [
    "COLORS", "CONFIG", "Dot", "Point", "Tried", "as_data", "as_html", "bars", "choices", "curves", "dots", "heat_maps",
    "histograms", "matrix", "palette", "scatter", "script", "spectra", "strengths", "with_intervals",
]  # fmt: skip
