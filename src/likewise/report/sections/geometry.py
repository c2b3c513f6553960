"""Features of one run on the unit sphere: their geometry, label similarity, and the gradients that pull and push."""

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import Int
from markupsafe import Markup
from torch import Tensor

from likewise.diagnostics import (
    AnchorGradients,
    Snapshot,
    StrengthByNegatives,
    alignment,
    anchor_gradients,
    class_distances,
    collapsed,
    grouped,
    hardest_shares,
    hubness,
    plots,
    push_weights,
    similarity_histogram,
    singular_values,
    strength_by_negatives,
    strength_by_similarity,
    uniformity,
)
from likewise.diagnostics.gradients import SoftmaxForm
from likewise.diagnostics.unit_rows import rank_of
from likewise.evaluation import Features
from likewise.report.elements import drawn_by_script, folded, how_many, limit_words, sentence, short_name, table
from likewise.report.run_view import Content, RunView, Section
from likewise.report.setting import settings_of
from likewise.runs.scores import ENCODER, RAW

NEIGHBOURS = 10
MAX_PAIRS = 10  # listed pairs of classes
MAX_SAMPLES = 2000  # samples for the measurement of all pairs
MAX_LABELS = 120  # drawn labels, the most frequent
MAX_PUSH_SAMPLES = 1000  # samples whose pairs are counted for the push
BINS = 40
MAX_SETTINGS = 4
MIN_COUNTS = 3  # numbers of negatives that make a curve
MAX_ANCHORS = 512  # evenly spaced rows of a batch; their references are the whole batch
MAX_CHOICES = 40  # anchors to choose from
MAX_REFERENCES = 8  # of each kind, the strongest
MAX_LETTERS = 80  # of a text
LOSSES = {"SupConLoss", "NTXentLoss"}
SHARES = ("pull of the hardest tenth", "push of the hardest tenth", "positives that repel")
STRENGTHS = tuple(name.replace("_", " ") for name in StrengthByNegatives._fields[1:])


class GeometrySection(Section):
    """The geometry of the test samples' features on the unit sphere."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        features = views[0].features
        if features is None or len(features.test) < 2:
            return None
        test = features.test.unique()
        some = test.fewer(MAX_SAMPLES)
        raw = views[0].raw_vectors(some)
        vectors = {ENCODER: some.vectors} | ({} if raw is None else {RAW: raw})
        classes = some.labels if some.label_kind == "classes" else None
        introduction = sentence(
            "geometry",
            collapsed=collapsed(some.vectors),
            classes=classes is not None,
            neighbours=NEIGHBOURS,
            shown=how_many(len(some), len(test)),
        )
        return Content("Geometry", introduction, _measure(vectors, classes, some.names))


def _measure(vectors: Mapping[str, Tensor], classes: Tensor | None, names: Sequence[str]) -> Markup:
    spectrum = {name: singular_values(features) for name, features in vectors.items()}
    hubs = {name: hubness(features, NEIGHBOURS) for name, features in vectors.items()}
    rows = [
        ["uniformity (lower is better)", *(f"{uniformity(features):.3f}" for features in vectors.values())],
        ["effective rank", *(f"{rank_of(values):.1f} of {len(values):,}" for values in spectrum.values())],
        ["skewness of hubs (lower is better)", *(f"{measure.skewness:.2f}" for measure in hubs.values())],
        ["nobody's neighbours (lower is better)", *(f"{100 * measure.never:.1f} %" for measure in hubs.values())],
    ]
    body = Markup()
    if classes is not None:
        distances = {name: class_distances(features, classes, len(names)) for name, features in vectors.items()}
        aligned = [f"{alignment(features, classes):.3f}" for features in vectors.values()]
        different_classes = ~torch.eye(len(names), dtype=torch.bool)
        between = [f"{float(matrix[different_classes].nanmean()):.3f}" for matrix in distances.values()]
        rows[:0] = [["alignment (lower is better)", *aligned], ["distance of two classes", *between]]
        panels: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
        for name, features in vectors.items():
            edges, same, different = similarity_histogram(features, classes)
            panels[name] = {"same class": (edges, same), "different classes": (edges, different)}
        body = plots.as_html(plots.histograms(panels, "cosine similarity", "pairs, %"), "similarities")
        body += _nearest_classes(distances[ENCODER], names)
    if any(values.any() for values in spectrum.values()):
        body += plots.as_html(plots.spectra(spectrum), "spectrum")
    return table(["", *vectors], rows) + body


def _nearest_classes(distances: Tensor, names: Sequence[str]) -> str:
    first, second = torch.triu_indices(len(names), len(names), offset=1)
    between = distances[first, second].nan_to_num(nan=torch.inf)
    rows: list[list[str]] = []
    for at in between.argsort(stable=True)[:MAX_PAIRS].tolist():
        if torch.isfinite(between[at]):
            label, other = int(first[at]), int(second[at])
            within = [distances[index, index] for index in (label, other)]
            rows.append([names[label], names[other], f"{between[at]:.3f}", *(f"{distance:.3f}" for distance in within)])
    head = ["class", "and", "squared distance", "within the first", "within the second"]
    return folded("The classes nearest to each other", table(head, rows)) if rows else ""


class LabelSimilaritySection(Section):
    """Label similarity in the training part, and how much less similar samples push each other because of it."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        features, similarity = views[0].features, views[0].run.label_similarity
        if features is None or similarity is None:
            return None
        train = features.train
        if train.label_kind != "label sets" or len(similarity) != len(train.names):
            return None
        frequent = train.counts.argsort(descending=True, stable=True)[:MAX_LABELS]
        some = similarity[frequent][:, frequent]
        order = grouped(some)
        names = [train.names[label] for label in frequent[order].tolist()]
        body = plots.as_html(plots.matrix(some[order][:, order], names, "similarity"), "label-similarity")
        introduction = sentence("label_similarity")
        introduction += limit_words(len(frequent), len(train.names), "labels, the most frequent")
        arguments: dict[str, Any] = (views[0].metadata.get("parts", {}).get("loss") or {}).get("init_args") or {}
        aggregation = arguments.get("aggregation", "mean")
        weights = push_weights(train.fewer(MAX_PUSH_SAMPLES).sets, similarity, aggregation)
        if len(weights):
            counts = torch.histc(weights.float(), BINS, 0, 1)
            shares = {"push": (torch.linspace(0, 1, BINS + 1), counts / counts.sum())}
            body += plots.as_html(plots.histograms({"": shares}, "weight", "pairs, %"), "push-weights")
        return Content("Similarity of labels", introduction, body)


class GradientsSection(Section):
    """The pull and push on anchors, by similarity; for several settings in the first run of each."""

    runs = "any"

    def content(self, views: Sequence[RunView]) -> Content | None:
        fitting = _fitting(views)
        panels: dict[str, AnchorGradients] = {}
        rows: list[list[str]] = []
        for name, view in fitting[:MAX_SETTINGS]:
            for batch in sorted(view.batches.values(), key=attrgetter("step")):
                title = _title(name, batch)
                panels[title] = anchor_gradients(**_arguments(view, batch))
                rows.append([title, *_shares(panels[title], batch)])
        if not panels:
            return None
        figure = plots.strengths({title: strength_by_similarity(gradients) for title, gradients in panels.items()})
        introduction = sentence("gradients") + limit_words(MAX_SETTINGS, len(fitting), "settings")
        body = plots.as_html(figure, "pull-and-push") + table(["", *SHARES, "anchors", "samples"], rows)
        return Content("What pulls and pushes", introduction, body)


class NegativesSection(Section):
    """The pull and push by the number of negatives, in the last batch; for several settings in each one's first run."""

    runs = "any"

    def content(self, views: Sequence[RunView]) -> Content | None:
        fitting = _fitting(views)
        panels: dict[str, list[tuple[str, list[tuple[int, float]]]]] = {}
        rows: list[list[str]] = []
        for name, view in fitting[:MAX_SETTINGS]:
            batch = _last_batch(view)
            if batch is None or not len(batch.embeddings) or collapsed(batch.embeddings.flatten(0, -2)):
                continue
            counts, *strengths = strength_by_negatives(**_arguments(view, batch))
            if len(counts) < MIN_COUNTS:
                continue
            title, named = _title(name, batch), zip(STRENGTHS, strengths, strict=True)
            panels[title] = [(label, list(zip(counts, values.tolist(), strict=True))) for label, values in named]
            ends = [(f"{counts[end]:,}", *(f"{float(values[end]):.2g}" for values in strengths)) for end in (0, -1)]
            rows += [[title, *cells] for cells in ends]
        if not panels:
            return None
        figure = plots.curves(panels, "negatives of each anchor")
        figure.update_xaxes(type="log", dtick=math.log10(4))
        introduction = sentence("negatives") + limit_words(MAX_SETTINGS, len(fitting), "settings")
        body = plots.as_html(figure, "negatives") + table(["", "negatives", *STRENGTHS], rows)
        return Content("What more negatives do", introduction, body)


def _fitting(views: Sequence[RunView]) -> list[tuple[str, RunView]]:
    """Return each setting's first run, if it has batches of a suitable loss; named if there are several settings."""
    settings = settings_of(views)
    named = [(setting.name if len(settings) > 1 else "", setting.first) for setting in settings]
    return [(name, view) for name, view in named if form_of(view) and view.run.batches.is_file()]


def _title(name: str, batch: Snapshot) -> str:
    return f"{name}, epoch {batch.epoch}" if name else f"Epoch {batch.epoch}"


def _last_batch(view: RunView) -> Snapshot | None:
    return max(view.batches.values(), key=attrgetter("step"), default=None)


def form_of(view: RunView) -> SoftmaxForm | None:
    """Return SupCon's form, "out" for NT-Xent; None for other losses and forms, unnormalised, or with further inputs.

    With further inputs, the references may be the keys of a momentum encoder or a queue, which no file stores.
    """
    parts = view.metadata.get("parts", {})
    loss = parts.get("loss")
    if not loss or short_name(loss) not in LOSSES or not loss["class_path"].startswith("likewise."):
        return None
    arguments = loss.get("init_args") or {}
    if parts.get("inputs") or arguments.get("normalize") is False or arguments.get("form") == "pairs":
        return None
    return "in" if arguments.get("form") == "in" else "out"


def _arguments(view: RunView, batch: Snapshot) -> dict[str, Any]:
    """Return the arguments for measuring the gradient of a batch, at evenly spaced anchors."""
    rows = batch.embeddings.shape[:-1].numel()
    by_class = short_name(view.metadata["parts"]["loss"]) == "SupConLoss"
    return {
        "embeddings": batch.embeddings,
        "labels": batch.labels if by_class else None,
        "temperature": batch.temperature,
        "form": form_of(view),
        "anchors": range(0, rows, max(1, -(-rows // MAX_ANCHORS))),
    }


def _shares(gradients: AnchorGradients, batch: Snapshot) -> list[str]:
    """Return the cells of a batch: shares of pull and push and of repelling positives, anchors, and samples."""
    rows, kept = batch.embeddings.flatten(0, -2), len(batch.embeddings)
    shares: Sequence[float] = (math.nan, math.nan) if collapsed(rows) else hardest_shares(gradients)
    repelling = float((gradients.coefficients[gradients.positives] > 0).double().mean())
    percents = ["none" if math.isnan(share) else f"{100 * share:.0f} %" for share in (*shares, repelling)]
    return [*percents, f"{len(gradients.anchors):,} of {len(rows):,}", f"{kept:,} of {batch.samples:,}"]


class AnchorSection(Section):
    """The pull and push on a selectable anchor, reference by reference."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        view = views[0]
        batch = _last_batch(view) if form_of(view) else None
        samples = None if batch is None else _samples(view, batch)
        if batch is None or samples is None:
            return None
        arguments: dict[str, Any] = _arguments(view, batch) | {"anchors": _choose_anchors(samples)}
        gradients = anchor_gradients(**arguments)
        captions, active = _captions(view, samples, batch), gradients.active.nonzero().flatten().tolist()
        anchors = [_anchor(gradients, index, captions, len(samples)) for index in active]
        if not anchors:
            return None
        data = {"anchors": anchors, "captions": {"pull": "Positives", "push": "Negatives"}}
        return Content("One anchor", sentence("anchor"), drawn_by_script("anchors", data))


def _samples(view: RunView, batch: Snapshot) -> Features | None:
    if view.parts is None or view.features is None:
        return None
    train = view.parts.train.numbered()
    if not len(batch.sample_index) or int(batch.sample_index.max()) >= len(train):
        return None
    rows = torch.as_tensor(train.rows)[batch.sample_index]
    labels = batch.labels if batch.labels is None or batch.labels.ndim == 1 else batch.labels.bool()
    return Features(torch.zeros(len(rows), 0), labels, train.names, rows, "train", ids=train.ids[batch.sample_index])


def _choose_anchors(samples: Features) -> Int[Tensor, " a"]:
    """Return rows of the first view to choose from, a few of each class."""
    if samples.label_kind != "classes":
        return torch.arange(len(samples))[:MAX_CHOICES]
    classes = samples.classes
    before = torch.stack([(classes[:row] == label).sum() for row, label in enumerate(classes)])
    few = torch.stack([before, classes, torch.arange(len(classes))]).unique(dim=1)[:, :MAX_CHOICES]
    return few[2][few[1].argsort(stable=True)]


def _captions(view: RunView, samples: Features, batch: Snapshot) -> list[dict[str, Any]]:
    copies = batch.embeddings.shape[1] if batch.embeddings.ndim == 3 else 1
    thumbnails = view.thumbnails_of(samples, MAX_LETTERS)
    return [
        thumbnail._replace(place=f"{thumbnail.place}, view {copy}" if copies > 1 else thumbnail.place)._asdict()
        for copy in range(1, copies + 1)
        for thumbnail in thumbnails
    ]


def _anchor(gradients: AnchorGradients, index: int, captions: list[dict[str, Any]], samples: int) -> dict[str, Any]:
    row = int(gradients.anchors[index])
    signs = gradients.coefficients[index].sign() * (1 - 2 * gradients.positives[index].double())
    signed = gradients.strengths[index] * signs

    def strongest(among: Tensor) -> list[dict[str, Any]]:
        count = min(MAX_REFERENCES, int(among.sum()))
        order = gradients.strengths[index].where(among, -1).argsort(descending=True)[:count]
        return [
            captions[at]
            | {
                "cosine": float(gradients.similarities[index, at]),
                "strength": float(signed[at]),
                "note": "another view of it" if at % samples == row % samples else "",
            }
            for at in order.tolist()
        ]

    counts = f"{int(gradients.positives[index].sum()):,} positives, {int(gradients.negatives[index].sum()):,} negatives"
    forces = float(gradients.pull[index].norm()), float(gradients.push[index].norm())
    return captions[row] | {
        "pull": strongest(gradients.positives[index]),
        "push": strongest(gradients.negatives[index]),
        "total": (
            f"{captions[row]['place']}: {counts}. Together they pull with {forces[0]:.3g} and push with {forces[1]:.3g}"
            ", of which only what is orthogonal to the anchor moves it."
        ),
    }
