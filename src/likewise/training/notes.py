"""Notes on the samples of a training: their columns, and what is unusual about them, one sentence each."""

from collections.abc import Iterable, Iterator

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
    for constant, where in ((samples.counts == 0, "at no"), (samples.counts == len(samples), "at every")):
        labels = constant.nonzero().flatten().tolist()
        if labels:
            named = [samples.names[label] for label in labels[:MAX_LISTED]] + ["..."] * (len(labels) > MAX_LISTED)
            yield (
                f"labels {where} training sample, of which nothing can be learned: {len(labels):,} of "
                f"{len(samples.names):,} ({', '.join(named)})"
            )
