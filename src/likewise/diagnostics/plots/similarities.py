"""Histograms of similarities."""

from collections.abc import Mapping

import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from likewise.diagnostics.plots.figure import COLORS, styled


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
    figure = make_subplots(
        1, len(histograms), subplot_titles=list(histograms), horizontal_spacing=0.06, shared_yaxes=True
    )
    for column, (edges, *shares) in enumerate(histograms.values(), start=1):
        for place, (name, share) in enumerate(zip(("same class", "different classes"), shares, strict=True)):
            bars = go.Bar(
                x=((edges[1:] + edges[:-1]) / 2).tolist(),
                y=(100 * share).tolist(),
                width=(edges[1:] - edges[:-1]).tolist(),
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                marker={"color": COLORS[place], "opacity": 0.65, "line": {"width": 0}},
            )
            figure.add_trace(bars, row=1, col=column)
    figure.update_xaxes(title_text="cosine similarity", range=[-1, 1])
    figure.update_yaxes(title_text="pairs, %", col=1)
    return styled(figure, height=320, barmode="overlay")
