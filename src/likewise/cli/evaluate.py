"""`likewise evaluate`: a run, a checkpoint of a run, or somebody else's embeddings."""

from collections.abc import Sequence

from likewise.cli.help import show_help
from likewise.configuration import read


def run(arguments: Sequence[str]) -> None:
    """Run `likewise evaluate` with the arguments that follow the verb."""
    show_help(arguments, "evaluate")
    config = read(arguments, verb="evaluate")
    from likewise.cli.printing import TERMINAL  # noqa: PLC0415 - once the arguments are understood
    from likewise.workflows import evaluate  # noqa: PLC0415 - imports torch

    evaluate(config["source"], config, progress=TERMINAL)
