"""Histograms: shares of values in bins."""

from collections.abc import Mapping

import plotly.graph_objects as go
from jaxtyping import Float
from torch import Tensor

from likewise.diagnostics.plots.figure import color, styled, told


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
        figure.add_trace(
            go.Bar(
                x=((edges[1:] + edges[:-1]) / 2).tolist(),
                y=(100 * shares).tolist(),
                width=(edges[1:] - edges[:-1]).tolist(),
                name=told(kind),
                marker={"color": color(place, len(kinds)), "opacity": 0.75, "line": {"width": 0}},
            )
        )
    figure.update_xaxes(title_text=across)
    figure.update_yaxes(title_text=up)
    return styled(figure, height=320, barmode="overlay", showlegend=len(kinds) > 1)
