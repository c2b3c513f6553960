"""The verbs that run the workflow of their name: train, evaluate, compare, embed, search, predict, export."""

from collections.abc import Sequence

from likewise.configuration import read, written
from likewise.configuration.help import requested_help
from likewise.workflows.progress import TERMINAL


def run(verb: str, arguments: Sequence[str]) -> None:
    """Call a workflow with the options after its verb, or print the help that they ask for."""
    help_text = requested_help(arguments, verb)
    if help_text is not None:
        TERMINAL.result(help_text)
        raise SystemExit(0)
    argv = [word for word in arguments if word != "--print_config"]
    options = read(argv, verb=verb)
    if len(argv) < len(arguments):
        TERMINAL.result(written(options).rstrip("\n"))
        return
    from likewise import workflows  # noqa: PLC0415 - once the options are read: imports torch, or Lightning

    getattr(workflows, verb)(options, progress=TERMINAL)
