"""The evaluation of a run, one of its checkpoints, or an array file of embeddings."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Unpack

import torch

from likewise import evaluation
from likewise.configuration import resolve
from likewise.configuration.options import EvaluateOptions
from likewise.data import Parts, parts_of_run
from likewise.evaluation.arrays import features_of_parts, is_arrays
from likewise.evaluation.feature_files import samples_of_arrays, vectors_in, whole_arrays
from likewise.evaluation.linear import LinearPredictor
from likewise.files.detection import describe_pickle
from likewise.instantiate import instantiate, instantiate_all
from likewise.report import Section
from likewise.runs import Run
from likewise.runs.machine import device_named, versions
from likewise.runs.run import remove_if_idle
from likewise.workflows import scoring
from likewise.workflows.arguments import EvaluateArguments, given_options
from likewise.workflows.progress import PRINTED, Progress, shown

REMAINING = "what was written is left in {}"


def evaluate(
    source: Run | Path | str | EvaluateOptions | Mapping[str, Any],
    *,
    progress: Progress = PRINTED,
    **options: Unpack[EvaluateArguments],
) -> Run:
    """Evaluate a frozen encoder, save its scores, and write its report.

    Args:
        source: A run, whose scores and report are replaced; a checkpoint in a run's folder, or an .npz file of
            embeddings (see `features_of_file`), each evaluated as a run of its own. Or options, see `EvaluateOptions`,
            dotted or nested, including source; or all of them as a record.
        progress: Receives messages during the work, and the scores.
        **options: More options; they win.

    Returns:
        The run with the scores.

    Raises:
        ValueError: The source is missing or can't be read, or an evaluation doesn't apply.

    Example:
        >>> import numpy as np
        >>> from likewise.workflows import Silent
        >>> labels = np.arange(60) % 3
        >>> np.savez("mine.npz", features=np.eye(3)[labels], labels=labels)
        >>> run = evaluate("mine.npz", evaluations={"class_path": "KNN", "init_args": {"k": 3}}, progress=Silent())
        >>> max(score.value for score in run.scores)
        1.0
    """
    config: EvaluateOptions = resolve(given_options(EvaluateOptions, source, options, "source"), verb="evaluate")
    if config.workers is not None and config.workers < 0:
        raise ValueError(f"expected --workers of at least 0, got {config.workers}")
    run = (_evaluate_arrays if is_arrays(config.source) else _evaluate_run)(config, progress)
    progress.result(f"\nreport: {shown(run.report)}" if config.report else f"\nrun: {shown(run.folder)}")
    return run


def _sections_of(run: Run) -> list[Section] | None:
    """Return the sections that a run was trained with; None, with a warning, if one no longer exists."""
    try:
        return instantiate_all(run.options.get("sections"), Section)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        message = "the page has the usual sections instead of those that the run was trained with"
        warnings.warn(f"{message}: {error}", stacklevel=3)
        return None


def _evaluate_arrays(config: EvaluateOptions, progress: Progress) -> Run:
    path, options, device = config.source, scoring.EvaluationOptions.of(config), device_named(config.device)
    arrays = whole_arrays(path)
    parts = samples_of_arrays(arrays, path)
    features = features_of_parts(parts, options.evaluation_samples)
    if not evaluation.applicable(features, options.evaluations):
        why = evaluation.Retrieval().why_not_applicable(features) or "no evaluation applies"
        got = f"got {path}: kNN, the probe and retrieval do not apply; of retrieval, {why}"
        raise ValueError(f"expected features that can be evaluated, {got}")
    run = Run.create(config.runs, "evaluation", path.stem)
    with remove_if_idle(run, REMAINING):
        labels = {"kind": features.test.label_kind, "names": list(features.test.names)}
        sizes = {part.part: len(part) for part in features}
        run.describe({"source": str(path), "labels": labels, "samples": sizes, "versions": versions()})
        with run.writing(run.embeddings.name) as beside:
            evaluation.save_features(beside, features, vectors_in(arrays))
        scoring.evaluate_features(run, features, None, options, progress, refit=False, device=device)
        del features, parts, arrays  # the page reads its own
        scoring.write_report(run, None, options, progress)
    return run.finalize()


def _evaluate_run(config: EvaluateOptions, progress: Progress) -> Run:
    before, options = _open_run(config.source), scoring.EvaluationOptions.of(config)
    checkpoint = config.source if config.source.is_file() else None
    if options.sections is None:
        options = replace(options, sections=_sections_of(before))
    device = device_named(config.device)
    encoder = second = None
    most, had = options.evaluation_samples, before.metadata.get(scoring.ENCODED_SAMPLES)
    more = had is not None and most is not None and most > had
    if checkpoint or more or not before.embeddings.is_file():
        encoder, second = _checkpoint_encoders(before, checkpoint, device) if checkpoint else _encoders(before, device)
    samples, refit = _samples(before, progress, needed=encoder is not None)
    saved = None if encoder is not None else evaluation.load_features(before.embeddings)
    classifier = _own_classifier(before) if encoder is not None and checkpoint is None else None
    if samples is not None:
        predicts = classifier is not None or (saved is not None and saved.test.predictions is not None)
        scoring.check_applicable(samples, options, predicts=predicts)
    run = before if checkpoint is None else _create_run(config.runs, before, checkpoint)
    with remove_if_idle(run, REMAINING, new=checkpoint is not None):
        if encoder is None or samples is None:
            features = saved or evaluation.load_features(run.embeddings)
            if samples is not None:
                features = scoring.with_origin(features, samples, cache(lambda: _encoders(run, device)))
        else:
            progress.log("encoding ...")
            arguments = (run, encoder, samples, progress, classifier and classifier.with_predictions)
            features = scoring.encode_parts(*arguments, second=second, workers=config.workers, most=most, anew=True)
        initial = _initial_features(run, features, options, progress)
        scoring.evaluate_features(
            run, features, samples, options, progress, initial=initial, refit=refit, device=device
        )
        scoring.write_report(run, samples, options, progress, features)
        if encoder is not None:
            scoring.say_lost(run, progress)
    return run if checkpoint is None else run.finalize()


def _open_run(path: Path) -> Run:
    try:
        return Run.open(path.parent if path.is_file() else path)
    except ValueError as error:
        if not path.is_file():
            raise
        elsewhere = "which stands in no run's folder: save the features of another encoder in an .npz file"
        problem = describe_pickle(path) or elsewhere
        raise ValueError(f"expected a run, a checkpoint in its folder, or arrays, got {path}, {problem}") from error


def _create_run(root: Path, before: Run, checkpoint: Path) -> Run:
    undated = re.sub(r"^\d{4}-\d\d-\d\d-\d{6}-", "", before.name)
    epoch = int(torch.load(checkpoint, map_location="meta", weights_only=True)["epoch"]) + 1
    run = Run.create(root, undated, f"epoch{epoch}")
    run.describe(before.metadata | {"checkpoint": str(checkpoint)})
    return run


def _samples(run: Run, progress: Progress, *, needed: bool) -> tuple[Parts | None, bool]:
    """Load the run's data; once features are saved, only raw inputs and pictures need it."""
    refit = evaluation.RunPredictors(run).refit
    if "source" in run.metadata and not needed:
        return None, False
    try:
        return parts_of_run(run)
    except (ValueError, OSError, ImportError) as error:
        if needed:
            raise
        progress.log(f"raw inputs and pictures are left out: {error}")
        return None, refit


def _initial_features(
    run: Run, features: evaluation.FeatureParts, options: scoring.EvaluationOptions, progress: Progress
) -> evaluation.FeatureParts | None:
    """Return the features by the run's initial encoder, if they are of the same samples."""
    if not run.initial_embeddings.is_file():
        return None
    initial = options.capped(scoring.initial_features(run))
    pairs = zip(initial, options.capped(features), strict=True)
    if not all(torch.equal(before.numbers, now.numbers) for before, now in pairs):
        progress.log("the encoder as it began is left out: the run has its features of other samples")
        return None
    return initial


def _encoders(run: Run, device: torch.device) -> tuple[Any, Any]:
    return run.encoder().to(device), run.encoder("second").to(device) if "second" in run.metadata else None


def _own_classifier(run: Run) -> LinearPredictor | None:
    predictor = evaluation.RunPredictors(run).predictor("own") if run.classifier.is_file() else None
    return predictor if isinstance(predictor, LinearPredictor) else None


def _checkpoint_encoders(run: Run, path: Path, device: torch.device) -> tuple[Any, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    except Exception as error:
        problem = describe_pickle(path) or "which can't be read as one"
        raise ValueError(f"expected a checkpoint of a run, got {path}, {problem}") from error
    first = _with_weights(run, path, instantiate(run.encoder_spec(), torch.nn.Module), state, "encoder.").to(device)
    if "second" not in run.metadata:
        return first, None
    if run.metadata["second"]["encoder"] is None:
        return first, first
    second = instantiate(run.encoder_spec("second"), torch.nn.Module)
    return first, _with_weights(run, path, second, state, "inputs.by_class.SecondTower.tower.").to(device)


def _with_weights(run: Run, path: Path, encoder: Any, state: Mapping[str, Any], prefix: str) -> Any:
    weights = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    try:
        encoder.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"expected a checkpoint of {run.folder}, got {path}, whose encoder is another") from error
    return encoder.eval()
