"""Numbers with their intervals: dots with whiskers, bars, and what was tried."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from likewise.diagnostics.plots.figure import GREY, color, line, plotly_text, styled

MAX_TICKS = 40  # with names, on an axis
MAX_SETTINGS = 10  # named on an axis; of more, only powers of ten are


class Dot(NamedTuple):
    """A number to draw with its interval, in percent or points, and what hovering over it says."""

    value: float
    low: float
    high: float
    words: str = ""


class Tried(NamedTuple):
    """A setting that was tried: its value, its score in percent with the interval, and whether it was chosen."""

    setting: float
    value: float
    low: float
    high: float
    chosen: bool


def dots(rows: Mapping[str, Mapping[str, Dot]], across: str, *, zero: bool = False) -> go.Figure:
    """Draw numbers with their intervals, those to be compared below each other: by row, and by what is compared.

    The axis, which `across` names, spans the intervals, and has a line at 0 only if `zero`.

    Example:
        >>> rows = {"kNN": {"encoder": Dot(90, 88, 92), "raw inputs": Dot(80, 78, 82)}}
        >>> [trace.name for trace in dots(rows, "accuracy, %").data]
        ['encoder', 'raw inputs']
    """
    figure = go.Figure()
    kinds = list(dict.fromkeys(label for row in rows.values() for label in row))
    apart = min(0.24, 0.7 / max(1, len(kinds)))
    for index, label in enumerate(kinds):
        shown = [(row, by_label[label]) for row, by_label in enumerate(rows.values()) if label in by_label]
        shade = color(index, len(kinds))
        figure.add_scatter(
            x=[dot.value for _, dot in shown],
            y=[row + apart * (index - (len(kinds) - 1) / 2) for row, _ in shown],
            error_x=whiskers([dot for _, dot in shown]) | {"color": shade},
            name=plotly_text(label),
            mode="markers",
            marker={"color": shade, "size": 11 if len(kinds) <= 2 else 8},
            hovertext=[plotly_text(dot.words, 200) for _, dot in shown],
            hoverinfo="text+name",
        )
    figure.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=[plotly_text(row) for row in rows], range=[len(rows) - 0.5, -0.5]
    )
    figure.update_xaxes(title_text=across)
    if zero:
        figure.add_vline(x=0, line={"color": GREY, "width": 1})
    apiece = max(24 if len(rows) > 12 else 48, 16 * len(kinds))
    return styled(figure, height=130 + apiece * len(rows), showlegend=len(kinds) > 1)


def bars(kinds: Mapping[str, Mapping[str, Dot]], across: str, up: str) -> go.Figure:
    """Draw numbers, by kind of bar and by name, as bars from 0, with their intervals, so that lengths can be compared.

    Example:
        >>> bars({"encoder": {"cat": Dot(10, 5, 15), "dog": Dot(0, 0, 2)}}, "class", "wrong, %").data[0].y
        (10, 0)
    """
    figure = go.Figure()
    names = list(dict.fromkeys(name for by_name in kinds.values() for name in by_name))
    for index, (label, by_name) in enumerate(kinds.items()):
        figure.add_bar(
            x=[names.index(name) for name in by_name],
            y=[dot.value for dot in by_name.values()],
            error_y=whiskers(list(by_name.values())) | {"color": GREY},
            name=plotly_text(label),
            marker={"color": color(index, len(kinds))},
            hovertext=[plotly_text(f"{name}: {dot.words}", 200) for name, dot in by_name.items()],
            hoverinfo="text+name",
        )
    shown = names if len(names) <= MAX_TICKS else []
    ticks: dict[str, Any] = {"tickvals": list(range(len(shown))), "ticktext": [plotly_text(name, 24) for name in shown]}
    figure.update_xaxes(title_text=across, automargin=True, **ticks)
    figure.update_yaxes(title_text=up, rangemode="tozero")
    return styled(figure, height=340, showlegend=len(kinds) > 1)


def choices(panels: Mapping[str, tuple[str, Mapping[str, Sequence[Tried]]]]) -> go.Figure:
    """Draw validation scores over the settings, on a logarithmic axis; a star marks what was chosen.

    For each title, `panels` has the name of the setting, and for each curve what was tried.

    Example:
        >>> tried = [Tried(1.0, 90, 88, 92, True), Tried(10.0, 80, 78, 82, False)]
        >>> choices({"kNN": ("k", {"encoder": tried})}).data[0].marker.symbol
        ('star', 'circle')
    """
    figure = make_subplots(1, max(1, len(panels)), subplot_titles=[plotly_text(title) for title in panels])
    kinds = list(dict.fromkeys(label for _, lines in panels.values() for label in lines))
    named: set[str] = set()
    for column, (setting, lines) in enumerate(panels.values(), start=1):
        for label, tried in lines.items():
            marker = {
                "symbol": ["star" if trial.chosen else "circle" for trial in tried],
                "size": [16 if trial.chosen else 7 for trial in tried],
            }
            legend = {"legendgroup": label, "showlegend": label not in named}
            drawn = {"error_y": whiskers(tried) | {"thickness": 1}, "marker": marker}
            points, shade = [(trial.setting, trial.value) for trial in tried], color(kinds.index(label), len(kinds))
            figure.add_trace(line(points, label, shade, **drawn, **legend), row=1, col=column)
            named.add(label)
        figure.update_xaxes(type="log", exponentformat="power", title_text=plotly_text(setting), row=1, col=column)
        values = sorted({trial.setting for tried in lines.values() for trial in tried})
        if len(values) <= MAX_SETTINGS:
            figure.update_xaxes(tickvals=values, ticktext=[f"{value:g}" for value in values], row=1, col=column)
    figure.update_yaxes(title_text="validation score, %", col=1)
    return styled(figure, height=380).update_layout(margin={"t": 96})  # the legend may take two lines


def whiskers(shown: Sequence[Dot | Tried]) -> dict[str, Any]:
    """Return Plotly's error bars; an interval without an end has no whisker."""
    above = [dot.high - dot.value if math.isfinite(dot.high) else 0.0 for dot in shown]
    below = [dot.value - dot.low if math.isfinite(dot.low) else 0.0 for dot in shown]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.4}
