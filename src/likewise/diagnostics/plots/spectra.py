"""Singular values, largest first, on a logarithmic axis."""

from collections.abc import Mapping

import plotly.graph_objects as go
from jaxtyping import Float
from torch import Tensor

from likewise.diagnostics.plots.figure import color, styled, told


def spectra(values: Mapping[str, Float[Tensor, " k"]]) -> go.Figure:
    """Draw the singular values of several kinds of features.

    Args:
        values: For each name the values, (K,), largest first; those that are 0 are left out.

    Example:
        >>> import torch
        >>> [line.name for line in spectra({"encoder": torch.tensor([0.5, 0.1, 0.0])}).data]
        ['encoder']
    """
    figure = go.Figure()
    for place, (name, of) in enumerate(values.items()):
        shown = [value for value in of.tolist() if value > 0]
        figure.add_trace(
            go.Scatter(
                x=list(range(1, len(shown) + 1)),
                y=shown,
                name=told(name),
                mode="lines+markers",
                marker={"size": 4},
                line={"width": 1.6, "color": color(place, len(values))},
                showlegend=True,
            )
        )
    figure.update_xaxes(title_text="principal direction")
    figure.update_yaxes(title_text="standard deviation", type="log", exponentformat="power", dtick=1)
    return styled(figure, height=320)
