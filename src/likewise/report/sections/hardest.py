"""The hardest pairs of the test part: one class and far apart, or different classes and close together."""

from collections.abc import Iterator, Sequence

from jaxtyping import Int
from torch import Tensor

from likewise.diagnostics import HardPairs, hardest_pairs
from likewise.evaluation import Features
from likewise.evaluation.label_words import label_words
from likewise.report.inputs import inputs_as_words
from likewise.report.section import Section, spoken, tile
from likewise.report.subject import Subject

SHOWN = 12  # pairs of each kind
MOST = {"classes": 60_000, "label sets": 10_000}  # samples among which the pairs are found
LONGEST = 160  # characters of a text
PARTNERS = {
    "classes": ("with the same class", "of another class"),
    "label sets": ("with a common label", "without a common label"),
}


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the hardest pairs of a single run."""
    if len(subjects) != 1 or subjects[0].features is None or subjects[0].features.test.label_kind is None:
        return None
    test = subjects[0].features.test
    test = test.fewer(MOST[str(test.label_kind)])
    labels = test.classes if test.label_kind == "classes" else test.sets
    found = hardest_pairs(test.vectors, labels, progress=subjects[0].progress)
    body = "".join(_kinds(subjects[0], test, found))
    if not body:
        return None
    same, other = PARTNERS[str(test.label_kind)]
    sentence = (
        f"Among {len(test):,} test samples, for each its least similar partner {same} (hard positives) and its most "
        f"similar one {other} (hard negatives), by the cosine of their features. Shown are the hardest, no sample "
        "twice. Mistakes of labels tend to be among them."
    )
    return Section("Hardest pairs", sentence, body)


def _kinds(subject: Subject, test: Features, found: HardPairs) -> Iterator[str]:
    for heading, pairs, similarities in (
        ("Hard positives", found.positive_pairs(SHOWN), found.positive_similarities),
        ("Hard negatives", found.negative_pairs(SHOWN), found.negative_similarities),
    ):
        if len(pairs):
            shown = "".join(_pair(subject, test, pair, float(similarities[pair[0]])) for pair in pairs)
            yield f'<h3>{heading}</h3>\n<div class="gallery">{shown}</div>'


def _pair(subject: Subject, test: Features, pair: Int[Tensor, "2"], similarity: float) -> str:
    both = test[pair]
    tiles = subject.album.tiles("test", both.numbers).tolist()
    texts = inputs_as_words(subject, both, LONGEST) or ["", ""]
    said = list(zip(label_words(both), (f"row {row}" for row in both.numbers.tolist()), texts, strict=True))
    pictures = "".join(tile(number, ", ".join(of[:2])) for number, of in zip(tiles, said, strict=True) if number >= 0)
    words = "".join(spoken(("name", name), ("place", row), ("text", text)) for name, row, text in said)
    return f'<div class="pair">{pictures}{words}cosine {similarity:.3f}</div>'
