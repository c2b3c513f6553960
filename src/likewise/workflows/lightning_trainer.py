"""Lightning's trainer: its arguments from a configuration, its warnings kept to what concerns a run."""

import logging
import re
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning
from jsonargparse import ArgumentParser

IRRELEVANT = (
    ".*does not have many workers.*",  # samples are in memory, a worker would only copy them
    ".*LeafSpec.*",  # Lightning's debt to PyTorch
    ".*exists and is not empty.*",  # the run's folder is new, and holds the configuration
    ".*grad attribute of a Tensor that is not a leaf.*",  # torch's compiler looks at it, and training doesn't
    ".*MLFlow only allows.*",  # it leaves the @ of precision@1 out
)
# of Lightning's; those that part the model, or start processes of their own, are not among them
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")


def trainer_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Make what Lightning's trainer is given, callbacks and loggers among it.

    Raises:
        ValueError: The strategy is the name of one that parts the model or starts processes of its own.
    """
    strategy = given.get("strategy")
    if isinstance(strategy, str) and strategy not in STRATEGIES:
        raise ValueError(
            f"expected --trainer.strategy to be one of {', '.join(STRATEGIES)}, got {strategy}: every process has the "
            "whole model; to start several, see likewise train --help, and for memory --chunk_size"
        )
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(lightning.Trainer, "trainer", instantiate=False, skip={"default_root_dir", "barebones"})
    return parser.instantiate(parser.parse_object({"trainer": dict(given)})).trainer.as_dict()


def in_our_words(message: str) -> str:
    """Say what Lightning says of a training that is to end before it goes on."""
    epochs = re.search(r"current_epoch=(\d+), but you have set Trainer\(max_epochs=(\d+)\)", message)
    if epochs is None:
        return message.rstrip(".")
    return f"expected --trainer.max_epochs of at least {epochs[1]}, got {epochs[2]}: so many epochs are done"


@contextmanager
def quiet_lightning() -> Generator[None]:
    """Keep Lightning's tips to itself, and its warnings that do not concern a run."""
    logs = [logging.getLogger(f"lightning.{room}") for room in ("pytorch", "fabric")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in IRRELEVANT:
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
