"""A run's encoder as a folder that sentence-transformers, transformers or timm loads, with a card of its scores."""

import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from likewise.inference import Model
from likewise.models import PretrainedTransformer, Timm
from likewise.models.encoder import Encoder
from likewise.runs.score_format import format_score, marked
from likewise.runs.scores import ALL, ENCODER

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


def write_folder(library: str, model: Model, folder: Path) -> None:
    """Write an encoder as a new folder of the library that it is of."""
    if folder.exists():
        raise ValueError(f"expected a new folder, got {folder}, which exists: name another, or remove it")
    encoder_class, write, use = LIBRARIES[library]
    encoder: Any = model.encoder
    if type(encoder) is not encoder_class:
        got = f"got {type(encoder).__name__}: export it to safetensors or onnx"
        raise ValueError(f"expected an encoder {encoder_class.__name__} for {library}, {got}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:  # renamed when it is complete
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
    from tokenizers import Tokenizer  # noqa: PLC0415 - of the extra `text`
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - likewise

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
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - of the extra `text`
    from sentence_transformers.sentence_transformer import modules  # noqa: PLC0415 - likewise

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
    from timm.models import save_for_hf  # noqa: PLC0415 - of the extra `images`

    mean, std = (tensor.flatten().tolist() for tensor in (encoder.mean, encoder.std))
    resize = "crop" if model.preprocessing is None else model.preprocessing.resize
    network: Any = deepcopy(encoder.model).to(memory_format=torch.contiguous_format)
    network.pretrained_cfg |= {"input_size": encoder.input_shape, "mean": mean, "std": std, "interpolation": "bilinear"}
    network.pretrained_cfg |= {"crop_pct": 1.0, "crop_mode": CROPS[resize], "num_classes": 0}
    save_for_hf(network, str(folder), safe_serialization=True)


def _card(model: Model, use: str) -> str:
    run: Any = model.run
    facts = run.metadata
    whole = [
        score
        for score in run.scores
        if (score.part, score.epoch, score.group, score.features) == ("test", None, ALL, ENCODER)
    ]
    named = [(f"{score.evaluation}, {marked(score.metric.name, score.metric)}", score) for score in whole]
    rows = [f"| {name} | {format_score(score)} | {score.count:,} |" for name, score in named]
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
