"""The training of a run: its facts, curves, histograms and means by class, and the use of its encoder."""

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup

from likewise.diagnostics import plots
from likewise.evaluation.predictions import frequency
from likewise.files.formats import PARTS
from likewise.report.elements import (
    amounts,
    definitions,
    element,
    heading,
    limit_words,
    list_file,
    part_words,
    sentence,
    short_name,
    slug,
    table,
)
from likewise.report.run_view import Content, RunView, Section
from likewise.report.setting import Setting, settings_of
from likewise.runs import Run
from likewise.runs.score_files import ClassMean
from likewise.runs.scores import ALL, ENCODER, format_count

MAX_POINTS = 2000  # of a curve; a page has no more pixels across
MAX_HISTOGRAMS = 6  # histograms drawn as heat maps
MAX_SETTINGS = 6  # settings with drawn means by class
Curve = Sequence[tuple[int, float]]
FILES = {  # by the number of dimensions of an input, 0 for texts: a file of inputs, one to query, and an argument
    0: ("texts.csv", "queries.csv", '"a text"'),
    1: ("vectors.npz", "queries.npz", "vectors"),
    3: ("photos/", "photo.jpg", '"photo.jpg"'),
}


class CurvesSection(Section):
    """Curves of the training over its steps, and of validation scores over epochs; several runs overlaid."""

    runs = "any"

    def content(self, views: Sequence[RunView]) -> Content | None:
        training: defaultdict[str, list[tuple[str, Curve]]] = defaultdict(list)
        validation: defaultdict[str, list[tuple[str, Curve]]] = defaultdict(list)
        for view in views:
            for name, points in view.metrics.items():
                training[name].append((view.setting, thinned(points)))
            for name, points in _over_epochs(view).items():
                validation[name].append((view.setting, points))
        if not training and not validation:
            return None
        figures = [(training, "step", "curves"), (validation, "epoch", "validation")]
        drawn = [plots.as_html(plots.curves(panels, across), name) for panels, across, name in figures if panels]
        rank = any(name.endswith("effective rank") for name in validation)
        return Content("Training", sentence("curves", rank=rank), Markup().join(drawn))


def _over_epochs(view: RunView) -> dict[str, Curve]:
    """Return the encoder's scores over all samples during training, shares in percent, by epoch."""
    curves: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for score in view.scores:
        if score.epoch is not None and score.group == ALL and score.features == ENCODER:
            factor = 100 if score.metric.is_share else 1
            curves[f"{score.evaluation}, {score.metric}"][score.epoch] = factor * score.value
    return {name: sorted(by_epoch.items()) for name, by_epoch in curves.items()}


def thinned(points: Curve) -> Curve:
    """Return evenly spaced points of a long curve, and its last."""
    stride = -(-len(points) // MAX_POINTS)
    return points if stride <= 1 else [*points[:-1:stride], points[-1]]


class HistogramsSection(Section):
    """The histograms recorded by the loss, such as RASCAL's of rank drift."""

    runs = "any"

    def content(self, views: Sequence[RunView]) -> Content | None:
        settings = settings_of(views)
        histograms = {
            (f"{setting.name}: {name}" if len(settings) > 1 else name): pairs
            for setting in settings
            for name, pairs in setting.first.run.histograms.items()
        }
        if not histograms:
            return None
        some = dict(list(histograms.items())[:MAX_HISTOGRAMS])
        introduction = sentence("histograms") + limit_words(len(some), len(histograms), "histograms")
        return Content("Histograms of the loss", introduction, plots.as_html(plots.heat_maps(some), "histograms"))


class ClassMeansSection(Section):
    """The loss's records of its anchors, such as RASCAL's rank drift: by class, by class size, and over epochs."""

    runs = "any"

    def content(self, views: Sequence[RunView]) -> Content | None:
        shown = [setting for setting in settings_of(views) if setting.first.class_means][:MAX_SETTINGS]
        statistics = dict.fromkeys(mean.statistic for setting in shown for mean in setting.first.class_means)
        if not statistics:
            return None
        body = Markup().join(_of_statistic(statistic, shown) for statistic in statistics)
        return Content("Recorded by the loss, by class", sentence("class_means"), body)


def _of_statistic(statistic: str, settings: Sequence[Setting]) -> Markup:
    name = statistic.replace("_", " ")
    curves: dict[str, list[tuple[str, Curve]]] = {}
    points: dict[str, list[plots.Point]] = {}
    for setting in settings:
        means = [mean for mean in setting.first.class_means if mean.statistic == statistic]
        sizes = setting.first.class_sizes
        for group, group_means in _groups(means, sizes).items():
            curves.setdefault(f"{name}, {group}", []).append((setting.name, _by_epoch(group_means)))
        last = max((mean.epoch for mean in means), default=0)
        points[setting.name] = [
            plots.Point(size, mean.mean, f"{mean.label}: {mean.mean:.3g}, {format_count(size, 'sample')}")
            for mean in means
            if mean.epoch == last and (size := sizes.get(mean.label)) is not None
        ]
    drawn = plots.as_html(plots.curves(curves, "epoch"), slug("means", statistic))
    if sizes := [point.x for series in points.values() for point in series]:
        tail = min(sizes) > 0 and max(sizes) >= 5 * min(sizes)
        figure = plots.scatter(points, "training samples of the class", name, logarithmic=tail)
        drawn += plots.as_html(figure, slug("sizes", statistic))
    return heading(name) + drawn


def _groups(means: Sequence[ClassMean], sizes: Mapping[str, int]) -> dict[str, Sequence[ClassMean]]:
    groups: dict[str, Sequence[ClassMean]] = {}
    for name, chosen in frequency(torch.tensor(list(sizes.values()))).items():
        members = {label for label, inside in zip(sizes, chosen.tolist(), strict=True) if inside}
        if group_means := [mean for mean in means if mean.label in members]:
            groups[str(name)] = group_means
    return {"all": means} | (groups if len(groups) > 1 else {})


def _by_epoch(means: Sequence[ClassMean]) -> Curve:
    totals: dict[int, float] = defaultdict(float)
    counts: dict[int, int] = defaultdict(int)
    for mean in means:
        totals[mean.epoch] += mean.mean * mean.count
        counts[mean.epoch] += mean.count
    return [(epoch, totals[epoch] / counts[epoch]) for epoch in sorted(counts)]


class FactsSection(Section):
    """The facts of a run; for several, the facts in common, and a list of the runs."""

    runs = "any"

    def content(self, views: Sequence[RunView]) -> Content | None:
        if len(views) == 1:
            lost = [[name] for name in views[0].metadata.get("undecodable", {}).values()]
            body = definitions(_facts(views[0]).items()) + list_file("left-out.csv", ["image"], lost)
            return Content("Run", "", body)
        first, *other_facts = map(_facts, views)
        shared = [pair for pair in first.items() if all(pair in facts.items() for facts in other_facts)]
        rows: list[list[str]] = []
        for view in views:
            seed, options = "" if view.seed is None else str(view.seed), map("=".join, view.options.items())
            rows.append([view.setting, seed, view.run.name, ", ".join(options)])
        listed = table(["setting", "seed", "run", "differs in"], rows, most=len(rows))
        return Content("Runs", sentence("runs"), definitions(shared) + listed)


def _facts(view: RunView) -> dict[str, str]:
    facts, configuration = view.metadata, view.run.configuration
    sizes, labels, seconds = (facts.get(name) or {} for name in ("samples", "labels", "seconds"))
    path = view.run.folder.with_name(view.run.name) / configuration.name
    values = {
        **{name: facts.get(name) for name in ("recipe", "device")},
        **{part: spec and part_words(spec) for part, spec in facts.get("parts", {}).items()},
        "features": facts.get("source"),
        "samples": amounts({part: sizes[part] for part in PARTS if part in sizes}),
        "images that cannot be read": len(facts.get("undecodable", {})),
        labels.get("kind") or "labels": labels and len(labels.get("names") or ()),
        "seed": None if view.seed is None else str(view.seed),
        "versions": ", ".join(f"{name} {version}" for name, version in facts.get("versions", {}).items()),
        "seconds": ", ".join(f"{float(duration):,.1f} {what}" for what, duration in seconds.items()),
        "repeat": configuration.is_file() and f"likewise train --config {path}",
    }
    return {name: str(value) for name, value in values.items() if value}


class UseSection(Section):
    """The first lines of embed, search, predict and export, and of Python."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        commands, code = first_lines(views[0].run)
        if not commands:
            return None
        pairs = [*commands.items(), ("In Python", "\n".join(code))]
        return Content("Use this encoder", sentence("use"), element("commands", pairs))


def first_lines(run: Run) -> tuple[dict[str, str], list[str]]:
    """Return a command for each use of a run's encoder, and the lines of Python; none for a run without one."""
    facts = run.metadata
    spec = facts.get("parts", {}).get("encoder")
    if not run.weights.is_file() or not spec:
        return {}, []
    whole = run.folder.with_name(run.name).absolute()
    path = str(whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole)
    shape, second = _shape(spec), facts.get("second")
    folder, (inputs, query, argument) = shlex.quote(path), FILES.get(len(shape), FILES[1])
    query_argument = argument
    if second is not None:
        _, query, query_argument = FILES.get(len(_shape(second["encoder"] or spec)), FILES[1])
    side = ("", "") if second is None else (" --side second", ", side='second'")
    output = f"{Path(inputs).stem}.parquet"
    commands = {
        "Features of all, with their ids": f"likewise embed {folder} {inputs} --output {output}",
        "The nearest": f"likewise search {folder} {query}{side[0]} --among {output} --k 5",
        "Classes or labels": f"likewise predict {folder} {inputs} --output predictions.csv",
        "For elsewhere": f"likewise export {folder} --format {'onnx' if shape else 'safetensors'}",
    }
    code = ["import likewise as lw", "", f"model = lw.load({path!r})", f"features = model.encode({argument})"]
    code += [
        f"nearest = model.search({query_argument}, {output!r}{side[1]}, k=5)",
        f"predictions = model.predict({argument})",
    ]
    if not (facts.get("labels") or {}).get("kind"):
        del commands["Classes or labels"], code[-1]
    return commands, code


def _shape(spec: Mapping[str, Any]) -> Sequence[int]:
    arguments = spec.get("init_args", {})
    return _shape(arguments["encoder"]) if short_name(spec) == "Projected" else arguments.get("input_shape", (1,))
