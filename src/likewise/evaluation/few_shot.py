"""Few-shot episodes: classification of samples of a few new classes from a few samples of each."""

import warnings
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from itertools import chain, product
from typing import ClassVar, Literal, Self, final, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from likewise.data import EpisodeSampler, EpisodeShape
from likewise.data.episode_sampler import fitted, fitting, fitting_words, shortage
from likewise.evaluation.evaluation import Evaluation, ScoreCollector, as_int_list, needs_classes
from likewise.evaluation.features import Bar, FeatureParts, Features, silent
from likewise.evaluation.intervals import of_share, over_classes, over_classes_of_episodes, student
from likewise.evaluation.logistic_regression import episode_probe
from likewise.runs.scores import Metric, Outcomes, Result, Score

Distance = Literal["cosine", "euclidean", "centred cosine"]
Classifier = Literal["nearest mean", "logistic regression"]
NUMBERS = 2**22  # of features at a time: 16 MiB in float32
CENTRED_COSINE: Distance = "centred cosine"
DISTANCES: tuple[Distance, ...] = get_args(Distance)


@final
class FewShot(Evaluation):
    """Classify the queries of episodes by the nearest class mean of their support.

    An episode is drawn from the test part: N classes, K samples of each to learn from, and Q others of each to
    classify. The episodes depend on the labels and the seed alone: all encoders get the same ones.

    - cosine: the nearest class is the one whose mean features have the highest cosine with the query's.
    - centred cosine: the same, after subtracting the mean training features and scaling to length 1.
    - euclidean: the nearest class is the one whose mean features are at the smallest distance.

    Intervals are over classes, as other classes would have given another accuracy: the jackknife over classes with
    Student's quantile; if every episode has all classes, over the accuracies of classes. Rotated copies of a class
    count as one. A note has the narrower interval over episodes, as reported in papers.

    Args:
        ways: N, the classes of an episode, or several numbers. None: 5, or all classes if they are fewer.
        shots: K, the samples of each class to learn from, or several numbers.
        queries: Q, the samples of each class to classify. None: 15, or as many as every class has besides its shots.
        episodes: The number of episodes.
        distance: The distance from a query to a class. None: chosen on the validation part, for each N and K, with
            fewer classes and queries if it has fewer.
        classifier: "nearest mean", or "logistic regression", fitted in every episode to the support's features: scaled
            to length 1 for the cosines, relative to the support's mean for euclidean.
        penalty: λ of the logistic regression, λ/2·‖W‖² beside the sum of cross-entropies: 1/C in scikit-learn.
        seed: Seed of the episodes.

    Memory:
        O(M·D), and 16 MiB for episodes, or for one episode if it takes more.

    Source:
        O. Vinyals et al., Matching Networks for One Shot Learning, 2016. Centred features: Y. Wang et al., SimpleShot,
        2019. Logistic regression: Y. Tian et al., Rethinking Few-Shot Image Classification, 2020.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> labels = torch.arange(60) % 6
        >>> test = Features(torch.eye(6)[labels] + 0.3 * torch.randn(60, 6), labels)
        >>> result = FewShot(ways=5, shots=[1, 5], queries=5, episodes=100, distance="cosine")(test, test, test)
        >>> [(score.metric.name, round(score.value, 2)) for score in result.headline]
        [('5-way 1-shot accuracy', 0.9), ('5-way 5-shot accuracy', 0.95)]
    """

    name: ClassVar[str] = "few-shot"

    def __init__(
        self,
        ways: int | list[int] | None = None,
        shots: int | list[int] = [1, 5],  # noqa: B006 - never changed
        queries: int | None = None,
        episodes: int = 2000,
        *,
        distance: Distance | None = None,
        classifier: Classifier = "nearest mean",
        penalty: float = 1.0,
        seed: int = 0,
    ) -> None:
        if distance not in {None, *DISTANCES}:
            raise ValueError(f"expected distance as one of {', '.join(DISTANCES)}, got {distance}")
        if classifier not in get_args(Classifier):
            raise ValueError(f"expected classifier as one of {', '.join(get_args(Classifier))}, got {classifier}")
        if episodes < 2:
            raise ValueError(f"expected at least 2 episodes, got {episodes}: an interval needs two")
        if not penalty > 0:
            raise ValueError(f"expected penalty above 0, got {penalty}")
        pairs = product([None] if ways is None else as_int_list("ways", ways), as_int_list("shots", shots))
        self._given = (("ways", ways), ("queries", queries))
        self.shapes = tuple(EpisodeShape.usual(episodes, *pair, queries) for pair in pairs)
        for shape in self.shapes:
            shape.check()
        self.distance: Distance | None = distance
        self.classifier: Classifier = classifier
        self.penalty = penalty
        self.seed = seed

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        test = parts.test
        if why := needs_classes(test):
            return why
        if self.distance == CENTRED_COSINE and len(parts.train) == 0:
            return f"the distance {CENTRED_COSINE} needs the mean of a training part, and there is none"
        for shape in self._shapes_for(test):
            if lacking := shortage(test.counts, test.names, shape, "evaluations"):
                needed, available, remedy = lacking
                return f"it needs {needed}, and the {test.part} part has {available}: {remedy}"
        return None

    def _shapes_for(self, test: Features) -> list[EpisodeShape]:
        """Return the episode shapes for a part; default ways and queries are limited to its classes and samples."""
        fits = [fitted(test.counts, shape, dict(self._given)) for shape in self.shapes]
        return [shape._replace(queries=min(shape.queries for shape in fits)) for shape in fits]

    @classmethod
    def default_for(cls, parts: FeatureParts) -> tuple[Self | None, str]:
        """Return episodes of new classes, reduced to the available samples, and a note on omissions."""
        test = parts.test
        if test.label_kind != "classes" or len(test) == 0 or parts.closed:
            return None, ""
        lacking = shortage(test.counts, test.names, EpisodeShape(1, ways=2, shots=1, queries=1), "evaluations")
        if lacking is not None:
            return None, f"few-shot is left out: it needs {lacking[0]}, and the test part has {lacking[1]}"
        wanted = cls().shapes
        fits = [fitting(test.counts, shape) for shape in wanted]
        fit = [shape for shape in fits if shape is not None]
        smallest = min(fit, key=lambda shape: shape.queries)
        note = fitting_words(test.counts, test.names, wanted[0], smallest)
        left = [str(shape.shots) for shape, fitting_shape in zip(wanted, fits, strict=True) if fitting_shape is None]
        note += f"; without {' and '.join(left)} shots" if left else ""
        episodes = cls(smallest.ways, [shape.shots for shape in fit], smallest.queries)
        return episodes, f"few-shot is {note}" if note else ""

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        del refit
        train, validation, test = parts
        results: list[tuple[Score, Outcomes]] = []
        tried: dict[EpisodeShape, dict[Distance, Score]] = {}
        distances: Sequence[Distance] = DISTANCES if self.distance is None else (self.distance,)
        distances = [distance for distance in distances if len(train) or distance != CENTRED_COSINE]
        score = partial(self._score, train, progress=progress)
        for shape in self._shapes_for(test):
            by = fitting(validation.counts, shape) if validation.label_kind == "classes" else None
            if by is not None and by not in tried:
                tried[by] = {distance: score(validation, by, distance)[0] for distance in distances}
            best, note = self.distance or DISTANCES[0], "too little validation to choose the distance by"
            if by is not None:
                best = max(tried[by], key=lambda distance, scores=tried[by]: scores[distance].value)
                note = "" if by.ways == shape.ways else f"distance chosen {by.ways}-way, by all validation classes"
            note = note if self.distance is None else ""
            results.append(score(test, shape, best, note))
        scores, outcomes = zip(*results, strict=True)
        return Result(scores, tuple(chain.from_iterable(each.values() for each in tried.values())), outcomes)

    def _score(
        self, train: Features, part: Features, shape: EpisodeShape, distance: Distance, note: str = "", *, progress: Bar
    ) -> tuple[Score, Outcomes]:
        metric = f"{shape.ways}-way {shape.shots}-shot accuracy"
        metric += f", {self.classifier}" if self.classifier != "nearest mean" else ""
        draw = EpisodeSampler(part.classes, part.names, shape, "evaluations")
        rows = draw(torch.Generator().manual_seed(self.seed))
        vectors = as_compared(part.vectors, train.vectors, distance)
        if self.classifier == "logistic regression" and distance == "cosine":
            vectors = functional.normalize(vectors, dim=1)
        numbers = shape.samples * vectors.shape[1]
        if self.classifier != "nearest mean":  # copies and matrices of the fit, in float64
            numbers = 3 * numbers + 12 * (shape.ways * shape.shots) ** 2
        size = max(1, NUMBERS // numbers)
        batches = progress(rows.split(size), f"{self.name}, {metric}, {part.part}")
        right, converged = zip(*(self._right(vectors[some], shape, distance) for some in batches), strict=True)
        shares, classes = torch.cat(right).double(), part.groups[rows[:, :, 0]]
        class_notes = _class_notes(train, part)
        if late := int((~torch.cat(converged)).sum()):
            unconverged = f"{late:,} of {shape.episodes:,} classifiers had not converged"
            class_notes.append(f"{unconverged}: raise the penalty, {self.penalty:g}")
            warnings.warn(f"{metric}, {part.part}: {class_notes[-1]}", stacklevel=2)
        digest = blake2b(repr((self.seed, tuple(shape))).encode(), digest_size=4)  # identifies the episodes
        digest.update(part.classes.numpy().tobytes() + part.numbers.numpy().tobytes())
        accuracy = shares.mean(dim=1)
        mean, different = float(accuracy.mean()), len(classes.unique())
        spread = f"± {100 * (student(accuracy)[1] - mean):.2f} points over {shape.episodes:,} episodes"  # as in papers
        bounds = over_classes_of_episodes(accuracy, classes) or over_classes(shares.flatten(), classes.flatten())
        score = ScoreCollector(self.name, part, {"distance": distance}).add(
            Metric(metric, selects=True),
            mean,
            *of_share(bounds, mean, different),
            shape.episodes,
            counted="episode",
            classes=different,
            protocol={"episodes": digest.hexdigest()},
            notes=(spread, *class_notes, *filter(None, [note])),
        )
        numbers, where = -1 - torch.arange(shape.episodes), (part.kind, part.part)
        return score, Outcomes(self.name, metric, numbers, accuracy.float(), *where, classes, shares.float())

    def _right(
        self, features: Float[Tensor, "e n s d"], shape: EpisodeShape, distance: Distance
    ) -> tuple[Float[Tensor, "e n"], Bool[Tensor, " e"]]:
        """Return each episode's share of right queries per class, and whether its classifier has converged."""
        support, queries = features[:, :, : shape.shots], features[:, :, shape.shots :].flatten(1, 2)
        converged = torch.ones(len(features), dtype=torch.bool)
        if self.classifier == "logistic regression":
            if distance == "euclidean":  # without a bias the origin matters: the support's mean
                origin = support.mean(dim=(1, 2), keepdim=True)
                support, queries = support - origin, queries - origin.squeeze(2)
            scores, converged = episode_probe(support, queries, self.penalty)
        else:
            scores = nearest_means(support.mean(dim=2), queries, distance)
        truth = torch.arange(shape.ways).repeat_interleave(shape.queries)
        return (scores.argmax(dim=2) == truth).float().unflatten(1, (shape.ways, -1)).mean(dim=2), converged


def nearest_means(
    means: Float[Tensor, "e n d"], queries: Float[Tensor, "e q d"], distance: Distance
) -> Float[Tensor, "e q n"]:
    """Return scores of queries for class means: −‖q − m‖² + ‖q‖², or q·m/‖m‖ less its mean over an episode's classes.

    For tight clusters, cosines with the classes differ by less than float32 resolves. The classes' common mean is
    therefore subtracted from the class means, in float64, before multiplication by the queries.
    """
    if distance == "euclidean":
        return 2 * queries @ means.mT - means.square().sum(dim=2).unsqueeze(1)
    directions = functional.normalize(means.double(), dim=2)
    return queries @ (directions - directions.mean(dim=1, keepdim=True)).to(queries.dtype).mT


def as_compared(vectors: Float[Tensor, "m d"], train: Float[Tensor, "n d"], distance: Distance) -> Float[Tensor, "m d"]:
    """Return features prepared for a distance."""
    if distance == "euclidean":  # a common origin changes no distance, and a near one loses no digits
        return vectors - vectors.mean(dim=0)
    if distance == "cosine":
        return vectors
    return functional.normalize(vectors - train.mean(dim=0), dim=1)


def _class_notes(train: Features, part: Features) -> list[str]:
    occurring, trained = (
        {name for name, count in zip(features.names, features.counts.tolist(), strict=False) if count}
        for features in (part, train)
    )
    known = len(occurring & trained)
    return [f"{'all' if known == len(occurring) else known} of its classes are in the training part too"] * (known > 0)
