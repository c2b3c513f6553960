"""The first half hour on a GPU: are the kernels right, what do they reach, in which tiles, where does the time go.

    python benchmarks/first_gpu.py --out DIR --minutes 30

needs torch, Triton and NumPy, no network, and nothing installed. Every step runs in processes of its own, each with a
limit of time, and writes JSON to DIR as it goes, so that a fault, a hang or a lack of memory leaves the rest. Where a
command may take ten minutes: `--minutes 9 --only smoke targets`, then `--minutes 9 --resume`. Without `--resume` steps
begin anew, and what DIR holds of them is deleted. The exit status is 0 if the smoke test passed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
POISONED = 3  # as in reports.py, which imports torch; this process does not
GRACE = 10.0  # seconds that a process is given to end
SANITIZER, UNSOUND = "sanitizer", 86  # its exit status where memory was not accessed as it should
FORMS = (
    *("SupCon", "SupCon, sorted", "shared label", "NWS", "BCL", "SupCon in", "not self", "all pairs"),
    *("temperature learned", "not normalised", "queue", "both ways"),
)
LOSSES = (
    ("SupConLoss", "NTXentLoss", "InfoNCELoss"),
    ("BCLLoss", "DCLLoss", "HardNegativeLoss"),
    ("KCLLoss", "MSCLoss", "MulSupConLoss"),
    ("NPairsLoss", "NWSLoss", "PaCoLoss", "RASCALLoss"),
    ("ClipLoss", "LiftedStructureLoss", "MultiSimilarityLoss", "SigLIPLoss", "ContrastiveMarginLoss"),
)
PRECISIONS = "bfloat16", "float32", "float16"
GROUPS = "ours", "graph", "ours-float32", "primitives", "dense", "compiled", "flex"
RECIPES = "cifar10", "cifar100"
TOLD = "device", "capability", "driver", "torch", "triton", "commit"
"""What a summary says of where it comes from."""


@dataclass(frozen=True)
class Part:
    """What one process does."""

    name: str
    module: str
    words: tuple[str, ...] = ()
    share: float = 1.0
    """Of the step's time, relative to the parts after it."""
    prefix: tuple[str, ...] = ()
    """A command that runs the process."""
    tiles: bool = False
    """Whether kernels take the tiles that were just measured."""

    @property
    def goes_on(self) -> bool:
        """Whether another process can go on with what one has written; the sanitizer's exit status is of all cases."""
        return self.module in {"smoke", "tiles"} and self.name != SANITIZER


@dataclass(frozen=True)
class Step:
    """Some parts, one after the other or as many at a time as there are processors."""

    summary: str
    share: float
    """Of the time, relative to the steps after it."""
    least: float
    """Seconds below which it does not begin."""
    parts: "Callable[[Asked], list[Part]]"
    together: bool = False


@dataclass
class Asked:
    """The options."""

    out: Path
    minutes: float
    only: tuple[str, ...]
    data: tuple[str, ...]
    resume: bool
    dry_run: bool
    workers: int
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """The device and versions, for parts that end before they say them."""
    end: float = field(init=False)
    interrupted: bool = False
    """Whether to end, where no process is just being started."""

    def __post_init__(self) -> None:
        self.end = time.monotonic() + 60 * self.minutes

    def interrupt(self, *_: object) -> None:
        """Note a signal, which may come before a process that was started is known; raise if one was noted before."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def go_on(self) -> None:
        """Raise if a signal was noted."""
        if self.interrupted:
            raise KeyboardInterrupt


def _smoke(asked: Asked) -> list[Part]:
    if asked.dry_run:
        return [
            Part("SupCon-NWS", "smoke", ("--forms", "SupCon", "SupCon, sorted", "NWS", "SupConLoss")),
            Part("queue", "smoke", ("--forms", "queue")),
        ]
    every = [
        Part(f"{form.replace(',', '').replace(' ', '-')}-{dtype}", "smoke", ("--forms", form, "--precisions", dtype))
        for dtype in PRECISIONS
        for form in FORMS
    ]
    every += [Part(f"{names[0]}-and-more", "smoke", ("--forms", *names)) for names in LOSSES]
    sanitizer = shutil.which("compute-sanitizer")
    words = "--forms", "SupCon", "shared label", "queue", "--precisions", "bfloat16"
    if sanitizer:
        prefix = sanitizer, "--error-exitcode", str(UNSOUND)
        every.append(Part(SANITIZER, "smoke", (*words, "--features", "128", "--rows", "700"), prefix=prefix))
    return every


def _targets(asked: Asked) -> list[Part]:
    if asked.dry_run:
        return [Part("ours", "targets")]
    shares = 0.3, 0.06, 0.08, 0.16, 0.06, 0.17, 0.17
    return [Part(name, "targets", ("--groups", name), share) for name, share in zip(GROUPS, shares, strict=True)]


def _winners(asked: Asked) -> list[Part]:
    if not _json(asked.out / "tuning" / "tiles.json"):
        return []
    forms = ("SupCon",) if asked.dry_run else FORMS
    ours = () if asked.dry_run else ("--groups", *GROUPS[:3])
    return [
        Part(
            "smoke", "smoke", ("--forms", *forms, *("--features", "128", "256", "64") * (not asked.dry_run)), tiles=True
        ),
        *([] if asked.dry_run else [Part("targets", "targets", ours, tiles=True)]),
    ]


def _training(asked: Asked) -> list[Part]:
    recipes = RECIPES[:1] if asked.dry_run else RECIPES
    data = ("--data", *asked.data) if asked.data else ()
    return [Part(name, "recipes", ("--recipe", name, *data)) for name in recipes]


STEPS = {
    "smoke": Step("every form and precision on the shipped tiles, against float64", 4, 45, _smoke, together=True),
    "targets": Step("what the kernels are expected to reach", 8, 60, _targets),
    "tuning": Step("other tiles, the winners in a file", 7, 60, lambda _: [Part("timed", "tiles")]),
    "winners": Step("the smoke test and ours again, in the tiles that won", 3, 30, _winners),
    "profile": Step(
        "where the time goes, and the memory of a million rows", 1.5, 20, lambda _: [Part("steps", "profiles")]
    ),
    "training": Step("the fast CIFAR recipes", 6.5, 60, _training),
}


class Process:
    """A part that runs."""

    def __init__(self, step: str, part: Part, asked: Asked, seconds: float, *, go_on: bool) -> None:
        self.part, self.path, self.seconds = part, asked.out / step / f"{part.name}.json", seconds
        self._facts = asked.facts
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not go_on:
            self.path.unlink(missing_ok=True)
        self.log = self.path.with_suffix(".log")
        words = [*part.words, "--out", str(self.path), "--seconds", str(max(1.0, seconds - GRACE))]
        words += ["--dry-run"] * asked.dry_run + ["--go-on"] * go_on
        command = [*part.prefix, sys.executable, "-m", f"benchmarks.{part.module}", *words]
        self.start = time.monotonic()
        with self.log.open("a" if go_on else "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                command, stdout=log, stderr=log, cwd=ROOT, env=environment(asked, part), start_new_session=True
            )

    def state(self) -> str | None:
        """Return how it ended, or None while it runs; end it when its time is over."""
        status = self._process.poll()
        if status is None:
            if time.monotonic() - self.start < self.seconds:
                return None
            self.end()
            return f"limit of {self.seconds:.0f} s"
        return "done" if status == 0 else f"exit status {status}" if status > 0 else f"signal {-status}"

    @property
    def is_poisoned(self) -> bool:
        """Whether another process can go on where this one ended."""
        return self._process.poll() == POISONED

    def end(self) -> None:
        """End it with all that it started."""
        for kind, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            try:
                os.killpg(self._process.pid, kind)
                self._process.wait(patience)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def close(self, state: str) -> dict[str, Any]:
        """Complete its file with how it ended, and return that."""
        held: dict[str, Any] = {"facts": self._facts, "results": []} | (_json(self.path) or {})
        found = {**held, "state": state, "took": round(time.monotonic() - self.start, 1)}
        if state != "done":
            found["log"] = self.log.read_text(encoding="utf-8", errors="replace")[-3000:]
        _write(self.path, found)
        return found


def environment(asked: Asked, part: Part) -> dict[str, str]:
    """Return a process's environment: this checkout first, and in a dry run the interpreter and no GPU."""
    shapes = [] if find_spec("jaxtyping") else [ROOT / "benchmarks" / "stand_ins"]
    path = [*shapes, ROOT / "src", ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONUNBUFFERED": "1"}
    found |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    found.pop("LIKEWISE_TILES", None)  # one's own are not the shipped ones
    found |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} if asked.dry_run else {}
    return found | ({"LIKEWISE_TILES": str(asked.out / "tuning" / "tiles.json")} if part.tiles else {})


def run(name: str, asked: Asked, seconds: float) -> None:
    """Run the parts of a step that are not done, within its time."""
    step, end = STEPS[name], time.monotonic() + seconds
    waiting = [each for each in step.parts(asked) if not (asked.resume and is_done(name, each, asked))]
    running, begun, most = list[Process](), set[str](), asked.workers if step.together else 1
    try:
        while waiting or running:
            asked.go_on()
            while waiting and len(running) < most and end - time.monotonic() > (0 if asked.dry_run else GRACE):
                part, left = waiting.pop(0), end - time.monotonic()
                limit = (
                    left if step.together else left * part.share / (part.share + sum(each.share for each in waiting))
                )
                go_on = part.goes_on and (part.name in begun or asked.resume)
                running.append(Process(name, part, asked, limit, go_on=go_on))
                begun.add(part.name)
            if not running:
                print(f"  not reached: {', '.join(each.name for each in waiting)}", flush=True)
                return
            time.sleep(0.1)
            for each in list(running):
                state = each.state()
                if state is None:
                    continue
                running.remove(each)
                found = each.close(state)
                print(f"  {each.part.name}: {state}, {found['took']:.0f} s, {found.get('summary', '')}", flush=True)
                if each.is_poisoned and each.part.goes_on and found["results"]:
                    waiting.insert(0, each.part)
    finally:
        for each in running:
            each.end()
            each.close("interrupted")


def is_done(step: str, part: Part, asked: Asked) -> bool:
    """Return whether an earlier command has finished a part, or the sanitizer found a fault, which stands."""
    found = _json(asked.out / step / f"{part.name}.json") or {}
    if part.name == SANITIZER and found.get("state") == f"exit status {UNSOUND}":
        return True
    return found.get("state") == "done" and found.get("complete", True)


def verdict(asked: Asked) -> dict[str, Any]:
    """Return whether the smoke test passed, and what is wrong with it."""
    held = [_json(path) for path in sorted((asked.out / "smoke").glob("*.json"))]
    results = [each for found in held if found for each in found["results"]]
    wrong = [each for each in results if not (each["right"] and each["same_bits"])]
    missing = [each.name for each in _smoke(asked) if each.name != SANITIZER and not is_done("smoke", each, asked)]
    of_sanitizer = _json(asked.out / "smoke" / f"{SANITIZER}.json") or {}
    unsound = of_sanitizer.get("state") == f"exit status {UNSOUND}"
    passed = not (wrong or missing or unsound)
    return {"passed": passed, "wrong": wrong, "missing": missing, "accessed_memory_wrongly": unsound}


def summary(asked: Asked) -> bool:
    """Write what every step has found, as JSON and as text; return whether the smoke test passed."""
    steps, smoke, about = dict[str, Any](), verdict(asked), ("state", "took", "summary")
    lines = [f"smoke test {'passed' if smoke['passed'] else 'not passed'}{', in a dry run' * asked.dry_run}"]
    if not any((asked.out / "smoke").glob("*.json")):
        lines = [f"smoke test not run{', in a dry run' * asked.dry_run}: without it nothing passes"]
    lines.append("  " + ", ".join(f"{name} {asked.facts[name]}" for name in TOLD if asked.facts.get(name)))
    lines += [f"  wrong: {each}" for each in list(dict.fromkeys(map(_in_words, smoke["wrong"])))[:20]]
    lines += [f"  {name}: {smoke[name]}" for name in ("missing", "accessed_memory_wrongly") if smoke[name]]
    for name, step in STEPS.items():
        lines += ["", f"{name}: {step.summary}"]
        for part in step.parts(asked):
            found = _json(asked.out / name / f"{part.name}.json") or {"state": "not reached"}
            told = steps.setdefault(name, {})[part.name] = {key: found[key] for key in about if key in found}
            if found["state"] not in {"done", "not reached"}:
                told["summary"] = f"{len(found.get('results', ()))} results until then"
            took = f"{told['took']} s" if "took" in told else ""
            said = told["state"], took, told.get("summary", "")
            lines.append(f"  {part.name}: {', '.join(filter(None, said))}")
    if any((asked.out / "targets").glob("*.json")):
        lines += ["", *["dry run: tiny sizes, times of an interpreter"] * asked.dry_run, *_table(asked)]
    content = {"dry_run": asked.dry_run, "smoke_test": smoke, "facts": asked.facts, "steps": steps}
    _write(asked.out / "summary.json", content)
    (asked.out / "summary.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    print("\n".join(["", *lines]))
    return smoke["passed"]


def _in_words(result: dict[str, Any]) -> str:
    """Describe a case that is wrong in a line."""
    case = ", ".join(f"{name} {result.get(name)}" for name in ("form", "dtype", "features", "rows"))
    if "failed" in result:
        return f"{case}: {result['failed']}"
    errors = ", ".join(f"{error:.1e}" for error in result.get("errors", ()))
    return f"{case}: errors {errors}{'' if result['same_bits'] else ', and other bits in a second run'}"


def _is_of_another_kind(asked: Asked) -> bool:
    """Return whether the folder holds results of a dry run, and this is none, or the other way round."""
    held = [_json(path) for name in STEPS for path in (asked.out / name).glob("*.json")]
    facts = [found.get("facts", {}) for found in held if isinstance(found, dict)]
    return any(each.get("dry_run", False) != asked.dry_run for each in facts)


def _facts(asked: Asked) -> dict[str, Any] | str:
    """Return the device and the versions, or why there is none to measure on."""
    command, env = [sys.executable, "-m", "benchmarks.reports"], environment(asked, Part("", ""))
    command += ["--dry-run"] * asked.dry_run
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=env, timeout=120)  # noqa: S603 - our own
    except subprocess.TimeoutExpired:
        return "the GPU did not answer within two minutes"
    return json.loads(done.stdout) if done.returncode == 0 else (done.stderr.strip().splitlines() or ["nothing"])[-1]


def _table(asked: Asked) -> list[str]:
    """Return the table of targets, made by a process that may import torch."""
    command = [sys.executable, "-m", "benchmarks.targets", "--table", str(asked.out / "targets")]
    env = environment(asked, Part("", ""))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=env, timeout=120)  # noqa: S603 - our own
    except subprocess.TimeoutExpired:
        return ["no table of targets within two minutes"]
    return (done.stdout if done.returncode == 0 else done.stderr[-300:]).splitlines()


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write(path: Path, content: Any) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def parsed(words: Sequence[str]) -> Asked:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="The folder for everything.")
    parser.add_argument("--minutes", type=float, default=30.0, help="For everything. Default: 30.")
    parser.add_argument("--only", nargs="+", default=list(STEPS), choices=STEPS, help="Steps. Default: all.")
    parser.add_argument(
        "--data", nargs="+", default=[], help="Array files of CIFAR-10 and -100, the latter with 100 in its name."
    )
    parser.add_argument("--resume", action="store_true", help="Go on in a folder: what is done is not repeated.")
    parser.add_argument(
        "--dry-run", action="store_true", help="Rehearse on the CPU, in Triton's interpreter and tiny sizes."
    )
    parser.add_argument("--workers", type=int, default=min(16, os.cpu_count() or 1), help="Smoke tests at a time.")
    given = parser.parse_args(words)
    if given.minutes <= 0 or given.workers < 1:
        parser.error(f"expected some minutes and a worker, got {given.minutes:g} and {given.workers}")
    if given.out.exists() and not given.out.is_dir():
        parser.error(f"expected a folder for --out, got {given.out}, which is a file")
    if absent := [each for each in given.data if not Path(each).is_file()]:
        parser.error(f"expected array files for --data, got {', '.join(absent)}, which do not exist")
    only = tuple(name for name in STEPS if name in given.only)
    data = tuple(str(Path(each).resolve()) for each in given.data)
    return Asked(given.out.resolve(), given.minutes, only, data, given.resume, given.dry_run, given.workers)


def main(words: Sequence[str]) -> int:
    """Run the steps; return 0 if the smoke test passed, 2 without a GPU or in another's folder, 130 after Ctrl-C."""
    asked = parsed(words)
    if _is_of_another_kind(asked):
        kinds = ("a GPU", "a dry run")[:: -1 if asked.dry_run else 1]
        print(
            f"error: expected results of {kinds[0]} in {asked.out}, got those of {kinds[1]}: choose another folder",
            file=sys.stderr,
        )
        return 2
    facts = _facts(asked)
    if isinstance(facts, str):
        print(
            f"error: expected an NVIDIA GPU that torch and Triton can use, got {facts}: --dry-run needs none",
            file=sys.stderr,
        )
        return 2
    asked.facts = facts
    asked.out.mkdir(parents=True, exist_ok=True)
    for path in [] if asked.resume else [path for name in asked.only for path in (asked.out / name).glob("*.json")]:
        path.unlink()  # or a step that is not reached would be told by what was found before
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the last where a connection breaks off
        if signal.getsignal(kind) is not signal.SIG_IGN:  # as under nohup
            signal.signal(kind, asked.interrupt)
    status = 0
    try:
        for k, name in enumerate(asked.only):
            asked.go_on()
            left = asked.end - time.monotonic()
            seconds = left * STEPS[name].share / sum(STEPS[each].share for each in asked.only[k:])
            print(f"{name}: {STEPS[name].summary}; {seconds:.0f} s", flush=True)
            if seconds < STEPS[name].least and not asked.dry_run:
                print("  not reached: too little time is left", flush=True)
                continue
            run(name, asked, seconds)
    except KeyboardInterrupt:
        print("interrupted: what was written stays", file=sys.stderr)
        status = 130
    return 0 if summary(asked) and not status else status or 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
