"""What `likewise sweep` does: run after run, each once, and a comparison of those that finished."""

from pathlib import Path

from likewise.cli import training
from likewise.cli.compare import compare
from likewise.cli.options import options, parse
from likewise.cli.printing import say
from likewise.cli.recipes import with_recipe
from likewise.cli.sweep import Sweep, standing
from likewise.runs import Run
from likewise.training.fitting import processes


def check(sweep: Sweep) -> None:
    """Raise a ValueError unless the options of every setting are understood, before anything is trained."""
    for name, words in sweep.settings.items():
        try:
            arguments = with_recipe([*sweep.common, *words])
            parse(options(arguments), arguments)
        except ValueError as error:
            raise ValueError(f"setting {name!r}: {error}") from error


def carry_out(sweep: Sweep, folder: Path) -> Path:
    """Train what isn't trained yet, and compare.

    Args:
        sweep: What is trained.
        folder: Where.

    Returns:
        The page that compares the runs.

    Raises:
        ValueError: The first run failed before training, or another one; the others have been finished and compared.
    """
    if processes() > 1:
        raise ValueError(f"expected one process for a sweep, got {processes()}: start it without torchrun")
    whole: dict[Path, str] = {}
    failed: list[str] = []
    everything = list(sweep.runs(folder))
    done = sum(run is not None and run.stage == "finished" for run in (standing(root) for _, _, root, _ in everything))
    if done:
        say(f"already finished: {done} of {len(everything)} runs")
    for number, (name, seed, root, words) in enumerate(everything, 1):
        before = standing(root)
        if before is not None and before.stage == "finished":
            whole[before.folder] = name
            continue
        say(f"\nrun {number} of {len(everything)}: {name}, seed {seed}")
        try:
            made = training.run(words if before is None else ["--resume", str(before.folder)])
        except Exception as error:
            if number == 1 and standing(root) is None:
                raise ValueError(f"{name}, seed {seed}, the first run: {error or type(error).__name__}") from error
            failed.append(f"{name}, seed {seed}: {error or type(error).__name__}")
            say(f"failed: {failed[-1]}")
            continue
        if made is not None:
            whole[made.folder] = name
    page = folder / "compare.html"
    order = list(sweep.settings)
    runs = [Run(path) for path in sorted(whole, key=lambda path: order.index(whole[path]))]
    runs = [run for run in runs if any(score.part == "test" and score.epoch is None for score in run.scores)]
    if len(runs) > 1:
        compare(runs, page, whole)
    if failed:
        raise ValueError(f"{len(failed)} of {len(everything)} runs failed; {failed[0]}")
    return page
