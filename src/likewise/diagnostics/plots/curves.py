"""Curves over steps or epochs."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from likewise.diagnostics.plots.figure import color, styled, told

COLUMNS = 2
MOST_LABELS = 24  # in a legend


def curves(panels: Mapping[str, Sequence[tuple[str, Sequence[tuple[int, float]]]]], across: str = "step") -> go.Figure:
    """Draw curves, each panel on axes of its own, in one colour those with the same label.

    Args:
        panels: For each title its curves, each a label with (step, value) pairs.
        across: What the horizontal axis counts.

    Returns:
        The figure; with several labels it has a legend.

    Example:
        >>> figure = curves({"loss": [("a", [(0, 2.0), (1, 1.0)]), ("b", [(0, 3.0)])], "rate": [("a", [(0, 0.1)])]})
        >>> [(line.name, line.showlegend) for line in figure.data]
        [('a', True), ('b', True), ('a', False)]
    """
    rows = max(1, -(-len(panels) // COLUMNS))
    titles = [told(title.replace("_", " ")) for title in panels]
    figure = make_subplots(rows, COLUMNS, subplot_titles=titles, vertical_spacing=0.28 / rows, horizontal_spacing=0.09)
    labels = list(dict.fromkeys(label for lines in panels.values() for label, _ in lines))
    named: set[str] = set()
    for place, lines in enumerate(panels.values()):
        for label, points in lines:
            line = go.Scatter(
                x=[step for step, _ in points],
                y=[value for _, value in points],
                name=told(label),
                legendgroup=label,
                showlegend=label not in named,
                mode="lines" if len(points) > 1 else "markers",
                line={"color": color(labels.index(label), len(labels)), "width": 1.6},
            )
            named.add(label)
            figure.add_trace(line, row=place // COLUMNS + 1, col=place % COLUMNS + 1)
    figure.update_xaxes(title_text=across, row=rows)
    figure.update_yaxes(exponentformat="power")
    return styled(figure, height=90 + 210 * rows, showlegend=1 < len(labels) <= MOST_LABELS)
