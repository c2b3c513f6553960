"""Export a run's encoder: as safetensors, as ONNX, with the classifier if asked for, or for another library."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from likewise.configuration.options import ExportOptions
from likewise.evaluation import RunPredictors
from likewise.evaluation.linear import LinearPredictor
from likewise.files.formats import check_text
from likewise.inference import Model, load
from likewise.inference.given import Given
from likewise.runs import Run, Side
from likewise.workflows.libraries import LIBRARIES, write_folder
from likewise.workflows.progress import PRINTED, Progress, shown

FORMATS = {"safetensors": ".safetensors", "onnx": ".onnx"} | {library: f"-{library}" for library in LIBRARIES}


def export(
    run: Run | Path | str | ExportOptions,
    output: Path | str | None = None,
    *,
    format: str | None = None,  # noqa: A002 - the command's word for it
    side: Side = "first",
    classifier: str | None = None,
    progress: Progress = PRINTED,
) -> Path:
    """Write a run's encoder as a file to use elsewhere, or as a folder that another library loads.

    Args:
        run: The run, or its folder. Or all options as a record.
        output: The file or folder to write. Default: the run's folder with the ending of the format, and of pairs the
            second side with "-second" before it.
        format: safetensors; onnx, which takes any number of inputs and is checked against the encoder; or
            sentence-transformers, transformers or timm, a new folder with a card of the run's scores, of an encoder of
            that library. Default: what the output's name says, else safetensors, or onnx with a classifier.
        side: The side whose encoder is written, of a run of pairs: first or second.
        classifier: What an ONNX file predicts by: probe adds the run's linear probe, with outputs `logits` and
            `probabilities` beside `features`. Default: features alone.
        progress: Receives the path of the file.

    Returns:
        The file, or the folder.

    Raises:
        ValueError: The folder holds no run, the run has trained no encoder or keeps no probe, or the encoder cannot be
            exported.

    Example:
        >>> from likewise.models import MLP
        >>> run, arguments = Run.create(Path(), "mine"), {"input_shape": [3], "width": 8}
        >>> run.describe({"parts": {"encoder": {"class_path": "likewise.models.MLP", "init_args": arguments}}})
        >>> run.save_encoder(MLP((3,), width=8))
        >>> _ = export(run.folder, "mine.safetensors")
        safetensors: mine.safetensors
    """
    if isinstance(run, ExportOptions):
        return export(**vars(run), progress=progress)
    opened = run if isinstance(run, Run) else Run.open(run)
    path = None if output is None else Path(output)
    by_name = {ending: name for name, ending in FORMATS.items()}
    file_format = format or by_name.get(path.suffix if path else "", "onnx" if classifier else "safetensors")
    if file_format not in FORMATS:
        raise ValueError(f"expected a format of {', '.join(FORMATS)}, got {file_format!r}: name one of them")
    if classifier not in {None, "probe"}:
        raise ValueError(f"expected probe as the classifier, got {classifier!r}: name it, or none")
    if classifier is not None and file_format != "onnx":
        probe = f"the probe is in {opened.probe}"
        raise ValueError(f"expected the format onnx with a classifier, got {file_format}: {probe}")
    if classifier is not None and side != "first":
        raise ValueError("expected the first side with a classifier, which learned its features, got second: drop one")
    path = path or opened.folder.with_name(opened.name + ("-second" if side == "second" else "") + FORMATS[file_format])
    model = load(opened, device="cpu").of(side)
    if classifier is None and isinstance(model.encoder, Given):
        got = f"got {opened.folder}, evaluated from features alone: export its --classifier probe"
        raise ValueError(f"expected a run with an encoder, {got}")
    if file_format == "onnx":
        check_text(path)
        from likewise.models import to_onnx  # noqa: PLC0415 - not needed for safetensors

        probe: Any = None if classifier is None else RunPredictors(opened).predictor("probe")
        to_onnx(model.encoder, path, classifier=probe and _Classifier(probe), facts=_facts(model, probe))
    elif file_format in LIBRARIES:
        write_folder(file_format, model, path)
    else:
        path.write_bytes(opened.weights_of(side).read_bytes())
    progress.result(f"{file_format}: {shown(path)}")
    return path


@final
class _Classifier(nn.Module):
    def __init__(self, probe: LinearPredictor) -> None:
        super().__init__()
        self.weight = nn.Parameter(probe.classifier.weight.float(), requires_grad=False)
        self.bias = nn.Parameter(probe.classifier.bias.float(), requires_grad=False)
        self.temperature = None if probe.thresholds is not None else probe.temperature

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        logits = torch.addmm(self.bias, features, self.weight)
        if self.temperature is None:
            return logits, logits.sigmoid()
        return logits, (logits / self.temperature).softmax(dim=1)


def _facts(model: Model, probe: LinearPredictor | None) -> dict[str, Any]:
    run: Any = model.run
    labels = run.metadata.get("labels") or {}
    facts = {
        "run": run.name,
        "label_kind": labels.get("kind"),
        "names": labels.get("names"),
        "columns": run.metadata.get("columns"),
        "preprocessing": model.preprocessing and asdict(model.preprocessing),
        "side": model.side if model.paired else None,
    }
    if probe is not None:
        label_kind, limits = ("classes", None) if probe.limits is None else ("label sets", probe.limits.tolist())
        facts |= {"label_kind": label_kind, "names": probe.names, "classifier": probe.by, "thresholds": limits}
        facts |= {} if limits else {"temperature": probe.temperature}
    return {name: value for name, value in facts.items() if value}
