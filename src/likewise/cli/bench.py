"""`likewise bench`: time and peak memory of every loss and backend on this machine, a table, a file and a plot."""

import argparse
import re
from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from html import escape
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from likewise.benchmark import (
    ENTRIES,
    PRIMITIVES,
    CpuMeter,
    CudaMeter,
    Dtype,
    Result,
    Schedule,
    Settings,
    backends,
    contenders,
    machine,
    missing,
    write,
)
from likewise.cli.table import Table, by_loss, who
from likewise.diagnostics import plots
from likewise.operator import no_triton

SIZES = [256, 1024, 4096, 16384, 65536, 262144, 1048576]
FEWEST_ROWS = 32
NAMES = [*ENTRIES, *PRIMITIVES]
DESCRIPTION = """Measure time and peak memory of every loss and backend on this machine, forward and backward.

Beside them: the dense form as it is usually written, torch.compile on it, and other libraries where they are installed.
A step that would take too much memory or time is foretold from smaller ones and skipped. Every result is written as
soon as it is there, so it can be stopped at any time.

    likewise bench                                         all of it, in about eight minutes
    likewise bench --losses SupConLoss --sizes 1024 4096   one loss, two sizes
"""


def run(arguments: Sequence[str]) -> None:
    """Run `likewise bench` with the arguments that follow the verb.

    Raises:
        ValueError: An argument is not as expected.
        KeyboardInterrupt: The user ended it; a note says where the results are.
    """
    config = _parsed(arguments)
    device = _device(config.device)
    if "triton" in (config.backends or ()) and "triton" not in backends(device):
        why = no_triton(torch.device(device)) or "Triton's interpreter tells nothing of a kernel's speed"
        raise ValueError(f"--backends triton cannot be measured here: {why}")
    chosen = _chosen("--backends", config.backends or backends(device), ["auto", *backends(device)])
    names = _chosen("--losses", config.losses or NAMES, NAMES)
    everyone = contenders(names, chosen, device)
    settings = Settings(config.sizes, config.features, config.dtype, config.budget)
    about = machine(device)
    path = _path(config.out, about["device"])
    facts = about | {
        "settings": {"device": device, "losses": names, "backends": chosen, **vars(settings)},
        "not_installed": missing(device),
    }
    _say_facts(facts, path)
    results: list[Result] = []
    write(path, facts, results)
    try:
        with Table(sum(rows <= (each.largest or rows) for each in everyone for rows in config.sizes)) as table:
            table.say("loading")
            modules = sorted({each.module for each in everyone} - {""})
            meter = CudaMeter() if device == "cuda" else CpuMeter(modules)
            for result in Schedule(everyone, settings, meter, table.say).results():
                results.append(result)
                write(path, facts, results)
                table.row(result)
    except KeyboardInterrupt as error:
        error.add_note(f"{len(results)} results are in {path}")
        raise
    _plot(path.with_suffix(".html"), about, results)
    print(f"\n{by_loss(results, NAMES)}\n\nresults: {path}\nplot: {path.with_suffix('.html')}")


def _parsed(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        prog="likewise bench",
        description=DESCRIPTION,
        formatter_class=_Help,
        exit_on_error=False,
        allow_abbrev=False,
        usage="likewise bench [OPTIONS]",
    )
    known = ", ".join(NAMES)
    parser.add_argument(
        "--device", type=Literal["auto", "cpu", "cuda"], default="auto", help="Where; auto: a GPU, if any."
    )
    parser.add_argument("--losses", type=str, nargs="+", metavar="LOSS", help=f"Which losses. Default: all of {known}.")
    parser.add_argument("--backends", type=str, nargs="+", metavar="BACKEND", help="Which backends. Default: all.")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="Numbers of rows.")
    parser.add_argument("--features", type=int, default=128, help="Features of a row.")
    parser.add_argument("--dtype", type=Dtype, default="float32", help="Type of the embeddings.")
    parser.add_argument("--budget", type=float, default=480, help="Seconds for everything, about.")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="The folder that receives the results.")
    try:
        config = parser.parse_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ValueError(f"{_words(str(error))}: see likewise bench --help") from error
    config.sizes = sorted(set(config.sizes))
    for option, value, least in (
        ("--sizes", config.sizes[0], FEWEST_ROWS),
        ("--features", config.features, 1),
        ("--budget", config.budget, 1),
    ):
        if not least <= value < float("inf"):
            raise ValueError(f"expected {option} to be {least} or more, got {value:g}")
    return config


def _words(message: str) -> str:
    """Say in one line what the parser says in its own words."""
    found = re.search(r'Parser key "(\w+)".*?Expected a (.*?)\. Got value: (.*)', message, re.DOTALL)
    if not found:
        return " ".join(message.split())
    option, expected, given = found.groups()
    choices = re.findall(r"'(\w+)'", expected) if "Literal" in expected else []
    kind = f"one of {', '.join(choices)}" if choices else "a number" if "float" in expected else "an integer"
    return f"expected --{option} to be {kind}, got {' '.join(given.split())}"


def _device(name: str) -> str:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("expected --device auto or cpu, got cuda: torch sees no GPU here")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def _chosen(option: str, names: list[str], known: list[str]) -> list[str]:
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f", did you mean {near[0]}?" if near else ""
            raise ValueError(f"expected {option} to be among {', '.join(known)}, got {name}{hint}")
    return list(dict.fromkeys(names))


def _path(folder: Path, device: str) -> Path:
    """Return where the results go, in a folder that is there."""
    name = "-".join("".join(letter if letter.isalnum() else " " for letter in device).split())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"expected --out to be a folder to write into, got {folder}: {error.strerror}") from error
    return folder / f"{datetime.now().astimezone().strftime('%Y-%m-%d-%H%M%S')}-{name}.json"


def _say_facts(facts: dict[str, Any], path: Path) -> None:
    settings = facts["settings"]
    print(f"{facts['device']}, {facts['threads']} threads, torch {facts['versions']['torch']}")
    print(f"forward and backward, {settings['dtype']}, D = {settings['features']}, about {settings['budget']:g} s")
    for name, install in facts["not_installed"].items():
        print(f"without {name}, which is not installed: {install}")
    print(f"results as they come: {path}\n", flush=True)


def _plot(path: Path, about: dict[str, Any], results: Sequence[Result]) -> None:
    """Write the plot as a page that needs nothing else."""
    measured: dict[str, dict[str, list[tuple[int, float, float | None]]]] = {}
    for result in sorted(results, key=lambda result: result.rows):
        if result.milliseconds is not None:
            lines = measured.setdefault(result.loss, {})
            lines.setdefault(who(result), []).append((result.rows, result.milliseconds, result.peak_bytes))
    ordered = {name: measured[name] for name in NAMES if name in measured}
    title = escape(f"likewise bench: {about['device']}, {about['threads']} threads, torch {about['versions']['torch']}")
    figure = plots.as_html(plots.costs(ordered), "costs")
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>body{{font-family:system-ui,sans-serif;margin:2em}}</style><h1>{title}</h1>"
        f"<script>{plots.script()}</script>{figure}</html>\n",
        encoding="utf-8",
    )


class _Help(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """jsonargparse's help, with the description's lines as they stand."""
