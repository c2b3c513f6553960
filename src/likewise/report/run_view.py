"""The sections of a page, their view of a run, loaded from its files on first use, and the page's album."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.data import Parts, Samples, Texts, parts_of_run
from likewise.diagnostics import Snapshot, load_snapshots, plots
from likewise.diagnostics.plots.figure import image_data_uri, thumbnails
from likewise.evaluation import KNN, FeatureParts, Features, load_features
from likewise.evaluation.encoding import MAX_INPUT_NUMBERS, as_vectors
from likewise.evaluation.feature_files import OTHER_SIDE
from likewise.evaluation.features import Bar, id_words, label_words, silent
from likewise.report.elements import slug
from likewise.runs import Run
from likewise.runs.score_files import ClassMean, Curves
from likewise.runs.scores import ALL, BEGUN, ENCODER, RAW, Group, Outcomes, Score, one_line, places_of

MAX_SIDE = 64  # pixels of a thumbnail's longer side
MAX_PIXELS = 3_000_000  # of all thumbnails
MAX_LOSSLESS_PIXELS = 400_000  # pixels up to which a mosaic is stored losslessly
QUALITY = 75
NO_TILE = -1
BATCH = 256  # images loaded together
KINDS = (ENCODER, BEGUN, RAW)
MAX_LETTERS = 240  # of a text


class Thumbnail(NamedTuple):
    """A sample on a page: its number in the album, -1 for none, and its caption."""

    tile: int
    name: str
    place: str
    text: str = ""


@final
class Album:
    """The thumbnails of a page, requested by its sections; each sample has one, however often it is requested."""

    def __init__(self, inputs_of: Any) -> None:
        self._inputs_of = inputs_of
        self._tiles: dict[tuple[str, int], int] = {}
        self._there: dict[str, bool] = {}

    def tiles(self, part: str, rows: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return the numbers of thumbnails of a part's samples by their rows, (N,): -1 where there are no images."""
        if not len(rows) or not self._has(part, rows[:1]):
            return torch.full((len(rows),), NO_TILE)
        return torch.tensor([self._tiles.setdefault((part, row), len(self._tiles)) for row in rows.tolist()])

    @property
    def html(self) -> str:
        """The mosaic as an element that the page's scripts read; empty without thumbnails."""
        if not self._tiles:
            return ""
        small = self._small()
        columns = math.ceil(math.sqrt(len(small)))
        rest = -len(small) % columns
        grid = functional.pad(small, (0, 0, 0, 0, 0, 0, 0, rest)).unflatten(0, (-1, columns))
        picture = grid.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
        height, width = small.shape[-2:]
        exact = picture.shape[0] * picture.shape[1] <= MAX_LOSSLESS_PIXELS
        pixels = (255 * picture.clamp(0, 1)).round().to(torch.uint8)
        source = image_data_uri(pixels, "webp", lossless=exact, quality=QUALITY)
        data = {"source": source, "columns": columns, "width": width, "height": height}
        return plots.as_data(data, "album")

    def _has(self, part: str, row: Tensor) -> bool:
        if part not in self._there:
            images = self._inputs_of(part, row)
            self._there[part] = images is not None and images.ndim == 4
        return self._there[part]

    def _small(self) -> Tensor:
        """Return all thumbnails, (N, 3, height, width)."""
        small: list[Tensor] = [torch.empty(0)] * len(self._tiles)
        side = min(MAX_SIDE, math.isqrt(MAX_PIXELS // len(self._tiles)))
        for part in self._there:
            pairs = [(row, number) for (name, row), number in self._tiles.items() if name == part]
            for some in (pairs[start : start + BATCH] for start in range(0, len(pairs), BATCH)):
                rows, numbers = zip(*some, strict=True)
                images = thumbnails(self._inputs_of(part, torch.tensor(rows)), side)
                for number, image in zip(numbers, images, strict=True):
                    small[number] = image
        return torch.stack(small)


@final
class RunView:
    """A run on a page, as its sections see it.

    Args:
        run: The run.
        parts: Its samples, where available; otherwise they are loaded again when a section shows inputs.
        setting: The name of its setting in a comparison.
        features: Its features, where available; otherwise they are loaded from its files.
        progress: Wraps the slow loops of sections.

    Example:
        >>> from pathlib import Path
        >>> run = Run.create(Path("runs"), "two", "points")
        >>> run.describe({"seed": 3})
        >>> view = RunView(run)
        >>> view.seed, view.scores, view.features, view.parts
        (3, (), None, None)
    """

    def __init__(
        self,
        run: Run,
        parts: Parts | None = None,
        setting: str = "",
        *,
        features: FeatureParts | None = None,
        progress: Bar = silent,
    ) -> None:
        self.run = run
        self.setting = setting or run.name
        self.progress = progress
        self.options: Mapping[str, str] = {}  # the distinctive options of its setting in a comparison
        self._given, self._given_features = parts, features

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The contents of run.json: what the run was made of."""
        return self.run.metadata

    @property
    def seed(self) -> int | None:
        """The run's seed; None where it has none."""
        return self.metadata.get("seed")

    @property
    def file(self) -> str:
        """The name of the file that the features were read from; "" where a run made them."""
        return Path(str(self.metadata.get("source", ""))).name

    @cached_property
    def metrics(self) -> Curves:
        """The curves logged by the training."""
        return self.run.metrics

    @cached_property
    def class_means(self) -> list[ClassMean]:
        """The means of the loss's records about its anchors, by class and epoch."""
        return self.run.class_means

    @property
    def batches(self) -> Mapping[str, Snapshot]:
        """The batches of a step of the first epoch and one of the last; empty where there is no file."""
        return load_snapshots(self.run.batches) if self.run.batches.is_file() else {}

    @cached_property
    def class_sizes(self) -> dict[str, int]:
        """Training samples of each class or label by its name; empty where features or labels were not saved."""
        features = self.features
        if features is None or features.train.labels is None:
            return {}
        return dict(zip(features.train.names, features.train.counts.tolist(), strict=True))

    @cached_property
    def scores(self) -> tuple[Score, ...]:
        """All scores of the run."""
        return self.run.scores

    @cached_property
    def outcomes(self) -> Mapping[tuple[str, str, str, str], Outcomes]:
        """The outcomes of each sample, by evaluation, metric, features and part."""
        return {outcomes.key: outcomes for outcomes in self.run.outcomes}

    @cached_property
    def test_scores(self) -> Mapping[tuple[str, str, str, Group], Score]:
        """The final scores on the test part, by evaluation, name of the metric, features and group."""
        final_scores = (score for score in self.scores if score.part == "test" and score.epoch is None)
        return {(*score.key[:3], score.group): score for score in final_scores}

    @property
    def headlines(self) -> list[tuple[str, str]]:
        """Evaluation and name of the metric of each score of the encoder over all test samples."""
        return [key[:2] for key in self.test_scores if key[2:] == (ENCODER, ALL)]

    def by_features(self, evaluation: str, metric: str) -> dict[str, Score]:
        """Return a score over all test samples for the encoder, for the encoder as it began, and for raw inputs."""
        keys = {name: (evaluation, metric, name, ALL) for name in KINDS}
        return {name: self.test_scores[key] for name, key in keys.items() if key in self.test_scores}

    @cached_property
    def features(self) -> FeatureParts | None:
        """The features of the samples; None where there are none."""
        return self._load_features() if self._given_features is None else self._given_features

    @cached_property
    def test_part(self) -> Features | None:
        """The test samples' rows, labels and names, without features, which for many runs would fill the memory."""
        features = self._features_for_now()
        return None if features is None else _bare(features.test)

    @property
    def test_vectors(self) -> Float[Tensor, "n d"] | None:
        """The encoder's features of the test samples, without keeping them; None where there are none."""
        features = self._features_for_now()
        return None if features is None else features.test.vectors

    def predicted(self, features: Features) -> Int[Tensor, " n"] | None:
        """Return the classes that kNN predicted for test samples, (N,), -1 for others; None if it predicted none."""
        outcomes = self.outcomes.get((KNN.name, "prediction", ENCODER, "test"))
        if outcomes is None:
            return None
        positions = places_of(features.numbers, outcomes.rows)
        return outcomes.values.long()[positions].where(positions >= 0, -1)

    def unseen_classes(self, outcomes: Outcomes) -> Int[Tensor, " m"] | None:
        """Return each sample's class, (M,), whatever its rotation, if the classes were not trained on; else None."""
        scores = (score for score in self.test_scores.values() if score.evaluation == outcomes.evaluation)
        if outcomes.classes is not None or self.test_part is None or all(score.classes is None for score in scores):
            return None
        return self.test_part.groups_of(outcomes.rows)

    @cached_property
    def album(self) -> Album:
        """The thumbnails of samples that the page shows."""
        return Album(self.inputs_of)

    @cached_property
    def parts(self) -> Parts | None:
        """The samples; None where the data can no longer be loaded, or is given as features."""
        if self._given is not None:
            return self._given
        try:
            return parts_of_run(self.run)[0]
        except (ValueError, OSError, ImportError, KeyError):  # KeyError: facts without a part
            return None

    def inputs_of(self, part: str, rows: Int[Tensor, " n"]) -> Float[Tensor, "n ..."] | None:
        """Return the inputs of a part's samples by their rows, images from 0 to 1; None where some can't be loaded.

        A part with the suffix "_counterpart" is the other side of pairs.
        """
        samples = self._samples_of(part, rows)
        if samples is None:
            return None
        inputs = samples.inputs[torch.arange(len(samples))]
        return inputs.float() if inputs.is_floating_point() else inputs.float() / 255

    def texts_of(self, part: str, rows: Int[Tensor, " n"]) -> list[str] | None:
        """Return the texts of samples, N of them; None where samples are not texts, or can't be loaded."""
        samples = self._samples_of(part, rows)
        return samples.inputs.strings if samples is not None and isinstance(samples.inputs, Texts) else None

    def raw_vectors(self, features: Features) -> Float[Tensor, "n d"] | None:
        """Return the inputs of samples as vectors; None where there are none, or they are too long to say much."""
        if self.parts is None:
            return None
        shape = self.parts.test.input_shape
        if len(shape) != 3 and math.prod(shape) > MAX_INPUT_NUMBERS:
            return None
        samples = self._samples_of(features.part, features.numbers)
        return None if samples is None else as_vectors(samples)

    def lines_of(self, features: Features, letters: int = MAX_LETTERS) -> list[str]:
        """Return each sample's text as one line of at most `letters` letters; "" where samples are not texts."""
        texts = self.texts_of(features.part, features.numbers) or [""] * len(features)
        return [one_line(text, letters) for text in texts]

    def thumbnails_of(self, features: Features, letters: int = MAX_LETTERS) -> list[Thumbnail]:
        """Return thumbnails of samples: picture, class or labels, id, and the first `letters` letters of a text."""
        tiles = self.album.tiles(features.part, features.numbers).tolist()
        return list(map(Thumbnail, tiles, label_words(features), id_words(features), self.lines_of(features, letters)))

    def _features_for_now(self) -> FeatureParts | None:
        return self._given_features or self.__dict__.get("features") or self._load_features()

    def _load_features(self) -> FeatureParts | None:
        return load_features(self.run.embeddings) if self.run.embeddings.is_file() else None

    def _samples_of(self, part: str, rows: Int[Tensor, " n"]) -> Samples | None:
        if self.parts is None or len(rows) == 0:
            return None
        samples: Samples = getattr(self.parts, part.removesuffix(OTHER_SIDE)).numbered()
        if part.endswith(OTHER_SIDE) and samples.counterparts is not None:
            samples = replace(samples.counterparts, rows=samples.rows)
        positions = places_of(rows, torch.as_tensor(samples.rows))
        return samples[positions] if bool((positions >= 0).all()) else None


def _bare(features: Features) -> Features:
    counterparts = None if features.counterparts is None else _bare(features.counterparts)
    return replace(features, vectors=torch.zeros(len(features), 0), counterparts=counterparts)


@final
@dataclass(frozen=True)
class Content:
    """The content of a section.

    Args:
        heading: Its heading, as text.
        sentence: What it shows and how to read it, as text.
        body: Elements as from `likewise.report.table`, figures by `likewise.diagnostics.plots.as_html`, or your
            own HTML as `markupsafe.Markup`, joined by `+`. A plain string is shown as text.
    """

    heading: str
    sentence: str = ""
    body: str = ""

    @property
    def anchor(self) -> str:
        """The id of the section's element."""
        return slug("section", self.heading.lower())


class Section(ABC):
    """A section of a page: set in `runs` the number of runs it is for, and override `content`.

    Example:
        >>> class Seeds(Section):
        ...     runs = "any"
        ...
        ...     def content(self, views):
        ...         return Content("Seeds", ", ".join(str(view.seed) for view in views))
        >>> Seeds().fits(1), Seeds().fits(7)
        (True, True)
    """

    runs: ClassVar[Literal["one", "several", "any"]] = "one"
    """The pages that it is for: pages of one run, comparisons of several, or any."""

    @abstractmethod
    def content(self, views: Sequence[RunView]) -> Content | None:
        """Return the content to show; None to leave the section out, such as pictures where samples are vectors.

        Args:
            views: The runs on the page, one or several, according to `runs`.
        """

    def fits(self, count: int) -> bool:
        """Tell whether the section is for a page of `count` runs."""
        return self.runs == "any" or (self.runs == "one") == (count == 1)
