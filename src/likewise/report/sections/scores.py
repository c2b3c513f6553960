"""The scores of one run: all of them in a table, the shares also as dots with whiskers."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from likewise.diagnostics import plots
from likewise.evaluation import Difference, paired_difference
from likewise.report.section import Section, folded, table
from likewise.report.subject import KINDS, Subject
from likewise.report.words import count_words, difference_words, dot_of, marked, remarks, score_words, settings_words
from likewise.scores import ALL, ENCODER, RAW, Score

SENTENCE = (
    "The encoder is frozen and its head left off. Dots are scores on the test part, whiskers 95 % intervals: Wilson's "
    "for accuracies and precision@1, Student's for other means; where its choices say so, over classes instead of "
    "samples, of few-shot episodes by the jackknife. The axis does not begin at 0. "
    "Choices were made on the validation part."
)
WITH_ERRORS = (
    " AUROC has DeLong's interval; calibration error and FPR, whose intervals are by the bootstrap, and other numbers "
    "of which lower is better are in the table only."
)
WITH_RAW = (
    " Raw inputs go through the same evaluations without an encoder; differences are paired by sample or episode, in "
    "percentage points."
)


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the scores of a single run."""
    if len(subjects) != 1 or not subjects[0].headlines:
        return None
    subject = subjects[0]
    both = dict(_rows(subject))
    shares = {
        name: {kind: dot_of(of) for kind, of in kinds.items() if of.metric.is_share and of.metric.better != "lower"}
        for name, kinds in both.items()
    }
    shares = {name: kinds for name, kinds in shares.items() if kinds}
    figure = plots.as_html(plots.dots(shares, "score on the test part, %"), "scores") if shares else ""
    raw = any(RAW in kinds for kinds in both.values())
    errors = any(of.metric.better == "lower" for kinds in both.values() for of in kinds.values())
    sentence = SENTENCE + (WITH_ERRORS if errors else "") + (WITH_RAW if raw else "")
    return Section("Scores", sentence, figure + _table(subject, both, raw=raw))


def lead(subjects: Sequence[Subject]) -> str:
    """Return a card for each evaluation with the first of its scores, as HTML; empty for several runs.

    Args:
        subjects: A single run; of several there is no single score.
    """
    if len(subjects) != 1:
        return ""
    cards: dict[str, str] = {}
    for evaluation, metric in subjects[0].headlines:
        if evaluation not in cards:
            cards[evaluation] = _card(subjects[0], evaluation, metric)
    return f'<div class="cards">{"".join(cards.values())}</div>' if cards else ""


def encoder_less_raw(subject: Subject, evaluation: str, metric: str) -> Difference | None:
    """Compare the encoder with raw inputs, in pairs; None where one was not evaluated, or on fewer samples."""
    ours, theirs = (subject.outcomes.get((evaluation, metric, kind, "test")) for kind in KINDS)
    scores = [subject.test_scores.get((evaluation, metric, kind, ALL)) for kind in KINDS]
    protocols = [None if score is None else score.protocol for score in scores]
    if ours is None or theirs is None or protocols[1] is None or protocols[0] != protocols[1]:
        return None
    return paired_difference(ours, theirs, subject.unseen_classes(ours))


def _card(subject: Subject, evaluation: str, metric: str) -> str:
    ours = subject.test_scores[evaluation, metric, ENCODER, ALL]
    theirs = subject.test_scores.get((evaluation, metric, RAW, ALL))
    value, _, interval = score_words(ours).partition(" [")
    lines = [f"95 % interval [{interval}"]
    if theirs is not None:
        difference = encoder_less_raw(subject, evaluation, metric)
        others = settings_words(theirs.protocol) if theirs.protocol != ours.protocol else ""
        lines.append(f"raw inputs {score_words(theirs)}" + (f", {others}" if others else ""))
        if difference is not None:
            lines.append(f"difference {difference_words(difference)}" + (" points" if ours.metric.is_share else ""))
    said = "".join(f"<span>{escape(line)}</span>" for line in lines)
    name = marked(f"{evaluation}, {metric}", ours.metric)
    return f'<div class="card"><span>{escape(name)}</span><b>{escape(value)}</b>{said}</div>'


def _rows(subject: Subject) -> Iterator[tuple[str, dict[str, Score]]]:
    for evaluation, metric in subject.headlines:
        of = {kind: subject.test_scores.get((evaluation, metric, kind, ALL)) for kind in KINDS}
        yield f"{evaluation}, {metric}", {kind: score for kind, score in of.items() if score is not None}


def _table(subject: Subject, both: Mapping[str, Mapping[str, Score]], *, raw: bool) -> str:
    lines: list[list[str]] = []
    chosen: list[list[str]] = []
    for (evaluation, metric), (name, kinds) in zip(subject.headlines, both.items(), strict=True):
        ours, theirs = kinds[ENCODER], kinds.get(RAW)
        line = [marked(name, ours.metric), score_words(ours)]
        if raw:
            difference = encoder_less_raw(subject, evaluation, metric)
            line.append("" if theirs is None else score_words(theirs))
            line.append("" if difference is None else difference_words(difference, share=ours.metric.is_share))
        lines.append([*line, count_words(ours)])
        chosen.append([name, _chosen(ours, theirs)])
    head = ["", "encoder", *(("raw inputs", "encoder less raw inputs") if raw else ()), "mean of"]
    chosen = [line for line in chosen if line[1]]
    filled = [place for place in range(len(head)) if any(line[place] for line in lines)]
    head, lines = [head[place] for place in filled], [[line[place] for place in filled] for line in lines]
    return table(head, lines) + (folded("Choices", table(["", "choices"], chosen)) if chosen else "")


def _chosen(ours: Score, theirs: Score | None) -> str:
    own, other = remarks(ours), "" if theirs is None else remarks(theirs)
    return own if other in {own, ""} else "; ".join(filter(None, [own, f"raw inputs: {other}"]))
