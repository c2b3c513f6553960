"""Which classes kNN takes for which others."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.diagnostics import plots
from likewise.evaluation import KNN
from likewise.report.section import Section, table
from likewise.report.subject import Subject
from likewise.scores import ENCODER

MOST = 40  # classes of the matrix
PAIRS = 12  # rows of the table


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the confusion of a single run."""
    if len(subjects) != 1 or subjects[0].test_part is None or subjects[0].test_part.label_kind != "classes":
        return None
    test = subjects[0].test_part
    predicted = subjects[0].outcomes.get((KNN.name, "prediction", ENCODER, "test"))
    known = dict(zip(test.numbers.tolist(), test.classes.tolist(), strict=True))
    if predicted is None or not set(predicted.rows.tolist()) <= set(known):
        return None
    labels = torch.tensor([known[row] for row in predicted.rows.tolist()], dtype=torch.long)
    counts = confusion(labels, predicted.values.long(), len(test.names))
    wrong = counts.clone().fill_diagonal_(0)
    if not wrong.any():
        return None
    shown = _most_confused(wrong)
    names = [test.names[label] for label in shown.tolist()]
    shares = counts.double() / counts.sum(dim=1, keepdim=True).clamp(min=1)
    sentence = (
        "What kNN says of the test samples of each class: rows are the true classes, columns the predicted ones, "
        "colours the share of the row."
    )
    if len(shown) < int((counts.sum(dim=1) > 0).sum()):
        sentence += f" Of {len(test.names):,} classes, the {len(shown)} that are most often confused are shown."
    figure = plots.matrix(shares[shown][:, shown], names, "share")
    return Section("Confusion", sentence, plots.as_html(figure, "confusion") + _pairs(wrong, counts, test.names))


def confusion(labels: Int[Tensor, " n"], predictions: Int[Tensor, " n"], classes: int) -> Int[Tensor, "c c"]:
    """Count samples by their class, in rows, and what was predicted, in columns.

    Example:
        >>> confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2)
        tensor([[1, 1],
                [0, 1]])
    """
    return torch.bincount(labels * classes + predictions, minlength=classes * classes).view(classes, classes)


def _most_confused(wrong: Tensor) -> Tensor:
    """Return the classes with the most mistakes, made or attracted, in their order."""
    mistakes = wrong.sum(dim=0) + wrong.sum(dim=1)
    if len(mistakes) <= MOST:
        return torch.arange(len(mistakes))
    return mistakes.argsort(descending=True, stable=True)[:MOST].sort().values


def _pairs(wrong: Tensor, counts: Tensor, names: tuple[str, ...]) -> str:
    order = wrong.flatten().argsort(descending=True, stable=True)[:PAIRS]
    rows: list[list[str]] = []
    for true, said in zip((order // len(names)).tolist(), (order % len(names)).tolist(), strict=True):
        if wrong[true, said]:
            count, of = int(wrong[true, said]), int(counts[true].sum())
            rows.append([names[true], names[said], f"{count:,}", f"{of:,}"])
    return table(["class", "taken for", "samples", "of"], rows)
