"""Settings: runs that differ in the seed only are one setting, which is named by what it does not share with others."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, final

from likewise.evaluation.choice import USUAL
from likewise.evaluation.features import Bar, silent
from likewise.parts import is_spec
from likewise.report.formatting import FILLED, short_name
from likewise.report.subject import Subject
from likewise.runs import Run
from likewise.scores import ALL, ENCODER

COUNTED = {evaluation.name for evaluation in USUAL}  # evaluations of the test samples, and of no others
LONGEST = 80  # characters of a name
SAMPLES = ".samples"  # how the path of the number of samples of an evaluation ends
UNTRAINED = {  # options of the trainer that change no training
    *("callbacks", "default_root_dir", "logger", "log_every_n_steps", "profiler"),
    *("enable_checkpointing", "enable_model_summary", "enable_progress_bar"),
}


@final
@dataclass(frozen=True)
class Setting:
    """Runs with the same settings, and what these are called."""

    name: str
    subjects: tuple[Subject, ...]

    @property
    def first(self) -> Subject:
        """The first run."""
        return self.subjects[0]

    @property
    def by_seed(self) -> dict[int, Subject]:
        """The runs by their seeds, those that have one."""
        return {subject.seed: subject for subject in self.subjects if subject.seed is not None}


def settings_of(subjects: Sequence[Subject]) -> list[Setting]:
    """Gather the runs of each setting, in the order of their first runs."""
    names = dict.fromkeys(subject.setting for subject in subjects)
    return [Setting(name, tuple(subject for subject in subjects if subject.setting == name)) for name in names]


def in_settings(
    runs: Sequence[Run], names: Mapping[Path, str] | None = None, *, progress: Bar = silent
) -> list[Subject]:
    """Name the setting of each run.

    Args:
        runs: The runs.
        names: What the setting of a run's folder is called. None: runs with the same parts and the same data are one
            setting; it is called by the --name that its runs alone have, or by the classes and arguments that others
            don't share, the first of many. Features from a file are called by that. Several runs with one seed are
            never one setting, but called by their own names too.
        progress: Wraps what sections of a page take long over.

    Raises:
        ValueError: Two runs of a setting that was named have the same seed.
    """
    subjects = [Subject(run, progress=progress) for run in runs]
    if names is None:
        called = _called(subjects)
    else:
        given = {Path(folder).absolute(): name for folder, name in names.items()}
        called = [given.get(subject.run.folder.absolute(), subject.run.name) for subject in subjects]
    for subject, name in zip(subjects, called, strict=True):
        subject.setting = name
    for setting in settings_of(subjects):
        seeded = [subject.seed for subject in setting.subjects if subject.seed is not None]
        if len(set(seeded)) < len(seeded):
            raise ValueError(
                f"expected one run for each seed of {setting.name}, got {len(seeded)} runs with the seeds "
                f"{', '.join(map(str, sorted(seeded)))}: leave out one of each"
            )
    return subjects


def _called(subjects: Sequence[Subject]) -> list[str]:
    """Return the name of each run's setting: of features from elsewhere their file's."""
    files = [Path(str(subject.facts.get("source", ""))).name for subject in subjects]
    prints = [str(subject.facts.get("samples", {}).get("fingerprint", "")) for subject in subjects]
    configs = [_config(subject, with_data=len(set(prints)) > 1) for subject in subjects]
    keys = [json.dumps(key, sort_keys=True) for key in zip(files, prints, configs, strict=True)]
    groups = {key: [place for place, one in enumerate(keys) if one == key] for key in keys}
    trained = [places for places in groups.values() if not files[places[0]]]
    differences = diff_configs([configs[places[0]] for places in trained])
    said = {places[0]: _words(of) for places, of in zip(trained, differences, strict=True)}
    own_names = {places[0]: {subjects[place].run.options.get("name") for place in places} for places in groups.values()}
    for place, own in own_names.items():
        unique = len(own) == 1 and list(own_names.values()).count(own) == 1
        said[place] = files[place] or (unique and next(iter(own))) or said[place]
    words = list(said.values())
    called = [""] * len(subjects)
    for places in groups.values():
        seeds = [subjects[place].seed for place in places]
        apart = len(places) > 1 and (None in seeds or len(set(seeds)) < len(seeds))
        named = said[places[0]]
        for place in places:
            own = subjects[place if apart else places[0]].run.name
            called[place] = ", ".join(
                filter(None, [named, own if apart or not named or words.count(named) > 1 else ""])
            )
    return called


class ClassName(str):
    """The class of a part, as a value of a flat configuration."""

    __slots__ = ()


def _config(subject: Subject, *, with_data: bool) -> dict[str, str]:
    """Return what a run was made with as a flat configuration: classes and arguments by their paths."""
    config: dict[str, str] = {}
    for part, value in subject.facts.get("parts", {}).items():
        if part != "data" or with_data:
            config |= _flat(part, value)
    for option, value in subject.trainer.items():
        if option not in UNTRAINED and value is not None:
            config[f"trainer.{option}"] = _short(value)
    for score in subject.test_scores.values():
        if score.group == ALL and score.features == ENCODER and score.evaluation in COUNTED:
            config[f"{score.evaluation}{SAMPLES}"] = str(score.count)
    epoch = re.search(r"epoch\d+(?=(-\d+)?$)", subject.run.name) if "checkpoint" in subject.facts else None
    config["weights"] = epoch[0] if epoch else "final"
    return config


def _flat(path: str, value: Any) -> dict[str, str]:
    specs: list[Any] = value if isinstance(value, list) and value and all(map(is_spec, value)) else [value]
    if not all(map(is_spec, specs)):
        return {} if value is None or path.rpartition(".")[2] in FILLED else {path: _short(value)}
    flat: dict[str, str] = {path: ClassName(" + ".join(map(short_name, specs)))}
    for spec in specs:
        owner = path if len(specs) == 1 else f"{path}.{short_name(spec)}"
        for name, argument in (spec.get("init_args") or {}).items():
            flat |= _flat(f"{owner}.{name}", argument)
    return flat


def diff_configs(configs: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return what each flat configuration does not share with the others, by path: classes first, then arguments.

    An argument of a part whose class differs is shown only if several configurations have that class. One
    configuration alone is described by its loss. The value of a part is a `ClassName`; its arguments stand below it.

    Example:
        >>> first = {"loss": ClassName("SupConLoss"), "loss.temperature": "0.1", "trainer.max_epochs": "30"}
        >>> diff_configs([first, first | {"loss.temperature": "0.2"}])
        [{'loss.temperature': '0.1'}, {'loss.temperature': '0.2'}]
        >>> diff_configs([first, {"loss": ClassName("NPairsLoss"), "trainer.max_epochs": "30"}])
        [{'loss': 'SupConLoss'}, {'loss': 'NPairsLoss'}]
    """
    parts = {path for config in configs for path, value in config.items() if isinstance(value, ClassName)}
    classes = [path for path in _differing(configs) if path in parts]
    classes = [path for path in classes if not _within(path, classes)]
    if len(configs) == 1:
        classes = [path for path in ("loss",) if path in parts]
    arguments = [path for path in _differing(configs) if path not in parts and not _within(path, classes)]
    of_classes = [{path: config.get(path, ClassName(f"no {path}")) for path in classes} for config in configs]
    found: list[dict[str, str]] = []
    for config, own in zip(configs, of_classes, strict=True):
        peers = [other for other, theirs in zip(configs, of_classes, strict=True) if theirs == own]
        inside = [path for path in _differing(peers) if path not in parts and _within(path, classes)]
        found.append(own | {path: config.get(path, "default") for path in [*inside, *arguments]})
    return found


def _differing(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """Name the paths whose values differ; an evaluation that only some runs had is no difference of settings."""
    paths = dict.fromkeys(path for config in configs for path in config)
    values = {path: {of.get(path) for of in configs if path in of or not path.endswith(SAMPLES)} for path in paths}
    return [path for path in paths if len(values[path]) > 1]


def _within(path: str, parts: Sequence[str]) -> bool:
    return any(path.startswith(f"{part}.") for part in parts)


def _words(values: Mapping[str, str]) -> str:
    """Write classes by themselves, and arguments by name, or by path where two have one name; of many the first."""
    values = {path: value for path, value in values.items() if not path.endswith(SAMPLES)} or values  # they follow
    ends = [path.rpartition(".")[2] for path, value in values.items() if not isinstance(value, ClassName)]
    said: list[str] = []
    for path, value in values.items():
        end = path.rpartition(".")[2]
        named = f"{end if ends.count(end) == 1 else path}={value}"
        said.append(value if isinstance(value, ClassName) else named)
    lengths = accumulate(len(words) + 2 for words in said)
    few = max(1, sum(length <= LONGEST for length in lengths))
    return ", ".join(said[:few]) + (f", and {len(said) - few} more" if few < len(said) else "")


def _short(value: Any) -> str:
    if isinstance(value, str):
        return Path(value).name or value
    return json.dumps(value, default=str)
