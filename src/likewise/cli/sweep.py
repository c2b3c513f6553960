"""`likewise sweep`: settings x seeds in one process, resumable, ending in a comparison."""

import argparse
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import final

from likewise.cli.printing import say, tell
from likewise.cli.recipes import names, studies, study, unknown
from likewise.runs import PARTIAL, Run

PLAN = "sweep.json"
OWN = ("--seed", "--runs", "--resume", "--evaluations.help")  # options of `train` that a sweep sets itself
DESCRIPTION = """Train several settings with several seeds, one after another in one process, and compare them.

Every option of `likewise train` applies to all runs. A setting adds options of its own; a grid takes every combination.

    likewise sweep --seeds 3 --setting "--loss SupConLoss" --setting "--loss NTXentLoss" --trainer.max_epochs 50
    likewise sweep --seeds 5 --setting "uniform: --loss RASCALLoss --loss.ranking uniform" \\
                   --setting "agreement: --loss RASCALLoss" --data Arrays --data.path flowers.npz
    likewise sweep --seeds 0,7,9 --grid loss.temperature=0.05,0.1,0.2
    likewise sweep --seeds 5 --recipe rascal-ablation-digits     a study: settings that come with likewise
    likewise sweep --resume sweeps/SWEEP                         resume a sweep that was interrupted

The sweep's folder gets a folder for each setting and seed, compare.html, compare.csv and compare.md. A run that fails
is reported, and the others are trained; but if the very first one fails before training, the sweep ends.
"""


@final
@dataclass(frozen=True)
class Sweep:
    """What is trained: settings x seeds.

    Args:
        common: Options of all runs.
        settings: For each setting's name its own options.
        seeds: The seeds.
        splits: Whether each seed also is that of its split.
    """

    common: list[str] = field(default_factory=list[str])
    settings: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    seeds: list[int] = field(default_factory=list[int])
    splits: bool = False

    def runs(self, folder: Path) -> Iterator[tuple[str, int, Path, list[str]]]:
        """Yield each run's setting, seed, folder to stand in, and options; seed after seed, so that all settings grow.

        Example:
            >>> [name for name, *_ in Sweep([], {"a": [], "b": []}, [0, 1]).runs(Path("sweep"))]
            ['a', 'b', 'a', 'b']
        """
        for seed in self.seeds:
            for number, (name, words) in enumerate(self.settings.items(), 1):
                root = folder / f"{number}-{_slug(name)}" / f"seed-{seed}"
                seeded = ["--seed", str(seed), *(["--split.seed", str(seed)] if self.splits else [])]
                yield name, seed, root, [*self.common, *words, *seeded, "--runs", str(root)]


def run(arguments: Sequence[str]) -> None:
    """Run `likewise sweep` with the arguments that follow the verb.

    Raises:
        ValueError: An argument is not as expected, or a run failed.
        KeyboardInterrupt: The user ended it; a note says how to resume it.
        SystemExit: Help was asked for, or SIGTERM ended it.
    """
    sweep, folder = _parsed(arguments)
    from likewise.cli.sweeping import carry_out, check  # noqa: PLC0415 - imports Lightning, which help has no need of

    plan = folder / PLAN
    if not plan.is_file():
        check(sweep)
        folder.mkdir(parents=True, exist_ok=True)
        plan.write_text(json.dumps(asdict(sweep), indent=2) + "\n", encoding="utf-8")
    say(f"{len(sweep.settings)} settings x {len(sweep.seeds)} seeds in {folder}")
    try:
        page = carry_out(sweep, folder)
    except BaseException as error:
        if any(standing(root) for _, _, root, _ in sweep.runs(folder)):
            error.add_note(f"resume the sweep with likewise sweep --resume {folder}")
        else:
            _remove_traces(sweep, folder)
        raise
    if not page.is_file():
        tell(f"\nsweep: {folder}; fewer than two runs have scores to compare")


def _remove_traces(sweep: Sweep, folder: Path) -> None:
    """Remove the plan of a sweep that trained nothing, and the folders that are empty; whatever else is there stays."""
    (folder / PLAN).unlink(missing_ok=True)
    roots = [root for _, _, root, _ in sweep.runs(folder)]
    for path in (*roots, *dict.fromkeys(root.parent for root in roots), folder):
        if path.is_dir() and not any(path.iterdir()) and path.resolve() != Path.cwd():
            path.rmdir()


def standing(root: Path) -> Run | None:
    """Return the run that stands in a folder, finished or not; None where there is none."""
    for path in sorted(root.iterdir(), key=lambda path: path.suffix == PARTIAL) if root.is_dir() else ():
        if (path / "run.json").is_file():
            return Run(path)
    return None


def _parsed(arguments: Sequence[str]) -> tuple[Sweep, Path]:
    parser = argparse.ArgumentParser(
        prog="likewise sweep",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
        usage="likewise sweep [--seeds N] [--setting OPTIONS ...] [--grid NAME=VALUES ...] [OPTIONS OF TRAIN]",
    )
    parser.add_argument("--seeds", default="3", help="how many seeds, from 0; or which, with commas (default: 3)")
    parser.add_argument("--setting", action="append", default=[], help='a setting: "NAME: OPTIONS", or "OPTIONS"')
    parser.add_argument("--grid", action="append", default=[], help="an option with values: loss.temperature=0.1,0.2")
    parser.add_argument("--recipe", help="a recipe for all runs, METHOD-DATA, or a study with its settings, STUDY-DATA")
    parser.add_argument("--split_seeds", action="store_true", help="split the data anew with each seed")
    parser.add_argument("--output", type=Path, help="the sweep's folder (default: sweeps/DATE)")
    parser.add_argument("--resume", type=Path, metavar="SWEEP", help="the folder of a sweep to resume")
    try:
        given, common = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ValueError(f"{error}: see likewise sweep --help") from error
    if given.resume is not None:
        return _resumed(given.resume, arguments)
    inner = [word for text in (*given.setting, *(f"--{grid}" for grid in given.grid)) for word in text.split()]
    taken = [word for word in (*common, *inner) if word.partition("=")[0] in OWN]
    if taken:
        raise ValueError(f"expected no {taken[0]}, which a sweep sets itself, got one: give --seeds and --output")
    folder = given.output or Path("sweeps") / datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")
    settings = list(given.setting)
    if given.recipe in studies():
        settings = [f"{name}: {words}" for name, words in study(given.recipe).items()] + settings
    elif given.recipe is not None and given.recipe not in names():
        raise ValueError(unknown(given.recipe, [*studies(), *names()]))
    elif given.recipe is not None:
        common = [*common, "--recipe", given.recipe]
    sweep = Sweep(common, _settings(settings, given.grid), _seeds(given.seeds), given.split_seeds)
    if folder.exists() and any(folder.iterdir()):
        if (folder / PLAN).is_file() and _read(folder) == sweep:
            return sweep, folder
        raise ValueError(f"expected a new folder or that of the same sweep, got {folder}: give another --output")
    return sweep, folder


def _resumed(folder: Path, arguments: Sequence[str]) -> tuple[Sweep, Path]:
    others = [word for word in arguments if word.startswith("--") and word.partition("=")[0] != "--resume"]
    if others:
        raise ValueError(
            f"expected with --resume no other option, got {others[0]}: a sweep is resumed with its own options"
        )
    return _read(folder), folder


def _read(folder: Path) -> Sweep:
    try:
        return Sweep(**json.loads((folder / PLAN).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"expected the folder of a sweep, got {folder}, with no readable {PLAN}: likewise sweep makes one"
        ) from error


def _seeds(text: str) -> list[int]:
    """Read how many seeds, or which.

    Example:
        >>> _seeds("3"), _seeds("4,2"), _seeds("7,")
        ([0, 1, 2], [4, 2], [7])
    """
    numbers = [part.strip() for part in text.split(",") if part.strip()]
    if not numbers or not all(number.isdecimal() for number in numbers) or text.strip() == "0":
        raise ValueError(
            f"expected --seeds as a number above 0, or as seeds with commas, got {text!r}: 5 for the seeds 0 to 4, or "
            "1,7; a comma after a single one"
        )
    seeds = list(range(int(text))) if "," not in text else list(map(int, numbers))
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"expected every one of --seeds once, got {text!r}: leave out the second")
    return seeds


def _settings(given: Sequence[str], grids: Sequence[str]) -> dict[str, list[str]]:
    """Return every setting with every combination of the grids.

    Example:
        >>> _settings(["A: --loss SupConLoss", "--loss NTXentLoss"], [])
        {'A': ['--loss', 'SupConLoss'], 'loss=NTXentLoss': ['--loss', 'NTXentLoss']}
        >>> list(_settings([], ["loss.temperature=0.1,0.2"]))
        ['loss.temperature=0.1', 'loss.temperature=0.2']
    """
    bases = [_setting(text) for text in given] or [("", [])]
    axes: list[list[tuple[str, list[str]]]] = []
    for text in grids:
        name, equal, values = text.removeprefix("--").partition("=")
        if not equal or not values:
            raise ValueError(f"expected --grid NAME=VALUE,VALUE, got {text!r}: --grid loss.temperature=0.1,0.2")
        axes.append([(f"{name}={value}", [f"--{name}", value]) for value in _values(values)])
    settings: dict[str, list[str]] = {}
    for (base, words), *combined in product(bases, *axes):
        name = ", ".join([*filter(None, [base]), *(label for label, _ in combined)]) or "default"
        if name in settings:
            raise ValueError(f"expected settings with a name each, got two called {name!r}: name them, NAME: OPTIONS")
        settings[name] = [*words, *(word for _, own in combined for word in own)]
    return settings


def _setting(text: str) -> tuple[str, list[str]]:
    named = re.match(r"\s*([^-][^:]*):\s*(.*)$", text, re.DOTALL)
    try:
        words = shlex.split(named[2] if named else text)
    except ValueError as error:
        raise ValueError(f"expected a setting as options, got {text!r}: {error}") from error
    if words and not words[0].startswith("--"):
        raise ValueError(f"expected a setting as options, got {text!r}: write --setting '--loss NTXentLoss'")
    name = named[1].strip() if named else " ".join(words).replace("--", "").replace(" ", "=", 1)
    return name, words


def _values(text: str) -> list[str]:
    """Part values at commas, but within brackets.

    Example:
        >>> _values("[1,2],[3]")
        ['[1,2]', '[3]']
    """
    return [part for part in re.split(r",(?![^\[{]*[\]}])", text) if part]


def _slug(name: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", name).strip("-")[:60] or "setting"
