"""Lightning's trainer: its messages in our words, its warnings kept to what concerns a run."""

import logging
import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager

IRRELEVANT = (
    ".*does not have many workers.*",  # samples are in memory, a worker would only copy them
    ".*LeafSpec.*",  # Lightning's debt to PyTorch
    ".*exists and is not empty.*",  # the run's folder is new, and holds the configuration
    ".*grad attribute of a Tensor that is not a leaf.*",  # torch's compiler looks at it, and training doesn't
    ".*MLFlow only allows.*",  # it leaves the @ of precision@1 out
)


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
