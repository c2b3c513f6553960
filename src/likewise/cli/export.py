"""`likewise export`: a run's encoder as a file for elsewhere, safetensors or ONNX."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from likewise.cli.printing import TERMINAL

FORMATS = ("safetensors", "onnx")
DESCRIPTION = """Write a run's encoder as a file for elsewhere.

    likewise export runs/RUN --format onnx            RUN.onnx: any number of inputs, checked against the encoder
    likewise export runs/RUN --output encoder.safetensors
"""


def run(arguments: Sequence[str]) -> None:
    """Run `likewise export` with the arguments that follow the verb."""
    parser = argparse.ArgumentParser(
        prog="likewise export",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        exit_on_error=False,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument("--format", choices=FORMATS, help="what to write; the default follows the output's name")
    parser.add_argument("--output", type=Path, help="the file to write; the default is RUN with the format's ending")
    try:
        given = parser.parse_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ValueError(f"{error}: see likewise export --help") from error
    from likewise.workflows import export  # noqa: PLC0415 - once the arguments are understood

    export(given.run, given.output, format=given.format, progress=TERMINAL)
