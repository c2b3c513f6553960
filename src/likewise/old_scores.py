"""Rows of scores from before metrics were values, when a sentence of `choices` told what was set and evaluated."""

import json
import re
from collections.abc import Mapping
from typing import Any

_NUMBERS = {"negative log-likelihood": "nats", "Brier score": "plain", "coverage error": "plain"}
_ERRORS = (*_NUMBERS, "expected calibration error", "FPR", "Hamming loss")
_QUALITIES = {"accuracy", "mAP", "precision@1"}
_HIDDEN = ("micro-F1 at", "macro-F1 at", "Hamming loss", "LRAP", "coverage error")
_FREQUENCIES = ("many", "medium", "few", "head labels", "middle labels", "tail labels")
_PROTOCOLS = (
    re.compile(r"(?P<outside_samples>[\d,]+) outside samples of (?P<outside>.*)"),
    re.compile(r"(?:(?P<corruptions>all \d+) corruptions) at severities (?P<severities>.*)"),
    re.compile(r"corruptions (?P<corruptions>.*) at severities (?P<severities>.*)"),
    re.compile(r"on (?P<training_samples>[\d,]+) training and (?P<test_samples>[\d,]+) test samples only"),
)
_SETTING = re.compile(r"(\w+)=([^=]*?)(?:, (?=\w+=)|$)")


def converted(row: Mapping[str, str]) -> dict[str, str]:
    """Return the cells of an old row by the columns of today."""
    metric, low, high = row["metric"], float(row["low"]), float(row["high"])
    episodes = "-shot accuracy" in metric
    number = next((unit for name, unit in _NUMBERS.items() if metric.startswith(name)), None)
    share = "share" if low >= 0 and high <= 1 else "plain"
    neither = metric in {"effective rank", "confidence"}
    kind, name = _group(row["subset"])
    settings, protocol, notes, classes = _said(row["choices"])
    if kind == "corruption":
        corruption, _, severity = name.rpartition(" severity ")
        protocol |= {"corruption": corruption, "severity": _number(severity)}
    return {
        **{column: value for column, value in row.items() if column not in {"subset", "choices"}},
        "unit": "plain" if metric == "effective rank" else number or share,
        "better": "neither" if neither else "lower" if metric.startswith(_ERRORS) else "higher",
        "selects": str(metric in _QUALITIES or episodes),
        "shown": str(not metric.startswith(_HIDDEN)),
        "counted": "episode" if episodes else "sample",
        "classes": classes,
        "kind": kind,
        "group": name,
        "settings": json.dumps(settings),
        "protocol": json.dumps(protocol),
        "notes": json.dumps(notes),
    }


def _group(subset: str) -> tuple[str, str]:
    if subset == "all":
        return "all", ""
    if subset in _FREQUENCIES:
        return "frequency", subset
    kind, _, name = subset.partition(" ")
    return (kind, name) if kind in {"class", "label", "confidence"} else ("corruption", subset)


def _said(choices: str) -> tuple[dict[str, Any], dict[str, Any], list[str], str]:
    """Return settings, protocol, notes, and how many classes an interval is over, from a sentence."""
    settings: dict[str, Any] = {}
    protocol: dict[str, Any] = {}
    notes: list[str] = []
    classes = ""
    for said in filter(None, choices.split("; ")):
        if over := re.fullmatch(r"interval over (\d+) classes", said):
            classes = over[1]
        elif said.startswith("episodes="):
            protocol["episodes"] = said.removeprefix("episodes=")
        elif found := next(filter(None, (pattern.fullmatch(said) for pattern in _PROTOCOLS)), None):
            protocol |= {name.replace("_", " "): _listed(name, value) for name, value in found.groupdict().items()}
        elif pairs := _SETTING.findall(said):
            settings |= {name: _number(value) for name, value in pairs}
        else:
            notes.append(said)
    return settings, protocol, notes, classes


def _listed(name: str, said: str) -> Any:
    """Return what was evaluated as evaluations say it today: severities and named corruptions are lists."""
    listed = name == "severities" or (name == "corruptions" and not said.startswith("all "))
    if listed:
        return [_number(word) for word in said.split(", ")]
    return _number(said.replace(",", "")) if name.endswith("samples") else said


def _number(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
