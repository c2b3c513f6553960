"""A run's configuration as hyper-parameters: its options, by the names that the command line gives them."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from likewise.parts import is_spec
from likewise.runs import Run


def hyperparameters(run: Run) -> dict[str, Any]:
    """Return the options that a run began with, each a number or a word.

    Args:
        run: The run; one without a configuration has no options.
    """
    if not run.configuration.is_file():
        return {}
    return dict(named(yaml.safe_load(run.configuration.read_text(encoding="utf-8"))))


def named(options: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield options with their values; of a part its class, and then its arguments.

    Args:
        options: Nested options.
        before: What their names begin with.

    Example:
        >>> dict(named({"seed": 3, "loss": {"class_path": "likewise.SupConLoss", "init_args": {"temperature": 0.1}}}))
        {'seed': 3, 'loss': 'SupConLoss', 'loss.temperature': 0.1}
        >>> dict(named({"inputs": [{"class_path": "likewise.training.Momentum"}], "widths": [64, 128]}))
        {'inputs.1': 'Momentum', 'widths': '[64, 128]'}
    """
    for name, value in options.items():
        if is_spec(value):
            yield f"{before}{name}", str(value["class_path"]).rpartition(".")[2]
            yield from named(value.get("init_args") or {}, f"{before}{name}.")
        elif isinstance(value, Mapping):
            yield from named(value, f"{before}{name}.")
        elif isinstance(value, list) and any(map(is_spec, value)):
            yield from named({f"{name}.{place}": one for place, one in enumerate(value, start=1)}, before)
        elif value is not None:
            yield f"{before}{name}", value if isinstance(value, int | float | str) else str(value)
