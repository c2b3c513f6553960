"""The plan of a sweep: every run with its folder and options, saved in the sweep's folder."""

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, final

from likewise import configuration
from likewise.configuration.options import TrainOptions
from likewise.files.formats import numbered
from likewise.instantiate import path_of

PLAN = "sweep.json"
OWN_OPTIONS = ("--seed", "--runs", "--resume", "--evaluations.help")  # options of `train` that a sweep sets itself
Axis = Sequence[tuple[str, list[str]]]
"""The values of an option: for each, its label and the command-line words that set it."""
TUNED_ALONE = "expected --tune_by with --tune, got it alone: --tune loss.temperature=0.1,0.2"


class GivenSetting(NamedTuple):
    """A setting before planning: its options, its tuned options, and the evaluation that chooses."""

    name: str
    words: list[str]
    tune: Sequence[Axis] = ()
    tuned_by: str | None = None


@final
@dataclass(frozen=True)
class Sweep:
    """A sweep: settings x seeds. Each seed also sets the options `seeded`, and with `splits` the seed of the split.

    `digests` are of the files named in the options: a changed file makes it another plan. A tuned setting has the
    options of every trial, and optionally the evaluation that chooses; see `validation_score`.
    """

    common: list[str] = field(default_factory=list[str])
    settings: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    seeds: list[int] = field(default_factory=list[int])
    splits: bool = False
    trials: dict[str, list[list[str]]] = field(default_factory=dict[str, list[list[str]]])
    tuned_by: dict[str, str] = field(default_factory=dict[str, str])
    seeded: list[str] = field(default_factory=list[str])
    digests: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        arguments = [*self.common, *(word for options in self.settings.values() for word in options)]
        arguments += [word for trials in self.trials.values() for trial in trials for word in trial]
        taken = next((word.partition("=")[0] for word in arguments if word.partition("=")[0] in OWN_OPTIONS), None)
        if taken:
            raise ValueError(f"expected no {taken}, which a sweep sets itself, got one: give --seeds and --output")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"expected every one of --seeds once, got {self.seeds}: leave out the second")
        if self.trials and self.splits:
            reason = "one split's validation part is in another's test"
            raise ValueError(f"expected --tune without --split_seeds, got both: {reason}")
        if self.tuned_by and not self.trials:
            raise ValueError(TUNED_ALONE)

    def tuning(self, folder: Path) -> "Iterator[PlannedRun]":
        """Yield the runs that choose the options of tuned settings, all with the first seed."""
        for index in range(max(map(len, self.trials.values()), default=0)):
            for name, trials in self.trials.items():
                if index < len(trials):
                    name_of_trial = f"{name}, trial {index + 1} of {len(trials)} ({options_line(trials[index])})"
                    root = self._home(folder, name) / f"trial-{index + 1}"
                    yield self._plan_run(name, trials[index], self.seeds[0], root, name_of_trial)

    def runs(self, folder: Path, chosen: Mapping[str, Sequence[str]] | None = None) -> "Iterator[PlannedRun]":
        """Yield the other runs, seed by seed, so that all settings advance; by default with their first trial."""
        for seed in self.seeds:
            for name in self.settings:
                trials = self.trials.get(name)
                if trials and seed == self.seeds[0]:
                    continue
                more = (chosen or {}).get(name, trials[0] if trials else [])
                yield self._plan_run(name, more, seed, self._home(folder, name) / f"seed-{seed}", name)

    def everything(self, folder: Path) -> "list[PlannedRun]":
        """List the runs of the whole sweep."""
        return [*self.tuning(folder), *self.runs(folder)]

    def _home(self, folder: Path, name: str) -> Path:
        slug = re.sub(r"[^\w.=-]+", "-", name).strip("-")[:60] or "setting"
        return folder / f"{list(self.settings).index(name) + 1}-{slug}"

    def _plan_run(self, name: str, more: Sequence[str], seed: int, root: Path, label: str) -> "PlannedRun":
        names = ["--seed", *(["--split.seed"] if self.splits else []), *self.seeded]
        seeded = [word for name in names for word in (name, str(seed))]
        arguments = [*self.common, *self.settings[name], *more, *seeded, "--runs", str(root)]
        return PlannedRun(name, f"{label}, seed {seed}", root, arguments, list(more))


@final
@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep, with its options as command-line words; `tried` are the tuned ones among them."""

    setting: str
    name: str
    root: Path
    words: list[str]
    tried: list[str]


def options_of(options: Mapping[str, Any]) -> list[str]:
    """Return options as command-line words."""

    def refuse(value: Any) -> Any:
        got = type(value).__name__
        raise ValueError(f"expected options as plain values or classes, got {got}: give its class_path")

    line: list[str] = []
    for name, value in options.items():
        plain = path_of(value) if isinstance(value, type) else value
        line += [f"--{name}", str(plain) if isinstance(plain, str | Path) else json.dumps(plain, default=refuse)]
    return line


def axes_of(grid: Mapping[str, Sequence[Any]] | None) -> list[Axis]:
    """Return an axis for each option: its values, each as an option with a label."""
    return [
        [(f"{name}={options[1]}", options) for options in (options_of({name: value}) for value in values)]
        for name, values in (grid or {}).items()
    ]


def plan_sweep(
    settings: Sequence[GivenSetting],
    common: list[str],
    seeds: list[int],
    *,
    grid: Sequence[Axis] = (),
    tune: Sequence[Axis] = (),
    trials: int | None = None,
    tune_by: str | None = None,
    split_seeds: bool = False,
    seeded: Sequence[str] = (),
) -> Sweep:
    """Plan every setting with every combination of a grid; `tune` and `tune_by` are for settings without their own.

    Every combination of the tuned values is tried, or a reproducible sample of `trials` of them.
    """
    every = _combine(settings or [GivenSetting("", [])], grid)
    tried: dict[str, list[list[str]]] = {}
    for name, setting in every.items():
        tuned_itself = {_option(axis) for axis in setting.tune}
        axes = [*(axis for axis in tune if _option(axis) not in tuned_itself), *setting.tune]
        if axes:
            trying = [[word for _, options in together for word in options] for together in product(*axes)]
            if trials is not None and trials < len(trying):
                trying = Random(0).sample(trying, trials)  # noqa: S311
            tried[name] = trying
    if trials is not None and not tried:
        raise ValueError(f"expected --trials with --tune, got --trials {trials} alone: --tune loss.temperature=0.1,0.2")
    if any(setting.tuned_by and name not in tried for name, setting in every.items()):
        raise ValueError(TUNED_ALONE)
    chosen = {name: setting.tuned_by or tune_by for name, setting in every.items()}
    by = {name: evaluation for name, evaluation in chosen.items() if evaluation}
    setting_options = {name: setting.words for name, setting in every.items()}
    return Sweep(common, setting_options, seeds, split_seeds, tried, by, list(seeded))


def _option(axis: Axis) -> str:
    return axis[0][1][0]


def _combine(settings: Sequence[GivenSetting], grid: Sequence[Axis]) -> dict[str, GivenSetting]:
    every: dict[str, GivenSetting] = {}
    for setting, together in product(settings, product(*grid)):
        name = ", ".join([*filter(None, [setting.name]), *(label for label, _ in together)]) or "default"
        if name in every:
            raise ValueError(f"expected settings with a name each, got two called {name!r}: name them, NAME: OPTIONS")
        every[name] = setting._replace(words=[*setting.words, *(word for _, options in together for word in options)])
    return every


def folder_of(sweep: Sweep, output: Path | str | None, among: str = "sweeps") -> Path:
    """Return a new folder for a sweep, or the folder of the same sweep, to resume it; or raise a ValueError."""
    if output is None:
        now = datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")
        return next(path for path in numbered(Path(among) / now) if not path.exists())
    folder = Path(output)
    if folder.exists() and any(folder.iterdir()) and not ((folder / PLAN).is_file() and read(folder) == sweep):
        raise ValueError(f"expected a new folder or that of the same sweep, got {folder}: give another --output")
    return folder


def options_line(options: Sequence[str]) -> str:
    """Return options as one line, such as "loss.temperature=0.1, optimizer.lr=1"."""
    pairs = zip(options[::2], options[1::2], strict=True)
    return ", ".join(f"{name.removeprefix('--')}={value}" for name, value in pairs)


def configurations(sweep: Sweep) -> dict[str, TrainOptions]:
    """Return the options of every setting, including its first trial's."""
    configs: dict[str, TrainOptions] = {}
    for name, options in sweep.settings.items():
        for trial in sweep.trials.get(name, [[]]):
            with in_setting(name, sweep):
                config = configuration.read([*sweep.common, *options, *trial, "--seed", str(sweep.seeds[0])])
            configs.setdefault(name, config)
    return configs


def as_yaml(sweep: Sweep) -> str:
    """Return the options of every setting, including its first trial's, as YAML: a document each."""
    configs = configurations(sweep)
    return "\n".join(f"--- # {name}\n{configuration.written(config)}" for name, config in configs.items())


@contextmanager
def in_setting(name: str, sweep: Sweep) -> Generator[None]:
    """Add to a ValueError the name of its setting, and the option that does not fit all settings."""
    try:
        yield
    except ValueError as error:
        common = [word for word in sweep.common if word.startswith("--") and f"{word} " in str(error)]
        hint = f" (or give {common[0]} in the settings that have it)" if common and len(sweep.settings) > 1 else ""
        raise ValueError(f"setting {name!r}: {error}{hint}") from error


def write(sweep: Sweep, folder: Path) -> Path:
    """Write a plan into a sweep's folder; if another sweep was started there meanwhile, into a new one next to it."""
    text = json.dumps(asdict(sweep), indent=2) + "\n"
    for path in numbered(folder):
        path.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), (path / PLAN).open("x", encoding="utf-8") as file:
            file.write(text)
            return path
    raise AssertionError  # pragma: no cover - counting does not end


def read(folder: Path) -> Sweep:
    """Read the plan of a sweep."""
    try:
        return Sweep(**json.loads((folder / PLAN).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        got = f"got {folder}, with no readable {PLAN}: likewise sweep makes one"
        raise ValueError(f"expected the folder of a sweep, {got}") from error


def remove_traces(sweep: Sweep, folder: Path) -> None:
    """Remove the plan of a sweep that trained nothing, and its empty folders; all other files stay."""
    (folder / PLAN).unlink(missing_ok=True)
    roots = [run.root for run in sweep.everything(folder)]
    for path in (*roots, *dict.fromkeys(root.parent for root in roots), folder):
        if path.is_dir() and not any(path.iterdir()) and path.resolve() != Path.cwd():
            path.rmdir()
