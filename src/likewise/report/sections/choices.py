"""Choices: the validation score of every setting that an evaluation tried, and which it chose."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from likewise.diagnostics import plots
from likewise.report.elements import folded, sentence, table
from likewise.report.formatting import score_words, settings_words
from likewise.report.sections.section import Content, Section
from likewise.report.subject import Subject
from likewise.scores import ALL, Score

MOST = 400  # rows of a table
Tried = Mapping[tuple[str, str], Sequence[Score]]
"""For each evaluation with its metric, and each kind of features, the candidates."""
Chosen = Mapping[tuple[str, str], Mapping[str, Any]]
"""For each of them the settings that were chosen."""


class ChoicesSection(Section):
    """The validation score of every setting that an evaluation tried, and which it chose."""

    def content(self, subjects: Sequence[Subject]) -> Content | None:
        groups = _tried(subjects[0])
        if not groups:
            return None
        chosen = {_key(score): score.settings for score in subjects[0].test_scores.values()}
        panels = _panels(groups, chosen)
        figure = plots.as_html(plots.choices(panels), "choices") if panels else ""
        return Content("Choices", sentence("choices"), figure + _tables(groups, chosen))


def _tables(groups: Tried, chosen: Chosen) -> Markup:
    """Return a table of what was chosen, and one of all that was tried to open."""
    best: list[list[str]] = []
    every: list[list[str]] = []
    for of, tried in groups.items():
        scored = {settings_words(score.settings): score_words(score) for score in tried}
        setting = settings_words(chosen[of])
        best.append([*of, setting, scored.get(setting, "")])
        every += [[*of, said, words, "chosen" if said == setting else ""] for said, words in scored.items()]
    head = ["", "features", "setting", "validation score"]
    whole = table([*head, ""], every, most=MOST)
    return table([*head[:2], "chosen setting", head[3]], best, most=MOST) + folded("All that was tried", whole)


def _panels(groups: Tried, chosen: Chosen) -> dict[str, tuple[str, dict[str, list[plots.Tried]]]]:
    """Return for each evaluation the name of its numeric setting, and its curves: one a kind of features and vote."""
    panels: dict[str, tuple[str, dict[str, list[plots.Tried]]]] = {}
    for of, tried in groups.items():
        for score in (score for score in tried if score.metric.is_share):
            setting, number, rest = axis(score.settings)
            if number is None:
                continue
            value, low, high = (100 * bound for bound in (score.value, score.low, score.high))
            one = plots.Tried(number, value, low, high, score.settings == chosen[of])
            panels.setdefault(of[0], (setting, {}))[1].setdefault(", ".join([of[1], *rest]), []).append(one)
    return {
        name: (setting, {kind: sorted(line) for kind, line in of.items()}) for name, (setting, of) in panels.items()
    }


def _tried(subject: Subject) -> Tried:
    """Return the candidates of each evaluation and kind of features, where there was more than one."""
    groups: defaultdict[tuple[str, str], list[Score]] = defaultdict(list)
    reported = {_key(score) for score in subject.test_scores.values()}
    for score in subject.scores:
        of = _key(score)
        if score.part == "validation" and score.epoch is None and score.group == ALL and of in reported:
            groups[of].append(score)
    return {of: tried for of, tried in groups.items() if len(tried) > 1}


def _key(score: Score) -> tuple[str, str]:
    """Return the evaluation with its metric, and the features."""
    return f"{score.evaluation}, {score.metric}", score.features


def axis(settings: Mapping[str, Any]) -> tuple[str, float | None, list[str]]:
    """Return the first setting that is a positive number, its value, and the other settings in words."""
    numbers = (name for name, value in settings.items() if isinstance(value, (int, float)) and value > 0)
    first = next(numbers, None)
    others = [settings_words({name: value}) for name, value in settings.items() if name != first]
    return first or "", None if first is None else settings[first], others
