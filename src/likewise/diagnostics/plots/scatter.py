"""Points on two axes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from likewise.diagnostics.plots.figure import color, styled, told


class Point(NamedTuple):
    """A point, and what hovering over it says."""

    x: float
    y: float
    words: str = ""


def scatter(kinds: Mapping[str, Sequence[Point]], across: str, up: str, *, logarithmic: bool = False) -> go.Figure:
    """Draw points, those of a kind in one colour.

    Args:
        kinds: For each kind its points.
        across: What the horizontal axis shows.
        up: What the vertical axis shows.
        logarithmic: Whether the horizontal axis is logarithmic.

    Returns:
        The figure.

    Example:
        >>> figure = scatter({"a run": [Point(500, 0.1, "cat"), Point(5, 0.3, "dog")]}, "training samples", "drift")
        >>> figure.data[0].hovertext
        ('cat', 'dog')
    """
    figure = go.Figure()
    for place, (kind, points) in enumerate(kinds.items()):
        figure.add_trace(
            go.Scatter(
                x=[point.x for point in points],
                y=[point.y for point in points],
                name=told(kind),
                mode="markers",
                marker={"color": color(place, len(kinds)), "size": 7, "opacity": 0.7},
                hovertext=[told(point.words, 200) for point in points],
                hoverinfo="text+name",
            )
        )
    figure.update_xaxes(title_text=across, type="log" if logarithmic else "linear")
    figure.update_yaxes(title_text=up, exponentformat="power")
    return styled(figure, height=380, showlegend=len(kinds) > 1)
