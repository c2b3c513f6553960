"""What the command prints where its words ask for help."""

from collections.abc import Sequence

from likewise.configuration.help import asked_help


def show_help(arguments: Sequence[str], verb: str) -> None:
    """Print the help that the words of a verb ask for, and end."""
    told = asked_help(arguments, verb)
    if told is not None:
        print(told)
        raise SystemExit(0)
