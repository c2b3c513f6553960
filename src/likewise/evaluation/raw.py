"""Raw inputs as features: what the same evaluations find without an encoder. Of texts these are weights of words."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.data import Parts, Samples, Texts
from likewise.data.rows import Rows
from likewise.evaluation.features import FeatureParts, Features, Origin
from likewise.evaluation.logistic_regression import CONSTANT
from likewise.scores import RAW

LONGEST = 3 * 64 * 64  # numbers of an input; beyond, pixels say nothing and cost much
MOST_NUMBERS = 2**24  # of a part: 64 MiB in float32
TERMS = 2048  # words that texts are described by
MOST_TEXTS = 2**16  # of a part: 512 MiB in float32


def raw_features(parts: Parts, features: FeatureParts | None = None, seed: int = 0) -> FeatureParts | None:
    """Return the inputs of the three parts as vectors: of large parts a random subset.

    A part is cut to 2²⁴ numbers. Vectors are standardised, each number by its mean and standard deviation over the
    training part, since numbers of any unit may stand side by side; one that is constant there is 0. Texts are
    described by TF-IDF of the 2,048 most frequent words and pairs of words: 1 + log of the count, times the logarithm
    of the inverse share of training texts that have it, L2-normalised. Of texts a part is cut to 65,536.

    Args:
        parts: The samples.
        features: What the encoder made of them, where it was evaluated on a subset, of which these are one too.
        seed: Seed of the subsets.

    Returns:
        The features, of kind "raw inputs"; None where one input has more than 12,288 numbers.

    Memory:
        64 MiB a part, of texts 512.

    Example:
        >>> samples = Samples(torch.rand(6, 1, 2, 2), torch.tensor([0, 1] * 3), ("cat", "dog"))
        >>> raw_features(Parts(samples, samples, samples)).test.vectors.shape
        torch.Size([6, 4])
    """
    if isinstance(parts.train.inputs, Texts):
        return _of_texts(parts, features, seed)
    numbers = torch.Size(parts.train.input_shape).numel()
    if numbers > LONGEST:
        return None
    most = max(1, MOST_NUMBERS // max(1, numbers))
    whole = (parts.train, parts.validation, parts.test)
    among = [None] * 3 if features is None else [of.numbers for of in features]
    seen = parts.train.names[: len(parts.test.names)] == parts.test.names
    named = zip(("train", "validation", "test"), whole, among, strict=True)
    some = [(part, _some(of, rows, most, seed, whole_classes=not seen), of) for part, of, rows in named]
    raw = FeatureParts(*(_raw(as_vectors(few), few, part, of) for part, few, of in some))
    if features is not None:  # of which some inputs may be left out
        labelled = zip(raw, features, strict=True)
        raw = FeatureParts(*(of if of.labels is None else replace(of, whole=ours.frequencies) for of, ours in labelled))
    if len(parts.train.input_shape) > 1:
        return raw
    encode = _standardizing(raw.train.vectors)
    standard = ((of, encode(of.vectors), few) for of, (_, few, _) in zip(raw, some, strict=True))
    return FeatureParts(*(replace(of, vectors=vectors, origin=Origin(few, encode)) for of, vectors, few in standard))


def as_vectors(samples: Samples) -> Float[Tensor, "n d"]:
    """Return all inputs as vectors, those of uint8 divided by 255.

    Example:
        >>> as_vectors(Samples(torch.full((2, 1, 2, 2), 255, dtype=torch.uint8))).tolist()
        [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    """
    inputs = samples.inputs[torch.arange(len(samples))].flatten(1)
    return inputs.float() if inputs.is_floating_point() else inputs.float() / 255


def _standardizing(train: Float[Tensor, "n d"]) -> Callable[[Tensor | Rows], Tensor]:
    """Return what standardises vectors as the training part's, and makes a number 0 that is constant there."""
    deviation, mean = torch.std_mean(train, dim=0, correction=0)
    divisor = torch.where(deviation > CONSTANT * mean.abs(), deviation, torch.inf)
    return lambda inputs: (as_vectors(Samples(inputs)) - mean) / divisor


def _of_texts(parts: Parts, features: FeatureParts | None, seed: int) -> FeatureParts | None:
    """Return TF-IDF of texts; None where training texts have no words."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415 - for texts only

    whole = (parts.train, parts.validation, parts.test)
    among = [None] * 3 if features is None else [of.numbers for of in features]
    some = [_some(samples, rows, MOST_TEXTS, seed) for samples, rows in zip(whole, among, strict=True)]
    terms = TfidfVectorizer(max_features=TERMS, ngram_range=(1, 2), sublinear_tf=True)
    try:
        terms.fit(_strings(some[0]))
    except ValueError:  # no words at all
        return None
    vectors = [torch.from_numpy(terms.transform(_strings(samples)).toarray()).float() for samples in some]
    named = zip(vectors, some, whole, ("train", "validation", "test"), strict=True)
    raw = (_raw(of, samples, part, all_of) for of, samples, all_of, part in named)
    return FeatureParts(*(replace(of, one_unit=True) for of in raw))


def _strings(samples: Samples) -> list[str]:
    return samples.inputs.strings if isinstance(samples.inputs, Texts) else []


def _some(samples: Samples, among: Tensor | None, most: int, seed: int, *, whole_classes: bool = False) -> Samples:
    """Return a subset of the samples whose rows are given; unseen classes stay whole, for episodes."""
    numbered = samples.numbered()
    if among is not None and numbered.rows is not None:
        numbered = numbered[torch.isin(numbered.rows, among)]
    return numbered.fewer(most, seed, whole_classes=whole_classes)


def _raw(vectors: Tensor, some: Samples, part: str, whole: Samples) -> Features:
    counts = None if whole.labels is None else whole.counts
    return Features(vectors, some.labels, some.names, some.rows, part, RAW, counts)
