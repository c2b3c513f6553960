"""The verbs: sweep and transfer with their own parsers, workflows by name, and a shell's `complete`."""

import argparse
import math
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from likewise import configuration
from likewise.cli import OWN_PARSERS, SUMMARIES, WordParser
from likewise.configuration.command_line import completions, requested_help
from likewise.configuration.options import RECORDS
from likewise.configuration.recipes import complete_name, names, studies, study, unknown
from likewise.workflows.plan import PLAN, GivenSetting, Sweep, as_yaml, configurations, folder_of, plan_sweep, read
from likewise.workflows.progress import TERMINAL

SWEEP = """Train several settings with several seeds, one after another in one process, and compare them.

Every option of `likewise train` applies to all runs. A setting adds options of its own; a grid takes every combination.

    likewise sweep --seeds 3 --setting "--loss SupConLoss" --setting "--loss NTXentLoss" --trainer.max_epochs 50
    likewise sweep --seeds 5 --setting "uniform: --loss RASCALLoss --loss.ranking uniform" \\
                   --setting "agreement: --loss RASCALLoss" --data Arrays --data.path flowers.npz
    likewise sweep --seeds 0,7,9 --grid loss.temperature=0.05,0.1,0.2
    likewise sweep --seeds 5 --recipe rascal-ablation-digits     a study: settings that come with likewise
    likewise sweep --seeds 5 --setting "--loss SupConLoss --tune loss.temperature=0.05,0.1,0.2" \\
                   --setting "--loss CrossEntropyLoss" --tune optimizer.lr=0.1,0.3,1 --trials 6
    likewise sweep --resume sweeps/SWEEP                         resume a sweep that was interrupted

--tune lets validation choose: with the first seed every setting is trained with each of its values, or with --trials of
their combinations, and what scores best on validation is trained with the other seeds. tuning.csv has every trial.

The sweep's folder gets a folder for each setting and seed, compare.html, compare.csv and compare.md. A run that fails
is reported, and the others are trained; but if the very first one fails before training, the sweep ends.
"""
TRANSFER = """How good is a trained encoder on other data with few labels?

    likewise transfer runs/RUN --data photos/                        at 1 %, 10 % and all of the labels
    likewise transfer runs/RUN --data other.npz --per-class 5 20 100 --seeds 3
    likewise transfer resnet18 --data photos/ --data.size 224        a network of timm, pretrained
    likewise transfer encoder.onnx --data photos/                    frozen alone
    likewise transfer weights.pth --encoder ResNet --data photos/    anybody's weights

RUN comes first. The frozen encoder is evaluated by kNN, a linear probe and few-shot episodes; it is fine-tuned, at a
tenth of the rate (--encoder-rate-factor); beside them stand raw inputs, and the same network from scratch, trained for
as many steps. The seed also chooses which labels are kept. Settings are chosen on a validation fifth of the kept
labels; the final model then learns from all of them.

Further options are those of `likewise train`, for all runs: --epochs, --lr, --batch-size, --augmentation ...;
--freeze, --unfreeze-epoch, --encoder-rate-factor and --layer-decay are for fine-tuning alone. Without --epochs there
are 30, or as many as make 300 steps.

The folder gets a folder for each setting and seed, transfer.html and transfer.csv. The same command goes on where it
was interrupted.
"""


def run(verb: str, arguments: Sequence[str]) -> None:
    """Call a workflow with the options after its verb, or print the requested help or completions."""
    if verb == "complete":
        TERMINAL.result("\n".join(_completions()))
        return
    help_text = requested_help(arguments, verb)
    if help_text is not None:
        TERMINAL.result(help_text)
        raise SystemExit(0)
    argv = [word for word in arguments if word != "--print_config"]
    options = configuration.read(argv, verb=verb)
    if len(argv) < len(arguments):
        TERMINAL.result(configuration.written(options).rstrip("\n"))
        return
    from likewise import workflows  # noqa: PLC0415 - once the options are read: imports torch, or Lightning

    getattr(workflows, verb)(options, progress=TERMINAL)


def _completions() -> list[str]:
    """Return the completions of the word at the cursor, given by bash's `complete -C` in COMP_LINE and COMP_POINT."""
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


def sweep(arguments: Sequence[str]) -> None:
    """Train settings x seeds in one process, resumable, ending in a comparison."""
    argv = [word for word in arguments if word != "--print_config"]
    plan, folder = parse_sweep(argv)
    if len(argv) < len(arguments):
        TERMINAL.result(as_yaml(plan))
        return
    if not (folder / PLAN).is_file():
        configurations(plan)  # or an error, before anything is imported
    from likewise.workflows.sweeps import run_sweep  # noqa: PLC0415 - imports Lightning

    run_sweep(plan, folder, TERMINAL)


def parse_sweep(arguments: Sequence[str]) -> tuple[Sweep, Path]:
    """Return the plan of a sweep, and its folder."""
    usage = "[--seeds N] [--setting OPTIONS ...] [--grid NAME=VALUES ...] [OPTIONS OF TRAIN]"
    parser = WordParser("likewise sweep", usage, SWEEP)
    parser.add_argument("--seeds", default="3", help="N for the seeds 0 to N-1, or a list such as 0,3,7 (default: 3)")
    parser.add_argument("--setting", action="append", default=[], help='a setting: "NAME: OPTIONS", or "OPTIONS"')
    parser.add_argument("--grid", action="append", default=[], help="an option with values: loss.temperature=0.1,0.2")
    parser.add_argument("--recipe", help="a recipe for all runs, METHOD-DATA, or a study with its settings, STUDY-DATA")
    parser.add_argument("--tune", action="append", default=[], help="an option that validation chooses: NAME=VALUES")
    parser.add_argument("--trials", help="how many combinations of --tune each setting tries, at random (default: all)")
    parser.add_argument("--tune_by", help="the evaluation that chooses (default: linear probe, or the first)")
    parser.add_argument("--split_seeds", action="store_true", help="split the data anew with each seed")
    parser.add_argument("--output", type=Path, help="the sweep's folder (default: sweeps/DATE)")
    parser.add_argument("--resume", type=Path, metavar="SWEEP", help="the folder of a sweep to resume")
    args, common = parser.parse(arguments)
    if args.resume is not None:
        options = [word for word in arguments if word.startswith("--") and word.partition("=")[0] != "--resume"]
        if options:
            raise ValueError(f"expected with --resume no other option, got {options[0]}: a sweep goes on with its own")
        return read(args.resume), args.resume
    plan = _plan(args, common)
    return plan, folder_of(plan, args.output)


def _plan(args: argparse.Namespace, common: list[str]) -> Sweep:
    if args.trials is not None and (not args.trials.isdecimal() or int(args.trials) < 1):
        raise ValueError(f"expected --trials as a number above 0, got {args.trials!r}: leave it out for all of them")
    settings = list(args.setting)
    if args.recipe in studies():
        settings = [f"{name}: {options}" for name, options in study(args.recipe).items()] + settings
    elif args.recipe is not None and complete_name(args.recipe) not in names():
        raise ValueError(unknown(args.recipe, [*studies(), *names()]))
    elif args.recipe is not None:
        common = [*common, "--recipe", args.recipe]
    return plan_sweep(
        [_setting(text) for text in settings],
        common,
        seeds_in(args.seeds),
        grid=[axis("--grid", text) for text in args.grid],
        tune=[axis("--tune", text) for text in args.tune],
        trials=None if args.trials is None else int(args.trials),
        tune_by=args.tune_by,
        split_seeds=args.split_seeds,
    )


def _setting(text: str) -> GivenSetting:
    """Read a setting, NAME: OPTIONS or OPTIONS; without a name it is named by its options."""
    named = re.match(r"\s*([^-][^:]*):\s*(.*)$", text, re.DOTALL)
    try:
        options = shlex.split(named[2] if named else text)
    except ValueError as error:
        raise ValueError(f"expected a setting as options, got {text!r}: {error}") from error
    if options and not options[0].startswith("--"):
        raise ValueError(f"expected a setting as options, got {text!r}: write --setting '--loss NTXentLoss'")
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--tune", action="append", default=[])
    parser.add_argument("--tune_by")
    try:
        args, options = parser.parse_known_args(options)
    except argparse.ArgumentError as error:
        raise ValueError(f"{error}, in the setting {text!r}: see likewise sweep --help") from error
    name = named[1].strip() if named else " ".join(options).replace("--", "").replace(" ", "=", 1)
    return GivenSetting(name, options, [axis("--tune", values) for values in args.tune], args.tune_by)


def seeds_in(text: str) -> list[int]:
    """Read a number of seeds, or a list of them."""
    numbers = [part.strip() for part in text.split(",") if part.strip()]
    if not numbers or not all(number.isdecimal() for number in numbers) or text.strip() == "0":
        raise ValueError(f"expected --seeds as a number above 0, or a list, got {text!r}: 5 for 0 to 4, or 1,7, or 3,")
    return list(range(int(text))) if "," not in text else list(map(int, numbers))


def axis(option: str, text: str) -> list[tuple[str, list[str]]]:
    """Read NAME=VALUES of --grid or --tune: for each value its label, and the options that set it."""
    name, equal, values = text.removeprefix("--").partition("=")
    parted = [part for part in re.split(r",(?![^\[{]*[\]}])", values) if part]  # at commas, but not within brackets
    if not name or not equal or not parted:
        raise ValueError(f"expected {option} NAME=VALUE,VALUE, got {text!r}: {option} loss.temperature=0.1,0.2")
    return [(f"{name}={value}", [f"--{name}", value]) for value in parted]


def transfer(arguments: Sequence[str]) -> None:
    """Train an encoder on other data with few labels, against raw inputs and the same network untrained."""
    usage = "RUN --data DATA [--labels SHARE ... | --per-class N ...] [--seeds N] [OPTIONS]"
    parser = WordParser("likewise transfer", usage, TRANSFER)
    parser.add_argument("--labels", nargs="+", default=[], help="shares of the labels (default: 0.01 0.1 1)")
    parser.add_argument("--per_class", nargs="+", default=[], metavar="N", help="or labels of each class")
    parser.add_argument("--seeds", default="3", help="N for the seeds 0 to N-1, or a list such as 0,3,7 (default: 3)")
    parser.add_argument("--output", type=Path, help="the folder (default: transfers/DATE)")
    if arguments and arguments[0] in {"-h", "--help"}:
        parser.parse_args(arguments)
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(
            "expected a run, a network's name or a file first, got none: likewise transfer RUN --data DATA"
        )
    args, remaining = parser.parse(arguments[1:])
    train_options = [word for word in remaining if word != "--print_config"]
    seeds = seeds_in(args.seeds)
    shares, counts = _parse_numbers("labels", args.labels), _parse_numbers("per_class", args.per_class)
    if not all(count.is_integer() for count in counts):
        raise ValueError(f"expected --per_class as whole numbers, got {' '.join(args.per_class)}: --per_class 5 20")
    from likewise.workflows import transfers  # noqa: PLC0415 - once the arguments are understood: imports Lightning

    request = transfers.TransferRequest(arguments[0], tuple(shares) or None, tuple(map(int, counts)), tuple(seeds))
    if len(train_options) < len(remaining):
        TERMINAL.result(as_yaml(transfers.plan_transfer(request, train_options, TERMINAL)[0]))
    else:
        transfers.run_transfer(request, train_options, args.output, TERMINAL)


def _parse_numbers(option: str, values: Sequence[str]) -> list[float]:
    try:
        numbers = [float(word) for word in values]
    except ValueError as error:
        got = f"got {' '.join(values)}: give numbers only, and RUN before all options"
        raise ValueError(f"expected --{option} as numbers, {got}") from error
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"expected --{option} as finite numbers, got {' '.join(values)}: leave out the others")
    return numbers
