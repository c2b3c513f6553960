"""Lines and points: curves over steps, spectra, strengths over similarity."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go
from jaxtyping import Float
from torch import Tensor

from likewise.diagnostics.plots.figure import COLORS, GREY, color, grid, line, plotly_text, styled
from likewise.diagnostics.plots.intervals import Dot, whiskers

MAX_LABELS = 24  # in a legend
DECADES = 5.0  # of the axis of strengths; weaker references make no difference


class Point(NamedTuple):
    """A point, and what hovering over it says."""

    x: float
    y: float
    words: str = ""


def curves(panels: Mapping[str, Sequence[tuple[str, Sequence[tuple[int, float]]]]], across: str = "step") -> go.Figure:
    """Draw curves, each panel on its own axes; curves with the same label share a colour, several have a legend.

    For each title, `panels` has curves, each a label with (step, value) pairs; `across` is what is counted.

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
    """Draw points, those of a kind in one colour; `logarithmic` is about the horizontal axis.

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
        lines: For each name its points: the other number, x, and the number, y.
        across: The title of the horizontal axis.
        up: That of the vertical axis.
        logarithmic: Whether the horizontal axis is logarithmic, and has a tick for each point.
        diagonal: Whether to draw where both are equal, from 0 to 100, as of perfect calibration.

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
        figure.add_trace(line(drawn, name, shade, error_y=whiskers(dots) | {"color": shade}, **hover))
    figure.update_xaxes(title_text=across)
    if logarithmic:
        ticks = sorted({number for points in lines.values() for number, _ in points})
        figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:,.0f}" for tick in ticks])
    figure.update_yaxes(title_text=up)
    return styled(figure, height=420, showlegend=len(lines) > 1)


def spectra(values: Mapping[str, Float[Tensor, " k"]]) -> go.Figure:
    """Draw the singular values, (K,), of several kinds of features, largest first; those that are 0 are left out.

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

    For each title, `panels` has what `likewise.diagnostics.strength_by_similarity` returns. All panels have the same
    axes, which leave out what is 100,000 times weaker than the strongest.

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
