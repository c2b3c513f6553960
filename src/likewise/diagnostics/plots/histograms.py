"""Histograms: shares of values in bins, and similarities of pairs."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from likewise.diagnostics.plots.figure import COLORS, color, styled, told


def histogram(
    kinds: Mapping[str, tuple[Float[Tensor, "edges"], Float[Tensor, "bins"]]], across: str, up: str
) -> go.Figure:
    """Draw how values are distributed.

    Args:
        kinds: For each kind the edges of its bins and the share of each.
        across: What the values are.
        up: What the shares are of, in percent.

    Example:
        >>> import torch
        >>> histogram({"push": (torch.linspace(0, 1, 3), torch.tensor([0.25, 0.75]))}, "weight", "pairs, %").data[0].y
        (25.0, 75.0)
    """
    figure = go.Figure()
    for place, (kind, (edges, shares)) in enumerate(kinds.items()):
        figure.add_trace(_bars(edges, shares, color(place, len(kinds)), 0.75, name=told(kind)))
    figure.update_xaxes(title_text=across)
    figure.update_yaxes(title_text=up)
    return styled(figure, height=320, barmode="overlay", showlegend=len(kinds) > 1)


def similarities(
    histograms: Mapping[str, tuple[Float[Tensor, "edges"], Float[Tensor, "bins"], Float[Tensor, "bins"]]],
) -> go.Figure:
    """Draw how similar pairs of one class and pairs of two classes are.

    Args:
        histograms: For each kind of features the edges and the shares of positive and of negative pairs.

    Returns:
        The figure; the less the two overlap, the better a threshold tells them apart.

    Example:
        >>> import torch
        >>> shares = torch.tensor([0.5, 0.5])
        >>> len(similarities({"encoder": (torch.linspace(-1, 1, 3), shares, shares)}).data)
        2
    """
    titles = list(histograms)
    figure = make_subplots(1, len(titles), subplot_titles=titles, horizontal_spacing=0.06, shared_yaxes=True)
    for column, (edges, *shares) in enumerate(histograms.values(), start=1):
        for place, (name, share) in enumerate(zip(("same class", "different classes"), shares, strict=True)):
            legend = {"name": name, "legendgroup": name, "showlegend": column == 1}
            figure.add_trace(_bars(edges, share, COLORS[place], 0.65, **legend), row=1, col=column)
    figure.update_xaxes(title_text="cosine similarity", range=[-1, 1])
    figure.update_yaxes(title_text="pairs, %", col=1)
    return styled(figure, height=320, barmode="overlay")


def _bars(edges: Tensor, shares: Tensor, shade: str, opacity: float, **named: Any) -> go.Bar:
    return go.Bar(
        x=((edges[1:] + edges[:-1]) / 2).tolist(),
        y=(100 * shares).tolist(),
        width=(edges[1:] - edges[:-1]).tolist(),
        marker={"color": shade, "opacity": opacity, "line": {"width": 0}},
        **named,
    )
