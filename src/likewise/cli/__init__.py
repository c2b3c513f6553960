"""The command: a verb runs the workflow of its name, or several trainings; only this package prints."""

import argparse
import ctypes
import errno
import importlib
import io
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import final

from likewise.files.detection import suggest
from likewise.files.formats import CONTROLS
from likewise.training.launch import TERMINATED, check_alone, processes, terminable
from likewise.workflows.progress import TERMINAL

SUMMARIES = {
    "train": "pretrain an encoder, evaluate it, write the run's folder and its report",
    "evaluate": "evaluate a run, a checkpoint, or an array file of embeddings",
    "sweep": "train settings x seeds in one process, resumable, ending in a comparison",
    "transfer": "test an encoder on other data with few labels: frozen, fine-tuned, beside the same from scratch",
    "compare": "compare runs on one page: a table with intervals and paired differences, curves, classes",
    "embed": "encode photos, texts or a table into one file of ids, features and labels",
    "search": "find the nearest images, texts or vectors with a run's encoder; near-duplicates; doubtful labels",
    "predict": "predict the class or labels of samples with a run, and report samples unlike its training data",
    "export": "write a run's encoder as safetensors or ONNX",
}
"""By verb: its line in the help of the command."""
OWN_PARSERS = {"sweep", "transfer"}
"""Verbs beyond a single workflow, with their own parsers."""
EXTRAS = {  # the extra that installs a module
    **dict.fromkeys(("PIL", "timm", "torchvision"), "images"),
    **dict.fromkeys(("datasets", "pyarrow"), "hub"),
    **dict.fromkeys(("tokenizers", "transformers"), "text"),
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "onnx"),
}
FULL_DISK_ERRORS = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
"""The system's errors for a full disk, an exceeded quota, or a limit to the size of files."""
INTERRUPTED_STATUS = 130  # the shell's status of a program ended by Ctrl-C
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # their numbers for mallopt, from malloc.h
BLOCK_BYTES, END_BYTES = 2**30, 2**31 - 1  # of a block in the heap, and of free memory at its end
GLIBC_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@final
class WordParser(argparse.ArgumentParser):
    """A parser that shows its description as written, and raises errors as ValueErrors."""

    def __init__(self, program: str, usage: str, description: str) -> None:
        super().__init__(
            program,
            f"{program} {usage}",
            description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            exit_on_error=False,
            allow_abbrev=False,
        )

    def parse(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the parsed arguments, and the unknown ones."""
        try:
            return self.parse_known_args(arguments)
        except argparse.ArgumentError as error:
            raise ValueError(f"{error}: see {self.prog} --help") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `likewise <verb> <options>`, by default with the arguments of this process, and return the exit status.

    It is 0, or 2 after an error that the user can fix, which is reported in one line, or 130 after Ctrl-C. Help and
    SIGTERM raise SystemExit, the latter with status 143.
    """
    argv = [_underscored(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # for the user's own classes; last, to hide no other module
    try:
        verb = _verb(argv)
        keep_memory()
        with _plain_output(), _terminable():
            if verb != "train":
                check_alone(verb)
            verbs = importlib.import_module("likewise.cli.verbs")
            if verb in OWN_PARSERS:
                getattr(verbs, verb)(argv[1:])
            else:
                verbs.run(verb, argv[1:])
    except ImportError as error:
        return _fail(_import_message(error))
    except (ValueError, OSError) as error:
        full = isinstance(error, OSError) and error.errno in FULL_DISK_ERRORS
        message = f"expected room to write files, got the system's {error}: make some" if full else str(error)
        return _fail("; ".join([message, *_notes(error)]))
    except KeyboardInterrupt as error:
        TERMINAL.log("; ".join(["interrupted", *_notes(error)]))
        return INTERRUPTED_STATUS
    except SystemExit as error:
        if _notes(error):
            TERMINAL.log("; ".join(["ended by SIGTERM", *_notes(error)]))
        raise
    return 0


def keep_memory() -> bool:
    """Keep freed blocks, since the next step needs them again; return whether the C library is told to.

    glibc returns freed blocks above 128 KiB to 32 MiB to the system, and the system clears each page before it is used
    again: up to half of the time of a training or of encoding on a CPU. With higher thresholds, a process and its forks
    keep their peak memory until they end. `LIKEWISE_KEEP_MEMORY=0`, or any of glibc's own settings, leaves glibc
    unchanged.
    """
    if os.environ.get("LIKEWISE_KEEP_MEMORY") == "0" or any(name in os.environ for name in GLIBC_SETTINGS):
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, _ = library.mallopt, library.gnu_get_libc_version
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(MMAP_THRESHOLD, BLOCK_BYTES) and mallopt(TRIM_THRESHOLD, END_BYTES))


def _terminable() -> AbstractContextManager[None]:
    """Exit by an exception on SIGTERM, to remove temporary files; not in one of several processes, which would hang."""

    def end() -> None:
        raise SystemExit(TERMINATED)

    alone = processes() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    return terminable(end) if alone else nullcontext()


@contextmanager
def _plain_output() -> Generator[None]:
    """Escape characters that a stream can't show, and show warnings as lines, but those of images only at the end."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: (
        f"warning: {' '.join(str(message).split()).translate(CONTROLS)}\n"
    )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", r"an image that cannot be read is black|left out [\d,]+ images?, which cannot be read"
            )
            yield
    finally:
        warnings.formatwarning = before


def _underscored(word: str) -> str:
    """Return an option with underscores for hyphens in its name, and any other word unchanged."""
    named = re.match(r"--[A-Za-z][\w.+-]*(?==|$)", word)
    return word if named is None else f"--{named[0][2:].replace('-', '_')}{word[named.end() :]}"


def _verb(argv: Sequence[str]) -> str:
    """Read the verb; without one, or with --help or --version in its place, print the requested text and exit."""
    if argv and argv[0] in {*SUMMARIES, "complete"}:
        return argv[0]
    parser = argparse.ArgumentParser(
        prog="likewise",
        description="Representation learning by contrast.",
        epilog="`likewise VERB --help` lists a verb's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = importlib.import_module("likewise.cli.version").version_text() if "--version" in argv else ""
    parser.add_argument("--version", action="version", version=version)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb, summary in SUMMARIES.items():
        verbs.add_parser(verb, help=summary)
    if argv and not argv[0].startswith("-"):
        remedy = suggest(argv[0], SUMMARIES, ": see likewise --help")
        raise ValueError(f"expected a verb, one of {', '.join(SUMMARIES)}, got {argv[0]}{remedy}")
    parser.parse_args(argv or ["--help"])
    raise AssertionError  # pragma: no cover - argparse has exited


def _import_message(error: ImportError) -> str:
    """Explain an ImportError: which import failed, in which user file, and the remedy; re-raise our own bugs."""
    if "likewise[" in str(error):
        return str(error)
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    file = next(name for name in reversed(files) if not name.startswith("<frozen") and name != importlib.__file__)
    ours = Path(__file__).parents[1] in Path(file).parents
    module = (error.name or "").split(".")[0]
    missing = isinstance(error, ModuleNotFoundError) and module not in {"", "likewise"}
    if ours and not missing:
        raise error
    where = "" if ours else f" for {file}"
    if not missing:
        return f"expected what {file} imports, got {error}: correct the import"
    extra = EXTRAS.get(module, "train" if ours else None)
    remedy = f"pip install 'likewise[{extra}]'" if extra else "install it, or correct the import"
    return f"expected the module {error.name}{where}, which is not installed: {remedy}"


def _notes(error: BaseException) -> list[str]:
    """Return the last note of an error, or of its causes: how to resume a run, or its sweep."""
    notes = getattr(error, "__notes__", [])
    return notes[-1:] if notes or error.__cause__ is None else _notes(error.__cause__)


def _fail(message: str) -> int:
    TERMINAL.log(f"error: {' '.join(message.split())}")
    return 2
