"""F1 and average precision of each label, by how many training samples have it."""

from collections.abc import Sequence
from html import escape

from likewise.diagnostics import plots
from likewise.evaluation.label_scores import F1, THIRDS
from likewise.report.section import Section, table
from likewise.report.subject import Subject
from likewise.report.words import counted, score_words, slug
from likewise.scores import ENCODER, Score

MOST = 40  # labels in the table
SENTENCE = (
    "Each point is a label that test samples have: its F1, by the threshold chosen for it on validation, and the "
    "number of training samples that have it. The table below has the labels with the lowest F1 first."
)
OF_THIRDS = (
    "Head labels are the third with the most training samples, tail labels the third with the fewest, and the first "
    "table has the means over them."
)
Found = dict[tuple[str, str], dict[str, Score]]
"""For evaluation and metric the score of each label."""


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the labels of a single run, where samples have label sets."""
    if len(subjects) != 1:
        return None
    found: Found = {}
    for (evaluation, metric, kind, group), score in subjects[0].test_scores.items():
        if kind == ENCODER and group.kind == "label":
            found.setdefault((evaluation, metric), {})[group.name] = score
    if not found:
        return None
    sizes = subjects[0].class_sizes
    body = "".join(
        _figure(evaluation, metric, of, sizes) for (evaluation, metric), of in found.items() if metric == F1.name
    )
    thirds = _thirds(subjects[0])
    sentence = f"{SENTENCE} {OF_THIRDS}" if thirds else SENTENCE
    return Section("Labels", sentence, thirds + body + _table(found, sizes))


def _thirds(subject: Subject) -> str:
    """Return a table of the means over frequent and rare labels, a column for each evaluation; empty without them."""
    found = {key: score for key, score in subject.test_scores.items() if key[3] in THIRDS}
    columns = list(dict.fromkeys(key[:3] for key in found))
    rows = list(dict.fromkeys(group for *_, group in found))
    if not rows:
        return ""
    head = [
        "",
        *(f"{evaluation}, {metric}" + ("" if of == ENCODER else f", {of}") for evaluation, metric, of in columns),
    ]
    lines = [
        [str(row), *(score_words(found[*column, row]) if (*column, row) in found else "" for column in columns)]
        for row in rows
    ]
    return table(head, lines)


def _figure(evaluation: str, metric: str, scores: dict[str, Score], sizes: dict[str, int]) -> str:
    points = [
        plots.Point(
            max(1, sizes.get(name, 0)),
            100 * of.value,
            f"{name}: {score_words(of)}, {counted(sizes.get(name, 0), 'sample')}",
        )
        for name, of in scores.items()
    ]
    figure = plots.scatter({evaluation: points}, "training samples with the label", f"{metric}, %", logarithmic=True)
    return f"<h3>{escape(f'{evaluation}, {metric}')}</h3>\n{plots.as_html(figure, slug('labels', evaluation, metric))}"


def _table(found: Found, sizes: dict[str, int]) -> str:
    first = next(iter(found.values()))
    worst = sorted(first, key=lambda name: first[name].value)
    head = ["", *(f"{evaluation}, {metric}" for evaluation, metric in found), "training samples"]
    rows = [
        [name, *(score_words(of[name]) if name in of else "" for of in found.values()), f"{sizes.get(name, 0):,}"]
        for name in worst
    ]
    return table(head, rows, most=MOST)
