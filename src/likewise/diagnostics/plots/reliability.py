"""Reliability diagrams: how often a classifier is right, over what it states."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from likewise.diagnostics.plots.figure import GREY, color, styled, told
from likewise.diagnostics.plots.intervals import Dot, whiskers


def reliability(lines: Mapping[str, Sequence[tuple[float, Dot]]]) -> go.Figure:
    """Draw the accuracy of bins over their mean confidence, with intervals, and the diagonal of perfect calibration.

    Args:
        lines: For each classifier its bins: the mean confidence in percent, and the accuracy.

    Returns:
        The figure.

    Example:
        >>> reliability({"encoder": [(55.0, Dot(50, 40, 60)), (95.0, Dot(90, 85, 94))]}).data[1].x
        (55.0, 95.0)
    """
    figure = go.Figure()
    diagonal = {"color": GREY, "width": 1, "dash": "dot"}
    figure.add_trace(
        go.Scatter(x=[0, 100], y=[0, 100], mode="lines", line=diagonal, showlegend=False, hoverinfo="skip")
    )
    for place, (name, bins) in enumerate(lines.items()):
        shade = color(place, len(lines))
        figure.add_trace(
            go.Scatter(
                x=[confidence for confidence, _ in bins],
                y=[dot.value for _, dot in bins],
                error_y=whiskers([dot for _, dot in bins]) | {"color": shade},
                name=told(name),
                mode="lines+markers",
                line={"color": shade, "width": 1.6},
                hovertext=[told(dot.words, 200) for _, dot in bins],
                hoverinfo="text+name",
            )
        )
    figure.update_xaxes(title_text="mean confidence, %")
    figure.update_yaxes(title_text="accuracy, %")
    return styled(figure, height=420, showlegend=len(lines) > 1)
