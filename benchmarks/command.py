"""The command of a measurement: options, results as they come, a file and a plot."""

import inspect
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import Field, asdict, fields
from datetime import datetime
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.measuring.measurement import Measurement
from benchmarks.measuring.results import HEAD, Timing, line, machine, write
from likewise.cli import WordParser
from likewise.files.detection import suggest
from likewise.files.formats import numbered
from likewise.runs.scores import format_count
from likewise.workflows.progress import TERMINAL

KINDS: dict[type, str] = {int: "an integer", float: "a number"}


def measure(name: str, kind: type[Measurement], words: Sequence[str], *, program: str) -> None:
    """Measure, print results as they come, and write them with a plot.

    The fields of the measurement are the options; `program` is what the user has typed before them.
    """
    measurement, folder = _parsed(kind, words, program)
    about = machine(measurement.device)
    path = _path(folder, about["device"])
    facts = {**about, "measurement": name, "settings": asdict(measurement), "not_installed": measurement.missing()}
    _say_facts(facts, measurement, path)
    results: list[Timing] = []
    write(path, facts, results)
    try:
        for result in measurement.results(lambda doing: _tell(f"{len(results)}/{measurement.total()} {doing}")):
            _tell("")
            if not results or result.rows != results[-1].rows:
                TERMINAL.result(HEAD)
            results.append(result)
            write(path, facts, results)
            TERMINAL.result(line(result))
    except KeyboardInterrupt as error:
        error.add_note(f"{len(results)} results are in {path}")
        raise
    TERMINAL.result(f"\n{measurement.summary(results)}\n\nresults: {path}")
    if any(each.milliseconds is not None for each in results):
        _plot(path.with_suffix(".html"), about, results)


def _tell(doing: str) -> None:
    """Show on a terminal what is being done, in a line that the next one replaces."""
    if sys.stderr.isatty():
        print(f"\r\033[K{doing}", end="", file=sys.stderr, flush=True)


def _parsed(kind: type[Measurement], words: Sequence[str], program: str) -> tuple[Measurement, Path]:
    options = [each for each in fields(kind) if each.metadata]
    parser = WordParser(program, "[OPTIONS]", inspect.cleandoc(kind.__doc__ or ""))
    for each in options:
        shown = " ".join(map(str, each.default)) if isinstance(each.default, tuple) else each.default
        more: dict[str, Any] = {"action": "store_true"} if each.default is False else {"metavar": each.name.upper()}
        if isinstance(each.default, tuple):
            more["nargs"] = "+"
        parser.add_argument(f"--{each.name}", help=f"{each.metadata['help']} Default: {shown or 'all'}.", **more)
    told = "The folder for the results. Default: bench."
    parser.add_argument("--output", "--out", type=Path, default=Path("bench"), help=told)
    given, unknown = parser.parse(words)
    if unknown:
        raise ValueError(f"unrecognized arguments: {' '.join(unknown)}: see {program} --help")
    values = {each.name: getattr(given, each.name) for each in options}
    return kind(**{each.name: _value(each, values[each.name]) for each in options if values[each.name]}), given.output


def _value(option: "Field[Any]", words: Any) -> Any:
    if not isinstance(option.default, tuple):
        return words if words is True else _one(option, words, type(option.default))
    kind = type(option.default[0]) if option.default else str
    return tuple(dict.fromkeys(_one(option, word, kind) for word in words))


def _one(option: "Field[Any]", word: str, kind: type) -> Any:
    try:
        value = kind(word)
    except ValueError as error:
        raise ValueError(f"expected --{option.name} to be {KINDS[kind]}, got {word}") from error
    least, choices = option.metadata["least"], option.metadata["choices"]
    if choices:
        among = "among" if isinstance(option.default, tuple) else "one of"
        check(f"--{option.name} to be {among}", value, choices)
    if least is not None and not least <= value < float("inf"):
        raise ValueError(f"expected --{option.name} to be {least} or more, got {value:g}")
    return value


def check(expected: str, value: Any, choices: Any) -> None:
    """Raise a ValueError with the nearest choice unless a value is one of them."""
    if value not in choices:
        words = [str(each) for each in choices]
        raise ValueError(f"expected {expected} {', '.join(words)}, got {value}{suggest(str(value), words)}")


def _path(folder: Path, device: str) -> Path:
    name = "-".join("".join(letter if letter.isalnum() else " " for letter in device).split())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"expected --output to be a folder to write into, got {folder}: {error.strerror}") from error
    for place in numbered(folder / f"{datetime.now().astimezone().strftime('%Y-%m-%d-%H%M%S')}-{name}"):
        with suppress(FileExistsError):
            (made := place.with_name(f"{place.name}.json")).touch(exist_ok=False)
            return made
    raise AssertionError  # pragma: no cover - counting does not end


def _say_facts(facts: dict[str, Any], measurement: Measurement, path: Path) -> None:
    TERMINAL.result(
        f"{facts['device']}, {format_count(facts['threads'], 'thread')}, torch {facts['versions']['torch']}"
    )
    TERMINAL.result((measurement.__doc__ or "").splitlines()[0])
    for name, install in facts["not_installed"].items():
        TERMINAL.result(f"without {name}, which is not installed: {install}")
    TERMINAL.result(f"results as they come: {path}\n")


def _plot(path: Path, about: dict[str, Any], results: Sequence[Timing]) -> None:
    if find_spec("plotly") is None:
        TERMINAL.result("no plot, as plotly is not installed: pip install 'likewise[train]'")
        return
    from benchmarks.measuring.costs import costs  # noqa: PLC0415 - with the core alone the rest works without it
    from likewise.diagnostics import plots  # noqa: PLC0415 - likewise

    measured: dict[str, dict[str, list[tuple[int, float, float | None]]]] = {}
    for loss in dict.fromkeys(result.loss for result in results):
        for result in sorted((each for each in results if each.loss == loss), key=lambda each: each.rows):
            if result.milliseconds is not None:
                points = measured.setdefault(loss, {}).setdefault(result.who, [])
                points.append((result.rows, result.milliseconds, result.peak_bytes))
    title = escape(
        f"likewise: {about['device']}, {format_count(about['threads'], 'thread')}, torch {about['versions']['torch']}"
    )
    figure = plots.as_html(costs(measured), "costs")
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>body{{font-family:system-ui,sans-serif;margin:2em}}</style><h1>{title}</h1>"
        f"{plots.script()}{figure}</html>\n",
        encoding="utf-8",
    )
    TERMINAL.result(f"plot: {path}")
