"""Features of samples: encoded part by part, inputs that are not in memory read ahead."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from likewise.data.reading import on_demand, read_ahead, spans_of
from likewise.data.rows import Rows
from likewise.data.samples import Samples
from likewise.evaluation.features import Bar, Features, silent
from likewise.models import Encoder


def features_of(
    samples: Samples,
    encoder: Encoder,
    part: str,
    progress: Bar = silent,
    second: Encoder | None = None,
    *,
    workers: int | None = None,
) -> Features:
    """Encode samples, inputs (N, ...) to features (N, D); those whose inputs turn out to be unreadable are left out.

    Of pairs the other side is encoded by its own encoder, `second`. Inputs that are not in memory are read ahead by
    worker processes; see `read_ahead`.
    """
    samples = samples.as_evaluated()
    could = torch.ones(len(samples), dtype=torch.bool)

    def encoded(by: Encoder, inputs: Tensor | Rows) -> Tensor:
        def shown(walked: Iterable[Any]) -> Iterable[Any]:
            return progress(walked, f"encoding, {part}")

        if isinstance(inputs, Tensor) or not on_demand(inputs):
            return by.encode(inputs, progress=shown)
        vectors, spans = torch.zeros(len(inputs), by.feature_dim), spans_of(inputs, [range(len(inputs))])
        for _, read in zip(shown(spans), read_ahead(inputs, spans, workers), strict=True):
            vectors[read.rows] = by.encode(read.inputs, max(1, len(read.rows)))
            could[read.lost] = False
        return vectors

    others, beside = samples.counterparts, None
    vectors = encoded(encoder, samples.inputs)
    if others is not None and second is not None:
        beside = Features(
            encoded(second, others.inputs),
            None,
            (),
            samples.rows,
            part,
            ids=others.ids,
            items=others.items,
        )
    found = Features(
        vectors,
        samples.labels,
        samples.names,
        samples.rows,
        part,
        ids=samples.ids,
        items=samples.items,
        counterparts=beside,
        within=samples.within,
    )
    could &= samples.could_be_read
    return found if bool(could.all()) else found[could.nonzero().flatten()]
