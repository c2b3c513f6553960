"""What `likewise evaluate` does: of a run, of a checkpoint, of an array file."""

import platform
import re
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from likewise.cli.care import cared_for
from likewise.cli.evaluating import Settings, check_applicable, encoded, evaluate, tell_lost, with_origin
from likewise.cli.printing import bar, say
from likewise.data import Parts, parts_of_run
from likewise.evaluation import FeatureParts, applicable, features_of_file, load_features, save_features
from likewise.models import Encoder
from likewise.parts import build
from likewise.pickled import pickled
from likewise.report import Subject, write_page
from likewise.runs import Run


def evaluate_file(path: Path, root: Path, settings: Settings) -> Run:
    """Evaluate the features of an array file, as a run of its own.

    Args:
        path: The .npz file; see `features_of_file`.
        root: Where the run's folder goes.
        settings: Which evaluations, of how many samples.

    Raises:
        ValueError: The file isn't as expected, or an evaluation doesn't apply.
    """
    features = features_of_file(path)
    if not applicable(features, settings.evaluations):
        raise ValueError(
            f"expected features that can be evaluated, got {path}: kNN, the probe and retrieval do not "
            f"apply; of retrieval, {_why_none(features)}"
        )
    made = Run.create(root, "evaluation", path.stem)
    with cared_for(made, _left):
        made.describe({"source": str(path), **_facts(features)})
        with made.writing(made.embeddings.name) as beside:
            save_features(beside, features)
        evaluate(made, settings.capped(features), None, settings.evaluations, refit=False)
        _report(made, None)
    return made.finished()


def evaluate_run(path: Path, root: Path, settings: Settings, device: str) -> Run:
    """Evaluate a run, whose scores and report are replaced; or a checkpoint of it, as a run of its own.

    Args:
        path: The run's folder, or a checkpoint in it.
        root: Where the folder of a checkpoint's evaluation goes.
        settings: Which evaluations, of how many samples.
        device: Where the encoder runs.

    Raises:
        ValueError: There is no such run, it has no trained encoder, or an evaluation doesn't apply.
    """
    place = _device(device)
    checkpoint = path if path.is_file() else None
    try:
        before = Run.open(path.parent if checkpoint else path)
    except ValueError as error:
        if checkpoint is None:
            raise
        told = pickled(path) or "which stands in no run's folder: save the features of another encoder in an .npz file"
        raise ValueError(f"expected a run, a checkpoint in its folder, or an .npz file, got {path}, {told}") from error
    encoder: Any = None
    if checkpoint or not before.embeddings.is_file():
        encoder = (_of_checkpoint(before, checkpoint) if checkpoint else _of_run(before)).to(place)
    samples, refit = _samples(before, needed=encoder is not None)
    saved = None if encoder is not None else load_features(before.embeddings)
    if samples is not None:
        predicts = saved is not None and saved.test.predictions is not None
        check_applicable(samples, settings, predicts=predicts)
    made, new = before, checkpoint is not None
    if checkpoint is not None:
        undated = re.sub(r"^\d{4}-\d\d-\d\d-\d{6}-", "", before.name)
        made = Run.create(root, undated, f"epoch{_epoch(checkpoint)}")
        made.describe(before.facts | {"checkpoint": str(checkpoint)})
    with cared_for(made, _left, new=new):
        if encoder is None or samples is None:
            features = saved or load_features(made.embeddings)
            if samples is not None:
                features = with_origin(features, samples, cache(lambda: _of_run(before).to(place)))
        else:
            say("encoding ...")
            features = encoded(made, encoder, samples)
        evaluate(made, settings.capped(features), samples, settings.evaluations, refit=refit)
        _report(made, samples)
        if encoder is not None:
            tell_lost(made)
    return made.finished() if new else made


def _samples(run: Run, *, needed: bool) -> tuple[Parts | None, bool]:
    """Load the run's data; where features are there, it is needed for raw inputs and pictures only."""
    refit = bool((run.facts.get("parts") or {}).get("split", {}).get("init_args", {}).get("refit", False))
    if "source" in run.facts and not needed:
        return None, False
    try:
        return parts_of_run(run)
    except (ValueError, OSError, ImportError) as error:
        if needed:
            raise
        say(f"raw inputs and pictures are left out: {error}")
        return None, refit


def _of_run(run: Run) -> Encoder:
    """Rebuild the trained encoder."""
    encoder: Any = run.encoder()
    return encoder


def _of_checkpoint(run: Run, path: Path) -> Encoder:
    """Rebuild the encoder with a checkpoint's weights."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    except Exception as error:
        told = pickled(path) or "which can't be read as one"
        raise ValueError(f"expected a checkpoint of a run, got {path}, {told}") from error
    encoder: Any = build(run.encoder_spec, torch.nn.Module)
    own = {name.removeprefix("encoder."): of for name, of in state.items() if name.startswith("encoder.")}
    try:
        encoder.load_state_dict(own)
    except RuntimeError as error:
        raise ValueError(f"expected a checkpoint of {run.folder}, got {path}, whose encoder is another") from error
    return encoder.eval()


def _epoch(path: Path) -> int:
    return int(torch.load(path, map_location="meta", weights_only=True)["epoch"]) + 1


def _device(named: str) -> torch.device:
    """Return the device that is named, or the best there is."""
    if named == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        return torch.zeros(0, device=named).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"expected a device that is there, got {named}: leave --device out, or cpu") from error


def _facts(features: FeatureParts) -> dict[str, Any]:
    sizes = {part.part: len(part) for part in features}
    versions = {
        "likewise": metadata.version("likewise"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return {
        "labels": {"kind": features.test.label_kind, "names": list(features.test.names)},
        "samples": sizes,
        "versions": {name: str(version) for name, version in versions.items()},
    }


def _why_none(features: FeatureParts) -> str:
    from likewise.evaluation import Retrieval  # noqa: PLC0415 - for a message

    return Retrieval().why_not_applicable(features) or "no evaluation applies"


def _report(made: Run, samples: Parts | None) -> None:
    say("writing the report ...")
    with made.writing(made.report.name) as page:
        write_page(page, [Subject(made, samples, progress=bar)])


def _left(folder: Path) -> str:
    return f"what was written is left in {folder}"
