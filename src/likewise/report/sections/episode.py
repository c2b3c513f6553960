"""An episode of few-shot learning in pictures: supports, queries, and which cells look like which class."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.data import EpisodeSampler, EpisodeShape
from likewise.diagnostics import cell_matches, plots
from likewise.evaluation import FeatureParts, FewShot
from likewise.evaluation.features import id_words
from likewise.evaluation.few_shot import DISTANCES, Distance, as_compared, nearest_means
from likewise.models import Encoder
from likewise.report.elements import sentence, table
from likewise.report.sections.section import Content, Section
from likewise.report.subject import Subject
from likewise.scores import ENCODER

SHAPE = EpisodeShape(episodes=20, ways=5, shots=1, queries=3)
TRUTH = torch.arange(SHAPE.ways).repeat_interleave(SHAPE.queries)  # each query's class
SHOWN = 8
TINT = (1.0, 0.55, 0.0)  # orange
STRENGTH = 0.65


class EpisodeSection(Section):
    """An episode of few-shot learning in pictures."""

    def content(self, subjects: Sequence[Subject]) -> Content | None:
        subject = subjects[0]
        features = subject.features
        if features is None or not _can_be_shown(subject, features):
            return None
        distance = _distance(subject)
        rows, predicted = _episode(features, distance)
        images = subject.inputs_of("test", features.test.numbers[rows.flatten()])
        if images is None or images.ndim != 4:
            return None
        right = predicted == TRUTH
        order = right.long().argsort(stable=True)  # the wrong ones first
        chosen = torch.cat([order[: SHOWN // 2], order[-(SHOWN // 2) :]])
        names = [features.test.names[label] for label in features.test.classes[rows[:, 0]].tolist()]
        columns = [f"class {place}" for place in range(1, SHAPE.ways + 1)]
        pairs = list(zip(TRUTH[chosen].tolist(), predicted[chosen].tolist(), strict=True))
        captions = ["supports", *(_caption(place, *classes) for place, classes in enumerate(pairs, 1))]
        first, asked = rows[:, 0], rows[:, SHAPE.shots :].flatten()[chosen]
        supports = list(zip(columns, id_words(features.test[first]), names, [""] * SHAPE.ways, strict=True))
        queries = [
            (f"query {place}", called, names[true], names[found])
            for place, (called, (true, found)) in enumerate(zip(id_words(features.test[asked]), pairs, strict=True), 1)
        ]
        encoder: Any = subject.run.encoder()
        images = images.unflatten(0, rows.shape)
        shares = _shares(encoder, images)
        picture = _picture(images, shares, chosen, _cell_of_pixels(encoder, images, shares))
        figure = plots.as_html(plots.image_rows(picture, captions, ["", *columns]), "episode")
        counts = {"ways": SHAPE.ways, "episodes": SHAPE.episodes, "right": int(right.sum()), "queries": len(right)}
        said = sentence("episode", distance=distance, **counts)
        return Content("An episode", said, figure + table(["", "image", "class", "predicted"], [*supports, *queries]))


def _can_be_shown(subject: Subject, features: FeatureParts) -> bool:
    if not any(score.evaluation == FewShot.name for score in subject.scores) or not subject.run.weights.is_file():
        return False
    counts = features.test.counts
    return int((counts > 0).sum()) >= SHAPE.ways and int(counts[counts > 0].min()) >= SHAPE.each


def _caption(place: int, true: int, found: int) -> str:
    return f"query {place}: class {true + 1}" if found == true else f"✗ query {place}: {true + 1} as {found + 1}"


def _distance(subject: Subject) -> Distance:
    """Return the distance that was chosen for the episodes most like the one that is shown."""
    own = [score for key, score in subject.test_scores.items() if key[0] == FewShot.name and key[2] == ENCODER]
    first = min(own, key=lambda score: f"{SHAPE.shots}-shot" not in score.metric.name, default=None)
    return DISTANCES[0] if first is None else first.settings.get("distance", DISTANCES[0])


def _episode(features: FeatureParts, distance: Distance) -> tuple[Int[Tensor, "n s"], Int[Tensor, " q"]]:
    """Return the rows of the first of some episodes in which a query is classified wrongly, and what is predicted."""
    test = features.test
    drawn = EpisodeSampler(test.classes, test.names, SHAPE)(torch.Generator().manual_seed(0))
    vectors = as_compared(test.vectors, features.train.vectors, distance)[drawn]
    support, queries = vectors[:, :, : SHAPE.shots].mean(dim=2), vectors[:, :, SHAPE.shots :].flatten(1, 2)
    predicted = nearest_means(support, queries, distance).argmax(dim=2)
    wrong = (predicted != TRUTH).any(dim=1).nonzero().flatten()
    place = int(wrong[0]) if len(wrong) else 0
    return drawn[place], predicted[place]


@torch.no_grad()
def _shares(encoder: Encoder, images: Float[Tensor, "n s ch h w"]) -> Float[Tensor, "q n h w"]:
    """Return how much each cell of the queries looks like each class; of an encoder without maps, one cell."""
    flat = images.flatten(0, 1)
    try:
        maps = encoder.maps(flat)
    except ValueError:
        maps = encoder(flat)[..., None, None]
    maps = maps.unflatten(0, images.shape[:2])
    return cell_matches(maps[:, SHAPE.shots :].flatten(0, 1), maps[:, : SHAPE.shots].mean(dim=1))


def _cell_of_pixels(encoder: Encoder, images: Tensor, shares: Tensor) -> tuple[Int[Tensor, " h"], Int[Tensor, " w"]]:
    """Return which row and column of cells shows each pixel; an encoder that doesn't say has cells of equal parts."""
    sides, cells = images.shape[-2:], shares.shape[-2:]
    try:
        grid = encoder.cell_grid
    except ValueError:
        rows, columns = (torch.arange(side) * count // side for side, count in zip(sides, cells, strict=True))
    else:
        rows, columns = (grid.cell_of_pixels(side, count) for side, count in zip(sides, cells, strict=True))
    return rows, columns


def _picture(
    images: Float[Tensor, "n s ch h w"],
    shares: Float[Tensor, "q n i j"],
    chosen: Int[Tensor, " k"],
    cells: tuple[Int[Tensor, " h"], Int[Tensor, " w"]],
) -> Float[Tensor, "r k 3 h w"]:
    """Return a row of supports, and of each query the image and how much it looks like each class."""
    rows, columns = cells
    colour = images if images.shape[2] == 3 else images[:, :, :1].expand(-1, -1, 3, -1, -1)
    supports, queries = colour[:, 0], colour[:, SHAPE.shots :].flatten(0, 1)[chosen]
    heat = shares[chosen][:, :, rows[:, None], columns].unsqueeze(2)
    tint = torch.tensor(TINT).view(3, 1, 1)
    tinted = queries.unsqueeze(1) * (1 - STRENGTH * heat) + STRENGTH * heat * tint
    first = torch.cat([torch.ones_like(supports[:1]), supports]).unsqueeze(0)
    return torch.cat([first, torch.cat([queries.unsqueeze(1), tinted], dim=1)])
