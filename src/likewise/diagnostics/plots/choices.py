"""Validation scores of the settings that were tried."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from likewise.diagnostics.plots.figure import color, styled, told

MOST_TICKS = 10  # settings that are named on the axis; of more, powers of ten are


class Tried(NamedTuple):
    """A setting that was tried: its value, its score in percent with the interval, and whether it was chosen."""

    setting: float
    value: float
    low: float
    high: float
    chosen: bool


def choices(panels: Mapping[str, tuple[str, Mapping[str, Sequence[Tried]]]]) -> go.Figure:
    """Draw validation scores over the settings, on a logarithmic axis; a star marks what was chosen.

    Args:
        panels: For each title, the name of the setting, and for each curve what was tried.

    Returns:
        The figure.

    Example:
        >>> tried = [Tried(1.0, 90, 88, 92, True), Tried(10.0, 80, 78, 82, False)]
        >>> choices({"kNN": ("k", {"encoder": tried})}).data[0].marker.symbol
        ('star', 'circle')
    """
    figure = make_subplots(1, max(1, len(panels)), subplot_titles=[told(title) for title in panels])
    kinds = list(dict.fromkeys(kind for _, lines in panels.values() for kind in lines))
    named: set[str] = set()
    for column, (setting, lines) in enumerate(panels.values(), start=1):
        for kind, tried in lines.items():
            shade = color(kinds.index(kind), len(kinds))
            line = go.Scatter(
                x=[one.setting for one in tried],
                y=[one.value for one in tried],
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [one.high - one.value for one in tried],
                    "arrayminus": [one.value - one.low for one in tried],
                    "thickness": 1,
                },
                name=told(kind),
                legendgroup=kind,
                showlegend=kind not in named,
                mode="lines+markers",
                line={"color": shade, "width": 1.6},
                marker={
                    "symbol": ["star" if one.chosen else "circle" for one in tried],
                    "size": [16 if one.chosen else 7 for one in tried],
                },
            )
            named.add(kind)
            figure.add_trace(line, row=1, col=column)
        figure.update_xaxes(type="log", exponentformat="power", title_text=told(setting), row=1, col=column)
        values = sorted({one.setting for tried in lines.values() for one in tried})
        if len(values) <= MOST_TICKS:
            figure.update_xaxes(tickvals=values, ticktext=[f"{value:g}" for value in values], row=1, col=column)
    figure.update_yaxes(title_text="validation score, %", col=1)
    return styled(figure, height=380).update_layout(margin={"t": 96})  # the legend may take two lines
