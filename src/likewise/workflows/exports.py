"""The export of a run's encoder: as safetensors, as ONNX, also with the classifier, or as a folder for another library.

Folders are for sentence-transformers, transformers or timm, and hold a card with the run's scores.
"""

import tempfile
from collections.abc import Callable
from copy import deepcopy
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
from likewise.inference.onnx import Given
from likewise.models import PretrainedTransformer, Timm
from likewise.models.encoder import Encoder
from likewise.runs import Run, Side
from likewise.runs.scores import ALL, ENCODER, format_score, marked
from likewise.workflows.progress import PRINTED, Progress, shown

OF_SENTENCES = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER")
features = model.encode(["a text"])"""
OF_TRANSFORMERS = """\
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModel.from_pretrained("FOLDER")"""
OF_TIMM = """\
import timm

model = timm.create_model("local-dir:FOLDER", pretrained=True)
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))"""
CROPS = {"crop": "center", "squash": "squash", "pad": "border"}  # our words for resizing, and timm's


def export(
    run: Run | Path | str | ExportOptions,
    output: Path | str | None = None,
    *,
    format: str | None = None,  # noqa: A002 - the command's word for it
    side: Side = "first",
    classifier: str | None = None,
    progress: Progress = PRINTED,
) -> Path:
    """Write a run's encoder to a file for use elsewhere, or to a folder for another library.

    Args:
        run: The run, or its folder. Or all options as a record.
        output: The file or folder to write. Default: the run's folder with the ending of the format, which follows
            "-second" for the second side of pairs.
        format: safetensors; onnx, which takes any number of inputs and is checked against the encoder; or
            sentence-transformers, transformers or timm, a new folder with a card of the run's scores, for an encoder
            from that library. Default: by the output's name, else safetensors, or onnx with a classifier.
        side: For a run of pairs, the side whose encoder is written: first or second.
        classifier: The classifier in an ONNX file: probe adds the run's linear probe, with outputs `logits` and
            `probabilities` in addition to `features`. Default: features only.
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
        _write_folder(file_format, model, path)
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


def _write_folder(library: str, model: Model, folder: Path) -> None:
    """Write an encoder to a new folder in the format of its library."""
    if folder.exists():
        raise ValueError(f"expected a new folder, got {folder}, which exists: name another, or remove it")
    encoder_class, write, use = LIBRARIES[library]
    encoder: Any = model.encoder
    if type(encoder) is not encoder_class:
        got = f"got {type(encoder).__name__}: export it to safetensors or onnx"
        raise ValueError(f"expected an encoder {encoder_class.__name__} for {library}, {got}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:  # renamed once complete
        parts = Path(made) / folder.name
        write(encoder, model, parts)
        (parts / "README.md").write_text(_card(model, use.replace("FOLDER", folder.name)), encoding="utf-8")
        parts.rename(folder)


def _to_transformers(encoder: PretrainedTransformer, _: Model, folder: Path) -> None:
    """Write model and tokenizer; adapters are merged into the weights."""
    network: Any = encoder.model
    network = deepcopy(network).merge_and_unload() if hasattr(network, "merge_and_unload") else network
    network.save_pretrained(folder)
    _tokenizer(encoder).save_pretrained(folder)


def _tokenizer(encoder: PretrainedTransformer) -> Any:
    from tokenizers import Tokenizer  # noqa: PLC0415 - in the extra `text`
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - as above

    backend: Any = Tokenizer.from_str(bytes(encoder.tokenizer.cpu().numpy()).decode())
    special: Any = encoder.special
    before, after = special["before"], special["after"]
    numbers = {"pad_token": special["padding"], "mask_token": special["mask"]}
    numbers |= {"cls_token": before[0]} if before else {}
    numbers |= {"sep_token": after[-1]} if after else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=encoder.length + len(before) + len(after),
        model_input_names=["input_ids", "attention_mask"],
        **{name: backend.id_to_token(number) for name, number in numbers.items()},
    )


def _to_sentence_transformers(encoder: PretrainedTransformer, model: Model, folder: Path) -> None:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - in the extra `text`
    from sentence_transformers.sentence_transformer import modules  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory() as made:
        _to_transformers(encoder, model, Path(made))
        special: Any = encoder.special
        longest = encoder.length + len(special["before"]) + len(special["after"])
        first = modules.Transformer(made, max_seq_length=longest)
    following: Any = encoder.following
    if following is None:
        mode: Any = "mean" if encoder.pooling == "mean" else "cls"
        following = [modules.Pooling(first.get_embedding_dimension(), mode)]
    usual = {"prompts": {"usual": encoder.prompt}, "default_prompt_name": "usual"}
    prompts: dict[str, Any] = usual if encoder.prompt else {}
    whole = SentenceTransformer(modules=[first, *following], device="cpu", **prompts)
    whole.save(str(folder), create_model_card=False)


def _to_timm(encoder: Timm, model: Model, folder: Path) -> None:
    from timm.models import save_for_hf  # noqa: PLC0415 - in the extra `images`

    mean, std = (tensor.flatten().tolist() for tensor in (encoder.mean, encoder.std))
    resize = "crop" if model.preprocessing is None else model.preprocessing.resize
    network: Any = deepcopy(encoder.model).to(memory_format=torch.contiguous_format)
    network.pretrained_cfg |= {"input_size": encoder.input_shape, "mean": mean, "std": std, "interpolation": "bilinear"}
    network.pretrained_cfg |= {"crop_pct": 1.0, "crop_mode": CROPS[resize], "num_classes": 0}
    save_for_hf(network, str(folder), safe_serialization=True)


def _card(model: Model, use: str) -> str:
    run: Any = model.run
    facts = run.metadata
    rows = [
        f"| {score.evaluation}, {marked(score.metric.name, score.metric)} | {format_score(score)} | {score.count:,} |"
        for score in run.scores
        if (score.part, score.epoch, score.group, score.features) == ("test", None, ALL, ENCODER)
    ]
    scores = ["| held-out score | value, 95 % interval | samples |", "|---|---|---|", *rows] if rows else []
    loss = facts["parts"].get("loss", {}).get("class_path", "").rpartition(".")[2]
    origin = facts.get("begins_with")
    made = f"An encoder trained by {loss}" if loss else "An encoder"
    made += f", beginning with {origin}" if origin else ""
    return "\n".join([f"# {run.name}", "", f"{made}.", "", "```python", use, "```", "", *scores, ""])


LIBRARIES: dict[str, tuple[type[Encoder], Callable[[Any, Model, Path], None], str]] = {
    "sentence-transformers": (PretrainedTransformer, _to_sentence_transformers, OF_SENTENCES),
    "transformers": (PretrainedTransformer, _to_transformers, OF_TRANSFORMERS),
    "timm": (Timm, _to_timm, OF_TIMM),
}
"""By library: the encoder it takes, the function that writes it, and the code that loads it."""
FORMATS = {"safetensors": ".safetensors", "onnx": ".onnx", **{library: f"-{library}" for library in LIBRARIES}}
"""By format: the ending of an unnamed output."""
