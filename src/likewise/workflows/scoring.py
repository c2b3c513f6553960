"""Encode, evaluate, and save and tell every score as soon as it is there: what `train` and `evaluate` share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    applicable,
    load_features,
    raw_features,
    save_features,
)
from likewise.evaluation.choice import left_out
from likewise.evaluation.encoding import features_of
from likewise.evaluation.placing import CPU, features_on
from likewise.evaluation.subsample import capped, capped_features
from likewise.files.formats import NAMED, PARTS
from likewise.models import Encoder
from likewise.parts import built
from likewise.report import RunView, Section, write_page
from likewise.report.run_verdict import CALLED
from likewise.runs import Run
from likewise.score_words import settings_words
from likewise.scores import BEGUN
from likewise.workflows.progress import Progress
from likewise.workflows.score_lines import class_table, headline

ENCODED = "encoded_samples"
"""Of a run: how many samples of each part were encoded at most; None for all."""
MOST_KEPT = 32
_found_before: dict[str, Result] = {}  # by what was evaluated and how
_encoded_before: dict[str, tuple[Features, dict[int, str]]] = {}
"""By encoders that are not trained, by their digest and the samples: features, and the files that were not readable."""


@final
@dataclass(frozen=True)
class EvaluationOptions:
    """Which evaluations, of how many samples of each part, and which sections the page has.

    None stands for the usual evaluations that apply, for all samples, and for the sections that come with likewise.
    """

    evaluations: list[Evaluation] | None = None
    evaluation_samples: int | None = None
    sections: list[Section] | None = None
    report: bool = True

    @classmethod
    def of(cls, config: TrainOptions | EvaluateOptions) -> "EvaluationOptions":
        """Make the evaluations and sections that options describe."""
        most = config.evaluation_samples
        if most is not None and most < 1:
            raise ValueError(f"expected --evaluation_samples of at least 1, got {most}: --evaluations [] is none")
        evaluations, sections = built(config.evaluations, Evaluation), built(config.sections, Section)
        return cls(evaluations, most, sections, config.report)

    def capped(self, features: FeatureParts) -> FeatureParts:
        """Subsample each part to `evaluation_samples`; unseen classes stay whole."""
        return capped_features(features, self.evaluation_samples)


def check_applicable(parts: Parts, options: EvaluationOptions, *, predicts: bool = False) -> None:
    """Raise a ValueError for an evaluation that was asked for and doesn't apply, before anything is trained."""
    samples = zip((parts.train, parts.validation, parts.test), PARTS, strict=True)
    blank = FeatureParts(*(_blank(part, name) for part, name in samples))
    if predicts:
        none = [torch.zeros(1, len(part.names)).expand(len(part), -1) for part in blank]
        blank = FeatureParts(*(replace(part, predictions=of) for part, of in zip(blank, none, strict=True)))
    blank = options.capped(with_origin(blank, parts, _no_encoder))
    applicable(blank, options.evaluations)


def _blank(samples: Samples, part: str) -> Features:
    samples = samples.as_evaluated()
    others = None if samples.counterparts is None else _blank(samples.counterparts, part)
    return Features.of(samples, torch.zeros(1, 1).expand(len(samples), -1), part, counterparts=others)


def unpredicted(features: Features) -> Features:
    """Return features as they are."""
    return features


def encoded(
    run: Run,
    encoder: Encoder,
    parts: Parts,
    progress: Progress,
    predicted: Callable[[Features], Features] = unpredicted,
    *,
    second: Encoder | None = None,
    trained: bool = True,
    workers: int | None = None,
    most: int | None = None,
    anew: bool = False,
    shared: bool = False,
) -> FeatureParts:
    """Encode the samples, add what the run's own classifier predicts, and save the features; or load those saved.

    Of each part at most so many are encoded, chosen before, and the run notes how many.

    What an encoder that is not `trained` has encoded before in this process, as in a sweep, is not encoded again. If it
    is `shared`, all other processes encode with this one; see `sharing`.
    """
    if run.embeddings.is_file() and not anew:
        return with_origin(load_features(run.embeddings), parts, lambda: encoder, lambda: second)

    some = dict(zip(PARTS, capped([parts.train, parts.validation, parts.test], most), strict=True))
    kept = not (trained or shared) and second is None
    said = _digest(encoder, [run.facts["parts"][of] for of in ("encoder", "data")]) if kept else None
    found: list[Features] = []
    lost: dict[int, str] = {}
    for part, (samples, _) in some.items():
        if said is None:
            own = features_of(samples, encoder, part, progress.bar, second, workers=workers, shared=shared)
            without = _lost(samples)
        else:
            own, without = _encoded(said, samples, encoder, part, progress, workers=workers)
        found.append(some[part].of(predicted(own)))
        lost |= without
    features = FeatureParts(*found)
    with run.writing(run.embeddings.name) as path:
        save_features(path, features)
    run.describe(run.facts | {ENCODED: most})
    _note_lost(run, lost)
    return with_origin(features, parts, lambda: encoder, lambda: second)


def encoded_as_begun(
    run: Run,
    encoder: Encoder,
    parts: Parts,
    progress: Progress,
    *,
    second: Encoder | None = None,
    workers: int | None = None,
    most: int | None = None,
) -> FeatureParts:
    """Encode the samples by the encoder as it began, and save the features; or load those saved."""
    if not run.begun_embeddings.is_file():
        some = zip(PARTS, capped([parts.train, parts.validation, parts.test], most), strict=True)
        how: Any = {"progress": progress.bar, "second": second, "workers": workers}
        found = [few.of(features_of(few.samples, encoder, part, **how)) for part, few in some]
        with run.writing(run.begun_embeddings.name) as path:
            save_features(path, FeatureParts(*found))
    return with_origin(features_as_begun(run), parts, lambda: encoder, lambda: second)


def features_as_begun(run: Run) -> FeatureParts:
    """Load the features that a run keeps of the encoder as it began."""

    def of(part: Features) -> Features:
        return replace(part, kind=BEGUN, counterparts=None if part.counterparts is None else of(part.counterparts))

    return FeatureParts(*map(of, load_features(run.begun_embeddings)))


def forget() -> None:
    """Free the features that encoders which are not trained have encoded."""
    _encoded_before.clear()


def _encoded(
    said: str, samples: Samples, encoder: Encoder, part: str, progress: Progress, *, workers: int | None
) -> tuple[Features, dict[int, str]]:
    """Encode samples, or take their features if the encoder of that digest has before; and the files that are lost."""
    none = samples[torch.arange(0)]
    rows = b"" if samples.rows is None else samples.rows.contiguous().numpy().tobytes()
    key = f"{said} {fingerprint(Parts(samples, none, none))} {sha256(rows).hexdigest()}"
    found = _encoded_before.pop(key, None)
    if found is None:
        found = features_of(samples, encoder, part, progress.bar, workers=workers), _lost(samples)
    while len(_encoded_before) >= MOST_KEPT:
        _encoded_before.pop(next(iter(_encoded_before)))  # used least recently
    _encoded_before[key] = found
    return replace(found[0], part=part), found[1]


def _digest(encoder: Encoder, specs: Any) -> str:
    """Return a digest of an encoder's weights, of what it was made with, and of where its inputs are read."""
    digest = sha256(repr(specs).encode())
    for tensor in encoder.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _lost(samples: Samples) -> dict[int, str]:
    """Return the files that could not be read, by their numbers; those of the other side of pairs from -1 down."""
    every, others = torch.arange(len(samples)), samples.counterparts
    beside = [] if others is None else unreadable(others.inputs, every)
    return files_of([*unreadable(samples.inputs, every), *(one._replace(item=-1 - one.item) for one in beside)])


def _note_lost(run: Run, files: Mapping[int, str]) -> None:
    if files:
        facts = run.facts
        run.describe(facts | {"undecodable": facts.get("undecodable", {}) | {str(item): files[item] for item in files}})


def say_lost(run: Run, progress: Progress, more: Mapping[int, str] | None = None) -> Run:
    """Say which files could not be read, and add those to the run that it doesn't know; return the run."""
    _note_lost(run, more or {})
    if files := run.facts.get("undecodable"):
        progress.say(f"warning: {in_words(files)}{'; run.json names all' if len(files) > NAMED else ''}")
    return run


def write_report(run: Run, samples: Parts | None, options: EvaluationOptions, progress: Progress) -> None:
    """Write the run's page, if there is to be one."""
    if not options.report:
        return
    progress.say("writing the report ...")
    with run.writing(run.report.name) as page:
        write_page(page, [RunView(run, samples, progress=progress.bar)], sections=options.sections)


def with_origin(
    features: FeatureParts,
    parts: Parts,
    encoder: Callable[[], Encoder],
    second: Callable[[], Encoder | None] = lambda: None,
) -> FeatureParts:
    """Tell features which samples they come from, and how more are encoded."""

    def encode(inputs: Tensor | LazyInputs) -> Tensor:
        return encoder().encode(inputs)

    def encode_second(inputs: Tensor | LazyInputs) -> Tensor:
        return (second() or encoder()).encode(inputs)

    def of(part: Features, samples: Samples) -> Features:
        beside = part.counterparts
        if beside is not None and samples.counterparts is not None:
            beside = replace(beside, origin=Origin(replace(samples.counterparts, rows=samples.rows), encode_second))
        return replace(part, origin=Origin(samples, encode), counterparts=beside)

    return FeatureParts(*map(of, features, (parts.train, parts.validation, parts.test)))


def score(
    run: Run,
    features: FeatureParts,
    samples: Parts | None,
    options: EvaluationOptions,
    progress: Progress,
    *,
    begun: FeatureParts | None = None,
    refit: bool,
    trained: bool = True,
    device: torch.device = CPU,
) -> None:
    """Evaluate features, those of the encoder as it began, and raw inputs; save and tell each score as it comes.

    What has been evaluated before in this process, in the same way, is not again: raw inputs, and features by an
    encoder that is not `trained`, as those of a sweep are the same in several runs. Evaluations that can take place on
    the `device` do, if it has room for the features.
    """
    asked, features = options.evaluations, options.capped(features)
    evaluations = applicable(features, asked)
    if asked == []:
        return
    if asked is None and (lacking := left_out(features)):
        progress.say(lacking)
    if not evaluations:
        progress.say(f"no evaluation applies to {features.test.label_kind or 'samples without labels'}")
        return
    raw = None if samples is None or not len(samples.train) else raw_features(samples, features)
    beside = [_Beside.of(other, features, evaluations, device) for other in (begun, raw) if other is not None]
    beside = [other for other in beside if other.evaluations]
    same = " and ".join(
        f"{CALLED[other.given.test.kind]}{f', with {settings_words(other.fewer)}' if other.fewer else ''}"
        for other in beside
    )
    progress.tell(f"\nHeld-out scores, with 95 % intervals{same and f'; the same for {same}'}")
    unseen = features.test.label_kind == "classes" and len(features.train) > 0 and not features.closed
    placed = features_on(device, features)
    for evaluation in evaluations:
        if trained:
            given = placed if evaluation.accelerated else features
            result = evaluation(*given, refit=refit, progress=progress.bar)
        else:
            result = _once(evaluation, features, placed, progress, refit=refit)
        run.add(result)
        others = dict[str, Result]()
        for other in beside:
            if evaluation in other.evaluations:
                found = _once(evaluation, other.given, other.placed, progress, refit=refit)
                others[other.given.test.kind] = _noting(found, other.fewer)
                run.add(others[other.given.test.kind])
        for line in headline(result, others, features.test if unseen else None):
            progress.tell(line)
    table = class_table(run.scores, features.test, {evaluation.name for evaluation in evaluations})
    for line in ["", *table] if table else []:
        progress.tell(line)


class _Beside(NamedTuple):
    """Features that the encoder's are compared with, where they lie, which evaluations apply, and if they are fewer."""

    given: FeatureParts
    placed: FeatureParts
    evaluations: list[Evaluation]
    fewer: dict[str, int]

    @classmethod
    def of(
        cls, given: FeatureParts, features: FeatureParts, evaluations: Sequence[Evaluation], device: torch.device
    ) -> "_Beside":
        apply = [one for one in evaluations if not one.why_not_applicable(one.select(given))]
        return cls(given, features_on(device, given), apply, _capped(features, given))


def _once(
    evaluation: Evaluation, features: FeatureParts, placed: FeatureParts, progress: Progress, *, refit: bool
) -> Result:
    """Evaluate features, which lie on a device too, or return what was found of the same ones before."""
    given = placed if evaluation.accelerated else features
    settings = sorted((name, value) for name, value in vars(evaluation).items() if name != "_made_with")
    if not all(isinstance(value, (int, float, str, tuple, type(None))) for _, value in settings):
        return evaluation(*given, refit=refit, progress=progress.bar)  # no key of words tells it from others
    kinds = [(part.names, part.kind) for part in features]
    said = sha256(repr((type(evaluation), settings, refit, kinds)).encode())
    for part in chain(features, filter(None, (part.counterparts for part in features))):
        for tensor in (part.vectors, part.labels, part.rows, part.whole, part.items, part.predictions):
            said.update(b"none" if tensor is None else tensor.contiguous().numpy().tobytes())
    key = said.hexdigest()
    if key not in _found_before:
        if len(_found_before) >= MOST_KEPT:
            _found_before.pop(next(iter(_found_before)))
        _found_before[key] = evaluation(*given, refit=refit, progress=progress.bar)
    return _found_before[key]


def _no_encoder() -> Encoder:
    raise ValueError("expected an evaluation that encodes nothing before training, got one that does")


def _capped(features: FeatureParts, others: FeatureParts) -> dict[str, int]:
    if all(len(few) == len(whole) for few, whole in zip(others, features, strict=True)):
        return {}
    return {"training samples": len(others.train), "test samples": len(others.test)}


def _noting(result: Result, capped: Mapping[str, int]) -> Result:
    """Note with scores that they are of fewer samples, so that none is paired with the encoder's."""
    scores = (replace(score, protocol={**score.protocol, **capped}) for score in result.scores)
    return replace(result, scores=tuple(scores))
