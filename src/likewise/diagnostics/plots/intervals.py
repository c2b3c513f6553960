"""Numbers with their intervals: dots with whiskers, and bars."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from likewise.diagnostics.plots.figure import GREY, color, styled, told

MOST_TICKS = 40  # names on an axis


class Dot(NamedTuple):
    """A number to draw with its interval, in percent or points, and what hovering over it says."""

    value: float
    low: float
    high: float
    words: str = ""


def dots(rows: Mapping[str, Mapping[str, Dot]], across: str, *, zero: bool = False) -> go.Figure:
    """Draw numbers with their intervals, those to be compared below each other.

    Args:
        rows: For each row, for each thing compared, its number.
        across: What the horizontal axis shows.
        zero: Whether to draw a line at 0.

    Returns:
        The figure; without a line at 0, the axis spans the intervals and does not begin at 0.

    Example:
        >>> rows = {"kNN": {"encoder": Dot(90, 88, 92), "raw inputs": Dot(80, 78, 82)}}
        >>> [trace.name for trace in dots(rows, "accuracy, %").data]
        ['encoder', 'raw inputs']
    """
    figure = go.Figure()
    kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))
    apart = min(0.24, 0.7 / max(1, len(kinds)))
    for place, kind in enumerate(kinds):
        shown = [(row, of[kind]) for row, of in enumerate(rows.values()) if kind in of]
        shade = color(place, len(kinds))
        figure.add_trace(
            go.Scatter(
                x=[dot.value for _, dot in shown],
                y=[row + apart * (place - (len(kinds) - 1) / 2) for row, _ in shown],
                error_x=whiskers([dot for _, dot in shown]) | {"color": shade},
                name=told(kind),
                mode="markers",
                marker={"color": shade, "size": 11 if len(kinds) <= 2 else 8},
                hovertext=[told(dot.words, 200) for _, dot in shown],
                hoverinfo="text+name",
            )
        )
    figure.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=[told(row) for row in rows], range=[len(rows) - 0.5, -0.5]
    )
    figure.update_xaxes(title_text=across)
    if zero:
        figure.add_vline(x=0, line={"color": GREY, "width": 1})
    apiece = max(24 if len(rows) > 12 else 48, 16 * len(kinds))
    return styled(figure, height=130 + apiece * len(rows), showlegend=len(kinds) > 1)


def bars(kinds: Mapping[str, Mapping[str, Dot]], across: str, up: str) -> go.Figure:
    """Draw numbers as bars from 0, with their intervals, so that lengths can be compared.

    Args:
        kinds: For each kind of bar, for each name, its number.
        across: What the names are.
        up: What the vertical axis shows.

    Returns:
        The figure.

    Example:
        >>> bars({"encoder": {"cat": Dot(10, 5, 15), "dog": Dot(0, 0, 2)}}, "class", "wrong, %").data[0].y
        (10, 0)
    """
    figure = go.Figure()
    names = list(dict.fromkeys(name for of in kinds.values() for name in of))
    for place, (kind, of) in enumerate(kinds.items()):
        figure.add_trace(
            go.Bar(
                x=[names.index(name) for name in of],
                y=[dot.value for dot in of.values()],
                error_y=whiskers(list(of.values())) | {"color": GREY},
                name=told(kind),
                marker={"color": color(place, len(kinds))},
                hovertext=[told(f"{name}: {dot.words}", 200) for name, dot in of.items()],
                hoverinfo="text+name",
            )
        )
    shown = names if len(names) <= MOST_TICKS else []
    figure.update_xaxes(
        title_text=across, tickvals=list(range(len(shown))), ticktext=[told(name, 24) for name in shown]
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(title_text=up, rangemode="tozero")
    return styled(figure, height=340, showlegend=len(kinds) > 1)


def whiskers(shown: Sequence[Dot]) -> dict[str, Any]:
    """Return Plotly's error bars; an interval without an end has no whisker.

    Example:
        >>> whiskers([Dot(90, 88, 93)])["array"]
        [3]
    """
    above = [dot.high - dot.value if math.isfinite(dot.high) else 0.0 for dot in shown]
    below = [dot.value - dot.low if math.isfinite(dot.low) else 0.0 for dot in shown]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.4}
