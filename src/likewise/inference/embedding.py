"""Features of any number of samples: read ahead by worker processes, and encoded a piece at a time."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from likewise.data import ImagePreprocessing, LazyInputs, Samples, Source
from likewise.evaluation.encoding import Piece, pieces
from likewise.inference.given import Given
from likewise.inference.inputs import of_side, stream_samples
from likewise.inference.model import Model


def samples_for(model: Model, source: Source) -> Samples:
    """Read samples as a model takes them, images on demand and of any size; without labels where there are none."""
    read = stream_samples(source, model.preprocessing or ImagePreprocessing(3, 1, 1))  # any images: refused below
    samples = of_side(read, model.side)
    check_kind(model, samples)
    return samples


def check_kind(model: Model, samples: Samples) -> None:
    """Raise a ValueError unless samples are of the kind that a model takes."""
    takes, shape = model.encoder.input_shape, samples.input_shape
    if len(takes) != len(shape) or (model.preprocessing is None and takes != shape):
        other = f"they may be of the {model.across.side} side, see --side" if model.paired else "give others"
        raise ValueError(f"expected {_in_words(takes)}, as the encoder takes, got {_in_words(shape)}: {other}")


def _in_words(shape: Sequence[int]) -> str:
    return {0: "texts", 1: f"vectors of {sum(shape)} numbers"}.get(len(shape), "images")


def encode_pieces(
    model: Model, inputs: Tensor | LazyInputs, spans: Sequence[range], workers: int | None = None
) -> Iterator[Piece]:
    """Encode pieces of what `samples_for` returns, while workers read those that follow; see `read_ahead`."""
    if isinstance(inputs, Tensor) and model.preprocessing is not None:
        for span in spans:
            images = model.preprocessing.of_tensor(inputs[span.start : span.stop])
            yield Piece(torch.arange(span.start, span.stop), model.encoder.encode(images), {})
        return
    yield from pieces(model.encoder, inputs, spans, workers)


def digest_of(model: Model, file: Path | None = None) -> str:
    """Return a digest of the weights, and of the file that they are in where that isn't a run's; "" if unknown."""
    if isinstance(model.encoder, Given):
        return model.encoder.digest
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.encoder.state_dict().items():
        digest.update(name.encode() + np.ascontiguousarray(tensor.detach().cpu().float().numpy()).tobytes())
    if file is not None and file.is_file():
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
    return digest.hexdigest()
