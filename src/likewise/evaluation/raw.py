"""Raw inputs as features: what the same evaluations find without an encoder."""

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.data import Parts, Samples
from likewise.evaluation.features import FeatureParts, Features
from likewise.scores import RAW

LONGEST = 3 * 64 * 64  # numbers of an input; beyond, pixels say nothing and cost much
MOST_NUMBERS = 2**24  # of a part: 64 MiB in float32
MOST_SAMPLES = 5000


def raw_features(parts: Parts, features: FeatureParts | None = None, seed: int = 0) -> FeatureParts | None:
    """Return the inputs of the three parts as vectors: of large parts a random subset.

    A part is cut to 5,000 samples, and to 2²⁴ numbers.

    Args:
        parts: The samples.
        features: What the encoder made of them, where it was evaluated on a subset, of which these are one too.
        seed: Seed of the subsets.

    Returns:
        The features, of kind "raw inputs"; None where one input has more than 12,288 numbers.

    Memory:
        64 MiB a part.

    Example:
        >>> samples = Samples(torch.rand(6, 1, 2, 2), torch.tensor([0, 1] * 3), ("cat", "dog"))
        >>> raw_features(Parts(samples, samples, samples)).test.vectors.shape
        torch.Size([6, 4])
    """
    numbers = torch.Size(parts.train.input_shape).numel()
    if numbers > LONGEST:
        return None
    most = max(1, min(MOST_SAMPLES, MOST_NUMBERS // max(1, numbers)))
    pairs = zip(("train", "validation", "test"), (parts.train, parts.validation, parts.test), strict=True)
    among = [None] * 3 if features is None else [of.numbers for of in features]
    return FeatureParts(*(_vectors(*pair, rows, most, seed) for pair, rows in zip(pairs, among, strict=True)))


def as_vectors(samples: Samples) -> Float[Tensor, "n d"]:
    """Return all inputs as vectors, those of uint8 divided by 255.

    Example:
        >>> as_vectors(Samples(torch.full((2, 1, 2, 2), 255, dtype=torch.uint8))).tolist()
        [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    """
    inputs = samples.inputs[torch.arange(len(samples))].flatten(1)
    return inputs.float() if inputs.is_floating_point() else inputs.float() / 255


def _vectors(part: str, samples: Samples, among: Tensor | None, most: int, seed: int) -> Features:
    """Return a part's inputs as vectors."""
    numbered = samples.numbered()
    whole = None if samples.labels is None else samples.counts
    if among is not None and numbered.rows is not None:
        numbered = numbered[torch.isin(numbered.rows, among)]
    if len(numbered) > most:
        chosen = torch.randperm(len(numbered), generator=torch.Generator().manual_seed(seed))[:most].sort().values
        numbered = numbered[chosen]
    return Features(as_vectors(numbered), numbered.labels, numbered.names, numbered.rows, part, RAW, whole)
