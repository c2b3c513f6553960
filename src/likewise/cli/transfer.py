"""`likewise transfer`: an encoder on other data with few labels, beside raw inputs and the same network untrained."""

import math
from collections.abc import Sequence
from pathlib import Path

from likewise.cli.parsing import WordParser
from likewise.cli.sweep import seeds_in
from likewise.workflows.plan import as_yaml
from likewise.workflows.progress import TERMINAL

DESCRIPTION = """How good is a trained encoder on other data with few labels?

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


def run(arguments: Sequence[str]) -> None:
    """Run `likewise transfer` with the arguments that follow the verb."""
    usage = "RUN --data DATA [--labels SHARE ... | --per-class N ...] [--seeds N] [OPTIONS]"
    parser = WordParser("likewise transfer", usage, DESCRIPTION)
    parser.add_argument("--labels", nargs="+", help="shares of the labels (default: 0.01 0.1 1)")
    parser.add_argument("--per_class", nargs="+", metavar="N", help="or labels of each class")
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
    from likewise.workflows import transfers  # noqa: PLC0415 - once the arguments are understood: imports Lightning

    per_class = tuple(int(count) for count in counts or ())
    if any(count != number for count, number in zip(per_class, counts or (), strict=True)):
        raise ValueError(f"expected --per_class as whole numbers, got {' '.join(args.per_class)}: --per_class 5 20")
    request = transfers.TransferRequest(arguments[0], tuple(shares) if shares else None, per_class, tuple(seeds))
    if len(train_options) < len(remaining):
        TERMINAL.result(as_yaml(transfers.plan_transfer(request, train_options, TERMINAL)[0]))
    else:
        transfers.run_transfer(request, train_options, args.output, TERMINAL)


def _parse_numbers(option: str, values: Sequence[str] | None) -> list[float] | None:
    if values is None:
        return None
    try:
        numbers = [float(word) for word in values]
    except ValueError as error:
        got = f"got {' '.join(values)}: give numbers only, and RUN before all options"
        raise ValueError(f"expected --{option} as numbers, {got}") from error
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"expected --{option} as finite numbers, got {' '.join(values)}: leave out the others")
    return numbers
