"""A script, not a test: kill a training of two processes at random moments, and compare what is left at the end.

    PYTHONPATH=tests/training python tests/processes/random_kills.py KILLS SEED

Whole runs, with evaluation and report, are started again and again; at a random time one process or both are killed,
and the run is resumed, until it ends. Its files are then compared bit for bit with those of an uninterrupted run. The
times come from a seed; what happens at them is up to the machine, so each prints what the run was about to do.
"""

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from command_worker import end_of, start_together
from test_resume import RUN, same, save_few

from likewise.runs import Run

LONGER = ["--trainer.max_epochs", "8"]


def main(kills, seed):
    """Kill until there are enough kills, and compare every run that ends."""
    draw, folder = random.Random(seed), Path(tempfile.mkdtemp())  # noqa: S311 - no secret
    seconds, done, runs = 0.0, 0, 0
    for name in ("first", "whole"):  # what is imported for the first takes longer
        (folder / name).mkdir()
        save_few(folder / name)
        started = time.monotonic()
        assert [end_of(process) for process in start_together(["train", *RUN, *LONGER], folder / name, 2)] == [0, 0]
        seconds = time.monotonic() - started
    whole = Run.open(next((folder / "whole" / "runs").iterdir()))
    while done < kills:
        place = folder / f"run{runs}"
        place.mkdir()
        save_few(place)
        done += killed(draw, place, seconds, kills - done)
        (left,) = (place / "runs").iterdir()
        same(Run.open(left), whole)
        runs += 1
        sys.stdout.write(f"run {runs} is the same as the uninterrupted one, after {done} kills\n")
    shutil.rmtree(folder)


def killed(draw, place, seconds, most):
    """Kill a run at random moments, and resume it until it ends; return how often it was killed."""
    words, done = ["train", *RUN, *LONGER], 0
    while True:
        processes = start_together(words, place, 2, said=True)
        victims = draw.choice([processes[:1], processes[1:], processes])
        wait = draw.uniform(0, seconds) if done < most else float("inf")
        until = time.monotonic() + wait
        while time.monotonic() < until and processes[0].is_alive():
            time.sleep(0.01)
        alive = processes[0].is_alive()
        for process in victims if alive else []:
            process.kill()
        statuses = [end_of(process) for process in processes]
        assert not any("Traceback" in (place / f"{rank}.err").read_text() for rank in (0, 1))
        left = list((place / "runs").iterdir()) if (place / "runs").exists() else []
        if alive:
            done += 1
            before = sorted(path.name for path in left[0].iterdir()) if left else []
            sys.stdout.write(f"killed {len(victims)} after {wait:.1f} s, statuses {statuses}, there were {before}\n")
        if left and left[0].suffix != ".partial":
            assert statuses[0] == 0
            return done
        words = ["train", "--resume", str(left[0])] if left else words


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
