"""Features of samples from another source, encoded as the test part was: outside samples, a gallery of one's own."""

import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.data import Samples, Source
from likewise.data.lazy_inputs import files_of, in_words, readable, unreadable
from likewise.evaluation.features import Features
from likewise.evaluation.raw import as_vectors
from likewise.runs.scores import RAW


def why_not_fitting(test: Features, samples: Samples) -> str | None:
    """Return why samples can't be encoded as the test part was; None where they can."""
    shape, origin, width = samples.input_shape, test.origin, test.vectors.shape[1]
    if origin is None and test.kind == RAW:
        fits, expected = torch.Size(shape).numel() == width, f"of {width} numbers"
    else:
        needed = (width,) if origin is None else origin.input_shape
        fits, expected = tuple(shape) == needed, f"of shape {needed}"
    return None if fits else f"inputs {expected}, and those of the source are {tuple(shape)}"


def encoded_as(test: Features, samples: Samples, what: str) -> tuple[Float[Tensor, "n d"], Samples]:
    """Return the features of samples, and the samples that could be read; a warning names the others."""
    if test.origin is not None:
        vectors = test.origin.encode(samples.inputs)
    elif test.kind == RAW:
        vectors = as_vectors(samples)
    else:
        vectors = samples.inputs[torch.arange(len(samples))].float()
    rows = torch.arange(len(samples))
    if lost := unreadable(samples.inputs, rows):
        warnings.warn(f"of {what}: {in_words(files_of(lost))}", stacklevel=2)
        kept = readable(samples.inputs, rows)
        vectors, samples = vectors[kept], samples[kept]
    return vectors, samples


def words_of(source: Source) -> str:
    """Return a source in words: its class, and its name or path."""
    known = (getattr(source, name, None) for name in ("name", "path"))
    return " ".join([type(source).__name__, *(str(value) for value in known if value is not None)])
