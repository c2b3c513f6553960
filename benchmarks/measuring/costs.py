"""The plot of a measurement: time and memory of steps over rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots

from likewise.diagnostics.plots.figure import line, styled


def costs(
    measured: Mapping[str, Mapping[str, Sequence[tuple[int, float, float | None]]]],
) -> go.Figure:
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
    for loss, of in measured.items():
        for place, (name, points) in enumerate(of.items()):
            memory = [(rows, peak / 2**20) for rows, _, peak in points if peak]
            shade = qualitative.D3[place % len(qualitative.D3)]
            for column, pairs in enumerate(([(rows, time) for rows, time, _ in points], memory), start=1):
                legend = {"legendgroup": name, "showlegend": column == 1, "visible": loss == losses[0]}
                figure.add_trace(line(pairs, name, shade, **legend), row=1, col=column)
                owners.append(loss)
    shown = [{"visible": [owner == loss for owner in owners]} for loss in losses]
    buttons = [{"label": loss, "method": "restyle", "args": [seen]} for loss, seen in zip(losses, shown, strict=True)]
    figure.update_xaxes(type="log", title_text="rows")
    figure.update_yaxes(type="log")
    menu: dict[str, Any] = {"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.2, "yanchor": "top"}
    figure = styled(figure, height=520)
    return figure.update_layout(updatemenus=[menu] if losses else [], margin={"t": 110})
