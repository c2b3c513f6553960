"""An MkDocs hook and a script that plot each loss's pull and push on a batch of ten rows as two heat maps.

The weights are not defined again here: a loss is called, and the weights it passes to the operator are plotted. Those
of losses that do not pass both are defined here. A page includes a plot with a comment, ``<!-- heat maps: SupConLoss
-->``; ``python docs/scripts/heat_maps.py FOLDER`` writes them all.
"""

import io
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

import likewise as lw
from likewise import pairs
from likewise.losses import base
from likewise.pairs import PairWeight

CELL = 0.17
"""The side of a cell in inches."""
COLOURS = {"pull": "#2f7fd6", "push": "#e07b16"}
NEGATIVE = "#c2338b"
TEXT = "#010203"
"""A placeholder for the page's text colour, which a plot uses on the page."""
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "likewise",
    "font.size": 7.5,
    "axes.linewidth": 0.5,
    "text.color": TEXT,
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}

Rows = Mapping[str, str]
"""The sections of rows by name, with a name for each row."""

Weights = Mapping[str, PairWeight]
"""Pull and push."""


class Drawing(NamedTuple):
    """A call of a loss, or its two weights, and the names of its anchors and references."""

    loss: Callable[[], Tensor | Weights]
    anchors: Rows
    references: Rows


def label_sets(names: str) -> Tensor:
    """Convert label sets such as "a ab ∅" to multi-hot rows over the labels a, b, c."""
    return torch.tensor([[label in name for label in "abc"] for name in names.split()])


def classes(names: str) -> Tensor:
    """Convert classes such as "A A B" to numbers."""
    return torch.tensor(["ABC".index(name) for name in names.split()])


def views(names: str) -> Rows:
    """Name the rows of two views of each sample."""
    return {"first views": names, "second views": names}


torch.manual_seed(0)
VIEWS, ROWS, PROTOTYPES, QUEUE = torch.randn(5, 2, 4), torch.randn(10, 4), torch.randn(3, 4), torch.randn(5, 4)
FIVE, TEN = "1 2 3 4 5", "1 2 3 4 5 6 7 8 9 10"
BALANCED, TWO_CLASSES, LONG_TAIL = "A A B B C", "A A A B B", "A A A A A A B B B C"
SETS, QUEUE_SETS = "a a ab ab b bc c c abc ∅", "a bc c ab ∅"


def _nws() -> Tensor:
    labels, queue_labels = label_sets(SETS), label_sets(QUEUE_SETS)
    loss = lw.NWSLoss(lw.label_pair_similarity(labels, "jaccard"))
    return loss(ROWS, labels, PROTOTYPES, keys=ROWS, key_labels=labels, queue=QUEUE, queue_labels=queue_labels)


def _patches() -> Tensor:
    """Two episodes, each with one query of five cells, and three classes."""
    cell_labels = classes("A A B B C C B B A A").view(2, 1, 1, 5)
    return lw.PatchLoss()(ROWS.T.reshape(2, 1, 4, 1, 5), torch.randn(2, 3, 4, 2, 2), cell_labels)


def _episodes() -> Weights:
    """Two episodes, each with five queries and three classes; the loss is evaluated episode by episode."""
    of_queries, of_classes = torch.arange(2).repeat_interleave(5), torch.arange(2).repeat_interleave(3)
    own = 3 * of_queries + classes("A A B B C C B B A A")
    return {"pull": pairs.SameClass(own, torch.arange(6)), "push": pairs.SameClass(of_queries, of_classes)}


def _rascal() -> Tensor:
    """A second step, after one that cached its features."""
    loss, labels, index = lw.RASCALLoss(5, 4), classes(TWO_CLASSES), torch.arange(5)
    loss(VIEWS, labels, index)
    return loss(VIEWS + torch.randn_like(VIEWS) / 2, labels, index)


def _triplet() -> Weights:
    """Each anchor's own positive and negative, with a margin of τ; the loss is evaluated row by row."""
    own = ~pairs.NotSelf(10)
    return {"pull": pairs.concat([own, pairs.NoPairs(10, 10)]), "push": pairs.concat([own, own * math.e])}


def _paco() -> Weights:
    """Rows and centres; the centres' logits come from a separate space and not from the operator."""
    labels, others = classes(LONG_TAIL), pairs.NotSelf(10)
    positives, own = pairs.SameClass(labels) & others, pairs.SameClass(labels, torch.arange(3))
    return {
        "pull": pairs.concat([positives * 0.2, own]).mean_over_row(),
        "push": pairs.concat([others, pairs.AllPairs(10, 3)]),
    }


def _by_class() -> Weights:
    """The pairs of a class and those of two; losses whose pairs are added up pass no pull."""
    same = pairs.SameClass(classes(LONG_TAIL))
    return {"pull": same & pairs.NotSelf(10), "push": ~same}


DRAWINGS = {
    "NTXentLoss": Drawing(lambda: lw.NTXentLoss()(VIEWS), views(FIVE), views(FIVE)),
    "InfoNCELoss-queue": Drawing(
        lambda: lw.InfoNCELoss()(ROWS, ROWS, queue=QUEUE), {"": TEN}, {"keys": TEN, "queue": "· · · · ·"}
    ),
    "InfoNCELoss-batch": Drawing(lambda: lw.InfoNCELoss()(ROWS, ROWS), {"": TEN}, {"keys": TEN}),
    "DCLLoss": Drawing(lambda: lw.DCLLoss()(VIEWS), views(FIVE), views(FIVE)),
    "DCLLoss-weighted": Drawing(lambda: lw.DCLLoss(weighted=True)(VIEWS), views(FIVE), views(FIVE)),
    "SupConLoss": Drawing(lambda: lw.SupConLoss()(VIEWS, classes(BALANCED)), views(BALANCED), views(BALANCED)),
    "RASCALLoss": Drawing(_rascal, views(TWO_CLASSES), views(TWO_CLASSES)),
    "ProxyNCALoss": Drawing(
        lambda: {"pull": pairs.SameClass(classes(LONG_TAIL), torch.arange(3)), "push": pairs.AllPairs(10, 3)},
        {"": LONG_TAIL},
        {"prototypes": "A B C"},
    ),
    "BCLLoss": Drawing(
        lambda: lw.BCLLoss()(ROWS, classes(LONG_TAIL), PROTOTYPES),
        {"": LONG_TAIL},
        {"batch": LONG_TAIL, "prototypes": "A B C"},
    ),
    "KCLLoss": Drawing(lambda: lw.KCLLoss(k=2)(ROWS, classes(LONG_TAIL)), {"": LONG_TAIL}, {"batch": LONG_TAIL}),
    "PaCoLoss": Drawing(_paco, {"": LONG_TAIL}, {"batch": LONG_TAIL, "centres": "A B C"}),
    "MulSupConLoss": Drawing(lambda: lw.MulSupConLoss()(ROWS, label_sets(SETS)), {"": SETS}, {"batch": SETS}),
    "MSCLoss": Drawing(
        lambda: lw.MSCLoss()(ROWS, label_sets(SETS), PROTOTYPES), {"": SETS}, {"batch": SETS, "prototypes": "a b c"}
    ),
    "NWSLoss": Drawing(_nws, {"": SETS}, {"keys": SETS, "queue": QUEUE_SETS, "prototypes": "a b c"}),
    "NPairsLoss": Drawing(lambda: lw.NPairsLoss()(ROWS, ROWS), {"": TEN}, {"positives": TEN}),
    "SigLIPLoss": Drawing(lambda: {"pull": ~pairs.NotSelf(10), "push": pairs.NotSelf(10)}, {"": TEN}, {"keys": TEN}),
    "ContrastiveMarginLoss": Drawing(_by_class, {"": LONG_TAIL}, {"batch": LONG_TAIL}),
    "BatchTripletLoss": Drawing(_by_class, {"": LONG_TAIL}, {"batch": LONG_TAIL}),
    "TripletLoss": Drawing(_triplet, {"": TEN}, {"positives": TEN, "negatives": TEN}),
    "PatchLoss": Drawing(
        _patches, {"episode 1": "A A B B C", "episode 2": "C B B A A"}, {"episode 1": "A B C", "episode 2": "A B C"}
    ),
    "PrototypicalLoss": Drawing(
        _episodes, {"episode 1": "A A B B C", "episode 2": "C B B A A"}, {"episode 1": "A B C", "episode 2": "A B C"}
    ),
}


def weights_of(drawing: Drawing) -> dict[str, np.ndarray]:
    """Return pull and push of a loss as matrices."""
    with patch.object(base, "evaluate", wraps=base.evaluate) as operator:
        torch.manual_seed(1)  # independent of earlier plots
        made = drawing.loss()
    if isinstance(made, Tensor):
        problem = operator.call_args.args[0]
        weights = {"pull": problem.pull, "push": problem.pushes[0].weight}
    else:
        weights = made
    return {name: weights[name].dense().numpy() for name in COLOURS}


def heat_maps(drawing: Drawing) -> dict[str, str]:
    """Plot the weights of a loss, each as one SVG."""
    return {name: _svg(name, weights, drawing) for name, weights in weights_of(drawing).items()}


def _svg(name: str, weights: np.ndarray, drawing: Drawing) -> str:
    height, width = (cells * CELL for cells in weights.shape)
    text = io.StringIO()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        draw(figure.add_axes((0, 0, 1, 1)), name, weights, drawing)
        _scale(figure.add_axes((1 + 0.12 / width, 0, 0.1 / width, 1)), weights, COLOURS[name])
        figure.savefig(
            text, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.03, metadata={"Date": None}
        )
    markup = text.getvalue()
    return markup[markup.index("<svg") :].replace(TEXT, "currentColor")


def draw(axes: Axes, name: str, weights: np.ndarray, drawing: Drawing) -> None:
    """Plot pull or push onto these axes."""
    axes.pcolormesh(_colours(weights, weights, COLOURS[name]))
    axes.set_title(name, fontweight="bold", fontsize=9)
    axes.invert_yaxis()
    _name(axes.yaxis, axes.axhline, "anchor", drawing.anchors, weights.shape[0])
    _name(axes.xaxis, axes.axvline, "reference", drawing.references, weights.shape[1])
    axes.grid(which="minor", color=TEXT, alpha=0.15, linewidth=0.5)


def _name(axis: Axis, line: Callable[..., Any], label: str, rows: Rows, count: int) -> None:
    """Label the rows along an axis, and draw a line between sections."""
    sections = [section.split() for section in rows.values()]
    names = [name for section in sections for name in section]
    if len(names) != count:
        raise ValueError(
            f"expected a name for each {label}, got {len(names)} names for {count} of them: correct the list"
        )
    axis.set_ticks(np.arange(count) + 0.5, names)
    axis.set_ticks(np.arange(count + 1), minor=True)
    axis.set_tick_params(which="both", length=0)
    axis.set_label_text(f"{label}: {' | '.join(rows)}" if any(rows) else label)
    for end in np.cumsum([len(section) for section in sections])[:-1]:
        line(end, color=TEXT, linewidth=1.2)


def _scale(axes: Axes, weights: np.ndarray, colour: str) -> None:
    low, high = min(weights.min(), 0), max(weights.max(), 0)
    edges = np.linspace(low, high, 41)
    values = ((edges[1:] + edges[:-1]) / 2)[:, None]
    axes.pcolormesh([0, 1], edges, _colours(values, weights, colour), antialiased=False)
    axes.set_xticks([])
    axes.yaxis.tick_right()
    ticks = np.array([low, 0, high / 2, high]) if low else np.array([0, high / 2, high])
    axes.set_yticks(ticks, [f"{tick:.2g}" for tick in ticks])
    axes.tick_params(length=2, width=0.5)


def _colours(values: np.ndarray, weights: np.ndarray, colour: str) -> np.ndarray:
    """Colour values by their share of the largest weight; zero is transparent."""
    share = values / max(np.abs(weights).max(), 1e-12)
    result = np.empty((*values.shape, 4))
    result[..., :3] = np.where(values[..., None] < 0, to_rgb(NEGATIVE), to_rgb(colour))
    result[..., 3] = np.where(share == 0, 0, 0.12 + 0.88 * np.abs(share))
    return result


def on_page_content(content: str, **_: Any) -> str:
    """Insert the plots that a page includes."""

    def plotted(match: re.Match[str]) -> str:
        return f'<div class="heat-maps">{"".join(heat_maps(DRAWINGS[match[1]]).values())}</div>'

    return re.sub(r"<!-- heat maps: ([\w-]+) -->", plotted, content)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for key, drawing in DRAWINGS.items():
        for name, markup in heat_maps(drawing).items():
            (folder / f"{key}-{name}.svg").write_text(markup)
