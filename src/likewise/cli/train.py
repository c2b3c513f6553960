"""`likewise train`: its words, and its help."""

from collections.abc import Sequence

from likewise.cli.options import arranged, asks_for_help, options, parse, read_train
from likewise.cli.printing import TERMINAL
from likewise.cli.words import given_in


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
    resumed = _to_resume(arguments)
    if resumed is None:
        words = list(arguments)
    else:
        from likewise.workflows.failures import unfinished  # noqa: PLC0415 - imports torch

        words = ["--config", str(unfinished(resumed).configuration), *_without_resume(arguments)]
    config = read_train(words)
    from likewise.workflows import train  # noqa: PLC0415 - Lightning takes seconds, which help has no need of

    train(config, resume=resumed, progress=TERMINAL)


def _to_resume(arguments: Sequence[str]) -> str | None:
    """Return the run to resume, if one is named."""
    named = [given.value for given in given_in(arguments) if given.option == "resume"]
    others = [
        word for word in _without_resume(arguments) if word.startswith("--") and not word.startswith("--trainer.")
    ]
    if named and others:
        raise ValueError(
            f"expected with --resume no option but --trainer.*, got {others[0].partition('=')[0]}: a run goes on as it "
            "began; leave it out, or train anew with --config"
        )
    return named[-1] if named else None


def _without_resume(arguments: Sequence[str]) -> list[str]:
    before = ["", *arguments[:-1]]
    pairs = zip(before, arguments, strict=True)
    return [word for last, word in pairs if last != "--resume" and not word.startswith("--resume")]
