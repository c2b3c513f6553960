"""What a run knows of how it began, and what all its processes must have begun with: options, versions, device."""

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import lightning
import torch
import yaml

from likewise.benchmark.results import machine, thread_words
from likewise.training.processes import processes


def shared_options(parser: Any, config: Any) -> dict[str, str]:
    """Return, by name and in words, what all processes must have been started with."""
    given = yaml.safe_load(parser.dump(without_sources(config)))
    for its_own in ("runs", "report", "log"):
        given.pop(its_own, None)  # the first process alone writes
    return flat({"versions": versions(), **given})


def flat(facts: Mapping[str, Any], within: str = "") -> dict[str, str]:
    """Return nested facts by name, in words.

    Example:
        >>> flat({"loss": {"temperature": 0.1}, "seed": 0})
        {'loss.temperature': '0.1', 'seed': '0'}
    """
    found: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{within}{name}.")
        else:
            found[within + name] = str(value)
    return found


def without_sources(config: Any) -> Any:
    """Return a configuration without the file and the recipe that it came from: it holds all that they say."""
    copy = config.clone()
    for source in ("config", "recipe"):
        copy.pop(source, None)
    return copy


def device_of(given: Mapping[str, Any]) -> torch.device:
    """Return the device that the trainer would use."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if given.get("accelerator") == "cpu" or accelerator is None else accelerator


def device_words(given: Mapping[str, Any]) -> str:
    """Name the device that trains, and how many threads a processor may use."""
    device = device_of(given)
    name = machine(device.type)["device"]
    if device.type != "cpu":
        return f"{processes()} x {name}"
    return f"{name}, {thread_words(torch.get_num_threads())}" + (
        f", {processes()} processes" if processes() > 1 else ""
    )


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    return {
        "likewise": metadata.version("likewise"),
        "torch": str(torch.__version__),
        "lightning": lightning.__version__,
        "python": platform.python_version(),
    }
