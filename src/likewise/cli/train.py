"""`likewise train`: its help, and what it does from `likewise.cli.training`, which takes long to import."""

from collections.abc import Sequence

from likewise.cli.options import arranged, asks_for_help, options, parse


def run(arguments: Sequence[str]) -> None:
    """Run `likewise train` with the arguments that follow the verb.

    Raises:
        ValueError: An argument, a file or the data are not as expected; or training diverged.
        KeyboardInterrupt: The user ended it.
        SystemExit: Help was asked for, or SIGTERM ended it.
    """
    if asks_for_help(arguments):
        words = arranged(arguments)
        parse(options(words), words)  # which prints it and exits
    from likewise.cli import training  # noqa: PLC0415 - Lightning takes seconds, which help has no need of

    training.run(arguments)
