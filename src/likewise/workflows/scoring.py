"""The encoding and evaluation shared by `train` and `evaluate`: every score is saved and reported as it comes.

A score is reported as a line, with the scores of other features, and at the end in a table of classes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from likewise.configuration.options import EvaluateOptions, TrainOptions
from likewise.data import LazyInputs, Parts, Samples, fingerprint
from likewise.data.lazy_inputs import files_of, in_words, unreadable
from likewise.evaluation import (
    Evaluation,
    FeatureParts,
    Features,
    Origin,
    Result,
    Score,
    applicable,
    load_features,
    paired_difference,
    raw_features,
    save_features,
)
from likewise.evaluation.choice import left_out
from likewise.evaluation.encoding import features_of
from likewise.evaluation.features import CPU, capped, capped_features, features_on
from likewise.evaluation.predictions import MACRO, MEAN_PRECISION
from likewise.files.formats import MAX_LISTED, PARTS
from likewise.instantiate import instantiate_all
from likewise.models import Encoder
from likewise.report import RunView, Section, write_page
from likewise.report.elements import difference_words
from likewise.report.run_summary import FEATURE_NAMES
from likewise.runs import Run
from likewise.runs.scores import BEGUN, ENCODER, Outcomes, aligned, format_score, format_settings, one_line, remarks
from likewise.workflows.progress import Progress

ENCODED_SAMPLES = "encoded_samples"
"""The run's fact for the largest number of encoded samples of each part; None for all."""
MAX_CACHED = 32
MAX_LISTED_CLASSES = 20  # with more classes, only the report shows them all
_found_before: dict[str, Result] = {}  # by digest of the features and the evaluation
_encoded_before: dict[str, tuple[Features, dict[int, str]]] = {}
"""Features by encoders without training, and the unreadable files, by digest of encoder and samples."""


@final
@dataclass(frozen=True)
class EvaluationOptions:
    """The evaluations, the largest number of samples of each part, and the sections of the page.

    None stands for the applicable usual evaluations, for all samples, and for likewise's own sections.
    """

    evaluations: list[Evaluation] | None = None
    evaluation_samples: int | None = None
    sections: list[Section] | None = None
    report: bool = True

    @classmethod
    def of(cls, config: TrainOptions | EvaluateOptions) -> "EvaluationOptions":
        """Return the evaluations and sections described by options."""
        most = config.evaluation_samples
        if most is not None and most < 1:
            raise ValueError(f"expected --evaluation_samples of at least 1, got {most}: --evaluations [] is none")
        evaluations = instantiate_all(config.evaluations, Evaluation)
        return cls(evaluations, most, instantiate_all(config.sections, Section), config.report)

    def capped(self, features: FeatureParts) -> FeatureParts:
        """Subsample each part to `evaluation_samples`; unseen classes stay whole."""
        return capped_features(features, self.evaluation_samples)


def check_applicable(parts: Parts, options: EvaluationOptions, *, predicts: bool = False) -> None:
    """Raise a ValueError for a requested evaluation that doesn't apply, before anything is trained."""
    samples = zip((parts.train, parts.validation, parts.test), PARTS, strict=True)
    blank = FeatureParts(*(_blank(part, name) for part, name in samples))
    if predicts:
        none = [torch.zeros(1, len(part.names)).expand(len(part), -1) for part in blank]
        blank = FeatureParts(*(replace(part, predictions=scores) for part, scores in zip(blank, none, strict=True)))

    def refuse() -> Any:
        raise ValueError("expected an evaluation that encodes nothing before training, got one that does")

    applicable(options.capped(with_origin(blank, parts, refuse)), options.evaluations)


def _blank(samples: Samples, part: str) -> Features:
    samples = samples.as_evaluated()
    counterparts = None if samples.counterparts is None else _blank(samples.counterparts, part)
    return Features.of(samples, torch.zeros(1, 1).expand(len(samples), -1), part, counterparts=counterparts)


def encode_parts(
    run: Run,
    encoder: Encoder,
    parts: Parts,
    progress: Progress,
    predicted: Callable[[Features], Features] | None = None,
    *,
    second: Encoder | None = None,
    trained: bool = True,
    workers: int | None = None,
    most: int | None = None,
    anew: bool = False,
    shared: bool = False,
) -> FeatureParts:
    """Encode the samples, add the predictions of the run's own classifier, and save the features; or load saved ones.

    At most `most` samples of each part are encoded. Features by an encoder that is not `trained` are computed once per
    process, for all runs of a sweep. If `shared`, all other processes encode a share; see `join_encoding`.
    """
    if run.embeddings.is_file() and not anew:
        return with_origin(load_features(run.embeddings), parts, lambda: (encoder, second))

    kept = not (trained or shared) and second is None
    digest = _digest(encoder, [run.metadata["parts"][name] for name in ("encoder", "data")]) if kept else None
    encoded_parts: list[Features] = []
    lost: dict[int, str] = {}
    for part, few in zip(PARTS, capped([parts.train, parts.validation, parts.test], most), strict=True):
        how: Any = {"progress": progress.bar, "second": second, "workers": workers, "shared": shared}
        part_features, without = _encode(few.samples, encoder, part, digest, how)
        encoded_parts.append(few.of(predicted(part_features) if predicted else part_features))
        lost |= without
    features = FeatureParts(*encoded_parts)
    with run.writing(run.embeddings.name) as path:
        save_features(path, features)
    run.describe(run.metadata | {ENCODED_SAMPLES: most})
    note_lost(run, lost)
    return with_origin(features, parts, lambda: (encoder, second))


def encode_initial(
    run: Run,
    encoder: Encoder,
    parts: Parts,
    progress: Progress,
    *,
    second: Encoder | None = None,
    workers: int | None = None,
    most: int | None = None,
) -> FeatureParts:
    """Encode the samples by the initial encoder, and save the features; or load saved ones."""
    if not run.initial_embeddings.is_file():
        some = zip(PARTS, capped([parts.train, parts.validation, parts.test], most), strict=True)
        how: Any = {"progress": progress.bar, "second": second, "workers": workers}
        encoded_parts = [few.of(features_of(few.samples, encoder, part, **how)) for part, few in some]
        with run.writing(run.initial_embeddings.name) as path:
            save_features(path, FeatureParts(*encoded_parts))
    return with_origin(initial_features(run), parts, lambda: (encoder, second))


def initial_features(run: Run) -> FeatureParts:
    """Load a run's saved features by the initial encoder."""

    def mark(part: Features) -> Features:
        return replace(part, kind=BEGUN, counterparts=None if part.counterparts is None else mark(part.counterparts))

    return FeatureParts(*map(mark, load_features(run.initial_embeddings)))


def forget() -> None:
    """Free the cached features by encoders without training."""
    _encoded_before.clear()


def _encode(
    samples: Samples, encoder: Encoder, part: str, digest: str | None, how: Mapping[str, Any]
) -> tuple[Features, dict[int, str]]:
    """Return features and the unreadable files; from the cache, if an encoder with that digest encoded the samples."""
    if digest is None:
        return features_of(samples, encoder, part, **how), _lost(samples)
    none = samples[torch.arange(0)]
    rows = b"" if samples.rows is None else samples.rows.contiguous().numpy().tobytes()
    key = f"{digest} {fingerprint(Parts(samples, none, none))} {sha256(rows).hexdigest()}"
    entry = _encoded_before.pop(key, None)
    if entry is None:
        entry = features_of(samples, encoder, part, **how), _lost(samples)
    while len(_encoded_before) >= MAX_CACHED:
        _encoded_before.pop(next(iter(_encoded_before)))  # the least recently used
    _encoded_before[key] = entry
    return replace(entry[0], part=part), entry[1]


def _digest(encoder: Encoder, specs: Any) -> str:
    """Return a digest of an encoder's weights, its arguments, and the source of its inputs."""
    digest = sha256(repr(specs).encode())
    for tensor in encoder.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _lost(samples: Samples) -> dict[int, str]:
    """Return the unreadable files by their numbers, which for the other side of pairs run from -1 down."""
    every, counterparts = torch.arange(len(samples)), samples.counterparts
    beside = [] if counterparts is None else unreadable(counterparts.inputs, every)
    return files_of([*unreadable(samples.inputs, every), *(file._replace(item=-1 - file.item) for file in beside)])


def note_lost(run: Run, files: Mapping[int, str]) -> None:
    """Add unreadable files to those noted in the run."""
    if files:
        facts = run.metadata
        run.describe(facts | {"undecodable": facts.get("undecodable", {}) | {str(item): files[item] for item in files}})


def say_lost(run: Run, progress: Progress) -> None:
    """Report the unreadable files."""
    if files := run.metadata.get("undecodable"):
        progress.log(f"warning: {in_words(files)}{'; run.json names all' if len(files) > MAX_LISTED else ''}")


def write_report(
    run: Run,
    samples: Parts | None,
    options: EvaluationOptions,
    progress: Progress,
    features: FeatureParts | None = None,
) -> None:
    """Write the run's page, if the options ask for it; without `features`, from the features in the run's files."""
    if not options.report:
        return
    progress.log("writing the report ...")
    with run.writing(run.report.name) as page:
        write_page(page, [RunView(run, samples, features=features, progress=progress.bar)], sections=options.sections)


def with_origin(
    features: FeatureParts, parts: Parts, encoders: Callable[[], tuple[Encoder, Encoder | None]]
) -> FeatureParts:
    """Attach to features their samples, and a function that encodes more, by the encoders of one side or both."""

    def encode(side: int, inputs: Tensor | LazyInputs) -> Tensor:
        pair = encoders()
        return (pair[side] or pair[0]).encode(inputs)

    def attach_origin(part: Features, samples: Samples) -> Features:
        beside = part.counterparts
        if beside is not None and samples.counterparts is not None:
            other_samples = replace(samples.counterparts, rows=samples.rows)
            beside = replace(beside, origin=Origin(other_samples, partial(encode, 1)))
        return replace(part, origin=Origin(samples, partial(encode, 0)), counterparts=beside)

    return FeatureParts(*map(attach_origin, features, (parts.train, parts.validation, parts.test)))


def evaluate_features(
    run: Run,
    features: FeatureParts,
    samples: Parts | None,
    options: EvaluationOptions,
    progress: Progress,
    *,
    initial: FeatureParts | None = None,
    refit: bool,
    trained: bool = True,
    device: torch.device = CPU,
) -> None:
    """Evaluate features, the initial encoder's features, and raw inputs; save and report each score as it comes.

    Raw inputs, and features by an encoder that is not `trained`, are evaluated once per process, as they are the same
    in several runs of a sweep. Evaluations use the `device` where they can, if it has room for the features.
    """
    named_evaluations, features = options.evaluations, options.capped(features)
    evaluations = applicable(features, named_evaluations)
    if named_evaluations == []:
        return
    if named_evaluations is None and (lacking := left_out(features)):
        progress.log(lacking)
    if not evaluations:
        progress.log(f"no evaluation applies to {features.test.label_kind or 'samples without labels'}")
        return
    raw = None if samples is None or not len(samples.train) else raw_features(samples, features)
    beside = [_Beside.of(other, features, evaluations, device) for other in (initial, raw) if other is not None]
    beside = [other for other in beside if other.evaluations]
    same = " and ".join(
        f"{FEATURE_NAMES[other.given.test.kind]}{f', with {format_settings(other.fewer)}' if other.fewer else ''}"
        for other in beside
    )
    progress.result(f"\nHeld-out scores, with 95 % intervals{same and f'; the same for {same}'}")
    unseen = features.test.label_kind == "classes" and len(features.train) > 0 and not features.closed
    placed = features_on(device, features)
    for evaluation in evaluations:
        if trained:
            feature_parts = placed if evaluation.accelerated else features
            result = evaluation(*feature_parts, refit=refit, progress=progress.bar)
        else:
            result = _once(evaluation, features, placed, progress, refit=refit)
        run.add(result)
        baselines = dict[str, Result]()
        for other in beside:
            if evaluation in other.evaluations:
                measured = _once(evaluation, other.given, other.placed, progress, refit=refit)
                # scores of fewer samples are not paired with the encoder's
                scores = (replace(score, protocol={**score.protocol, **other.fewer}) for score in measured.scores)
                baselines[other.given.test.kind] = replace(measured, scores=tuple(scores))
                run.add(baselines[other.given.test.kind])
        for line in _headline(result, baselines, features.test if unseen else None):
            progress.result(line)
    table = _class_table(run.scores, features.test, {evaluation.name for evaluation in evaluations})
    for line in ["", *table] if table else []:
        progress.result(line)


class _Beside(NamedTuple):
    """Baseline features, their copy on the device, the applicable evaluations, and the sample counts if fewer."""

    given: FeatureParts
    placed: FeatureParts
    evaluations: list[Evaluation]
    fewer: dict[str, int]

    @classmethod
    def of(
        cls, baseline: FeatureParts, features: FeatureParts, evaluations: Sequence[Evaluation], device: torch.device
    ) -> "_Beside":
        apply = [each for each in evaluations if not each.why_not_applicable(each.select(baseline))]
        fewer: dict[str, int] = {}
        if any(len(few) != len(whole) for few, whole in zip(baseline, features, strict=True)):
            fewer = {"training samples": len(baseline.train), "test samples": len(baseline.test)}
        return cls(baseline, features_on(device, baseline), apply, fewer)


def _once(
    evaluation: Evaluation, features: FeatureParts, placed: FeatureParts, progress: Progress, *, refit: bool
) -> Result:
    """Evaluate features, or their copy placed on a device; return the cached result for features seen before."""
    feature_parts = placed if evaluation.accelerated else features
    settings = sorted((name, value) for name, value in vars(evaluation).items() if name != "_made_with")
    if not all(isinstance(value, (int, float, str, tuple, type(None))) for _, value in settings):
        return evaluation(*feature_parts, refit=refit, progress=progress.bar)  # its settings can't be a key
    kinds = [(part.names, part.kind) for part in features]
    digest = sha256(repr((type(evaluation), settings, refit, kinds)).encode())
    for part in chain(features, filter(None, (part.counterparts for part in features))):
        for tensor in (part.vectors, part.labels, part.rows, part.whole, part.items, part.predictions):
            digest.update(b"none" if tensor is None else tensor.contiguous().numpy().tobytes())
    key = digest.hexdigest()
    if key not in _found_before:
        if len(_found_before) >= MAX_CACHED:
            _found_before.pop(next(iter(_found_before)))
        _found_before[key] = evaluation(*feature_parts, refit=refit, progress=progress.bar)
    return _found_before[key]


def _headline(result: Result, baselines: Mapping[str, Result], unseen: Features | None) -> Iterator[str]:
    """Yield a line for each shown score, with the scores of other features; `unseen` are of untrained classes."""
    for score in result.headline:
        if score.metric.shown:
            comparisons = [_format_comparison(score, result, name, other, unseen) for name, other in baselines.items()]
            parts = [f"{score.evaluation}, {score.metric}: {format_score(score)}", *comparisons, remarks(score)]
            yield "; ".join(filter(None, parts))


def _format_comparison(score: Score, result: Result, name: str, other: Result, unseen: Features | None) -> str:
    theirs = next((candidate for candidate in other.headline if candidate.metric == score.metric), None)
    if theirs is None:
        return ""
    line = f"{name} {format_score(theirs)}"
    outcomes, beside = (_outcomes(measured, score.metric.name) for measured in (result, other))
    if outcomes is None or beside is None or theirs.protocol != score.protocol:
        return line
    classes = None if unseen is None or outcomes.classes is not None else unseen.groups_of(outcomes.rows)
    apart = paired_difference(outcomes, beside, classes)
    return f"{line}, difference {difference_words(apart, share=score.metric.is_share)}"


def _outcomes(result: Result, metric: str) -> Outcomes | None:
    return next((outcomes for outcomes in result.outcomes if outcomes.metric == metric), None)


def _class_table(scores: Collection[Score], test: Features, evaluations: Collection[str]) -> list[str]:
    """Write a table of classes with many, medium and few training samples, and of each class if there are few."""
    groups = {"frequency"} if len(test.names) > MAX_LISTED_CLASSES else {"frequency", "class"}
    final = [score for score in scores if score.epoch is None and score.part == "test" and score.group.kind in groups]
    final = [score for score in final if score.evaluation in evaluations]
    final = [score for score in final if score.metric != MACRO]  # for labels by frequency, mAP is enough
    columns = list(dict.fromkeys((score.evaluation, score.features) for score in final))
    rows = list(dict.fromkeys(str(score.group) for score in final))
    if not rows:
        return []
    cells = {(str(score.group), score.evaluation, score.features): format_score(score) for score in final}
    corner = MEAN_PRECISION.name if {score.metric for score in final} == {MEAN_PRECISION} else ""
    table = [[corner, *(f"{evaluation}{'' if what == ENCODER else f', {what}'}" for evaluation, what in columns)]]
    table += [[one_line(row), *(cells.get((row, *column), "") for column in columns)] for row in rows]
    return aligned(table, right=True)
