"""Metadata of a run: the options, versions and device that it began with."""

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import torch

from likewise.configuration.options import TrainOptions
from likewise.runs import machine
from likewise.runs.score_format import format_count
from likewise.training.launch import processes


def shared_options(config: TrainOptions) -> dict[str, str]:
    """Return as text, by name, what all processes must have been started with."""
    its_own = ("runs", "report", "sections", "log", "config", "recipe")  # the first process alone writes
    shared = {name: value for name, value in vars(config).items() if name not in its_own}
    return flat({"versions": versions("lightning"), **shared})


def flat(facts: Mapping[str, Any], within: str = "") -> dict[str, str]:
    """Flatten nested facts to text, by dotted name."""
    texts: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            texts |= flat(value, f"{within}{name}.")
        else:
            texts[within + name] = str(value)
    return texts


def device_of(trainer: Mapping[str, Any]) -> torch.device:
    """Return the device that a trainer with these arguments would use."""
    return torch.device("cpu") if trainer.get("accelerator") == "cpu" else device_named("auto")


def device_named(name: str) -> torch.device:
    """Return the device that is named, or for "auto" the best there is."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"expected a device that is there, got {name}: leave --device out, or cpu") from error


def device_words(trainer: Mapping[str, Any]) -> str:
    """Name the device that trains, and how many threads a processor may use."""
    device = device_of(trainer)
    name = machine.device_name(device.type)
    if device.type != "cpu":
        return f"{processes()} x {name}"
    several = f", {processes()} processes" if processes() > 1 else ""
    return f"{name}, {format_count(torch.get_num_threads(), 'thread')}{several}"


def versions(*packages: str) -> dict[str, str]:
    """Return the versions that a result depends on, with those of further packages."""
    package_versions = {name: metadata.version(name) for name in packages}
    return machine.versions() | package_versions | {"python": platform.python_version()}
