"""A matrix with a name for each row and column."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from jaxtyping import Float
from torch import Tensor

from likewise.diagnostics.plots.figure import styled, told

MOST_NAMED = 60  # rows; of more only hovering shows the names


def matrix(values: Float[Tensor, "l l"], names: Sequence[str], what: str) -> go.Figure:
    """Draw a square matrix as colours.

    Args:
        values: (L, L), from 0 to 1.
        names: A name for each row and column.
        what: What the values are.

    Example:
        >>> import torch
        >>> matrix(torch.eye(2), ["cat", "dog"], "similarity").data[0].customdata[0][1]
        'cat, dog: 0'
    """
    shown = [told(name, 24) for name in names]
    words = [
        [f"{first}, {second}: {value:.2g}" for second, value in zip(shown, row, strict=True)]
        for first, row in zip(shown, values.tolist(), strict=True)
    ]
    places = list(range(len(shown)))
    heat = go.Heatmap(
        z=values.tolist(),
        x=places,
        y=places,
        customdata=words,
        hovertemplate="%{customdata}<extra></extra>",
        colorscale="Blues",
        zmin=0,
        zmax=1,
        colorbar={"title": told(what)},
    )
    figure = go.Figure(heat)
    named: dict[str, Any] = (
        {"tickvals": places, "ticktext": shown} if len(shown) <= MOST_NAMED else {"showticklabels": False}
    )
    figure.update_xaxes(tickangle=-60, automargin=True, **named)
    figure.update_yaxes(autorange="reversed", scaleanchor="x", constrain="domain", **named)
    return styled(figure, height=640)
