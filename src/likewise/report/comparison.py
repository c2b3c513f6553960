"""The scores of several settings: means over seeds, and paired differences to the first setting, with intervals."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from likewise.evaluation import Difference, paired_difference
from likewise.evaluation.intervals import student
from likewise.report.row import Row
from likewise.report.settings import Setting
from likewise.report.subject import Subject
from likewise.report.words import count_words, counted, is_share
from likewise.scores import ALL, ENCODER, SUBSETS, Outcomes, Score

CLASS = "class "
OTHER_DATA = "not paired: evaluated on other data"
# in a score's choices: what was evaluated, as opposed to what was chosen on validation
PROTOCOL = re.compile(r"[\d,]+ outside samples of .*|(?:all \d+ )?corruptions .*|episodes=\w+")


def compared(settings: Sequence[Setting]) -> list[Row]:
    """Compare settings by every score of the encoder over all test samples, and over classes with many or few samples.

    The mean over the seeds of a setting has Student's interval; the score of a single run has its own. Differences to
    the first setting are paired: by seed where two or more seeds are in both, with Student's interval of the
    differences; by test sample where both have a single run. Both need the same test samples.

    Args:
        settings: The settings.

    Returns:
        For each score a row of every setting that has it.
    """
    subjects = [subject for setting in settings for subject in setting.subjects]
    keys = dict.fromkeys(key for subject in subjects for key in subject.headlines)
    return [
        row
        for evaluation, metric in keys
        for subset in (ALL, *SUBSETS)
        for row in _rows(settings, evaluation, metric, subset)
    ]


def difference(
    first: Setting, other: Setting, evaluation: str, metric: str, subset: str = ALL
) -> tuple[Difference | None, str, int]:
    """Compare a setting with the first one, in pairs.

    Args:
        first: The setting to compare with.
        other: The setting.
        evaluation: See `Score`.
        metric: See `Score`.
        subset: "all"; one of `SUBSETS`; or "class NAME".

    Returns:
        The difference, other less first, what was paired, and how many pairs; or None, why nothing was, and 0.
    """
    if len(first.subjects) == len(other.subjects) == 1:
        if subset in SUBSETS:
            return None, "not paired: single runs", 0
        return _by_sample(other.subjects[0], first.subjects[0], evaluation, metric, subset)
    key = (evaluation, metric, ENCODER, subset)
    ours, theirs = other.by_seed, first.by_seed
    seeds = [seed for seed in ours if seed in theirs]
    seeds = [seed for seed in seeds if key in ours[seed].test_scores and key in theirs[seed].test_scores]
    if len(seeds) < 2:
        return None, "not paired: fewer than 2 seeds in common", 0
    if not all(same_test(ours[seed], theirs[seed]) for seed in seeds):
        return None, "not paired: other test samples", 0
    if not all(_same_protocol(ours[seed], theirs[seed], evaluation, metric) for seed in seeds):
        return None, OTHER_DATA, 0
    each = [ours[seed].test_scores[key].value - theirs[seed].test_scores[key].value for seed in seeds]
    low, high = student(each)
    gained, lost = sum(of > 0 for of in each), sum(of < 0 for of in each)
    return Difference(sum(each) / len(each), low, high, len(each), gained, lost), f"{len(each)} seeds", len(each)


def same_test(first: Subject, second: Subject) -> bool:
    """Tell whether two runs were tested on the same samples: their rows, labels and names are equal."""
    ours, theirs = first.test_part, second.test_part
    if ours is None or theirs is None or ours.names != theirs.names or not torch.equal(ours.numbers, theirs.numbers):
        return False
    if ours.labels is None or theirs.labels is None:
        return ours.labels is theirs.labels
    return torch.equal(ours.labels, theirs.labels)


def _rows(settings: Sequence[Setting], evaluation: str, metric: str, subset: str) -> Iterator[Row]:
    key = (evaluation, metric, ENCODER, subset)
    having = [setting for setting in settings if any(key in subject.test_scores for subject in setting.subjects)]
    for setting in having:
        scores = [subject.test_scores[key] for subject in setting.subjects if key in subject.test_scores]
        row = replace(_of_scores(setting.name, scores), seconds=_seconds(setting))
        if setting is settings[0]:
            yield row
            continue
        if settings[0] not in having:
            yield replace(row, paired="not paired: the first setting lacks it")
            continue
        found, paired, pairs = difference(settings[0], setting, evaluation, metric, subset)
        if found is None:
            yield replace(row, paired=paired)
        else:
            bounds = {"difference": found.value, "difference_low": found.low, "difference_high": found.high}
            yield replace(row, **bounds, paired=paired, pairs=pairs)


def _of_scores(setting: str, scores: Sequence[Score]) -> Row:
    """Return the mean of the scores of a setting's runs."""
    one, share = scores[0], all(map(is_share, scores))
    if len(scores) == 1:
        over = re.search(r"interval over (\d+ classes)", one.choices)
        interval = over[1] if over else count_words(one)
        row = Row(setting, one.evaluation, one.metric, 1, one.value, one.low, one.high, interval, share)
        return replace(row, subset=one.subset)
    values = [score.value for score in scores]
    low, high = student(values)
    mean = sum(values) / len(values)
    if share:
        low, high = max(0.0, low), min(1.0, high)
    row = Row(setting, one.evaluation, one.metric, len(values), mean, low, high, f"{len(values)} seeds", share)
    return replace(row, subset=one.subset)


def _seconds(setting: Setting) -> float | None:
    """Return the mean seconds that the runs of a setting trained."""
    each = [subject.facts.get("seconds", {}).get("training") for subject in setting.subjects]
    known = [float(seconds) for seconds in each if seconds is not None]
    return sum(known) / len(known) if len(known) == len(each) else None


def _protocol(subject: Subject, evaluation: str, metric: str) -> str:
    """Return which outside samples or corruptions a score is about; nothing of other scores."""
    score = subject.test_scores.get((evaluation, metric, ENCODER, ALL))
    found = None if score is None else PROTOCOL.search(score.choices)
    return found[0] if found else ""


def _same_protocol(first: Subject, second: Subject, evaluation: str, metric: str) -> bool:
    return _protocol(first, evaluation, metric) == _protocol(second, evaluation, metric)


def _by_sample(
    ours: Subject, theirs: Subject, evaluation: str, metric: str, subset: str
) -> tuple[Difference | None, str, int]:
    if not same_test(ours, theirs):
        return None, "not paired: other test samples", 0
    if not _same_protocol(ours, theirs, evaluation, metric):
        return None, OTHER_DATA, 0
    key = (evaluation, metric, ENCODER, "test")
    outcomes = [_of_subset(subject, subject.outcomes.get(key), subset) for subject in (ours, theirs)]
    if outcomes[0] is None or outcomes[1] is None:
        return None, "not paired: no outcomes by sample", 0
    found = paired_difference(outcomes[0], outcomes[1], ours.unseen_classes(outcomes[0]))
    if found.classes is None:
        return found, counted(found.count, "episode" if outcomes[0].of_episodes else "sample"), found.count
    return found, f"{found.classes:,} classes", found.classes


def _of_subset(subject: Subject, outcomes: Outcomes | None, subset: str) -> Outcomes | None:
    """Return the outcomes of the samples of a class; None where there are none."""
    test = subject.test_part
    if outcomes is None or subset == ALL:
        return outcomes
    if test is None or test.labels is None:
        return None
    label = test.names.index(subset.removeprefix(CLASS))
    chosen = torch.isin(outcomes.rows, test.numbers[test.labels == label])
    return replace(outcomes, rows=outcomes.rows[chosen], values=outcomes.values[chosen]) if bool(chosen.any()) else None
