"""Time and memory over the number of rows."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots

from likewise.diagnostics.plots.figure import styled


def costs(measured: Mapping[str, Mapping[str, Sequence[tuple[int, float, float | None]]]]) -> go.Figure:
    """Draw the time and the peak memory of steps over the number of rows, both axes logarithmic.

    Args:
        measured: For each loss, for each contender, (rows, milliseconds, peak bytes or None) in order of rows.

    Returns:
        The figure; it shows one loss, and a menu chooses which.

    Example:
        >>> figure = costs({"SupConLoss": {"tiled": [(256, 0.9, None), (1024, 6.0, 2.0e6)]}})
        >>> figure.data[0].y, figure.data[1].x
        ((0.9, 6.0), (1024,))
    """
    figure = make_subplots(1, 2, subplot_titles=["milliseconds a step", "peak MiB over the inputs"])
    losses = list(measured)
    owners: list[str] = []
    for loss in losses:
        for place, (name, points) in enumerate(measured[loss].items()):
            memory = [(rows, peak / 2**20) for rows, _, peak in points if peak]
            for column, line in enumerate(([(rows, time) for rows, time, _ in points], memory), start=1):
                scatter = go.Scatter(
                    x=[rows for rows, _ in line],
                    y=[value for _, value in line],
                    name=name,
                    legendgroup=name,
                    showlegend=column == 1,
                    visible=loss == losses[0],
                    mode="lines+markers",
                    line={"color": qualitative.D3[place % len(qualitative.D3)], "width": 1.6},
                )
                figure.add_trace(scatter, row=1, col=column)
                owners.append(loss)
    shown = [{"visible": [owner == loss for owner in owners]} for loss in losses]
    buttons = [{"label": loss, "method": "restyle", "args": [seen]} for loss, seen in zip(losses, shown, strict=True)]
    figure.update_xaxes(type="log", title_text="rows")
    figure.update_yaxes(type="log")
    figure = styled(figure, height=520)
    figure.update_layout(
        updatemenus=[{"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.2, "yanchor": "top"}] if losses else [],
        margin={"t": 110},
    )
    return figure
