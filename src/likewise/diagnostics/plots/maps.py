"""Two-dimensional maps of samples."""

from collections.abc import Iterator, Mapping, Sequence

import plotly.graph_objects as go
from jaxtyping import Float, Int
from plotly.colors import qualitative
from plotly.subplots import make_subplots
from torch import Tensor

from likewise.diagnostics.plots.figure import COLORS, styled, told

MOST_IN_LEGEND = 24  # classes; with more, only hovering names them


def maps(
    coordinates: Mapping[str, Float[Tensor, "n 2"]],
    labels: Int[Tensor, " n"] | None,
    names: Sequence[str],
    words: Sequence[str],
) -> go.Figure:
    """Draw two-dimensional maps of the same samples side by side, a colour for each class.

    Args:
        coordinates: For each kind of features the samples' places, (N, 2).
        labels: Classes, (N,). None: all in one colour.
        names: The C names.
        words: What hovering over each of the N samples says.

    Returns:
        The figure; with more than 24 classes it has no legend.

    Example:
        >>> import torch
        >>> places = {"encoder": torch.zeros(3, 2), "raw inputs": torch.zeros(3, 2)}
        >>> len(maps(places, torch.tensor([0, 1, 1]), ["cat", "dog"], ["cat, row 5", "dog, row 6", "dog, row 9"]).data)
        4
    """
    figure = make_subplots(1, len(coordinates), subplot_titles=list(coordinates), horizontal_spacing=0.04)
    for column, places in enumerate(coordinates.values(), start=1):
        for name, shade, rows in _groups(labels, names, len(words)):
            points = go.Scatter(
                x=places[rows, 0].tolist(),
                y=places[rows, 1].tolist(),
                name=told(name),
                legendgroup=name,
                showlegend=bool(name) and column == 1,
                mode="markers",
                marker={"size": 6, "color": shade, "opacity": 0.85},
                hovertext=[told(words[row], 200) for row in rows],
                hoverinfo="text",
            )
            figure.add_trace(points, row=1, col=column)
    figure.update_xaxes(showticklabels=False, showgrid=False)
    figure.update_yaxes(showticklabels=False, showgrid=False)
    return styled(figure, height=460)


def _groups(
    labels: Tensor | None, names: Sequence[str], count: int
) -> Iterator[tuple[str, str | list[str], list[int]]]:
    """Yield what is drawn together: its name in the legend, its colours, its rows."""
    palette = qualitative.D3 if len(names) <= len(qualitative.D3) else qualitative.Dark24
    if labels is None:
        yield "", COLORS[0], list(range(count))
        return
    occurring = labels.unique().tolist()
    if len(occurring) > MOST_IN_LEGEND:
        yield "", [palette[label % len(palette)] for label in labels.tolist()], list(range(count))
        return
    for label in map(int, occurring):
        yield names[label], palette[label % len(palette)], (labels == label).nonzero().flatten().tolist()
