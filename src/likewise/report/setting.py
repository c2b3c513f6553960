"""Settings: groups of runs that differ only in the seed, named by the options they don't share with other settings."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, final

from likewise.evaluation.choice import USUAL_EVALUATIONS
from likewise.evaluation.features import Bar, silent
from likewise.instantiate import is_spec
from likewise.report.elements import DERIVED_ARGUMENTS, short_name
from likewise.report.run_view import RunView
from likewise.runs import Run
from likewise.runs.scores import ALL, ENCODER

COUNTED_EVALUATIONS = {evaluation.name for evaluation in USUAL_EVALUATIONS}  # over the test samples only
MAX_NAME_LETTERS = 80  # characters of a name
SAMPLES_PATH = "evaluated.samples"  # the path of the number of evaluated test samples
NEUTRAL_OPTIONS = {  # options of the trainer without effect on the training
    *("callbacks", "default_root_dir", "logger", "log_every_n_steps", "profiler"),
    *("enable_checkpointing", "enable_model_summary", "enable_progress_bar"),
}
Config = Mapping[str, str]
"""Options by their paths: the class of a part by its name, such as "loss", and its arguments below it."""


@final
@dataclass(frozen=True)
class Setting:
    """Runs with the same settings, and the name of the setting."""

    name: str
    views: tuple[RunView, ...]

    @property
    def first(self) -> RunView:
        """The first run."""
        return self.views[0]

    @property
    def by_seed(self) -> dict[int, RunView]:
        """The runs that have a seed, by their seeds."""
        return {view.seed: view for view in self.views if view.seed is not None}


def settings_of(views: Sequence[RunView]) -> list[Setting]:
    """Gather the runs of each setting, in the order of their first runs."""
    names = dict.fromkeys(view.setting for view in views)
    return [Setting(name, tuple(view for view in views if view.setting == name)) for name in names]


def in_settings(
    runs: Sequence[Run], names: Mapping[Path, str] | None = None, *, progress: Bar = silent
) -> list[RunView]:
    """Name the setting of each run, and note the options in which it differs from the others.

    Args:
        runs: The runs.
        names: The name of the setting of each run's folder. None: runs with the same parts and data are one setting,
            named by the file of their features, by the --name that only its runs have, or by the options that others
            don't share, the first of many. Runs with the same seed are never one setting: their own names are added.
        progress: Wraps the slow loops of a page's sections.

    Raises:
        ValueError: Two runs of a setting in `names` have the same seed.
    """
    views = [RunView(run, progress=progress) for run in runs]
    if names is None:
        _name(views)
    else:
        setting_names = {Path(folder).absolute(): name for folder, name in names.items()}
        for view in views:
            view.setting = setting_names.get(view.run.folder.absolute(), view.run.name)
    for setting in settings_of(views):
        seeds = sorted(view.seed for view in setting.views if view.seed is not None)
        if len(set(seeds)) < len(seeds):
            got = f"{len(seeds)} runs with the seeds {', '.join(map(str, seeds))}"
            raise ValueError(f"expected one run for each seed of {setting.name}, got {got}: leave out one of each")
    return views


def _name(views: Sequence[RunView]) -> None:
    """Name the runs that share their data and options, by the file of features from elsewhere, or by differences."""
    fingerprints = {view: str(view.metadata.get("samples", {}).get("fingerprint", "")) for view in views}
    several = len(set(fingerprints.values())) > 1
    groups: dict[str, list[RunView]] = {}
    for view in views:
        key = [view.file, fingerprints[view], _config(view, with_data=several)]
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(view)
    settings = list(groups.values())
    trained = [setting for setting in settings if not setting[0].file]
    differing = differing_options([_config(setting[0], with_data=several) for setting in trained])
    for setting, options in zip(trained, differing, strict=True):
        for view in setting:
            view.options = options
    own_names = [{view.run.options.get("name") for view in setting} for setting in settings]
    names: list[str] = []
    for (first, *_), run_names in zip(settings, own_names, strict=True):
        unique = next(iter(run_names)) if len(run_names) == 1 and own_names.count(run_names) == 1 else None
        names.append(first.file or unique or _option_words(first.options))
    for setting, name in zip(settings, names, strict=True):
        seeds = [view.seed for view in setting]
        apart = len(setting) > 1 and (None in seeds or len(set(seeds)) < len(seeds))
        for view in setting:
            run = (view if apart else setting[0]).run.name
            view.setting = ", ".join(filter(None, [name, run if apart or not name or names.count(name) > 1 else ""]))


def _config(view: RunView, *, with_data: bool) -> Config:
    config: dict[str, str] = {}
    for part, value in view.metadata.get("parts", {}).items():
        if part != "data" or with_data:
            config |= _flat(part, value)
    for option, value in (view.run.options.get("trainer") or {}).items():
        default = value is None or (option, value) == ("precision", "32-true")
        if option not in NEUTRAL_OPTIONS and not default:
            config[f"trainer.{option}"] = _short(value)
    counts = [
        score.count
        for score in view.test_scores.values()
        if score.group == ALL and score.features == ENCODER and score.evaluation in COUNTED_EVALUATIONS
    ]
    epoch = re.search(r"epoch\d+(?=(-\d+)?$)", view.run.name) if "checkpoint" in view.metadata else None
    return config | {SAMPLES_PATH: str(max(counts, default=0)), "run.weights": epoch[0] if epoch else "final"}


def _flat(path: str, value: Any) -> dict[str, str]:
    specs: list[Any] = value if isinstance(value, list) and value else [value]
    if not all(map(is_spec, specs)):
        return {} if value is None or path.rpartition(".")[2] in DERIVED_ARGUMENTS else {path: _short(value)}
    flat = {path: " + ".join(map(short_name, specs))}
    for spec in specs:
        owner = path if len(specs) == 1 else f"{path}.{short_name(spec)}"
        for name, argument in (spec.get("init_args") or {}).items():
            flat |= _flat(f"{owner}.{name}", argument)
    return flat


def differing_options(configs: Sequence[Config]) -> list[dict[str, str]]:
    """Return the options that each of several configurations does not share with the others, by path.

    Arguments of a part are compared among configurations with the same class for it. A single configuration is
    described by its loss.
    """
    if len(configs) == 1:
        return [{path: value for path, value in configs[0].items() if path == "loss"}]
    paths = sorted(dict.fromkeys(path for config in configs for path in config), key=lambda path: "." in path)
    options: list[dict[str, str]] = []
    for config in configs:
        differing: dict[str, str] = {}
        for path in paths:
            owners = [path[: match.start()] for match in re.finditer(r"\.", path)]
            alike = [peer for peer in configs if all(peer.get(owner) == config.get(owner) for owner in owners)]
            if len({peer.get(path) for peer in alike}) > 1:
                differing[path] = config.get(path, "none")
        options.append(differing)
    return options


def _option_words(options: Config) -> str:
    """Write classes by themselves, and arguments by name, or by path where two share a name; only the first of many."""
    # the number of evaluated samples follows from other options
    options = {path: value for path, value in options.items() if path != SAMPLES_PATH} or options
    ends = [path.rpartition(".")[2] for path in options]
    parts: list[str] = []
    for (path, value), end in zip(options.items(), ends, strict=True):
        name = end if ends.count(end) == 1 else path
        parts.append(value if "." not in path and value != "none" else f"{name}={value}")
    lengths = accumulate(len(word) + 2 for word in parts)
    few = max(1, sum(length <= MAX_NAME_LETTERS for length in lengths))
    return ", ".join(parts[:few]) + (f", and {len(parts) - few} more" if few < len(parts) else "")


def _short(value: Any) -> str:
    if isinstance(value, str):
        return Path(value).name or value
    return json.dumps(value, default=str)
