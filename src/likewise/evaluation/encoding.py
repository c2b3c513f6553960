"""Features of samples: encoded piece by piece, inputs that are not in memory read ahead, by one process or by all."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from likewise import distributed
from likewise.data.lazy_inputs import LazyInputs, note_unreadable, on_demand, read_ahead, spans_of
from likewise.data.samples import Samples
from likewise.evaluation.features import Bar, Features, silent
from likewise.models import Encoder


class Piece(NamedTuple):
    """Some samples that are encoded."""

    rows: Int[Tensor, " n"]
    features: Float[Tensor, "n d"]
    lost: dict[int, str]  # files among them that can't be read, which have no features, by their numbers in the source


def pieces(
    encoder: Encoder, inputs: Tensor | LazyInputs, spans: Sequence[range], workers: int | None = None
) -> Iterator[Piece]:
    """Encode pieces of inputs, given as spans of rows, while workers read those that follow; see `read_ahead`."""
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
    """Encode pieces in turns, each of W processes every W-th; yield all on the first process, none on the others.

    All processes of the group have to call this alike. The features travel between processors, as float32.
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
            # the first column: whether it could be read
            sent[piece.rows - span.start] = torch.nn.functional.pad(piece.features, (1, 0), value=1.0)
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
    """Encode samples, inputs (N, ...) to features (N, D); those whose inputs turn out to be unreadable are left out.

    Of pairs the other side is encoded by its own encoder, `second`. Inputs that are not in memory are read ahead by
    worker processes; see `read_ahead`. If it is `shared`, all other processes call `encode_share` meanwhile.
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
