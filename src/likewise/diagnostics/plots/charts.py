"""Charts of numbers with their intervals, curves, points, histograms, and matrices as colours."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from likewise.diagnostics.plots.figure import COLORS, GREY, color, grid, line, plotly_text, styled

MAX_TICKS = 40  # named on an axis
MAX_SETTINGS = 10  # named on an axis; with more, only powers of ten are
MAX_NAMED_ROWS = 60  # rows of a matrix; with more, only hovering shows the names
MAX_LABELS = 24  # in a legend
DECADES = 5.0  # on the axis of strengths; weaker references make no difference


class Dot(NamedTuple):
    """A number to draw with its interval, in percent or points, and its hover text."""

    value: float
    low: float
    high: float
    words: str = ""


class Tried(NamedTuple):
    """A tried setting: its value, its score in percent with the interval, and whether it was chosen."""

    setting: float
    value: float
    low: float
    high: float
    chosen: bool


def dots(rows: Mapping[str, Mapping[str, Dot]], across: str, *, zero: bool = False) -> go.Figure:
    """Draw numbers with their intervals by row, with compared ones below each other.

    The axis, named by `across`, spans the intervals, and has a line at 0 only if `zero`.

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
            error_x=_whiskers([dot for _, dot in shown]) | {"color": shade},
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
    """Draw numbers, by kind of bar and by name, as bars from 0, which makes lengths comparable, with their intervals.

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
            error_y=_whiskers(list(by_name.values())) | {"color": GREY},
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
    """Draw validation scores over the settings, on a logarithmic axis; a star marks the chosen setting.

    For each title, `panels` has the name of the setting, and for each curve the tried settings.

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
            drawn = {"error_y": _whiskers(tried) | {"thickness": 1}, "marker": marker}
            points, shade = [(trial.setting, trial.value) for trial in tried], color(kinds.index(label), len(kinds))
            figure.add_trace(line(points, label, shade, **drawn, **legend), row=1, col=column)
            named.add(label)
        figure.update_xaxes(type="log", exponentformat="power", title_text=plotly_text(setting), row=1, col=column)
        values = sorted({trial.setting for tried in lines.values() for trial in tried})
        if len(values) <= MAX_SETTINGS:
            figure.update_xaxes(tickvals=values, ticktext=[f"{value:g}" for value in values], row=1, col=column)
    figure.update_yaxes(title_text="validation score, %", col=1)
    return styled(figure, height=380).update_layout(margin={"t": 96})  # the legend may take two lines


def _whiskers(shown: Sequence[Dot | Tried]) -> dict[str, Any]:
    """Return Plotly's error bars; an interval without an end has no whisker."""
    above = [dot.high - dot.value if math.isfinite(dot.high) else 0.0 for dot in shown]
    below = [dot.value - dot.low if math.isfinite(dot.low) else 0.0 for dot in shown]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.4}


class Point(NamedTuple):
    """A point and its hover text."""

    x: float
    y: float
    words: str = ""


def curves(panels: Mapping[str, Sequence[tuple[str, Sequence[tuple[int, float]]]]], across: str = "step") -> go.Figure:
    """Draw curves, each panel on its own axes; curves with the same label share a colour, several have a legend.

    For each title, `panels` has curves, each a label with (step, value) pairs; `across` names the steps.

    Example:
        >>> figure = curves({"loss": [("a", [(0, 2.0), (1, 1.0)]), ("b", [(0, 3.0)])], "rate": [("a", [(0, 0.1)])]})
        >>> [(line.name, line.showlegend) for line in figure.data]
        [('a', True), ('b', True), ('a', False)]
    """
    figure, places = grid([plotly_text(title.replace("_", " ")) for title in panels])
    labels = list(dict.fromkeys(label for lines in panels.values() for label, _ in lines))
    named: set[str] = set()
    for position, lines in zip(places, panels.values(), strict=True):
        for label, points in lines:
            shade, mode = color(labels.index(label), len(labels)), "lines" if len(points) > 1 else "markers"
            legend = {"legendgroup": label, "showlegend": label not in named}
            figure.add_trace(line(points, label, shade, mode=mode, **legend), **position)
            named.add(label)
    rows = max((position["row"] for position in places), default=1)
    figure.update_xaxes(title_text=across, row=rows)
    figure.update_yaxes(exponentformat="power")
    return styled(figure, height=90 + 210 * rows, showlegend=1 < len(labels) <= MAX_LABELS)


def scatter(kinds: Mapping[str, Sequence[Point]], across: str, up: str, *, logarithmic: bool = False) -> go.Figure:
    """Draw points, each kind in one colour; `logarithmic` applies to the horizontal axis.

    Example:
        >>> figure = scatter({"a run": [Point(500, 0.1, "cat"), Point(5, 0.3, "dog")]}, "training samples", "drift")
        >>> figure.data[0].hovertext
        ('cat', 'dog')
    """
    figure = go.Figure()
    for index, (label, points) in enumerate(kinds.items()):
        figure.add_scatter(
            x=[point.x for point in points],
            y=[point.y for point in points],
            name=plotly_text(label),
            mode="markers",
            marker={"color": color(index, len(kinds)), "size": 7, "opacity": 0.7},
            hovertext=[plotly_text(point.words, 200) for point in points],
            hoverinfo="text+name",
        )
    figure.update_xaxes(title_text=across, type="log" if logarithmic else "linear")
    figure.update_yaxes(title_text=up, exponentformat="power")
    return styled(figure, height=380, showlegend=len(kinds) > 1)


def with_intervals(
    lines: Mapping[str, Sequence[tuple[float, Dot]]],
    across: str,
    up: str,
    *,
    logarithmic: bool = False,
    diagonal: bool = False,
) -> go.Figure:
    """Draw numbers with their intervals over other numbers, such as accuracies over the number of labels.

    Args:
        lines: The points of each name: the other number, x, and the number, y.
        across: The title of the horizontal axis.
        up: The title of the vertical axis.
        logarithmic: Whether the horizontal axis is logarithmic, and has a tick for each point.
        diagonal: Whether to draw the diagonal from 0 to 100, as for perfect calibration.

    Example:
        >>> figure = with_intervals({"probe": [(50, Dot(40, 35, 45)), (500, Dot(60, 58, 62))]}, "labels", "accuracy, %")
        >>> figure.data[0].y, figure.data[0].error_y.array
        ((40, 60), (5, 2))
    """
    figure = go.Figure()
    if diagonal:
        dotted = {"color": GREY, "width": 1, "dash": "dot"}
        figure.add_scatter(x=[0, 100], y=[0, 100], mode="lines", line=dotted, showlegend=False, hoverinfo="skip")
    for index, (name, points) in enumerate(lines.items()):
        dots, shade = [dot for _, dot in points], color(index, len(lines))
        hover = {"hovertext": [plotly_text(dot.words, 200) for dot in dots], "hoverinfo": "text+name"}
        drawn = [(number, dot.value) for number, dot in points]
        figure.add_trace(line(drawn, name, shade, error_y=_whiskers(dots) | {"color": shade}, **hover))
    figure.update_xaxes(title_text=across)
    if logarithmic:
        ticks = sorted({number for points in lines.values() for number, _ in points})
        figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:,.0f}" for tick in ticks])
    figure.update_yaxes(title_text=up)
    return styled(figure, height=420, showlegend=len(lines) > 1)


def spectra(values: Mapping[str, Float[Tensor, " k"]]) -> go.Figure:
    """Draw the singular values, (K,), of several kinds of features, largest first; zeros are left out.

    Example:
        >>> import torch
        >>> [line.name for line in spectra({"encoder": torch.tensor([0.5, 0.1, 0.0])}).data]
        ['encoder']
    """
    figure = go.Figure()
    for index, (name, spectrum) in enumerate(values.items()):
        shown = list(enumerate((value for value in spectrum.tolist() if value > 0), start=1))
        figure.add_trace(line(shown, name, color(index, len(values)), marker={"size": 4}, showlegend=True))
    figure.update_xaxes(title_text="principal direction")
    figure.update_yaxes(title_text="standard deviation", type="log", exponentformat="power", dtick=1)
    return styled(figure, height=320)


def strengths(
    panels: Mapping[str, tuple[Float[Tensor, "edges"], Float[Tensor, "bins"], Float[Tensor, "bins"]]],
) -> go.Figure:
    """Draw the mean strength of positives and of negatives over their cosine with the anchor, on logarithmic axes.

    For each title, `panels` has the result of `likewise.diagnostics.strength_by_similarity`. All panels have the same
    axes, which leave out strengths 100,000 times below the largest.

    Example:
        >>> import torch
        >>> means = torch.tensor([0.5, 0.1])
        >>> [line.name for line in strengths({"epoch 1": (torch.linspace(-1, 1, 3), means, 2 * means)}).data]
        ['positives', 'negatives']
    """
    figure, places = grid([plotly_text(title, 64) for title in panels])
    for position, (edges, *means) in zip(places, panels.values(), strict=True):
        for index, (name, values) in enumerate(zip(("positives", "negatives"), means, strict=True)):
            middles = ((edges[1:] + edges[:-1]) / 2).tolist()
            points = [(at, value if value > 0 else None) for at, value in zip(middles, values.tolist(), strict=True)]
            legend = {"legendgroup": name, "showlegend": position == places[0]}
            figure.add_trace(line(points, name, COLORS[index], marker={"size": 5}, **legend), **position)
    rows = max((position["row"] for position in places), default=1)
    exponents = [
        math.log10(value) for _, *means in panels.values() for mean in means for value in mean.tolist() if value > 0
    ]
    top = max(exponents, default=0.0)
    bottom = max(min(exponents, default=-1.0), top - DECADES)
    figure.update_xaxes(title_text="cosine similarity", range=[-1, 1], row=rows)
    figure.update_yaxes(type="log", range=[bottom - 0.1, top + 0.1], exponentformat="power", dtick=1)
    figure.update_yaxes(title_text="mean strength", col=1)
    return styled(figure, height=90 + 250 * rows)


def histograms(
    panels: Mapping[str, Mapping[str, tuple[Float[Tensor, "edges"], Float[Tensor, "bins"]]]], across: str, up: str
) -> go.Figure:
    """Draw distributions of values, in panels with the same axes, named by `across` and `up`.

    By title and by kind of values, `panels` has the edges of the bins and the share of each bin, drawn in percent.

    Example:
        >>> import torch
        >>> push = {"push": (torch.linspace(0, 1, 3), torch.tensor([0.25, 0.75]))}
        >>> histograms({"": push}, "weight", "pairs, %").data[0].y
        (25.0, 75.0)
    """
    titles, kinds = list(panels), list(dict.fromkeys(label for panel in panels.values() for label in panel))
    figure = make_subplots(1, len(titles), subplot_titles=titles, horizontal_spacing=0.06, shared_yaxes=True)
    for column, panel in enumerate(panels.values(), start=1):
        for label, (edges, shares) in panel.items():
            figure.add_bar(
                x=((edges[1:] + edges[:-1]) / 2).tolist(),
                y=(100 * shares).tolist(),
                width=(edges[1:] - edges[:-1]).tolist(),
                marker={"color": color(kinds.index(label), len(kinds)), "opacity": 0.65, "line": {"width": 0}},
                name=plotly_text(label),
                legendgroup=label,
                showlegend=column == 1,
                row=1,
                col=column,
            )
    figure.update_xaxes(title_text=across)
    figure.update_yaxes(title_text=up, col=1)
    return styled(figure, height=320, barmode="overlay").update_layout(showlegend=len(kinds) > 1)


def heat_maps(histograms: Mapping[str, Sequence[tuple[int, Sequence[int]]]]) -> go.Figure:
    """Draw histograms over epochs, one column per epoch, with the share of each bin as a colour.

    Each title has (epoch, counts) pairs, with the same number of counts; an epoch without counts is left blank.

    Example:
        >>> heat_maps({"drift": [(1, (3, 1)), (2, (0, 0))]}).data[0].z
        ([75.0, None], [25.0, None])
    """
    figure, places = grid([plotly_text(title.replace("_", " ")) for title in histograms], columns=1)
    for position, pairs in zip(places, histograms.values(), strict=True):
        shares = [[100 * count / sum(counts) if sum(counts) else None for count in counts] for _, counts in pairs]
        heat = go.Heatmap(
            x=[epoch for epoch, _ in pairs],
            y=list(range(1, len(shares[0]) + 1)),
            z=[list(bin_of) for bin_of in zip(*shares, strict=True)],
            coloraxis="coloraxis",
            hovertemplate="epoch %{x}, bin %{y}: %{z:.1f} %<extra></extra>",
        )
        figure.add_trace(heat, **position)
    rows = max(1, len(places))
    figure.update_layout(coloraxis={"colorscale": "Blues", "cmin": 0, "colorbar": {"title": "counts, %"}})
    figure.update_yaxes(title_text="bin")
    figure.update_xaxes(title_text="epoch", row=rows)
    return styled(figure, height=90 + 230 * rows)


def matrix(values: Float[Tensor, "l l"], names: Sequence[str], what: str) -> go.Figure:
    """Draw a square matrix, (L, L), from 0 to 1, as colours, with a name for each row and column.

    Example:
        >>> import torch
        >>> matrix(torch.eye(2), ["cat", "dog"], "similarity").data[0].customdata[0][1]
        'cat, dog: 0'
    """
    shown = [plotly_text(name, 24) for name in names]
    texts = [
        [f"{first}, {second}: {value:.2g}" for second, value in zip(shown, row, strict=True)]
        for first, row in zip(shown, values.tolist(), strict=True)
    ]
    places = list(range(len(shown)))
    figure = go.Figure().add_heatmap(
        z=values.tolist(),
        x=places,
        y=places,
        customdata=texts,
        hovertemplate="%{customdata}<extra></extra>",
        colorscale="Blues",
        zmin=0,
        zmax=1,
        colorbar={"title": plotly_text(what)},
    )
    named: dict[str, Any] = {"tickvals": places, "ticktext": shown}
    if len(shown) > MAX_NAMED_ROWS:
        named = {"showticklabels": False}
    figure.update_xaxes(tickangle=-60, automargin=True, **named)
    figure.update_yaxes(autorange="reversed", scaleanchor="x", constrain="domain", **named)
    return styled(figure, height=640)
