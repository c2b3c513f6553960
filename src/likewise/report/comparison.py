"""The scores of several settings: means over seeds, and paired differences to the first setting, with intervals."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from likewise.evaluation import Difference, paired_difference
from likewise.evaluation.intervals import student
from likewise.report.rows import Over, Row
from likewise.report.setting import Setting
from likewise.report.subject import Subject
from likewise.scores import ALL, ENCODER, FREQUENCIES, Group, Outcomes, Score

OTHER_SAMPLES = "other test samples"
LACKING = "the first setting lacks it"
OTHER_DATA = "evaluated on other data"


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
        for group in (ALL, *FREQUENCIES)
        for row in _rows(settings, evaluation, metric, group)
    ]


def difference(
    first: Setting, other: Setting, evaluation: str, metric: str, group: Group = ALL
) -> tuple[Difference, Over] | str:
    """Return the difference of a setting's score to the first one's, and what was paired; or why nothing was."""
    key = (evaluation, metric, ENCODER, group)
    if len(first.subjects) == len(other.subjects) == 1:
        if group in FREQUENCIES:
            return "single runs"
        return _by_sample(other.subjects[0], first.subjects[0], evaluation, metric, group)
    ours, theirs = other.by_seed, first.by_seed
    seeds = [seed for seed in ours if seed in theirs]
    seeds = [seed for seed in seeds if key in ours[seed].test_scores and key in theirs[seed].test_scores]
    if len(seeds) < 2:
        return "fewer than 2 seeds in common"
    if not all(same_test(ours[seed], theirs[seed]) for seed in seeds):
        return OTHER_SAMPLES
    if not all(_same_protocol(ours[seed], theirs[seed], key) for seed in seeds):
        return OTHER_DATA
    each = [ours[seed].test_scores[key].value - theirs[seed].test_scores[key].value for seed in seeds]
    low, high = student(each)
    gained, lost = sum(of > 0 for of in each), sum(of < 0 for of in each)
    return Difference(sum(each) / len(each), low, high, len(each), gained, lost), Over(len(each), "seed")


def same_test(first: Subject, second: Subject) -> bool:
    """Tell whether two runs were tested on the same samples: their rows, labels and names are equal."""
    ours, theirs = first.test_part, second.test_part
    if ours is None or theirs is None or ours.names != theirs.names or not torch.equal(ours.numbers, theirs.numbers):
        return False
    if ours.labels is None or theirs.labels is None:
        return ours.labels is theirs.labels
    return torch.equal(ours.labels, theirs.labels)


def _rows(settings: Sequence[Setting], evaluation: str, metric: str, group: Group) -> Iterator[Row]:
    key = (evaluation, metric, ENCODER, group)
    first = settings[0]
    lacking = all(key not in subject.test_scores for subject in first.subjects)
    for setting in settings:
        scores = [subject.test_scores[key] for subject in setting.subjects if key in subject.test_scores]
        if not scores:
            continue
        row = replace(_of_scores(setting.name, scores), seconds=_seconds(setting))
        if setting is first:
            yield row
            continue
        found = LACKING if lacking else difference(first, setting, evaluation, metric, group)
        if isinstance(found, str):
            yield replace(row, unpaired=found)
        else:
            apart, over = found
            bounds = {"difference": apart.value, "difference_low": apart.low, "difference_high": apart.high}
            yield replace(row, **bounds, paired=over)


def _of_scores(setting: str, scores: Sequence[Score]) -> Row:
    """Return the mean of the scores of a setting's runs."""
    one = scores[0]
    mean, low, high = one.value, one.low, one.high
    over = Over(one.count, one.counted) if one.classes is None else Over(one.classes, "class")
    if len(scores) > 1:
        values = [score.value for score in scores]
        mean, over, (low, high) = sum(values) / len(values), Over(len(values), "seed"), student(values)
        if one.metric.is_share:
            low, high = max(0.0, low), min(1.0, high)
    return Row(setting, one.evaluation, one.metric, len(scores), mean, low, high, over, group=one.group)


def _seconds(setting: Setting) -> float | None:
    """Return the mean seconds that the runs of a setting trained."""
    each = [subject.facts.get("seconds", {}).get("training") for subject in setting.subjects]
    known = [float(seconds) for seconds in each if seconds is not None]
    return sum(known) / len(known) if len(known) == len(each) else None


def _same_protocol(first: Subject, second: Subject, key: tuple[str, str, str, Group]) -> bool:
    """Tell whether a score of two runs is about the same, such as the same corruptions."""
    ours, theirs = first.test_scores.get(key), second.test_scores.get(key)
    return ours is None or theirs is None or ours.protocol == theirs.protocol


def _by_sample(
    ours: Subject, theirs: Subject, evaluation: str, metric: str, group: Group
) -> tuple[Difference, Over] | str:
    if not same_test(ours, theirs):
        return OTHER_SAMPLES
    if not _same_protocol(ours, theirs, (evaluation, metric, ENCODER, group)):
        return OTHER_DATA
    key = (evaluation, metric, ENCODER, "test")
    outcomes = [_of_subset(subject, subject.outcomes.get(key), group) for subject in (ours, theirs)]
    if outcomes[0] is None or outcomes[1] is None:
        return "no outcomes by sample"
    found = paired_difference(outcomes[0], outcomes[1], ours.unseen_classes(outcomes[0]))
    if found.classes is None:
        return found, Over(found.count, "episode" if outcomes[0].of_episodes else "sample")
    return found, Over(found.classes, "class")


def _of_subset(subject: Subject, outcomes: Outcomes | None, group: Group) -> Outcomes | None:
    """Return the outcomes of the samples of a class; None where there are none."""
    test = subject.test_part
    if outcomes is None or group == ALL:
        return outcomes
    if test is None or test.labels is None:
        return None
    label = test.names.index(group.name)
    chosen = torch.isin(outcomes.rows, test.numbers[test.labels == label])
    return replace(outcomes, rows=outcomes.rows[chosen], values=outcomes.values[chosen]) if bool(chosen.any()) else None
