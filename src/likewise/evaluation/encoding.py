"""Features of samples, also of another source, encoded piece by piece; and raw inputs as baseline features."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from likewise import distributed
from likewise.data import Parts, Samples, Source, Texts
from likewise.data.lazy_inputs import (
    LazyInputs,
    files_of,
    in_words,
    note_unreadable,
    on_demand,
    read_ahead,
    readable,
    spans_of,
    unreadable,
)
from likewise.evaluation.features import Bar, FeatureParts, Features, Origin, silent
from likewise.evaluation.logistic_regression import MIN_VARIATION
from likewise.files.formats import PARTS
from likewise.models import Encoder
from likewise.runs.scores import RAW

MAX_INPUT_NUMBERS = 3 * 64 * 64  # numbers of an input; larger images are shrunk, as more pixels add nothing
IMAGE_BATCH = 256  # images shrunk at a time
MAX_PART_NUMBERS = 2**24  # of a part: 64 MiB in float32
TERMS = 2048  # words that describe texts
MAX_PART_TEXTS = 2**16  # of a part: 512 MiB in float32
Encode = Callable[[Tensor | LazyInputs], Tensor]


class Piece(NamedTuple):
    """A piece of encoded samples."""

    rows: Int[Tensor, " n"]
    features: Float[Tensor, "n d"]
    lost: dict[int, str]  # unreadable files, which have no features, by their numbers in the source


def pieces(
    encoder: Encoder, inputs: Tensor | LazyInputs, spans: Sequence[range], workers: int | None = None
) -> Iterator[Piece]:
    """Encode pieces of inputs, given as spans of rows, while workers read the next ones; see `read_ahead`."""
    if on_demand(inputs):
        for read in read_ahead(inputs, spans, workers):  # pyright: ignore[reportArgumentType] - no tensor
            yield Piece(read.rows, encoder.encode(read.inputs, max(1, len(read.rows))), read.files)
        return
    for span in spans:
        rows = torch.arange(span.start, span.stop)
        some = inputs[span.start : span.stop] if isinstance(inputs, Tensor) else inputs.take(rows)
        yield Piece(rows, encoder.encode(some), {})


def _in_turns(
    encoder: Encoder, inputs: Tensor | LazyInputs, spans: Sequence[range], workers: int | None
) -> Iterator[Piece]:
    """Encode pieces in turns, every W-th on each of W processes; yield all on the first process, none on the others.

    All processes of the group have to make the same call. The features are sent between CPUs, as float32.
    """
    rank, world = distributed.rank(), distributed.world_size()
    local_pieces = pieces(encoder, inputs, spans[rank::world], workers)
    for turn, span in enumerate(spans):
        owner = turn % world
        if owner == rank:
            piece = next(local_pieces)
            if rank == 0:
                yield piece
                continue
            sent = piece.features.new_zeros(len(span), 1 + piece.features.shape[1])
            # the first column marks readable samples
            sent[piece.rows - span.start] = functional.pad(piece.features, (1, 0), value=1.0)
            dist.send(sent, 0)
        elif rank == 0:
            dist.recv(sent := torch.empty(len(span), 1 + encoder.feature_dim, dtype=torch.float32), owner)
            could = sent[:, 0] > 0
            if not bool(could.all()):
                note_unreadable(inputs, span.start + (~could).nonzero().flatten())
            yield Piece(span.start + could.nonzero().flatten(), sent[could, 1:], {})


def encode_share(
    samples: Samples, encoder: Encoder, second: Encoder | None = None, *, workers: int | None = None
) -> None:
    """Encode the share of a process other than the first, which calls `features_of(..., shared=True)` meanwhile."""
    samples = samples.as_evaluated()
    counterparts = samples.counterparts
    for by, inputs in ((encoder, samples.inputs), (second, None if counterparts is None else counterparts.inputs)):
        if by is not None and inputs is not None:
            for _ in _in_turns(by, inputs, spans_of(inputs, [range(len(inputs))]), workers):
                pass


def features_of(
    samples: Samples,
    encoder: Encoder,
    part: str,
    progress: Bar = silent,
    second: Encoder | None = None,
    *,
    workers: int | None = None,
    shared: bool = False,
) -> Features:
    """Encode samples, inputs (N, ...) to features (N, D), without the samples whose inputs turn out to be unreadable.

    The other side of pairs is encoded by its own encoder, `second`. Inputs that are not in memory are read ahead by
    worker processes; see `read_ahead`. If `shared`, all other processes call `encode_share` meanwhile.
    """
    samples = samples.as_evaluated()
    could = torch.ones(len(samples), dtype=torch.bool)

    def encoded(by: Encoder, inputs: Tensor | LazyInputs) -> Tensor:
        def shown(walked: Iterable[Any]) -> Iterable[Any]:
            return progress(walked, f"encoding, {part}")

        if not (shared or on_demand(inputs)):
            return by.encode(inputs, progress=shown)
        vectors = torch.zeros(len(inputs), by.feature_dim, dtype=torch.float32)
        spans = spans_of(inputs, [range(len(inputs))])
        walked = (_in_turns if shared else pieces)(by, inputs, spans, workers)
        there = torch.zeros(len(inputs), dtype=torch.bool)
        for _, piece in zip(shown(spans), walked, strict=True):
            vectors[piece.rows], there[piece.rows] = piece.features, True
        could.logical_and_(there)
        return vectors

    counterparts, beside = samples.counterparts, None
    vectors = encoded(encoder, samples.inputs)
    if counterparts is not None and second is not None:
        other_side = replace(counterparts.unlabelled(), rows=samples.rows)
        beside = Features.of(other_side, encoded(second, counterparts.inputs), part)
    features = Features.of(samples, vectors, part, counterparts=beside)
    could &= samples.could_be_read
    return features if bool(could.all()) else features[could.nonzero().flatten()]


def raw_features(parts: Parts, features: FeatureParts | None = None, seed: int = 0) -> FeatureParts | None:
    """Return the inputs of the three parts as vectors; large parts are cut to a random subset.

    A part is cut to 2²⁴ numbers, or to 65,536 texts. Vectors are standardised, each number by its mean and standard
    deviation over the training part; one that is constant there is 0. Texts become TF-IDF vectors of the 2,048 most
    frequent words and pairs of words, with logarithmic counts, L2-normalised. Images of more than 64 x 64 pixels in
    three colours are shrunk to this size by averaging.

    Both sides of pairs become vectors if they have the same type and size: texts with a common vocabulary, vectors
    standardised for each side. Otherwise only the first side does.

    Args:
        parts: The samples.
        features: The encoder's features, if evaluated on a subset of the samples, which is used here too.
        seed: Seed of the subsets.

    Returns:
        The features, of kind "raw inputs"; None where a vector has more than 12,288 numbers.

    Memory:
        64 MiB per part, 512 for texts; twice as much for pairs.

    Example:
        >>> samples = Samples(torch.rand(6, 1, 2, 2), torch.tensor([0, 1] * 3), ("cat", "dog"))
        >>> raw_features(Parts(samples, samples, samples)).test.vectors.shape
        torch.Size([6, 4])
    """
    texts, shape = isinstance(parts.train.inputs, Texts), torch.Size(parts.train.input_shape)
    if not texts and shape.numel() > MAX_INPUT_NUMBERS and len(shape) != 3:
        return None
    most = MAX_PART_TEXTS if texts else max(1, MAX_PART_NUMBERS // max(1, min(shape.numel(), MAX_INPUT_NUMBERS)))
    unseen = not texts and parts.train.names[: len(parts.test.names)] != parts.test.names
    samples = (part.as_evaluated() for part in (parts.train, parts.validation, parts.test))
    named = list(zip(PARTS, samples, features or [None] * 3, strict=True))
    some = [_take_subset(whole, part_features, most, seed, whole_classes=unseen) for _, whole, part_features in named]
    learned = _alike(some[0])
    tfidf = _weights_of_words(learned) if texts else None
    if texts and tfidf is None:
        return None
    encoding = [tfidf or (_standardizing(side) if len(shape) == 1 else _flattened) for side in learned]
    raw: list[Features] = []
    for few, (part, whole, part_features) in zip(some, named, strict=True):
        counts = None if whole.labels is None else whole.counts if part_features is None else part_features.frequencies
        sides: list[Features] = []
        for side, encode in zip(_alike(few), encoding, strict=True):
            origin = Origin(side, encode) if len(side.input_shape) == 1 and not texts else None
            sides.append(Features.of(side, encode(side.inputs), part, kind=RAW, origin=origin, one_unit=texts))
        raw.append(replace(sides[0], whole=counts, counterparts=sides[1] if len(sides) > 1 else None))
    return FeatureParts(*raw)


def _alike(samples: Samples) -> list[Samples]:
    """Return the samples, and their other side if it has the same type and size."""
    other = samples.counterparts
    if other is None or isinstance(other.inputs, Texts) != isinstance(samples.inputs, Texts):
        return [samples]
    return [samples, replace(other, rows=samples.rows)] if other.input_shape == samples.input_shape else [samples]


def as_vectors(samples: Samples) -> Float[Tensor, "n d"]:
    """Return all inputs as vectors, with uint8 divided by 255 and large images shrunk."""
    read = (samples.inputs[rows] for rows in torch.arange(len(samples)).split(IMAGE_BATCH))
    inputs = [shrunk(some).flatten(1) for some in read]
    if not inputs:
        return torch.zeros(0, min(math.prod(samples.input_shape), MAX_INPUT_NUMBERS))
    vectors = torch.cat(inputs)
    return vectors.float() if vectors.is_floating_point() else vectors.float() / 255


def shrunk(inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
    """Return images of at most 12,288 numbers, averaging the pixels of larger ones, in their own dtype."""
    if inputs.ndim != 4 or inputs[:1].numel() <= MAX_INPUT_NUMBERS:
        return inputs
    side = math.isqrt(MAX_INPUT_NUMBERS // inputs.shape[1])
    height, width = (min(side, length) for length in inputs.shape[2:])
    small = functional.adaptive_avg_pool2d(inputs.float(), (height, width))
    return small if inputs.is_floating_point() else small.round().to(inputs.dtype)


def _flattened(inputs: Tensor | LazyInputs) -> Tensor:
    return as_vectors(Samples(inputs))


def _standardizing(train: Samples) -> Encode:
    deviation, mean = torch.std_mean(as_vectors(train), dim=0, correction=0)
    divisor = torch.where(deviation > MIN_VARIATION * mean.abs(), deviation, torch.inf)
    return lambda inputs: (_flattened(inputs) - mean) / divisor


def _weights_of_words(train: Sequence[Samples]) -> Encode | None:
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415 - for texts only

    def strings(inputs: Tensor | LazyInputs) -> list[str]:
        return inputs.strings if isinstance(inputs, Texts) else []

    terms = TfidfVectorizer(max_features=TERMS, ngram_range=(1, 2), sublinear_tf=True)
    try:
        terms.fit([text for side in train for text in strings(side.inputs)])
    except ValueError:  # no words at all
        return None
    return lambda inputs: torch.from_numpy(terms.transform(strings(inputs)).toarray()).float()


def _take_subset(samples: Samples, among: Features | None, most: int, seed: int, *, whole_classes: bool) -> Samples:
    """Return a subset of the samples, from those in `among`; unseen classes stay whole, for episodes."""
    numbered = samples.numbered()
    if among is not None and numbered.rows is not None:
        numbered = numbered[torch.isin(numbered.rows, among.numbers)]
    return numbered.fewer(most, seed, whole_classes=whole_classes)


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
    """Return the features of samples, and the readable samples; a warning names the others."""
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
