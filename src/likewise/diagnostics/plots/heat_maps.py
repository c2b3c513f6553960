"""Heat maps of histograms over epochs."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from likewise.diagnostics.plots.figure import styled, told


def heat_maps(noted: Mapping[str, Sequence[tuple[int, Sequence[int]]]]) -> go.Figure:
    """Draw histograms over epochs, a column an epoch, the share of each bin as a colour.

    Args:
        noted: For each title its (epoch, counts) pairs, with as many counts in each.

    Returns:
        The figure; an epoch without counts is left blank.

    Example:
        >>> heat_maps({"drift": [(1, (3, 1)), (2, (0, 0))]}).data[0].z
        ([75.0, None], [25.0, None])
    """
    titles = [told(title.replace("_", " ")) for title in noted]
    figure = make_subplots(max(1, len(noted)), 1, subplot_titles=titles, vertical_spacing=0.28 / max(1, len(noted)))
    for row, pairs in enumerate(noted.values(), start=1):
        shares = [[100 * count / sum(counts) if sum(counts) else None for count in counts] for _, counts in pairs]
        heat = go.Heatmap(
            x=[epoch for epoch, _ in pairs],
            y=list(range(1, len(shares[0]) + 1)),
            z=[list(bin_of) for bin_of in zip(*shares, strict=True)],
            coloraxis="coloraxis",
            hovertemplate="epoch %{x}, bin %{y}: %{z:.1f} %<extra></extra>",
        )
        figure.add_trace(heat, row=row, col=1)
    figure.update_layout(coloraxis={"colorscale": "Blues", "cmin": 0, "colorbar": {"title": "counts, %"}})
    figure.update_yaxes(title_text="bin")
    figure.update_xaxes(title_text="epoch", row=max(1, len(noted)))
    return styled(figure, height=90 + 230 * max(1, len(noted)))
