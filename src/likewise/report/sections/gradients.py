"""What pulls and pushes: the gradient of SupCon and NT-Xent in a batch of the first epoch and of the last."""

import math
from collections.abc import Sequence

from likewise.diagnostics import (
    AnchorGradients,
    Snapshot,
    anchor_gradients,
    collapsed,
    hardest_shares,
    plots,
    strength_by_similarity,
)
from likewise.losses.sup_con import Form
from likewise.report.section import Section, paragraphs
from likewise.report.subject import Subject
from likewise.report.words import short_name

MOST_SETTINGS = 4
MOST_ANCHORS = 512  # evenly spaced rows of a batch, all of which are their references
LOSSES = {"SupConLoss", "NTXentLoss"}
SENTENCE = (
    "How strongly each positive and negative acts on its anchor: the length of its part of the gradient, averaged over "
    "pairs with about the same cosine, in the last batch of the first and of the last epoch. The length is |P − X|/τ "
    "for a positive and P/τ for a negative, times sqrt(1 − cosine²). τ is the temperature, P the reference's share of "
    "the anchor's softmax over all other rows of the batch, and X the share that the loss asks of a positive: 1 over "
    "the number of positives, or with form=in its share of the softmax over positives. Hard positives are on the "
    "left, hard negatives on the right. Very close references lose strength, since only what is orthogonal to the "
    "anchor's embedding moves it. Strength has no sign: a positive that is very close can also repel."
)


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the gradient of one run, or of the first run of each setting."""
    firsts = {subject.setting: subject for subject in reversed(subjects)}
    fitting = [subject for subject in reversed(firsts.values()) if form_of(subject) and subject.run.batches.is_file()]
    if not fitting:
        return None
    panels: dict[str, AnchorGradients] = {}
    said: list[str] = []
    for subject in fitting[:MOST_SETTINGS]:
        for batch in sorted(subject.batches.values(), key=lambda batch: batch.step):
            title = f"{subject.setting}, epoch {batch.epoch}" if len(firsts) > 1 else f"Epoch {batch.epoch}"
            panels[title] = _gradients(subject, batch)
            said.append(f"{title}: {_words(panels[title], batch)}")
    figure = plots.strengths({title: strength_by_similarity(found) for title, found in panels.items()})
    sentence = SENTENCE
    if len(fitting) > MOST_SETTINGS:
        sentence += f" Shown are the first {MOST_SETTINGS} settings."
    return Section("What pulls and pushes", sentence, plots.as_html(figure, "pull-and-push") + paragraphs(said))


def form_of(subject: Subject) -> Form | None:
    """Return SupCon's form; None unless the run's loss is SupCon or NT-Xent, normalised, of the batch only.

    With further inputs, the references may be the keys of a momentum encoder or a queue, which no file has.
    """
    parts = subject.facts.get("parts", {})
    loss = parts.get("loss")
    if not loss or short_name(loss) not in LOSSES or not loss["class_path"].startswith("likewise."):
        return None
    given = loss.get("init_args") or {}
    if parts.get("inputs") or given.get("normalize") is False:
        return None
    return "in" if given.get("form") == "in" else "out"


def _gradients(subject: Subject, batch: Snapshot) -> AnchorGradients:
    labels = batch.labels if short_name(subject.facts["parts"]["loss"]) == "SupConLoss" else None
    rows = batch.embeddings.shape[:-1].numel()
    spaced = range(0, rows, -(-rows // MOST_ANCHORS)) if rows else []
    return anchor_gradients(
        batch.embeddings, labels, temperature=batch.temperature, form=form_of(subject) or "out", anchors=list(spaced)
    )


def _words(found: AnchorGradients, batch: Snapshot) -> str:
    """Say what the hardest tenth supplies, and of how many rows."""
    rows = batch.embeddings.flatten(0, -2)
    shares = hardest_shares(found)
    if collapsed(rows) or math.isnan(shares.pull) or math.isnan(shares.push):
        words = "all embeddings have the same direction, or nothing pulls or pushes."
    else:
        words = (
            f"the least similar tenth of the positives supplies {100 * shares.pull:.0f} % of the pull, the most "
            f"similar tenth of the negatives {100 * shares.push:.0f} % of the push; without mining, each would be 10 %."
        )
    repelling = float((found.coefficients[found.positives] > 0).double().mean())
    if repelling > 0:
        words += f" {100 * repelling:.0f} % of the positives are closer than the loss asks for and repel."
    if len(found.anchors) < len(rows):
        words += f" {len(found.anchors):,} of {len(rows):,} rows are the anchors."
    if len(batch.embeddings) < batch.samples:
        words += (
            f" The gradient is that among the {len(batch.embeddings):,} of {batch.samples:,} samples that were kept."
        )
    return words
