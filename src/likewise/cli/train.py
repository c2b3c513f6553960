"""`likewise train`: its words, and its help."""

from collections.abc import Sequence

from likewise.cli.help import show_help
from likewise.configuration import read, written


def run(arguments: Sequence[str]) -> None:
    """Run `likewise train` with the arguments that follow the verb."""
    show_help(arguments, "train")
    words = [word for word in arguments if word != "--print_config"]
    config = read(words)
    if len(words) < len(arguments):
        print(written(config), end="")
        return
    from likewise.cli.printing import TERMINAL  # noqa: PLC0415 - once the arguments are understood
    from likewise.workflows import train  # noqa: PLC0415 - Lightning takes seconds

    train(config, progress=TERMINAL)
