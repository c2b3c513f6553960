"""Notes on the samples of a training: their columns, and what is unusual about them, one sentence each."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from likewise.data import Samples, TokenRows
from likewise.training.inputs import KeyQueue, LossInput

MAX_LISTED = 3  # labels that a sentence names


def notes(samples: Samples, inputs: Iterable[LossInput] = (), test: Samples | None = None) -> Iterator[str]:
    """Yield what columns are inputs, and what is unusual: cut texts, missing or constant labels, long queues."""
    if samples.said:
        yield samples.said
    if isinstance(samples.inputs, TokenRows) and samples.inputs.cut:
        yield (
            f"{samples.inputs.cut:,} of {len(samples):,} training texts are longer than the encoder reads and were "
            "cut: raise --encoder.length to read more of them"
        )
    for queue in (loss_input for loss_input in inputs if isinstance(loss_input, KeyQueue)):
        if queue.size > len(samples):
            yield (
                f"the queue holds {queue.size:,} keys of {len(samples):,} training samples, each about "
                f"{queue.size / len(samples):.1f} times: lower --inputs.size, so that it "
                "seldom holds older keys of a sample"
            )
    if samples.label_kind != "label sets" or samples.labels is None:
        return
    without = int((~samples.labels.any(dim=1)).sum())
    if without:
        yield (
            f"{without:,} of {len(samples):,} training samples have no label and are kept; a contrast has "
            "them as negatives of all others: --subset+ Labelled drops them"
        )
    if test is not None and not test.counts.any():
        yield f"none of {len(test):,} test samples has a label: no prediction of labels can be evaluated"
    yield from _about(samples, samples.counts == 0, "no training sample", "has", "have")
    yield from _about(samples, samples.counts == len(samples), "that of every training sample", "is", "are")


def _about(samples: Samples, chosen: Tensor, what: str, singular: str, several: str) -> Iterator[str]:
    labels = chosen.nonzero().flatten().tolist()
    if not labels:
        return
    named = ", ".join(samples.names[label] for label in labels[:MAX_LISTED])
    named += ", ..." if len(labels) > MAX_LISTED else ""
    is_one = len(labels) == 1
    what = what if is_one or several == "have" else "those of every training sample"
    yield (
        f"{len(labels):,} of {len(samples.names):,} labels {singular if is_one else several} {what} ({named}): "
        f"nothing can be learned of {'it' if is_one else 'them'}"
    )
