"""An MkDocs hook and a script that draw the figures of "Understand contrastive learning" with the library itself.

A page includes a figure with a comment, ``<!-- figure: temperature | cosine | share of the push -->``: its name, then
the words on it, so that each language has its own. ``python docs/scripts/figures.py FOLDER`` writes them, in English.
"""

import csv
import io
import logging
import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from heat_maps import COLOURS, STYLE, TEXT
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

import likewise as lw
from likewise.diagnostics import anchor_gradients

CLASS_COLOURS = ("#2f7fd6", "#e07b16", "#3a9a5c")
SAMPLES, VIEWS, CLASSES = 12, 2, 3
MARKERS = "osv"
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # the browser has the fonts that are missing here


def at(cosines: Sequence[float]) -> Tensor:
    """Return an anchor, and references at these cosines to it, each in a dimension of its own."""
    rows = torch.zeros(1 + len(cosines), 1 + len(cosines), dtype=torch.float64)
    rows[0, 0] = 1
    for place, cosine in enumerate(cosines, 1):
        rows[place, 0], rows[place, place] = cosine, math.sqrt(1 - cosine**2)
    return rows


def circle(words: Sequence[str]) -> Figure:
    """Draw embeddings on a circle: at the start, after NT-Xent, after SupCon."""
    figure = Figure(figsize=(7.4, 2.5))
    labels = _labels().tolist()
    for axes, placed, word in zip(figure.subplots(1, 3), _circles(), words, strict=True):
        axes.add_patch(Circle((0, 0), 1, fill=False, color=TEXT, alpha=0.35, linewidth=0.8))
        for angles, of in zip(placed, labels, strict=True):
            points = torch.stack([angles.cos(), angles.sin()])
            axes.plot(*points, color=CLASS_COLOURS[of], linewidth=0.8, alpha=0.6)
            marks: dict[str, Any] = {"marker": MARKERS[of], "markersize": 5, "markeredgewidth": 0}
            axes.plot(*points, linestyle="", color=CLASS_COLOURS[of], alpha=0.8, **marks)
        axes.set_title(word, fontsize=8.5)
        axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
        axes.axis("off")
    return figure


def _labels() -> Tensor:
    return torch.arange(SAMPLES) % CLASSES


@cache
def _circles() -> tuple[Tensor, Tensor, Tensor]:
    """Return angles of samples and views at the start, after NT-Xent and after SupCon."""
    torch.manual_seed(2)
    start = 2 * math.pi * torch.rand(SAMPLES, 1) + 0.35 * torch.randn(SAMPLES, VIEWS)
    similar, alike = lw.NTXentLoss(temperature=0.2), lw.SupConLoss(temperature=0.2)
    return start, _moved(start, similar), _moved(start, lambda views: alike(views, _labels()))


def _moved(angles: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Let a loss move the points themselves, without an encoder."""
    free = angles.clone().requires_grad_()
    optimizer = torch.optim.Adam([free], lr=0.04)
    for _ in range(300):
        optimizer.zero_grad()
        loss(torch.stack([free.cos(), free.sin()], dim=-1)).backward()
        optimizer.step()
    return free.detach()


def mining(words: Sequence[str]) -> Figure:
    """Draw how strongly a positive pulls and a negative pushes, by its cosine to the anchor."""
    grid = torch.linspace(-0.98, 0.98, 99, dtype=torch.float64).tolist()
    others = (0.6, 0.3, 0.0, -0.3)  # three or four negatives that stay where they are
    pull = [_strength([cosine, *others], place=1) for cosine in grid]
    push = [_strength([0.8, cosine, *others[1:]], place=2) for cosine in grid]
    figure = Figure(figsize=(4.4, 2.4))
    axes = figure.subplots()
    for values, colour, word in zip((pull, push), COLOURS.values(), words[2:], strict=True):
        axes.plot(grid, values, color=colour, label=word)
    _named(axes, *words[:2])
    return figure


def _strength(cosines: Sequence[float], place: int) -> float:
    """Return the strength of one reference; the first is the positive."""
    labels = torch.tensor([0, 0] + [1] * (len(cosines) - 1))
    return float(anchor_gradients(at(cosines), labels, temperature=0.2, anchors=[0]).strengths[0, place])


def mean(words: Sequence[str]) -> Figure:
    """Draw the pull on four positives, the mean outside the logarithm and inside."""
    batch, labels = at([0.9, 0.9, 0.9, 0.1, 0.6, 0.0, -0.2]), torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])
    figure = Figure(figsize=(4.4, 2.4))
    axes = figure.subplots()
    for place, (form, word) in enumerate(zip(("out", "in"), words[2:], strict=True)):
        found = anchor_gradients(batch, labels, temperature=0.1, form=form, anchors=[0])
        across = torch.arange(4) + 0.36 * (place - 0.5)
        axes.bar(across, -found.coefficients[0, 1:5], 0.34, color=CLASS_COLOURS[place], label=word)
    axes.set_xticks(range(4), ["0.9", "0.9", "0.9", "0.1"])
    axes.axhline(0, color=TEXT, linewidth=0.5)
    _named(axes, *words[:2])
    return figure


def temperature(words: Sequence[str]) -> Figure:
    """Draw which share of the push negatives have, by their cosine to the anchor, at three temperatures."""
    cosines = torch.linspace(-0.98, 0.98, 99, dtype=torch.float64).tolist()
    batch, labels = at([0.5, *cosines]), torch.tensor([0, 0] + [1] * len(cosines))
    figure = Figure(figsize=(4.4, 2.4))
    axes = figure.subplots()
    for tau, colour in zip((1.0, 0.3, 0.1), ("#9bb8d6", "#5c93cc", "#1b5fae"), strict=True):
        push = anchor_gradients(batch, labels, temperature=tau, anchors=[0]).strengths[0, 2:]
        axes.plot(cosines, push / push.sum(), color=colour, label=f"τ = {tau:g}")
    _named(axes, *words)
    return figure


def drift(words: Sequence[str]) -> Figure:
    """Draw how far ranks have moved since the epoch before, by epoch: means over the seeds of RASCAL-Lite."""
    figure = Figure(figsize=(4.4, 2.4))
    axes = figure.subplots()
    with (RESULTS / "rascal-lite-drift.csv").open(newline="", encoding="utf-8") as file:
        lines = [of for of in csv.DictReader(file) if (of["class"], of["statistic"]) == ("all", "drift")]
    for ranking, colour, word in zip(("uniform", "agreement", "current"), CLASS_COLOURS, words[2:], strict=True):
        own = [(int(of["epoch"]), float(of["value"])) for of in lines if of["setting"].endswith(ranking)]
        epochs = sorted({epoch for epoch, _ in own})[1:]  # in the first nothing is cached
        means = [statistics.mean(value for at_epoch, value in own if at_epoch == epoch) for epoch in epochs]
        axes.plot(epochs, means, color=colour, label=word)
    _named(axes, *words[:2])
    return figure


def _named(axes: Axes, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


FIGURES = {
    "circle": (circle, ("at the start", "NT-Xent: two views of a sample", "SupCon: samples of a class")),
    "mining": (mining, ("cosine to the anchor", "strength", "a positive pulls", "a negative pushes")),
    "mean": (mean, ("cosine of a positive to the anchor", "X − P", "mean outside", "mean inside")),
    "drift": (drift, ("epoch", "drift of ranks", "SupCon", "RASCAL, agreement", "RASCAL, current")),
    "temperature": (temperature, ("cosine of a negative to the anchor", "share of the push")),
}
"""How each figure is drawn, and the words on it in English."""


def svg(name: str, words: Sequence[str] = ()) -> str:
    """Draw a figure with these words, or in English."""
    draw, english = FIGURES[name]
    if words and len(words) != len(english):
        raise ValueError(f"expected {len(english)} words for the figure {name}, got {len(words)}: {', '.join(words)}")
    text = io.StringIO()
    with mpl.rc_context(STYLE):
        figure = draw(words or english)
        figure.savefig(
            text, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.05, metadata={"Date": None}
        )
    markup = text.getvalue()
    return markup[markup.index("<svg") :].replace(TEXT, "currentColor")


def on_page_content(content: str, **_: Any) -> str:
    """Insert the figures that a page includes."""

    def drawn(match: re.Match[str]) -> str:
        name, *words = (word.strip() for word in match[1].split("|"))
        return f'<div class="figure">{svg(name, words)}</div>'

    return re.sub(r"<!-- figure: (.+?) -->", drawn, content)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for key in FIGURES:
        (folder / f"{key}.svg").write_text(svg(key), encoding="utf-8")
