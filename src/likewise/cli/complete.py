"""`likewise complete`: completions of the word before the cursor, as bash's `complete -C` asks for them."""

import os
import shlex
from collections.abc import Sequence

from likewise.configuration.help import completions
from likewise.configuration.options import RECORDS
from likewise.workflows.progress import TERMINAL


def run(_: Sequence[str]) -> None:
    """Print what the word at the cursor may become, one a line: the shell tells it by COMP_LINE and COMP_POINT."""
    from likewise.cli import SUMMARIES  # noqa: PLC0415 - which is being imported

    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    try:
        argv = shlex.split(line)[1:]
    except ValueError:  # within quotation marks
        return
    *before, current = [*argv, ""] if line[-1:].isspace() or not argv else argv
    if not before:
        candidates = [verb for verb in SUMMARIES if verb.startswith(current)]
    else:
        verb = "train" if before[0] in {"sweep", "transfer"} else before[0]
        candidates = completions(before[1:], current, verb) if verb in RECORDS else []
    TERMINAL.result("\n".join(candidates))
