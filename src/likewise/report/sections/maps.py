"""Maps of the test samples: pointing shows a sample, and its colour is its class or prediction."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float, Int
from markupsafe import Markup
from torch import Tensor

from likewise.diagnostics import collapsed, plots, two_dimensional_map
from likewise.diagnostics.geometry import Method
from likewise.evaluation import Features
from likewise.evaluation.class_structure import SUPERCLASS
from likewise.evaluation.cross_modal import sides_of
from likewise.evaluation.feature_files import OTHER_SIDE
from likewise.evaluation.features import id_words, label_words
from likewise.report.comparison import same_samples
from likewise.report.elements import drawn_by_script, how_many, limit_words, sentence, table
from likewise.report.run_view import Content, RunView, Section
from likewise.report.setting import settings_of
from likewise.runs.scores import ENCODER, RAW, format_score, places_of

MAX_TSNE = 1000  # samples laid out by t-SNE and UMAP, which take minutes for many more
MIN_CLASS_SAMPLES = 8  # with so many classes that each would have fewer samples, whole classes are chosen
MAX_PCA = 60_000  # samples laid out by PCA
MAX_RAW = 5000  # of these, samples whose raw inputs are laid out too
MAX_PICTURES = 5000  # samples whose image or text is shown on hovering
MAX_LEGEND = 24  # classes named in a legend; with more, hovering names them
MAX_RUNS = 4
MIN_MAP_SAMPLES = 20  # samples of a class with its own map; one of several finer classes may have fewer
MAX_CLASSES = 40  # classes with a map each
MAX_WITHIN, MIN_WITHIN = 2000, 100  # samples of all these classes together, and at least of each
MAX_LABELS = 12  # labels to colour points by, the most frequent ones of label sets
GREEN_RED = ("#2a9d5c", "#d1495b")
GREY_BLUE = ("#a4a9b2", plots.COLORS[0])
WITHOUT_WITH = ("without", "with")
BOTH_SIDES = "both sides"
SIDES = ("first side", "second side")
Panels = dict[str, dict[str, Tensor]]
"""By map and layout, the coordinates of the first samples, (N, 2)."""


class MapSection(Section):
    """The test samples laid out in the plane; for several settings those from the first run of each."""

    runs = "any"

    def content(self, views: Sequence[RunView]) -> Content | None:
        shown = _test_parts(views)
        if not shown:
            return None
        first, test = next(iter(shown.items()))
        if len(views) == 1 and test.counterparts is not None:
            test = _both_sides(test)
        some = test[ordered(test, whole=_crowded(test))[:MAX_PCA]]
        few, crowded = min(MAX_TSNE, len(some)), _crowded(test)
        introduction = sentence(
            "map",
            collapsed=collapsed(some.vectors),
            shown=how_many(few, len(test)),
            label_sets=test.label_kind == "label sets",
            labels=min(MAX_LABELS, len(test.names)),
            classes=len(some.classes[:few].unique()) if crowded and few < len(test) else 0,
            all_classes=len(test.names),
            by_pca=len(some) if len(some) > few else 0,
            pictured=MAX_PICTURES if len(some) > MAX_PICTURES else 0,
            settings=_by_setting(len(shown)),
            sides=some.part == BOTH_SIDES,
        )
        data = _data(first, some, _lay_out(shown, some), _colours(first, some))
        return Content("Map", introduction, drawn_by_script("map", data))


class SubModesSection(Section):
    """The test samples of each class by themselves; of each training class, by the finer classes in it."""

    runs = "any"

    def content(self, views: Sequence[RunView]) -> Content | None:
        shown = _test_parts(views)
        first, test = next(iter(shown.items()), (None, None))
        if first is None or test is None or test.label_kind != "classes" or test.counterparts is not None:
            return None
        names, groups = test.names, test.classes
        finer = (test.counts > 0).long()
        if test.within is not None:
            names, groups = test.within.names, test.within.numbers[test.classes]
            finer = torch.bincount(test.within.numbers[test.counts > 0], minlength=len(names))
        sizes = torch.bincount(groups, minlength=len(names))
        large = (sizes >= MIN_MAP_SAMPLES) | (finer > 1)
        order = (finer * (len(test) + 1) + sizes).argsort(descending=True, stable=True)
        chosen = order[large[order]].tolist()
        if not chosen:
            return None
        most = max(MIN_WITHIN, min(MAX_TSNE, MAX_WITHIN // len(chosen)))
        order = ordered(test, whole=False)
        maps: list[dict[str, Any]] = []
        for group in chosen[:MAX_CLASSES]:
            some = test[order[groups[order] == group][:most]]
            colours = _class_colours(first, some, within=True)
            maps.append({"name": names[group], **_data(first, some, _lay_out(shown, some), colours)})
        introduction = sentence(
            "sub_modes",
            finer=bool((finer > 1).any()),
            most=most if int(sizes[chosen].max()) > most else 0,
            settings=_by_setting(len(shown)),
        )
        largest = f"classes, the largest, with {MIN_MAP_SAMPLES} samples or more"
        introduction += limit_words(len(maps), int((sizes > 0).sum()), largest)
        drawn = drawn_by_script("map", {"maps": maps}, "map-within")
        return Content("Within a class", introduction, drawn + (_scores_within(first) if len(views) == 1 else Markup()))


def _test_parts(views: Sequence[RunView]) -> dict[RunView, Features]:
    """Return the test parts to map, from the first run of each setting; none where too few have the same samples."""
    firsts = [setting.first for setting in settings_of(views)]
    tests = {view: view.features.test for view in firsts if view.features is not None}
    tests = {view: features for view, features in tests.items() if len(features)}
    test = next(iter(tests.values()), None)
    shown = {} if test is None else {view: features for view, features in tests.items() if same_samples(test, features)}
    return {} if len(shown) < min(2, len(views)) else dict(list(shown.items())[:MAX_RUNS])


def ordered(features: Features, *, whole: bool) -> Int[Tensor, " n"]:
    """Return a random order of samples: class by class, or with the same share of each class in any prefix."""
    generator = torch.Generator().manual_seed(0)
    shuffled = torch.randperm(len(features), generator=generator)
    if features.label_kind != "classes":
        return shuffled
    classes = features.classes[shuffled]
    if whole:
        return shuffled[torch.randperm(len(features.names), generator=generator)[classes].argsort(stable=True)]
    counts = torch.bincount(classes, minlength=len(features.names))
    ranks = torch.empty(len(classes), dtype=torch.double)  # within the class
    by_class = classes.argsort(stable=True)
    ranks[by_class] = torch.arange(len(classes)).double() - (counts.cumsum(0) - counts)[classes[by_class]]
    return shuffled[((ranks + 0.5) / counts[classes]).argsort(stable=True)]


def _both_sides(test: Features) -> Features:
    """Return the distinct inputs of both sides of pairs, with the side as their class."""
    first, second, _ = sides_of(test)
    vectors, rows = torch.cat([first.vectors, second.vectors]), torch.cat([first.numbers, second.numbers])
    side = torch.arange(2).repeat_interleave(torch.tensor([len(first), len(second)]))
    return Features(vectors, side, SIDES, rows, BOTH_SIDES, ids=first.ids + second.ids)


def _sides_in(some: Features) -> Iterator[tuple[Int[Tensor, " m"], Features]]:
    """Yield the positions of samples, and the samples with their part restored: one side of pairs after the other."""
    if some.part != BOTH_SIDES:
        yield torch.arange(len(some)), some
        return
    for side, part in enumerate(("test", f"test{OTHER_SIDE}")):
        places = (some.classes == side).nonzero().flatten()
        yield places, replace(some[places], part=part)


def _crowded(test: Features) -> bool:
    """Tell whether there are too many classes for a map with `MIN_CLASS_SAMPLES` of each."""
    return test.label_kind == "classes" and int((test.counts > 0).sum()) * MIN_CLASS_SAMPLES > MAX_TSNE


def _by_setting(maps: int) -> str:
    return "" if maps == 1 else "each setting" if maps < MAX_RUNS else f"the first {MAX_RUNS} settings"


def _lay_out(tests: Mapping[RunView, Features], some: Features) -> Panels:
    """Return the maps of a run and of its raw inputs, or of several runs, where the others start from the first's."""
    if len(tests) == 1:
        (view,) = tests
        raw = None if some.part == BOTH_SIDES else view.raw_vectors(some[torch.arange(min(MAX_RAW, len(some)))])
        panels = {ENCODER: _layouts(view, some.vectors)}
        return panels if raw is None else panels | {RAW: _layouts(view, raw)}
    panels: Panels = {}
    for view, test in tests.items():
        vectors = test.vectors[places_of(some.numbers, test.numbers)]
        panels[view.setting] = _layouts(view, vectors, next(iter(panels.values()), {}))
    return panels


def _layouts(view: RunView, vectors: Float[Tensor, "n d"], start: Mapping[str, Tensor] = {}) -> dict[str, Tensor]:
    kinds: dict[str, tuple[Method, int]] = {"t-SNE": ("tsne", MAX_TSNE), "PCA": ("pca", MAX_PCA)}
    if find_spec("umap") is not None:
        kinds["UMAP"] = ("umap", MAX_TSNE)
    return {
        name: two_dimensional_map(vectors[:most], method, start=start.get(name))
        for name, (method, most) in view.progress(kinds.items(), "maps")
    }


def _data(view: RunView, some: Features, panels: Panels, colours: Mapping[str, Any]) -> dict[str, Any]:
    pictured = some[torch.arange(min(MAX_PICTURES, len(some)))]
    texts, tiles = [""] * len(pictured), torch.zeros(len(pictured), dtype=torch.int64)
    for places, samples in _sides_in(pictured):
        tiles[places] = view.album.tiles(samples.part, samples.numbers)
        for index, line in zip(places.tolist(), view.lines_of(samples), strict=True):
            texts[index] = line
    return {
        "rows": _to_base64(some.numbers, torch.int32),
        "ids": [] if some.ids.plain else id_words(some),
        "tiles": _to_base64(tiles, torch.int32),
        "texts": texts if any(texts) else [],
        "labels": label_words(pictured) if some.label_kind == "label sets" else [],
        "panels": [
            {"name": name, "layouts": {method: _axes(places) for method, places in layouts.items()}}
            for name, layouts in panels.items()
        ],
        "colours": colours,
        "color": plots.COLORS[0],
        "most": MAX_LEGEND,
        "config": plots.CONFIG,
    }


def _colours(view: RunView, some: Features) -> dict[str, Any]:
    if some.label_kind == "label sets":
        frequent = some.counts.argsort(descending=True, stable=True)[:MAX_LABELS]
        quiet = {"quiet": True}  # hovering names a sample's labels by themselves
        of_label = {label: _coloured(WITHOUT_WITH, some.sets[:, label], GREY_BLUE) for label in frequent.tolist()}
        return {some.names[label]: colours | quiet for label, colours in of_label.items()}
    if some.label_kind != "classes":
        return {}
    if some.part != BOTH_SIDES:
        return _class_colours(view, some)
    colours, test = {"side": _coloured(SIDES, some.classes)}, None if view.features is None else view.features.test
    if test is not None and test.label_kind == "classes":
        colours["class"] = _coloured(test.names, test.classes[places_of(some.numbers, test.numbers)])
    return colours


def _class_colours(view: RunView, some: Features, *, within: bool = False) -> dict[str, Any]:
    """Return colours by class and kNN's prediction, or within a class the more telling of them, and by its mistakes."""
    predicted = view.predicted(some)
    colours = {"class": some.classes} | ({} if predicted is None else {"kNN's prediction": predicted})
    if within:
        colours.pop("kNN's prediction" if len(some.classes.unique()) > 1 else "class", None)
    coloured = {name: _coloured(some.names, categories, present=within) for name, categories in colours.items()}
    if predicted is not None:
        wrong = (predicted != some.classes).long().where(predicted >= 0, -1)
        coloured["kNN is"] = _coloured(("right", "wrong"), wrong, GREEN_RED)
    return coloured


def _coloured(
    names: Sequence[str], categories: Tensor, colors: Sequence[str] | None = None, *, present: bool = False
) -> dict[str, Any]:
    """Return names (if asked, only those present), their colours, and the index of each sample's name, -1 for none."""
    if present:
        there = categories[categories >= 0].unique()
        names = [names[category] for category in map(int, there)]
        categories = torch.searchsorted(there, categories).where(categories >= 0, -1)
    shades = plots.palette(len(names)) if colors is None else colors
    return {"names": list(names), "colors": list(shades), "of": _to_base64(categories, torch.int16)}


def _scores_within(view: RunView) -> Markup:
    every = view.test_scores.values()
    scores = [score for score in every if score.group.kind == SUPERCLASS and score.features == ENCODER]
    names = list(dict.fromkeys(score.group.name for score in scores))
    metrics = list(dict.fromkeys(score.metric.name for score in scores))
    cells = {(score.group.name, score.metric.name): f"{format_score(score)}, {score.notes[0]}" for score in scores}
    rows = [[name, *(cells.get((name, metric), "") for metric in metrics)] for name in names]
    return table(["class trained on", *metrics], rows, most=len(rows)) if rows else Markup()


def _axes(places: Float[Tensor, "n 2"]) -> dict[str, str]:
    """Return coordinates by their axes, as 16-bit numbers: a map has no unit."""
    low, high = places.amin(dim=0), places.amax(dim=0)
    scale = (65535 / (high - low)).where(high > low, 0.0)
    x, y = ((places - low) * scale).round().unbind(dim=1)
    return {"x": _to_base64(x, torch.uint16), "y": _to_base64(y, torch.uint16)}


def _to_base64(values: Tensor, dtype: torch.dtype) -> str:
    return base64.b64encode(values.to(dtype).numpy().tobytes()).decode()
