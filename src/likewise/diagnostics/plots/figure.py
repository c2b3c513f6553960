"""The common parts of all figures: colours, axes, plain text, thumbnails of images, and HTML elements."""

import base64
import gzip
import io
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import plotly.graph_objects as go
from jaxtyping import Float, UInt8
from markupsafe import Markup
from PIL import Image
from plotly.colors import qualitative
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots
from torch import Tensor
from torch.nn import functional

from likewise.runs.scores import one_line

COLORS = ("#1f77b4", "#b0721e")  # the first is for the run, the second for its comparison
BUTTONS = ["toImage", "zoom2d", "pan2d", "resetScale2d"]  # none of them leads out of the page
CONFIG = {"displaylogo": False, "responsive": True, "modeBarButtons": [BUTTONS]}
GREY = "#8a8f99"
GRID = "rgba(128,128,128,0.25)"
MAX_NAME_LENGTH = 50  # characters of a name in a figure
COLUMNS = 2  # of panels


@cache
def script(*, figures: bool = True) -> Markup:
    """Return the elements for drawing figures, once per page: the drawing library, compressed, and the code to use it.

    Without `figures`, return only the code that waits until an element is seen.

    Example:
        >>> 1_000_000 < len(script()) < 2_500_000
        True
    """
    folder = files("likewise.diagnostics.plots")
    drawing, seen = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("figures.js", "seen.js"))
    if not figures:
        return Markup(f"<script>\n{seen}</script>")  # noqa: S704 - our own
    library = base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()
    return Markup(f'<script type="text/plain" id="plotly">{library}</script>\n<script>\n{drawing}{seen}</script>')  # noqa: S704 - our own


def as_html(figure: go.Figure, name: str) -> Markup:
    """Return a figure as an HTML element, drawn when it is scrolled into view; the page needs `script()`.

    Example:
        >>> 'id="empty"' in as_html(go.Figure(), "empty")
        True
    """
    data: dict[str, Any] = {**figure.to_plotly_json(), "config": CONFIG}
    element = Markup('<div class="figure" id="{}" role="figure" aria-label="{}" style="height:{}px"></div>{}\n')
    return element.format(name, name.replace("-", " "), data["layout"].get("height", 450), as_data(data))


def as_data(value: Any, name: str = "") -> Markup:
    r"""Return a JSON value or a figure as an element for a page's scripts, with an optional id.

    `<`, `>` and `/` are escaped, so that no value can close the element.

    Example:
        >>> print(as_data({"a": "</b>"}))
        <script type="application/json">{"a":"\u003c\u002fb\u003e"}</script>
    """
    named = Markup(' id="{}"').format(name) if name else ""
    json = Markup(to_json_plotly(value))  # noqa: S704 - Plotly's JSON has no <, > or /
    return Markup('<script type="application/json"{}>{}</script>').format(named, json)


def plotly_text(text: str, most: int = MAX_NAME_LENGTH) -> str:
    """Escape and shorten a name so that Plotly shows it as it is, instead of rendering tags and links in it."""
    return escape(one_line(text, most), quote=False)


def color(index: int, count: int) -> str:
    """Return the colour of one of `count` compared items."""
    return COLORS[index] if count <= len(COLORS) else qualitative.D3[index % len(qualitative.D3)]


def palette(count: int) -> list[str]:
    """Return colours for `count` classes; beyond 24, classes share colours.

    Example:
        >>> len(palette(3)), len(palette(100))
        (10, 24)
    """
    return list(qualitative.D3 if count <= len(qualitative.D3) else qualitative.Dark24)


def line(points: Sequence[tuple[float, float | None]], name: str, shade: str, **properties: Any) -> go.Scatter:
    """Return a line through points, x and y, with markers; `properties` are further properties of the trace."""
    x, y = zip(*points, strict=True) if points else ((), ())
    properties = {"mode": "lines+markers", "line": {"color": shade, "width": 1.6}} | properties
    return go.Scatter(properties, x=x, y=y, name=plotly_text(name))


def grid(titles: Sequence[str], columns: int = COLUMNS) -> tuple[go.Figure, list[dict[str, Any]]]:
    """Return a figure of panels with separate axes, and the row and column of each panel."""
    rows = max(1, -(-len(titles) // columns))
    figure = make_subplots(rows, columns, subplot_titles=titles, vertical_spacing=0.28 / rows, horizontal_spacing=0.09)
    return figure, [{"row": index // columns + 1, "col": index % columns + 1} for index in range(len(titles))]


def styled(figure: go.Figure, **layout: Any) -> go.Figure:
    """Give a figure the look of the page."""
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


def thumbnails(images: Float[Tensor, "n ch h w"], side: int) -> Float[Tensor, "n 3 h2 w2"]:
    """Return images from 0 to 1 with sides of at most `side` pixels; without three channels, the first in grey."""
    colour = images if images.shape[1] == 3 else images[:, :1].expand(-1, 3, -1, -1)
    longer = max(images.shape[-2:])
    if longer <= side:
        return colour
    size = [max(1, round(side * length / longer)) for length in images.shape[-2:]]
    return functional.interpolate(colour, size=size, mode="bilinear", antialias=True, align_corners=False)


def image_data_uri(picture: UInt8[Tensor, "height width ch"], image_format: str = "png", **options: Any) -> str:
    """Return a data URI of an RGB or RGBA image."""
    content = io.BytesIO()
    Image.fromarray(picture.numpy()).save(content, image_format, **options)
    return f"data:image/{image_format};base64,{base64.b64encode(content.getvalue()).decode()}"
