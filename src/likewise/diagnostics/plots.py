"""Pictures: the one module that draws, with Plotly; each picture is a figure, and any page can show it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from plotly.colors import qualitative
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots
from torch import Tensor
from torch.nn import functional

from likewise.evaluation import Accuracy, Proportion

COLORS = ("#1f77b4", "#b0721e")  # the first is what a run made, the second what it is compared with
BUTTONS = ["toImage", "zoom2d", "pan2d", "resetScale2d"]  # none that leads out of the page
GREY = "#8a8f99"
GRID = "rgba(128,128,128,0.25)"


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


def curves(metrics: Mapping[str, Sequence[tuple[int, float]]]) -> go.Figure:
    """Draw every metric of a training over its steps, each on an axis of its own.

    Args:
        metrics: For each name its (step, value) pairs.

    Returns:
        The figure.

    Example:
        >>> len(curves({"loss": [(0, 2.0), (1, 1.0)], "learning_rate": [(0, 0.1), (1, 0.0)]}).data)
        2
    """
    columns = 2
    rows = max(1, -(-len(metrics) // columns))
    titles = [name.replace("_", " ") for name in metrics]
    figure = make_subplots(rows, columns, subplot_titles=titles, vertical_spacing=0.28 / rows, horizontal_spacing=0.09)
    for place, (name, points) in enumerate(metrics.items()):
        steps, values = zip(*points, strict=True)
        line = go.Scatter(x=steps, y=values, name=name, mode="lines", line={"color": COLORS[0], "width": 1.6})
        figure.add_trace(line, row=place // columns + 1, col=place % columns + 1)
    figure.update_xaxes(title_text="step", row=rows)
    return _styled(figure, height=90 + 210 * rows, showlegend=False)


def accuracies(results: Mapping[str, Mapping[str, Accuracy]]) -> go.Figure:
    """Draw accuracies with their 95 % intervals, those to be compared below each other.

    Args:
        results: For each evaluation, for each kind of features, the accuracy.

    Returns:
        The figure; the axis spans the intervals and does not begin at 0.

    Example:
        >>> import torch
        >>> accuracy = Accuracy(torch.tensor([0, 1]), torch.tensor([0, 1]))
        >>> [trace.name for trace in accuracies({"kNN": {"encoder": accuracy, "raw inputs": accuracy}}).data]
        ['encoder', 'raw inputs']
    """
    figure = go.Figure()
    for place, kind in enumerate(next(iter(results.values()))):
        shares = [result[kind].overall for result in results.values()]
        offset = 0.12 * (1 - 2 * place)
        dots = go.Scatter(
            x=[100 * share.value for share in shares],
            y=[row + offset for row in range(len(shares))],
            error_x=_whiskers(shares) | {"color": COLORS[place % 2]},
            name=kind,
            mode="markers",
            marker={"color": COLORS[place % 2], "size": 11},
            hovertext=[_words(share) for share in shares],
            hoverinfo="text+name",
        )
        figure.add_trace(dots)
    figure.update_yaxes(tickvals=list(range(len(results))), ticktext=list(results), range=[len(results) - 0.5, -0.5])
    figure.update_xaxes(title_text="accuracy on held-out samples, %")
    return _styled(figure, height=130 + 80 * len(results))


def class_errors(results: Mapping[str, Accuracy], class_names: Sequence[str]) -> go.Figure:
    """Draw the share of wrong predictions in each class as bars, with 95 % intervals.

    Args:
        results: For each kind of features the accuracy, all on the same samples.
        class_names: The C names.

    Returns:
        The figure. Errors and not accuracies, so that the bars begin at 0 and their lengths can be compared.

    Example:
        >>> import torch
        >>> accuracy = Accuracy(torch.tensor([0, 1]), torch.tensor([0, 0]))
        >>> class_errors({"encoder": accuracy}, ["cat", "dog"]).data[0].y
        (50.0,)
    """
    figure = go.Figure()
    for place, (kind, accuracy) in enumerate(results.items()):
        right = accuracy.per_class
        wrong = {label: Proportion(share.count - share.correct, share.count) for label, share in right.items()}
        bars = go.Bar(
            x=[class_names[label] for label in wrong],
            y=[100 * share.value for share in wrong.values()],
            error_y=_whiskers(list(wrong.values())),
            name=kind,
            marker={"color": COLORS[place % 2]},
            hovertext=[f"{class_names[label]}: {_words(right[label])}" for label in right],
            hoverinfo="text+name",
        )
        figure.add_trace(bars)
    figure.update_xaxes(type="category", title_text="class")
    figure.update_yaxes(title_text="wrong, %", rangemode="tozero")
    return _styled(figure, height=340)


def maps(
    coordinates: Mapping[str, Float[Tensor, "n 2"]], labels: Int[Tensor, "n"], class_names: Sequence[str]
) -> go.Figure:
    """Draw two-dimensional maps of the same samples side by side, a colour for each class.

    Args:
        coordinates: For each kind of features the samples' places, (N, 2).
        labels: Classes, (N,).
        class_names: The C names.

    Returns:
        The figure; a point tells its class and its row.

    Example:
        >>> import torch
        >>> places = {"encoder": torch.zeros(3, 2), "raw inputs": torch.zeros(3, 2)}
        >>> len(maps(places, torch.tensor([0, 1, 1]), ["cat", "dog"]).data)
        4
    """
    figure = make_subplots(1, len(coordinates), subplot_titles=list(coordinates), horizontal_spacing=0.04)
    palette = qualitative.D3 if len(class_names) <= len(qualitative.D3) else qualitative.Dark24
    for column, places in enumerate(coordinates.values(), start=1):
        for label in labels.unique().tolist():
            rows = (labels == label).nonzero().flatten()
            name = class_names[label]
            points = go.Scatter(
                x=places[rows, 0].tolist(),
                y=places[rows, 1].tolist(),
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                mode="markers",
                marker={"size": 6, "color": palette[label % len(palette)], "opacity": 0.85},
                hovertext=[f"{name}, sample {row}" for row in rows.tolist()],
                hoverinfo="text",
            )
            figure.add_trace(points, row=1, col=column)
    figure.update_xaxes(showticklabels=False, showgrid=False)
    figure.update_yaxes(showticklabels=False, showgrid=False)
    return _styled(figure, height=460)


def similarities(
    histograms: Mapping[str, tuple[Float[Tensor, "edges"], Float[Tensor, "bins"], Float[Tensor, "bins"]]],
) -> go.Figure:
    """Draw how similar pairs of one class and pairs of two classes are.

    Args:
        histograms: For each kind of features the edges and the shares of positive and of negative pairs.

    Returns:
        The figure; the less the two overlap, the better a threshold tells them apart.

    Example:
        >>> import torch
        >>> shares = torch.tensor([0.5, 0.5])
        >>> len(similarities({"encoder": (torch.linspace(-1, 1, 3), shares, shares)}).data)
        2
    """
    figure = make_subplots(
        1, len(histograms), subplot_titles=list(histograms), horizontal_spacing=0.06, shared_yaxes=True
    )
    for column, (edges, *shares) in enumerate(histograms.values(), start=1):
        for place, (name, share) in enumerate(zip(("same class", "different classes"), shares, strict=True)):
            bars = go.Bar(
                x=((edges[1:] + edges[:-1]) / 2).tolist(),
                y=(100 * share).tolist(),
                width=(edges[1:] - edges[:-1]).tolist(),
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                marker={"color": COLORS[place], "opacity": 0.65, "line": {"width": 0}},
            )
            figure.add_trace(bars, row=1, col=column)
    figure.update_xaxes(title_text="cosine similarity", range=[-1, 1])
    figure.update_yaxes(title_text="pairs, %", col=1)
    return _styled(figure, height=320, barmode="overlay")


def image_rows(images: Float[Tensor, "r k ch h w"], captions: Sequence[str]) -> go.Figure:
    """Draw rows of images, grey, the first of each row set apart, with a caption before each row.

    Args:
        images: R rows of K images, (R, K, channels, height, width).
        captions: One a row.

    Returns:
        The figure; images above 32 pixels a side are averaged down to it.

    Example:
        >>> import torch
        >>> len(image_rows(torch.zeros(2, 4, 1, 8, 8), ["true 3, said 9", "true 1, said 7"]).data)
        1
    """
    grey = images.mean(dim=2)
    size = (min(32, grey.shape[-2]), min(32, grey.shape[-1]))
    tiles = functional.pad(functional.adaptive_avg_pool2d(grey, size), (0, 1, 0, 1), value=math.nan)
    tiles = functional.pad(tiles.movedim(1, 0)[:1].movedim(0, 1), (0, size[1] // 2), value=math.nan), tiles[:, 1:]
    strips = [part.movedim(1, 2).flatten(2).flatten(0, 1) for part in tiles]
    picture = torch.cat(strips, dim=1)[:-1, :-1]
    heat = go.Heatmap(z=picture.tolist(), colorscale="Greys", showscale=False, hoverinfo="skip")
    figure = go.Figure(heat)
    middles = [row * (size[0] + 1) + (size[0] - 1) / 2 for row in range(len(captions))]
    figure = _styled(figure, height=80 + 48 * len(captions))
    figure.update_yaxes(autorange="reversed", tickvals=middles, ticktext=list(captions), showgrid=False, ticks="")
    figure.update_yaxes(scaleanchor="x", constrain="domain", ticklabelstandoff=8)
    figure.update_xaxes(showticklabels=False, showgrid=False, constrain="domain")
    figure.update_layout(margin={"l": 130, "r": 20, "t": 20, "b": 20})
    return figure


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
    figure = _styled(figure, height=520)
    figure.update_layout(
        updatemenus=[{"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.2, "yanchor": "top"}] if losses else [],
        margin={"t": 110},
    )
    return figure


def _whiskers(shares: Sequence[Proportion]) -> dict[str, Any]:
    above = [100 * (share.interval[1] - share.value) for share in shares]
    below = [100 * (share.value - share.interval[0]) for share in shares]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "color": GREY, "thickness": 1.4}


def _words(share: Proportion) -> str:
    low, high = share.interval
    return f"{share.value:.2%} right ({share.correct} of {share.count}), 95 % interval {low:.2%} to {high:.2%}"


def _styled(figure: go.Figure, **layout: Any) -> go.Figure:
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
