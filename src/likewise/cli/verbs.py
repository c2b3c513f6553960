"""The verbs that run the workflow of their name, train, evaluate, compare ...; and `complete`, which a shell asks."""

import os
import shlex
from collections.abc import Sequence

from likewise.cli import OWN_PARSERS, SUMMARIES
from likewise.configuration import read, written
from likewise.configuration.command_line import completions, requested_help
from likewise.configuration.options import RECORDS
from likewise.workflows.progress import TERMINAL


def run(verb: str, arguments: Sequence[str]) -> None:
    """Call a workflow with the options after its verb, or print the help or the completions that are asked for."""
    if verb == "complete":
        TERMINAL.result("\n".join(_completions()))
        return
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


def _completions() -> list[str]:
    """Return what the word at the cursor may become: bash's `complete -C` tells it by COMP_LINE and COMP_POINT."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    try:
        argv = shlex.split(line)[1:]
    except ValueError:  # within quotation marks
        return []
    *before, current = [*argv, ""] if line[-1:].isspace() or not argv else argv
    if not before:
        return [verb for verb in SUMMARIES if verb.startswith(current)]
    verb = "train" if before[0] in OWN_PARSERS else before[0]
    return completions(before[1:], current, verb) if verb in RECORDS else []
