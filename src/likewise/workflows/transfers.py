"""Transfers: the scores of an encoder on other data with few labels, as a sweep over the number of labels."""

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, final

from likewise import report
from likewise.configuration.command_line import as_words, canonical_options, named_in, read
from likewise.configuration.options import TrainOptions
from likewise.configuration.values import Option
from likewise.data import FewLabels, LabelNoise, Parts, Samples, Subset
from likewise.data.lazy_inputs import use_progress
from likewise.data.reload import fingerprint, parts_of, parts_of_run, same_source
from likewise.evaluation import FewShot
from likewise.files.detection import expanded
from likewise.instantiate import as_list, class_of
from likewise.losses import Loss
from likewise.report import transfer as tables
from likewise.report.sections import CurvesSection, FactsSection
from likewise.report.transfer import FROZEN, SCRATCH, TUNED, Column, TransferSection
from likewise.runs import Run
from likewise.runs.scores import aligned
from likewise.training.assembly import shared
from likewise.training.inputs.loss_input import LossSignature
from likewise.training.optimization import ALL
from likewise.workflows import plan, scoring
from likewise.workflows.arguments import TrainArguments
from likewise.workflows.comparison import Comparison
from likewise.workflows.progress import PRINTED, Progress, shown
from likewise.workflows.scoring import EvaluationOptions, check_applicable
from likewise.workflows.sweeps import run_sweep
from likewise.workflows.training import chosen_parts

WEIGHTS = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")
SHARES = (0.01, 0.1, 1.0)
MIN_CLASS_LABELS = 2  # labels of a class: one for training, one for validation
MIN_EPOCHS, MIN_STEPS = 30, 300
DEFAULT_OPTIONS = {
    "loss": "likewise.losses.CrossEntropyLoss",
    "batches.views": "1",
    "batches.batch_size": "64",
    "split.refit": "true",
    "split.validation": "0.2",
    "report": "false",
}
"""Default options of all runs."""
MILD_AUGMENTATION = {
    "batches.augmentation": "likewise.data.RandomResizedCrop",
    "batches.augmentation.scale": "[0.4, 1.0]",
    "batches.augmentation.flip": "0.5",
}
"""For colour images, in place of the strong crops and colour changes of contrastive learning."""
OF_TUNING = {"freeze": "null", "unfreeze_epoch": "null", "encoder_rate_factor": "1.0", "layer_decay": "1.0"}
"""Options for fine-tuning only, with their values in all other runs, which override option files and recipes."""
RATE_FACTOR = "0.1"
LENGTHS = frozenset({"trainer.max_epochs", "trainer.max_steps", "trainer.max_time"})
ONE_STEP = ("--trainer.max_steps", "1", "--trainer.max_epochs", "1")
FROZEN_SCORES = ("--evaluations", "KNN", "--evaluations+", "LinearProbe")
OWN_SCORE = ("--evaluations", "OwnClassifier")
HOME = "transfers"
AGAIN = "the same command goes on, or likewise transfer with --output {}"


def transfer(
    run: Run | Path | str,
    *,
    labels: Sequence[float] | None = None,
    per_class: Sequence[int] | None = None,
    seeds: int | Sequence[int] = 3,
    output: Path | str | None = None,
    progress: Progress = PRINTED,
    **options: Unpack[TrainArguments],
) -> Comparison | None:
    """Evaluate an encoder on other data with few labels: frozen, fine-tuned, and against the same network from scratch.

    The same call resumes an interrupted transfer.

    Args:
        run: A run, the name of a timm network, or a file: .onnx, or weights of the network named by `encoder`.
        labels: Shares of the labels; shares that leave a class fewer than 2 are skipped. None: 1 %, 10 %, and all.
        per_class: Numbers of labels of each class, instead.
        seeds: N for the seeds 0 to N-1, or a list of seeds. They also choose the labels.
        output: The folder. None: transfers/DATE, or the same transfer's folder there.
        progress: Receives messages during the work, and the scores.
        **options: Options of `likewise train` without objects, including data.

    Returns:
        The table and its page; None if fewer than two runs have scores.

    Raises:
        ValueError: An option, the run or the data is not as expected, or a run failed.
        KeyboardInterrupt: The user ended it.
    """
    seed_list = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    source, shares = run.folder if isinstance(run, Run) else run, None if labels is None else tuple(labels)
    request = TransferRequest(str(source), shares, tuple(per_class or ()), tuple(seed_list))
    return run_transfer(request, plan.options_of(options), output, progress)


@final
@dataclass(frozen=True)
class TransferRequest:
    """The source of a transfer, its numbers of labels, and its seeds; see `transfer`."""

    source: str
    shares: tuple[float, ...] | None = None
    per_class: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        if self.shares is not None and self.per_class:
            raise ValueError("expected --labels or --per_class, got both: give one of them")
        if not self.seeds:
            raise ValueError("expected a seed or more, got none: --seeds 3 is usual")
        for number in self.amounts:
            FewLabels(**number)  # raises if it is out of range

    @property
    def amounts(self) -> list[dict[str, Any]]:
        """The arguments of `FewLabels` for each number of labels, the fewest first."""
        if self.per_class:
            return [{"per_class": number} for number in sorted(set(self.per_class))]
        return [{"fraction": share} for share in sorted(set(self.shares or SHARES))]


@final
@dataclass(frozen=True)
class _Networks:
    """The options for the trained encoder, and for the same network with random weights, if it can be trained.

    `taken` are the names of the user's options among them; `file` and `run` locate the weights, if any.
    """

    trained: list[str]
    fresh: list[str] | None
    taken: frozenset[str] = frozenset()
    file: Path | None = None
    run: Run | None = None

    @property
    def digest(self) -> str:
        """A digest of the weights; empty where a library provides them."""
        if self.file is None or not self.file.is_file():
            return ""  # a missing file is reported when a run is assembled
        with self.file.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @classmethod
    def of(cls, source: str, options: Sequence[Option], weights: str | None = None) -> "_Networks":
        """Return the options for a run, a name, or a file, given the user's own options and the weights they name."""
        path = Path(source).expanduser()
        encoder = [option for option in options if option.name.partition(".")[0] == "encoder"]
        taken = frozenset([*(option.name for option in encoder), "weights"])
        none = ["--weights", "null"]
        if path.suffix.lower() == ".onnx":
            if encoder or weights:
                raise ValueError(f"expected no --encoder and no --weights beside {source}, got some: leave them out")
            arguments = ["--encoder", "likewise.inference.onnx.OnnxEncoder", "--encoder.file", str(path)]
            return cls(arguments, None, file=path)
        if path.suffix.lower() in WEIGHTS and not path.is_dir():
            if not encoder:
                raise ValueError(f"expected the network that {source} is of, got none: --encoder ResNet, for one")
            if weights:
                raise ValueError("expected weights once, got a file and --weights: leave out one")
            return cls([*as_words(encoder), "--weights", str(path)], [*as_words(encoder), *none], taken, path)
        if encoder:
            raise ValueError(f"expected no --encoder beside {source}, which is one, got one: leave it out")
        if path.is_dir() or len(path.parts) > 1:
            if weights:
                raise ValueError("expected no --weights beside a run, which has its own, got some: leave them out")
            opened = Run.open(path)
            if not opened.weights.is_file():
                raise ValueError(f"expected a trained run, got {path}: finish it with likewise train --resume {path}")
            arguments = ["--encoder", "likewise.models.FromRun", "--encoder.run", str(path)]
            return cls(arguments, [*arguments, "--encoder.trained", "false"], file=opened.weights, run=opened)
        arguments = ["--encoder", "likewise.models.Timm", "--encoder.name", source, "--encoder.pretrained"]
        begun = [*arguments, "false", "--weights", str(weights)] if weights else [*arguments, "true"]
        return cls(begun, [*arguments, "false", *none], taken, expanded(weights) if weights else None)


def run_transfer(
    request: TransferRequest, arguments: Sequence[str], output: Path | str | None = None, progress: Progress = PRINTED
) -> Comparison | None:
    """Train and evaluate the remaining runs, and write the table and its page; see `transfer`."""
    with use_progress(progress.bar):
        made, columns = plan_transfer(request, arguments, progress)
    if not output:  # resume the same transfer, of the same data and weights
        begun = sorted(path.parent for path in Path(HOME).glob(f"*/{plan.PLAN}"))
        output = next((folder for folder in reversed(begun) if plan.read(folder) == made), None)
    folder = plan.folder_of(made, output, HOME)
    try:
        return run_sweep(made, folder, progress, compare_runs=partial(_write_comparison, columns), again=AGAIN, least=1)
    finally:
        scoring.forget()


def plan_transfer(
    request: TransferRequest, arguments: Sequence[str], progress: Progress
) -> tuple[plan.Sweep, dict[str, Column]]:
    """Plan a transfer's runs, and return the column of each setting; the data is loaded to count its labels."""
    options = canonical_options(arguments)
    named = named_in(arguments)
    names = {name.partition(".")[0] for name in named}
    if any(option.name.partition(".")[0] == "evaluations" for option in options):
        raise ValueError("expected no --evaluations, which a transfer sets itself, got some: leave them out")
    if not names & {"data", "recipe", "config"}:
        raise ValueError("expected the other data, got none: likewise transfer RUN --data photos/")
    requested: TrainOptions = read([*_format_options(DEFAULT_OPTIONS), *arguments])
    _check_options(requested)
    networks = _Networks.of(request.source, options, requested.weights)
    tuning = {name: getattr(requested, name) for name in OF_TUNING}
    if "encoder_rate_factor" not in named:
        tuning["encoder_rate_factor"] = RATE_FACTOR
    remaining_options = [option for option in options if option.name not in {*OF_TUNING, *networks.taken}]
    common = [*_format_options(DEFAULT_OPTIONS), *as_words(remaining_options)]
    config: TrainOptions = read([*common, *(networks.fresh or networks.trained)])
    parts = _load_parts(config)
    whole = parts.refitted().train
    if whole.input_shape[:1] == (3,) and len(whole.input_shape) == 3:
        common = [*_format_options(MILD_AUGMENTATION), *common]
    if networks.run is not None and (seen := _labels_seen(networks.run, config, whole)):
        trained_with = f"trained with the labels of {seen:,} of {len(whole):,} samples to learn from"
        progress.log(f"warning: {networks.run.folder} was {trained_with}: few-label scores will be optimistic")
    settings: list[plan.GivenSetting] = []
    columns: dict[str, Column] = {}
    amounts = list(_possible_amounts(request, whole, progress))
    for index, (amount, kept) in enumerate(amounts):
        labels, size = _amount_words(amount), config.batches["init_args"].get("batch_size", 64)
        subset = [f"--subset{'+' if config.subset else ''}", "FewLabels", *_format_options(amount, "subset.")]
        epochs = max(MIN_EPOCHS, math.ceil(MIN_STEPS / max(1, kept // size)))  # enough steps even for few labels
        length = [] if named & LENGTHS else _format_options({"trainer.max_epochs": epochs})
        last = index == len(amounts) - 1
        few_shot = _few_shot(parts, progress) if last else []
        frozen, scratch = (_format_options(OF_TUNING | freeze) for freeze in ({"freeze": ALL}, {}))
        methods = {FROZEN: [*networks.trained, *frozen, *ONE_STEP, *FROZEN_SCORES, *few_shot]}
        if networks.fresh is not None:
            methods[TUNED] = [*networks.trained, *_format_options(tuning), *length, *OWN_SCORE]
            methods[SCRATCH] = [*networks.fresh, *scratch, *length, *OWN_SCORE]
        for method, method_options in methods.items():
            columns[f"{method}, {labels}"] = Column(method, labels)
            settings.append(plan.GivenSetting(f"{method}, {labels}", [*method_options, *subset]))
    sweep = plan.plan_sweep(settings, common, list(request.seeds), seeded=["--subset.seed"])
    digests = {"data": fingerprint(parts), "weights": networks.digest}
    return replace(sweep, digests=digests), columns


def _check_options(config: TrainOptions) -> None:
    kinds = [class_of(spec["class_path"], Subset) for spec in as_list(config.subset)]
    if FewLabels in kinds:
        raise ValueError("expected no FewLabels among --subset: give --labels or --per_class")
    if LabelNoise in kinds:
        raise ValueError("expected no LabelNoise among --subset, as a transfer learns from right labels: leave it out")
    loss = class_of(config.loss["class_path"], Loss)
    if not {"prototypes", "class_logits"} & LossSignature.by(loss).names:
        message = f"expected a loss with a classifier, to be evaluated by, got {loss.__name__}"
        raise ValueError(f"{message}: --loss CrossEntropyLoss, or leave it out")


def _load_parts(config: TrainOptions) -> Parts:
    """Load the parts with subsampled labels; each training and validation sample must have one class."""
    parts, _ = parts_of(chosen_parts(config), _check_labels)
    if parts.train.names != parts.test.names or parts.new_in_validation:
        raise ValueError("expected the same classes in all parts, got others to test on: --split Stratified has them")
    return parts


def _labels_seen(run: Run, config: TrainOptions, whole: Samples) -> int:
    """Count the training samples whose labels the run's encoder was already trained on, in the same data."""
    parts = run.metadata.get("parts", {})
    if not parts or not same_source(parts["data"], config.data):
        return 0
    if not class_of(parts["loss"]["class_path"], Loss).label_kinds:
        return 0
    before, refit = parts_of_run(run)
    return shared(whole, before.refitted().train if refit else before.train)


def _check_labels(samples: Samples) -> None:
    if samples.label_kind != "classes":
        sets = "label sets: likewise train takes these"
        got = "no labels: name them, --data.label" if samples.labels is None else sets
        raise ValueError(f"expected data with a class for each sample, got {got}")
    if samples.within is not None:
        message = "expected data with one class for each sample, got fine labels too"
        raise ValueError(f"{message}: leave them out, or have them alone as labels, --data.label")


def _possible_amounts(
    request: TransferRequest, whole: Samples, progress: Progress
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the amounts that leave every class enough labels, and how many labels each keeps; report the others."""
    usable_count, counts = 0, whole.counts
    for amount in request.amounts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # amounts that it warns of are left out, and reported below
            kept = whole[FewLabels(**amount)(whole)].counts
        fewest = int(kept.argmin())
        if int(kept[fewest]) >= MIN_CLASS_LABELS:
            usable_count += 1
            yield amount, int(kept.sum())
        else:
            reason = f"{int(kept[fewest])} of {whole.names[fewest]!r}, and {MIN_CLASS_LABELS} of each class are needed"
            progress.log(f"{_amount_words(amount)}: left out, as it keeps {reason}")
    if not usable_count:
        smallest = int(counts.min())
        share = math.ceil(100 * MIN_CLASS_LABELS / max(1, smallest)) / 100
        remedy = f"--labels {share:g} does" if smallest >= MIN_CLASS_LABELS else "add labels"
        raise ValueError(f"expected a number of labels that keeps {MIN_CLASS_LABELS} of each class, got none: {remedy}")


def _amount_words(amount: Mapping[str, Any]) -> str:
    return f"{amount['per_class']} a class" if "per_class" in amount else f"{100 * amount['fraction']:g} % of labels"


def _few_shot(parts: Parts, progress: Progress) -> list[str]:
    why = ""
    for shots in ([1, 5], [1]):
        try:
            check_applicable(parts, EvaluationOptions([FewShot(shots=shots, distance="cosine")]))
        except ValueError as error:
            why = str(error)
        else:
            options = _format_options({"evaluations.shots": str(shots), "evaluations.distance": "cosine"})
            return ["--evaluations+", "FewShot", *options]
    progress.log(f"few-shot episodes are left out: {why}")
    return []


def _format_options(options: Mapping[str, Any], above: str = "") -> list[str]:
    return as_words(Option(f"{above}{name}", "null" if value is None else value) for name, value in options.items())


def _write_comparison(
    columns: Mapping[str, Column], runs: Sequence[Run], folder: Path, names: Mapping[Path, str], progress: Progress
) -> Comparison:
    """Report the table of a transfer, and write it as CSV next to a page with its curves."""
    page = folder / "transfer.html"
    views = report.in_settings(runs, names, progress=progress.bar)
    scores = tables.transfer_scores(report.settings_of(views), columns)
    comparison = Comparison(page, [score.row for score in scores], tables.verdict_on(scores))
    comparison.table.write_text(tables.scores_as_csv(scores), "utf-8", "backslashreplace")
    sections = [TransferSection(scores), CurvesSection(), FactsSection()]
    report.write_page(page, views, title="Transfer", sections=sections)
    table = tables.by_labels(scores)
    over = "seeds" if any(score.row.runs > 1 for score in scores) else "the test part"
    progress.result(f"Accuracy on the test part, with 95 % intervals over {over}\n")
    progress.result("\n".join(aligned(table)))
    if any(cell.endswith(" *") for line in table for cell in line):
        progress.result("* the same with every seed: the interval is that of one run")
    progress.result("\n" + "\n\n".join(comparison.verdict))
    progress.result(f"\npage: {shown(page)}\ntable: {shown(comparison.table)}")
    return comparison
