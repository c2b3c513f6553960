"""What all figures share: colours, axes, plain text, and how a figure becomes an element of a page."""

from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.offline import get_plotlyjs

COLORS = ("#1f77b4", "#b0721e")  # the first is what a run made, the second what it is compared with
BUTTONS = ["toImage", "zoom2d", "pan2d", "resetScale2d"]  # none that leads out of the page
GREY = "#8a8f99"
GRID = "rgba(128,128,128,0.25)"
LONGEST = 48  # characters of a name in a figure


def script() -> str:
    """Return the drawing library itself, to stand once on a page.

    Example:
        >>> len(script()) > 1_000_000
        True
    """
    return get_plotlyjs()


def as_html(figure: go.Figure, name: str) -> str:
    """Return a figure as an HTML element that draws itself where the script stands on the page.

    Args:
        figure: What to draw.
        name: The element's id.

    Example:
        >>> 'id="empty"' in as_html(go.Figure(), "empty")
        True
    """
    config = {"displaylogo": False, "responsive": True, "modeBarButtons": [BUTTONS]}
    return figure.to_html(
        full_html=False, include_plotlyjs=False, include_mathjax=False, config=config, div_id=name, default_width="100%"
    )


def told(text: str, most: int = LONGEST) -> str:
    """Return a name as Plotly shows it letter by letter; tags in a label, links too, would be drawn as such.

    Example:
        >>> told("<b>cat</b>"), told("abcdef", 4)
        ('&lt;b&gt;cat&lt;/b&gt;', 'abc…')
    """
    line = " ".join(text.split())
    return escape(line if len(line) <= most else f"{line[: most - 1]}…", quote=False)


def color(place: int, of: int) -> str:
    """Return the colour of one of several things that are compared.

    Example:
        >>> color(0, 2) == COLORS[0], color(12, 13) == color(2, 13)
        (True, True)
    """
    return COLORS[place] if of <= len(COLORS) else qualitative.D3[place % len(qualitative.D3)]


def styled(figure: go.Figure, **layout: Any) -> go.Figure:
    """Give a figure the look of the page.

    Example:
        >>> styled(go.Figure(), height=300).layout.height
        300
    """
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 60, "r": 20, "t": 76, "b": 50},
        legend={"orientation": "h", "yref": "container", "yanchor": "top", "y": 0.99, "x": 0},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": COLORS[0]},
        font={"family": "system-ui, sans-serif", "size": 13},
        **layout,
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False)
    figure.update_yaxes(gridcolor=GRID, zeroline=False, automargin=True)
    return figure
