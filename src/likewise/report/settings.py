"""Settings: runs that differ in the seed only are one setting, which is named by what it does not share with others."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from likewise.evaluation.choice import USUAL
from likewise.evaluation.features import Progress, silent
from likewise.parts import is_spec
from likewise.report.subject import Subject
from likewise.report.words import short_name
from likewise.runs import Run
from likewise.scores import ALL, ENCODER

FILLED = {"input_shape", "feature_dim", "num_samples", "num_classes"}  # what follows from other parts
COUNTED = {evaluation.name for evaluation in USUAL}  # evaluations of the test samples, and of no others
SAMPLES = ".samples"  # how the path of the number of samples of an evaluation ends
UNTRAINED = {  # options of the trainer that change no training
    *("callbacks", "default_root_dir", "logger", "log_every_n_steps", "profiler"),
    *("enable_checkpointing", "enable_model_summary", "enable_progress_bar"),
}


@final
@dataclass(frozen=True)
class Setting:
    """Runs with the same settings.

    Args:
        name: What the settings are called.
        subjects: The runs.
    """

    name: str
    subjects: tuple[Subject, ...]

    @property
    def by_seed(self) -> dict[int, Subject]:
        """The runs by their seeds, those that have one."""
        return {subject.seed: subject for subject in self.subjects if subject.seed is not None}


def settings_of(subjects: Sequence[Subject]) -> list[Setting]:
    """Gather the runs of each setting, in the order of their first runs."""
    names = dict.fromkeys(subject.setting for subject in subjects)
    return [Setting(name, tuple(subject for subject in subjects if subject.setting == name)) for name in names]


def in_settings(
    runs: Sequence[Run], names: Mapping[Path, str] | None = None, *, progress: Progress = silent
) -> list[Subject]:
    """Name the setting of each run.

    Args:
        runs: The runs.
        names: What the setting of a run's folder is called. None: runs with the same parts and the same data are one
            setting; it is called by the classes and arguments that others don't share. Several runs with one seed are
            never one setting, but called by their own names too.
        progress: Wraps what sections of a page take long over.

    Raises:
        ValueError: Two runs of a setting that was named have the same seed.
    """
    subjects = [Subject(run) for run in runs]
    if names is None:
        called = _called(subjects)
    else:
        given = {Path(folder).absolute(): name for folder, name in names.items()}
        called = [given.get(subject.run.folder.absolute(), subject.run.name) for subject in subjects]
    pairs = zip(subjects, called, strict=True)
    settings = [Subject(subject.run, setting=name, progress=progress) for subject, name in pairs]
    for setting in settings_of(settings):
        seeded = [subject.seed for subject in setting.subjects if subject.seed is not None]
        if len(set(seeded)) < len(seeded):
            raise ValueError(
                f"expected one run for each seed of {setting.name}, got {len(seeded)} runs with the seeds "
                f"{', '.join(map(str, sorted(seeded)))}: leave out one of each"
            )
    return settings


def _called(subjects: Sequence[Subject]) -> list[str]:
    """Return the name of each run's setting."""
    if any("source" in subject.facts for subject in subjects):  # features from elsewhere have no settings to describe
        files = [Path(str(subject.facts.get("source", ""))).name or subject.run.name for subject in subjects]
        return [
            file if files.count(file) == 1 else f"{file}, {subject.run.name}"
            for file, subject in zip(files, subjects, strict=True)
        ]
    prints = [_fingerprint(subject) for subject in subjects]
    described = [_Settings.of(subject, with_data=len(set(prints)) > 1) for subject in subjects]
    keys = [
        json.dumps([fingerprint, of.classes, of.arguments], sort_keys=True)
        for fingerprint, of in zip(prints, described, strict=True)
    ]
    groups = {key: [place for place, one in enumerate(keys) if one == key] for key in keys}
    words = _words({key: described[places[0]] for key, places in groups.items()})
    called = [""] * len(subjects)
    for key, places in groups.items():
        seeds = [subjects[place].seed for place in places]
        apart = len(places) > 1 and (None in seeds or len(set(seeds)) < len(seeds))
        twin = list(words.values()).count(words[key]) > 1
        for place in places:
            own = subjects[place if apart else places[0]].run.name
            called[place] = ", ".join(filter(None, [words[key], own if apart or twin or not words[key] else ""]))
    return called


def _fingerprint(subject: Subject) -> str:
    facts = subject.facts
    return str(facts.get("source") or facts.get("samples", {}).get("fingerprint", ""))


@final
@dataclass(frozen=True)
class _Settings:
    """What a run was made with: the class of each part by its path, and the arguments by theirs."""

    classes: dict[str, str]
    arguments: dict[str, str]

    @classmethod
    def of(cls, subject: Subject, *, with_data: bool) -> "_Settings":
        found = cls({}, {})
        for part, value in subject.facts.get("parts", {}).items():
            if part != "data" or with_data:
                found.add(part, value)
        for option, value in subject.trainer.items():
            if option not in UNTRAINED and value is not None:
                found.arguments[f"trainer.{option}"] = _short(value)
        if "source" in subject.facts:
            found.arguments["source"] = _short(str(subject.facts["source"]))
        for score in subject.test_scores.values():
            if score.group == ALL and score.features == ENCODER and score.evaluation in COUNTED:
                found.arguments[f"{score.evaluation}{SAMPLES}"] = str(score.count)
        return found

    def add(self, path: str, value: Any) -> None:
        specs: list[Any] = value if isinstance(value, list) and value and all(map(is_spec, value)) else [value]
        if not all(map(is_spec, specs)):
            if value is not None and path.rpartition(".")[2] not in FILLED:
                self.arguments[path] = _short(value)
            return
        self.classes[path] = " + ".join(map(short_name, specs))
        for spec in specs:
            for name, argument in (spec.get("init_args") or {}).items():
                self.add(f"{path}.{name}" if len(specs) == 1 else f"{path}.{short_name(spec)}.{name}", argument)


def _words(settings: Mapping[str, _Settings]) -> dict[str, str]:
    """Describe each setting by the classes and arguments that differ.

    An argument of a part whose class differs too is told only where several settings have that class.
    """
    everyone = list(settings.values())
    parts = _differing([of.classes for of in everyone])
    parts = [part for part in parts if not any(part.startswith(f"{other}.") for other in parts)]
    if len(everyone) == 1:
        parts = [part for part in ("loss",) if part in everyone[0].classes]
    by_class = {key: ", ".join(of.classes.get(part, f"no {part}") for part in parts) for key, of in settings.items()}
    everywhere = [path for path in _differing([of.arguments for of in everyone]) if not _within(path, parts)]
    words: dict[str, str] = {}
    for key, of in settings.items():
        peers = [settings[other].arguments for other, name in by_class.items() if name == by_class[key]]
        paths = [path for path in _differing(peers) if _within(path, parts)] + everywhere
        words[key] = ", ".join(filter(None, [by_class[key], *_arguments(of.arguments, paths)]))
    return words


def _arguments(arguments: Mapping[str, str], paths: Sequence[str]) -> list[str]:
    """Write arguments by their names, or by their whole paths where two have one name."""
    ends = [path.rpartition(".")[2] for path in paths]
    names = [end if ends.count(end) == 1 else path for path, end in zip(paths, ends, strict=True)]
    values = [arguments.get(path, "default") for path in paths]
    return [value if name == "source" else f"{name}={value}" for name, value in zip(names, values, strict=True)]


def _differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Name the paths whose values differ; an evaluation that only some runs had is no difference of settings."""
    paths = dict.fromkeys(path for of in settings for path in of)
    values = {path: {of.get(path) for of in settings if path in of or not path.endswith(SAMPLES)} for path in paths}
    return [path for path in paths if len(values[path]) > 1]


def _within(path: str, parts: Sequence[str]) -> bool:
    return any(path.startswith(f"{part}.") for part in parts)


def _short(value: Any) -> str:
    """Write a value; of a path its last part."""
    if isinstance(value, str):
        return Path(value).name or value
    return json.dumps(value, default=str)
