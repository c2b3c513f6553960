"""Histograms and heat maps: shares of values in bins, over epochs too, and matrices with named rows and columns."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from likewise.diagnostics.plots.figure import color, grid, plotly_text, styled

MAX_NAMED_ROWS = 60  # rows of a matrix; of more only hovering shows the names


def histograms(
    panels: Mapping[str, Mapping[str, tuple[Float[Tensor, "edges"], Float[Tensor, "bins"]]]], across: str, up: str
) -> go.Figure:
    """Draw how values are distributed, in panels with the same axes, which `across` and `up` name.

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
    """Draw histograms over epochs, a column an epoch, the share of each bin as a colour.

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
