"""`likewise evaluate`: a run, a checkpoint of a run, or somebody else's embeddings."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from likewise.cli.explanation import explained
from likewise.cli.options import LISTS, NESTED, add_evaluations, plain
from likewise.cli.printing import TERMINAL

DESCRIPTION = """Evaluate a frozen encoder by k nearest neighbours, a linear probe and retrieval, as far as they apply.

    likewise evaluate runs/RUN                          a run again: its scores and report are replaced
    likewise evaluate runs/RUN/checkpoint.ckpt          the encoder of a checkpoint, as a run of its own
    likewise evaluate embeddings.npz                    features and labels from anywhere, as a run of its own
    likewise evaluate runs/RUN --evaluations Retrieval  one evaluation only

Calibration, OutOfDistribution (needs --evaluations.outside, other data) and Robustness run only if they are named.

An array file has the keys features (N, D) and labels (N,), and optionally parts (N,) of train, validation, test;
or train_features, train_labels, test_features, test_labels. Without parts, they are cut from each class in proportion.
"""


class _Help(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """jsonargparse's help, with the description's lines as they stand."""


def run(arguments: Sequence[str]) -> None:
    """Run `likewise evaluate` with the arguments that follow the verb.

    Raises:
        ValueError: What is to be evaluated isn't there or can't be read, or an evaluation doesn't apply.
        KeyboardInterrupt: The user ended it.
        SystemExit: Help was asked for.
    """
    parser = ArgumentParser(
        prog="likewise evaluate",
        description=DESCRIPTION,
        formatter_class=_Help,
        exit_on_error=False,
        allow_abbrev=False,
        usage="likewise evaluate SOURCE [OPTIONS]",
    )
    parser.add_argument(
        "source", metavar="SOURCE", type=Path, help="A run's folder, a checkpoint in it, or an .npz file."
    )
    add_evaluations(parser)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="The folder to create a new run's folder in.")
    parser.add_argument("--device", default="auto", help="Where the encoder runs: auto, cpu, cuda ...")
    try:
        config = parser.parse_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ValueError(explained(parser, str(error), list(arguments), LISTS | NESTED, (), verb="evaluate")) from error
    from likewise.workflows import evaluate  # noqa: PLC0415 - once the arguments are understood

    evaluate(config.source, plain(parser, config), progress=TERMINAL)
