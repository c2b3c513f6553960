"""Subsamples of each part, of limited size, chosen before any of their inputs are read or encoded."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from likewise.data.samples import Samples
from likewise.evaluation.features import FeatureParts, Features, closed


class Subsample(NamedTuple):
    """Samples of a part, and how many each class or label has in the whole part, (C,), where they are a subset."""

    samples: Samples
    whole: Int[Tensor, " c"] | None = None

    def of(self, features: Features) -> Features:
        """Return features of these samples with the counts of the whole part that they come from."""
        return features if self.whole is None else replace(features, whole=self.whole)


def capped(parts: Sequence[Samples], most: int | None) -> list[Subsample]:
    """Subsample each of three parts to `most`; classes that are not trained on stay whole."""
    train, validation, test = (part.as_evaluated().numbered() for part in parts)
    new = test.label_kind == "classes" and not closed(train, test)
    subsamples: list[Subsample] = []
    for part, whole_classes in ((train, False), (validation, new), (test, new)):
        few = part if most is None else part.fewer(most, whole_classes=whole_classes)
        subsamples.append(Subsample(few, None if few is part or part.labels is None else part.counts))
    return subsamples


def capped_features(features: FeatureParts, most: int | None) -> FeatureParts:
    """Return at most `most` features of each part, chosen as `capped` chooses samples."""
    if most is None:
        return features
    train, validation, test = features
    new = test.label_kind == "classes" and not features.closed
    return FeatureParts(train.fewer(most), *(part.fewer(most, whole_classes=new) for part in (validation, test)))
