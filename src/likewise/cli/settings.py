"""What the options of a sweep say: its settings, their combinations with a grid, and what is tuned in each."""

import re
import shlex
from collections.abc import Mapping, Sequence

from likewise.workflows import plan


def combined(given: Sequence[str], grids: Sequence[str]) -> dict[str, list[str]]:
    """Return every setting with every combination of the grids.

    Example:
        >>> combined(["A: --loss SupConLoss", "--loss NTXentLoss"], [])
        {'A': ['--loss', 'SupConLoss'], 'loss=NTXentLoss': ['--loss', 'NTXentLoss']}
        >>> list(combined([], ["loss.temperature=0.1,0.2"]))
        ['loss.temperature=0.1', 'loss.temperature=0.2']
    """
    return plan.combined([_setting(text) for text in given], [axis("--grid", text) for text in grids])


def _setting(text: str) -> tuple[str, list[str]]:
    named = re.match(r"\s*([^-][^:]*):\s*(.*)$", text, re.DOTALL)
    try:
        words = shlex.split(named[2] if named else text)
    except ValueError as error:
        raise ValueError(f"expected a setting as options, got {text!r}: {error}") from error
    if words and not words[0].startswith("--"):
        raise ValueError(f"expected a setting as options, got {text!r}: write --setting '--loss NTXentLoss'")
    name = named[1].strip() if named else " ".join(parted(words, "--tune")[0]).replace("--", "").replace(" ", "=", 1)
    return name, words


def axis(option: str, text: str) -> list[tuple[str, list[str]]]:
    """Read NAME=VALUES of --grid or --tune: for each value what it is called, and the options that set it.

    Example:
        >>> axis("--grid", "loss.temperature=0.1,0.2")[1]
        ('loss.temperature=0.2', ['--loss.temperature', '0.2'])
        >>> [name for name, _ in axis("--grid", "encoder.widths=[1,2],[3]")]
        ['encoder.widths=[1,2]', 'encoder.widths=[3]']
    """
    name, equal, values = text.removeprefix("--").partition("=")
    parted = _values(values)
    if not name or not equal or not parted:
        raise ValueError(f"expected {option} NAME=VALUE,VALUE, got {text!r}: {option} loss.temperature=0.1,0.2")
    return [(f"{name}={value}", [f"--{name}", value]) for value in parted]


def tuned(
    settings: Mapping[str, Sequence[str]], common: Sequence[str], most: str | None
) -> tuple[dict[str, list[str]], dict[str, list[list[str]]]]:
    """Return the settings without --tune, and for each that is tuned, the options of every trial.

    `common` are NAME=VALUES that are tuned in every setting. At `most` so many are drawn, always the same; None: all.
    """
    if most is not None and (not most.isdecimal() or int(most) < 1):
        raise ValueError(f"expected --trials as a number above 0, got {most!r}: leave it out for all combinations")
    left: dict[str, list[str]] = {}
    trials: dict[str, list[list[str]]] = {}
    for setting, words in settings.items():
        left[setting], own = parted(words, "--tune")
        axes = [axis("--tune", text) for text in (*common, *own)]
        if axes:
            trials[setting] = plan.trials_of(axes, None if most is None else int(most))
    if most is not None and not trials:
        raise ValueError(f"expected --trials with --tune, got --trials {most} alone: --tune loss.temperature=0.1,0.2")
    return left, trials


def parted(words: Sequence[str], option: str) -> tuple[list[str], list[str]]:
    """Part options from what one of them says, each time that it is there."""
    left: list[str] = []
    own: list[str] = []
    following = iter(words)
    for word in following:
        if word == option:
            own.append(next(following, ""))
        elif word.startswith(f"{option}="):
            own.append(word.removeprefix(f"{option}="))
        else:
            left.append(word)
    return left, own


def _values(text: str) -> list[str]:
    """Part values at commas, but within brackets."""
    return [part for part in re.split(r",(?![^\[{]*[\]}])", text) if part]
