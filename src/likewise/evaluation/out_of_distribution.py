"""Out-of-distribution detection: are samples of other data farther from the training samples than test samples are?"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from likewise.data import Samples, Source
from likewise.data.rows import files_of, in_words, readable, unreadable
from likewise.evaluation.evaluation import Evaluation
from likewise.evaluation.features import Bar, FeatureParts, Features, joined, silent
from likewise.evaluation.mahalanobis import Mahalanobis
from likewise.evaluation.nearest import nearest
from likewise.evaluation.raw import MOST_NUMBERS, as_vectors
from likewise.evaluation.separation import auroc, false_positives
from likewise.scores import RAW, Metric, Result, Score

WIDEST = 4096  # features; with more, the D x D covariance costs too much
AREA = "AUROC"
RATE = "FPR at 95 % TPR"


@final
class OutOfDistribution(Evaluation):
    """Tell test samples from samples of other data by how far they are from the training samples.

    - kNN distance: that to the k-th nearest training sample, features L2-normalised.
    - Mahalanobis distance: that to the nearest class mean, by a covariance that all classes share; where training
      samples have one class each, and at most 4,096 features.

    For each, the AUROC with DeLong's interval, and the false-positive rate at 95 % true positives, with a bootstrap
    interval: the share of outside samples that are nearer than the threshold which keeps 95 % of the test samples.
    Nothing is chosen. Both numbers belong to test and outside samples together, so there are no outcomes by sample.

    Inputs of a run are encoded by its encoder. Where there are only features, the outside source must give vectors of
    their length.

    Args:
        outside: Where the other samples come from; all its parts are used.
        k: Which nearest training sample, at most as many as there are.
        most: At most this many outside samples, chosen at random. None: all.
        seed: Seed of that choice and of the bootstrap.

    Raises:
        ValueError: k or most is below its least; or, in a call, most outside samples are training samples.

    Memory:
        Features of the outside samples, one tile of similarities, and O(D²) in float64.

    Source:
        Y. Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022; K. Lee et al., A Simple Unified
        Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks, 2018; false-positive rate: D.
        Hendrycks and K. Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution Examples, 2017, and S.
        Liang, Y. Li and R. Srikant, Enhancing the Reliability of Out-of-Distribution Image Detection, 2018.

    Example:
        >>> class Far(Source):
        ...     def load(self):
        ...         return Samples(torch.tensor([[-9.0, -9.0], [-8.0, -9.0]]))
        >>> part = Features(torch.rand(40, 2), torch.arange(40) % 2)
        >>> [round(score.value, 2) for score in OutOfDistribution(Far())(part, part, part).headline]
        [1.0, 0.0, 1.0, 0.0]
    """

    name: ClassVar[str] = "out of distribution"

    def __init__(self, outside: Source, *, k: int = 50, most: int | None = 10_000, seed: int = 0) -> None:
        if k < 1:
            raise ValueError(f"expected k of at least 1, got {k}: 50 is usual")
        if most is not None and most < 2:
            raise ValueError(f"expected most of at least 2, got {most}: leave it out for 10,000 outside samples")
        self.outside = outside
        self.k = k
        self.most = most
        self.seed = seed

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        """Say why these parts can't be evaluated."""
        if len(parts.train) == 0:
            return "it needs a training part to measure distances to, and there is none"
        if len(parts.test) < 2:
            return f"it needs at least 2 test samples, and there are {len(parts.test)}"
        count, *shape = self._outside_shape
        if count < 2:
            return f"it needs at least 2 outside samples, and there are {count}"
        origin, width = parts.test.origin, parts.test.vectors.shape[1]
        if origin is None and parts.test.kind == RAW:
            fits, expected = torch.Size(shape).numel() == width, f"of {width} numbers"
        else:
            needed = (width,) if origin is None else origin.input_shape
            fits, expected = tuple(shape) == needed, f"of shape {needed}"
        return None if fits else f"it needs outside inputs {expected}, and those of the source are {tuple(shape)}"

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        """Measure the distances of test and outside samples to the training samples."""
        train, validation, test = parts
        others = self._encoded(test)
        self._check_outside(train, others)
        learned = joined(train, validation) if refit else train
        scores: list[Score] = []
        for kind, settings, distances in self._measures(learned, progress):
            inside, outside = distances(test.vectors), distances(others)
            protocol = {"outside samples": len(outside), "outside": self._source}
            for metric, values, count in (
                (Metric(f"{AREA}, {kind} distance"), auroc(inside, outside), len(inside) + len(outside)),
                (
                    Metric(f"{RATE}, {kind} distance", better="lower"),
                    false_positives(inside, outside, self.seed),
                    len(outside),
                ),
            ):
                where = (count, test.kind, test.part)
                scores.append(Score(self.name, metric, *values, *where, settings=settings, protocol=protocol))
        return Result(tuple(scores))

    def _check_outside(self, train: Features, others: Tensor) -> None:
        """Raise a ValueError if most outside samples have the features of a training sample."""
        known = {row.tobytes() for row in train.vectors.float().numpy()}
        same = sum(row.tobytes() in known for row in others.float().numpy())
        if same > len(others) / 2:
            raise ValueError(
                f"expected outside samples of other data, got {same:,} of {len(others):,} from {self._source} that are "
                "training samples: name another source"
            )

    def _measures(
        self, train: Features, progress: Bar
    ) -> Iterator[tuple[str, Mapping[str, Any], Callable[[Tensor], Tensor]]]:
        """Yield the name of each distance, its settings, and what measures it."""
        k = min(self.k, len(train))

        def to_neighbour(vectors: Tensor) -> Tensor:
            found = nearest(vectors, train.vectors, k, progress=progress, doing=f"{self.name}, neighbours")
            return torch.cat([1 - similarities[:, -1].cpu() for _, similarities, _ in found])

        yield "kNN", {"k": k}, to_neighbour
        if train.label_kind == "classes" and train.vectors.shape[1] <= WIDEST:
            yield "Mahalanobis", {}, Mahalanobis(train).distances

    @property
    def _source(self) -> str:
        """The source of outside samples in words: its class, and its name or path."""
        known = (getattr(self.outside, name, None) for name in ("name", "path"))
        return " ".join([type(self.outside).__name__, *(str(of) for of in known if of is not None)])

    @cached_property
    def _outside_shape(self) -> tuple[int, ...]:
        """The shape of all outside inputs together; the inputs themselves aren't kept."""
        return tuple(self.outside.load().inputs.shape)

    def _encoded(self, test: Features) -> Tensor:
        """Return the features of the outside samples, (N, D), or of a random subset."""
        samples: Samples = self.outside.load()
        most = len(samples) if self.most is None else self.most
        if test.kind == RAW:
            most = min(most, max(2, MOST_NUMBERS // max(1, test.vectors.shape[1])))
        if len(samples) > most:
            generator = torch.Generator().manual_seed(self.seed)
            samples = samples[torch.randperm(len(samples), generator=generator)[:most].sort().values]
        if test.origin is not None:
            vectors = test.origin.encode(samples.inputs)
        elif test.kind == RAW:
            vectors = as_vectors(samples)
        else:
            vectors = samples.inputs[torch.arange(len(samples))].float()
        rows = torch.arange(len(samples))
        if lost := unreadable(samples.inputs, rows):
            warnings.warn(f"of outside samples: {in_words(files_of(lost))}", stacklevel=2)
            vectors = vectors[readable(samples.inputs, rows)]
        return Features(vectors, None, part="outside").vectors  # checks that they are finite
