"""A map of the test samples: pointing shows a sample, and its colour its class, or what was predicted."""

import base64
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.diagnostics import collapsed, plots, two_dimensional_map
from likewise.diagnostics.layout import Method
from likewise.evaluation import KNN, Features
from likewise.evaluation.label_words import label_words
from likewise.report.inputs import how_many, inputs_as_words, order_by_class, order_by_share, raw_vectors
from likewise.report.section import Section
from likewise.report.settings import settings_of
from likewise.report.subject import Subject
from likewise.scores import ENCODER, RAW

MAPPED = 1000  # samples laid out by t-SNE and UMAP, which take minutes for many more
FEWEST = 8  # samples of each class; with so many classes that there would be fewer, whole classes are chosen
MOST = 60_000  # samples laid out by PCA
MOST_RAW = 5000  # of which raw inputs are too
PICTURED = 5000  # whose image or text hovering shows
MOST_NAMED = 24  # classes that have a legend; more are named by hovering
MOST_RUNS = 4
MOST_LABELS = 12  # of label sets by which points can be coloured, the most frequent ones
GREEN_RED = ("#2a9d5c", "#d1495b")
GREY_BLUE = ("#a4a9b2", plots.COLORS[0])
WITHOUT_WITH = ("without", "with")
COLLAPSED = (
    "Collapsed: the encoder gives all these samples the same features, up to rounding, so it can't tell them apart and "
    "they all lie on one point. "
)
Panels = dict[str, dict[str, Tensor]]
"""For each map's name, and for each layout, the places of the first samples, (N, 2)."""


def section(subjects: Sequence[Subject]) -> Section | None:
    """Lay out the test samples of a single run, or of the first run of some settings."""
    firsts = [setting.subjects[0] for setting in settings_of(subjects)] if len(subjects) > 1 else list(subjects)
    tests = {subject: subject.features.test for subject in firsts if subject.features is not None}
    tests = {subject: of for subject, of in tests.items() if len(of)}
    test = next(iter(tests.values()), None)
    shown = {} if test is None else {subject: of for subject, of in tests.items() if _same(test, of)}
    firsts = list(shown)[:MOST_RUNS]
    if test is None or len(firsts) < min(2, len(subjects)):
        return None
    some = test[_order(test)[:MOST]]
    panels = (
        _of_run(firsts[0], some)
        if len(subjects) == 1
        else _of_runs({subject: shown[subject] for subject in firsts}, some)
    )
    data = plots.as_data(_data(firsts[0], some, panels), "map-data")
    body = f'<div class="map" id="map" data-of="map-data"></div>{data}'
    sentence = COLLAPSED if collapsed(some.vectors) else ""
    return Section("Map", sentence + _sentence(some, test, firsts, len(subjects)), body)


def _order(test: Features) -> Tensor:
    """Return in which order samples are taken: of very many classes, so that some are there as a whole."""
    return order_by_class(test) if _crowded(test) else order_by_share(test)


def _crowded(test: Features) -> bool:
    """Tell whether there are so many classes that a map with some samples of each would show none."""
    return test.label_kind == "classes" and int((test.counts > 0).sum()) * FEWEST > MAPPED


def _same(test: Features, other: Features) -> bool:
    """Tell whether two runs were tested on the same samples."""
    return torch.equal(test.numbers, other.numbers) and test.names == other.names


def _sentence(some: Features, test: Features, shown: Sequence[Subject], runs: int) -> str:
    few = min(MAPPED, len(some))
    sentence = (
        f"{how_many(few, len(test))} laid out by t-SNE of their cosine neighbours: which samples are near each other "
        "means something; the distances between groups and the axes do not. By PCA, distances are kept as well as two "
        "axes can. Pointing at a point, or tapping it, shows the sample; "
    )
    chosen = f"one of the {min(MOST_LABELS, len(test.names))} most frequent labels colours the samples that have it. "
    sentence += chosen if test.label_kind == "label sets" else "clicking on a class shows it alone. "
    if _crowded(test) and few < len(test):
        classes = len(some.classes[:few].unique())
        sentence += f"By t-SNE they are those of {classes:,} of {len(test.names):,} classes, chosen at random. "
    if len(some) > few:
        sentence += f"By PCA there are {len(some):,}. "
    if len(some) > PICTURED:
        sentence += f"{PICTURED:,} of them have a picture or text. "
    if runs > 1:
        sentence += f"A map for {'each setting' if len(shown) < MOST_RUNS else f'the first {MOST_RUNS} settings'}, of "
        sentence += "its first run; each begins at the first one's layout, and is turned like it."
    return sentence.strip()


def _of_run(subject: Subject, some: Features) -> Panels:
    """Return the maps of a run's features, and of raw inputs."""
    raw = raw_vectors(subject, some[torch.arange(min(MOST_RAW, len(some)))])
    panels = {ENCODER: _layouts(subject, some.vectors)}
    return panels if raw is None else panels | {RAW: _layouts(subject, raw)}


def _of_runs(tests: Mapping[Subject, Features], some: Features) -> Panels:
    """Return the maps of several runs, of which all but the first begin at its layout."""
    panels: Panels = {}
    first: Mapping[str, Tensor] = {}
    for subject, test in tests.items():
        place = {row: at for at, row in enumerate(test.numbers.tolist())}
        rows = torch.tensor([place[row] for row in some.numbers.tolist()])
        panels[subject.setting] = _layouts(subject, test.vectors[rows], first)
        first = first or panels[subject.setting]
    return panels


def _layouts(
    subject: Subject, vectors: Float[Tensor, "n d"], start: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    kinds: dict[str, tuple[Method, int]] = {"t-SNE": ("tsne", MAPPED), "PCA": ("pca", MOST)}
    if find_spec("umap") is not None:
        kinds["UMAP"] = ("umap", MAPPED)
    return {
        name: two_dimensional_map(vectors[:most], method, start=(start or {}).get(name))
        for name, (method, most) in subject.progress(kinds.items(), "maps")
    }


def _data(subject: Subject, some: Features, panels: Panels) -> dict[str, Any]:
    """Return what the page's scripts draw."""
    pictured = some[torch.arange(min(PICTURED, len(some)))]
    return {
        "rows": _encoded(some.numbers, torch.int32),
        "tiles": _encoded(subject.album.tiles("test", pictured.numbers), torch.int32),
        "texts": inputs_as_words(subject, pictured),
        "labels": label_words(pictured) if some.label_kind == "label sets" else [],
        "panels": [
            {
                "name": name,
                "layouts": {
                    kind: dict(zip("xy", map(_quantized, places.unbind(1)), strict=True)) for kind, places in of.items()
                },
            }
            for name, of in panels.items()
        ],
        "colours": _colours(subject, some),
        "color": plots.COLORS[0],
        "most": MOST_NAMED,
        "config": plots.CONFIG,
    }


def _colours(subject: Subject, some: Features) -> dict[str, Any]:
    """Return by what points are coloured: names, a colour for each, and which of them each sample has; -1 for none."""

    def of(names: Sequence[str], colors: Sequence[str], categories: Tensor) -> dict[str, Any]:
        return {"names": list(names), "colors": list(colors), "of": _encoded(categories, torch.int16)}

    if some.label_kind == "label sets":
        frequent = some.counts.argsort(descending=True, stable=True)[:MOST_LABELS]
        quiet = {"quiet": True}  # hovering names a sample's labels by themselves
        of_label = {label: of(WITHOUT_WITH, GREY_BLUE, some.sets[:, label]) for label in frequent.tolist()}
        return {some.names[label]: colours | quiet for label, colours in of_label.items()}
    if some.label_kind != "classes":
        return {}
    palette = plots.palette(len(some.names))
    found = {"class": of(some.names, palette, some.classes)}
    predicted = subject.outcomes.get((KNN.name, "prediction", ENCODER, "test"))
    if predicted is None:
        return found
    of_row = dict(zip(predicted.rows.tolist(), predicted.values.long().tolist(), strict=True))
    said = torch.tensor([of_row.get(row, -1) for row in some.numbers.tolist()])
    wrong = (said != some.classes).long().where(said >= 0, -1)
    return found | {
        "kNN's prediction": of(some.names, palette, said),
        "kNN is": of(("right", "wrong"), GREEN_RED, wrong),
    }


def _quantized(values: Tensor) -> str:
    """Return coordinates as 16-bit numbers: a map has no unit."""
    low, high = values.min(), values.max()
    scale = 65535 / (high - low) if high > low else 0.0
    return _encoded(((values - low) * scale).round(), torch.uint16)


def _encoded(values: Tensor, kind: torch.dtype) -> str:
    return base64.b64encode(values.to(kind).numpy().tobytes()).decode()
