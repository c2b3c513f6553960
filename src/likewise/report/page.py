"""The page of a run: one file that holds its pictures, the numbers behind them and what draws them."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import torch
from torch import Tensor
from torch.nn import functional

from likewise.diagnostics import plots, similarity_histogram, two_dimensional_map
from likewise.report.measurements import ENCODER, RAW, Encoded, Measurements

MAPPED = 1000  # samples laid out on a map; more hide each other, and t-SNE slows
NEIGHBORS = 6  # training images beside a held-out one
SHOWN_ERRORS = 8

Metrics = Mapping[str, Sequence[tuple[int, float]]]


def write_page(
    path: Path, *, facts: Mapping[str, str], metrics: Metrics, measured: Measurements, train: Encoded, test: Encoded
) -> None:
    """Write a run's page; it needs no other file and no network.

    Args:
        path: Where the page goes; a file there is replaced.
        facts: What the run was, name by name; the first is the page's title.
        metrics: For each metric of the training its (step, value) pairs.
        measured: The run's measurements.
        train: The training samples.
        test: The held-out samples.

    Raises:
        OSError: The page cannot be written.

    Memory:
        The places of at most 1,000 held-out samples, and one tile of similarities.

    Example:
        >>> import tempfile
        >>> from likewise.report import measure
        >>> samples = Encoded(torch.eye(2).repeat(3, 1), torch.eye(2).repeat(3, 1), torch.tensor([0, 1]).repeat(3))
        >>> folder = tempfile.TemporaryDirectory()
        >>> page = Path(folder.name, "report.html")
        >>> measured = measure(samples, samples, ("cat", "dog"))
        >>> facts = {"run": "two points"}
        >>> write_page(page, facts=facts, metrics={"loss": [(0, 1.0)]}, measured=measured, train=samples, test=samples)
        >>> "two points" in page.read_text(encoding="utf-8")
        True
        >>> folder.cleanup()
    """
    title, *rest = facts.items()
    sections = "\n".join(
        f"<section><h2>{escape(heading)}</h2>\n<p>{escape(sentence)}</p>\n{body}</section>"
        for heading, sentence, body in _sections(metrics, measured, train, test)
    )
    page = Template(files("likewise.report").joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title[1]),
        lead=_lead(measured),
        facts="\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rest),
        script=plots.script(),
        sections=sections,
    )
    path.write_text(page, encoding="utf-8")


def _sections(
    metrics: Metrics, measured: Measurements, train: Encoded, test: Encoded
) -> Iterator[tuple[str, str, str]]:
    yield (
        "Accuracy",
        (
            "The encoder is frozen and its head left off; dots are accuracies on held-out samples, whiskers 95 % "
            "Wilson intervals. The axis does not begin at 0. Raw inputs pass through the same evaluations."
        ),
        plots.as_html(plots.accuracies(measured.accuracies), "accuracy") + _table(measured.table()),
    )
    for name, both in measured.accuracies.items():
        yield (
            f"Errors per class, {name}",
            "The share of each class that is predicted wrongly, with 95 % intervals; shorter is better.",
            plots.as_html(plots.class_errors(both, measured.class_names), f"errors-{name.replace(' ', '-')}"),
        )
    chosen = torch.linspace(0, len(test.labels) - 1, min(len(test.labels), MAPPED)).long()
    places = {kind: two_dimensional_map(rows[chosen]) for kind, rows in test.kinds.items()}
    yield (
        "Map",
        (
            f"{_how_many(len(chosen), len(test.labels))} laid out by t-SNE of their cosine neighbours. Who is near "
            "whom means something; the distances between groups and the axes do not."
        ),
        plots.as_html(plots.maps(places, test.labels[chosen], measured.class_names), "map"),
    )
    histograms = {kind: similarity_histogram(rows[chosen], test.labels[chosen]) for kind, rows in test.kinds.items()}
    yield (
        "Geometry",
        (
            "Alignment is the mean squared distance of same-class samples on the unit sphere, uniformity the "
            "logarithm of the mean Gaussian potential of all pairs; of both, less is better. "
            f"Below, the similarities of pairs. {_how_many(len(chosen), len(test.labels))}."
        ),
        _table(_geometry(measured)) + plots.as_html(plots.similarities(histograms), "similarities"),
    )
    if len(test.inputs.shape) == 4 and not measured.accuracies["kNN"][ENCODER].correct.all():
        yield (
            "What kNN gets wrong",
            f"Held-out images on the left, the {NEIGHBORS} training images that the encoder puts nearest on the right.",
            plots.as_html(_errors(measured, train, test), "wrong"),
        )
    if metrics:
        yield "Training", "What the training logged, step by step.", plots.as_html(plots.curves(metrics), "curves")


def _how_many(chosen: int, count: int) -> str:
    return f"{chosen:,} of {count:,} held-out samples" if chosen < count else f"All {count:,} held-out samples"


def _errors(measured: Measurements, train: Encoded, test: Encoded) -> "plots.go.Figure":
    accuracy = measured.accuracies["kNN"][ENCODER]
    rows = (~accuracy.correct).nonzero().flatten()[:SHOWN_ERRORS]
    units = functional.normalize(train.features)
    nearest = (functional.normalize(test.features[rows]) @ units.T).topk(min(NEIGHBORS, len(units))).indices
    beside = train.inputs[nearest.flatten()].unflatten(0, nearest.shape)
    images = torch.cat([test.inputs[rows].unsqueeze(1), beside], dim=1)
    images = images if images.is_floating_point() else images.float() / 255
    return plots.image_rows(
        images, [_verdict(measured, accuracy.labels[row], accuracy.predictions[row]) for row in rows]
    )


def _verdict(measured: Measurements, label: Tensor, prediction: Tensor) -> str:
    return f"is {measured.class_names[int(label)]}, taken for {measured.class_names[int(prediction)]}"


def _lead(measured: Measurements) -> str:
    sentences = []
    for name, difference in measured.differences.items():
        both = measured.accuracies[name]
        low, high = (100 * bound for bound in difference.interval)
        sentences.append(
            f"{name}: {both[ENCODER].overall.value:.2%}, raw inputs {both[RAW].overall.value:.2%}; "
            f"difference {100 * difference.value:+.2f} points, 95 % interval {low:+.2f} to {high:+.2f} "
            f"({difference.gained} samples gained, {difference.lost} lost)."
        )
    return "\n".join(f'<p class="lead">{escape(sentence)}</p>' for sentence in sentences)


def _geometry(measured: Measurements) -> list[tuple[str, ...]]:
    rows = [(name, *(f"{value:.3f}" for value in both.values())) for name, both in measured.geometry.items()]
    return [("", *next(iter(measured.geometry.values()))), *rows]


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in _tagged(rows))
    lines = "".join(f"<tr>{row}</tr>" for row in body)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _tagged(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, Sequence[str]]]:
    for place, row in enumerate(rows):
        yield ("td" if place else "th"), row
