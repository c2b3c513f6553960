"""How strongly references act on their anchors, over their similarity."""

import math
from collections.abc import Mapping

import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from likewise.diagnostics.plots.figure import COLORS, styled, told

COLUMNS = 2
DECADES = 5.0  # of the vertical axis; weaker references make no difference


def strengths(
    panels: Mapping[str, tuple[Float[Tensor, "edges"], Float[Tensor, "bins"], Float[Tensor, "bins"]]],
) -> go.Figure:
    """Draw the mean strength of positives and of negatives over their cosine with the anchor, on logarithmic axes.

    Args:
        panels: For each title, the edges and means of `likewise.diagnostics.strength_by_similarity`.

    Returns:
        The figure; all panels have the same axes, which leave out what is 100,000 times weaker than the strongest.

    Example:
        >>> import torch
        >>> means = torch.tensor([0.5, 0.1])
        >>> [line.name for line in strengths({"epoch 1": (torch.linspace(-1, 1, 3), means, 2 * means)}).data]
        ['positives', 'negatives']
    """
    rows = max(1, -(-len(panels) // COLUMNS))
    titles = [told(title, 64) for title in panels]
    figure = make_subplots(rows, COLUMNS, subplot_titles=titles, vertical_spacing=0.28 / rows, horizontal_spacing=0.09)
    for place, (edges, *means) in enumerate(panels.values()):
        for kind, (name, values) in enumerate(zip(("positives", "negatives"), means, strict=True)):
            line = go.Scatter(
                x=((edges[1:] + edges[:-1]) / 2).tolist(),
                y=[value if value > 0 else None for value in values.tolist()],
                name=name,
                legendgroup=name,
                showlegend=place == 0,
                mode="lines+markers",
                line={"color": COLORS[kind], "width": 1.6},
                marker={"size": 5},
            )
            figure.add_trace(line, row=place // COLUMNS + 1, col=place % COLUMNS + 1)
    figure.update_xaxes(title_text="cosine similarity", range=[-1, 1], row=rows)
    figure.update_yaxes(type="log", range=_range(panels), exponentformat="power", dtick=1)
    figure.update_yaxes(title_text="mean strength", col=1)
    return styled(figure, height=90 + 250 * rows)


def _range(panels: Mapping[str, tuple[Tensor, ...]]) -> list[float]:
    """Return the ends of a logarithmic axis."""
    exponents = [math.log10(of) for _, *means in panels.values() for mean in means for of in mean.tolist() if of > 0]
    top = max(exponents, default=0.0)
    return [max(min(exponents, default=-1.0), top - DECADES) - 0.1, top + 0.1]
