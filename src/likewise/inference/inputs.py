"""Samples from any source, in the form for a trained model, and their features a piece at a time."""

import hashlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from likewise import data
from likewise.data import ImagePreprocessing, LazyInputs, Samples, Source
from likewise.data.image_files import ImageFiles
from likewise.data.lazy_inputs import Ids
from likewise.evaluation import Features
from likewise.evaluation.encoding import Piece, pieces
from likewise.files import formats
from likewise.files.detection import exists, expanded, is_file_name, source_for
from likewise.inference.model import Model
from likewise.inference.onnx import Given, OnnxEncoder
from likewise.models import reads_texts
from likewise.runs import Side

T = TypeVar("T", Samples, Features)


def samples_at(
    inputs: str | Path | Sequence[str | Path], model: Model | None = None, *, labelled: bool = False
) -> Samples:
    """Read samples from any data for `likewise train`, or images or texts, with the options of a model's run.

    Images are decoded on demand. Samples need no labels; if `labelled`, labels are read even if the run had none.
    """
    other = ImagePreprocessing(3, 1, 1)  # reads any images, which are refused later
    entries, made_of = words_of(inputs), None if model is None else model.preprocessing or other
    files = list(map(expanded, entries))
    if made_of is not None and all(
        file.is_file() and file.suffix.lower() in formats.image_suffixes() for file in files
    ):
        names = [file.name for file in files] if len(files) == 1 else map(str, entries)
        return Samples(ImageFiles(files, made_of), ids=Ids.of(names), preprocessing=made_of)
    if model is not None and reads_texts(model.encoder) and (len(entries) > 1 or not _is_place(str(entries[0]))):
        if file := next(filter(is_file_name, map(str, entries)), None):
            raise ValueError(f"expected texts, or one file of them, got {file} among {len(entries)}: give it alone")
        return Samples(model.rows(entries), ids=Ids.of(map(str, entries)))
    if len(entries) > 1:
        got = next((entry for entry, file in zip(entries, files, strict=True) if not file.is_file()), entries[0])
        raise ValueError(f"expected one folder, file or name, or images, got {got} among {len(entries)}: check it")
    (inputs,), (where,) = entries, files
    learned = {} if model is None else options_of(model, "Text")
    columns = {name: learned.get(name) for name in ("text", "label") if "path" in learned}
    class_name, arguments = source_for(where if where.exists() else inputs, columns)
    options = {**({} if model is None else options_of(model, class_name)), **arguments}
    options.pop("encoding", None)  # new files may have another encoding
    if labelled and options.get("label") == "none":
        del options["label"]
    source: Any = getattr(data, class_name)
    if made_of is not None:  # of any size
        options = {name: value for name, value in options.items() if name not in {"size", "resize", "memory"}}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "without labels")  # new samples seldom have labels
        for name in [name for name in ("part", "label") if options.get(name) not in (None, "none")]:
            with suppress(ValueError):
                return stream_samples(source(**options), made_of)
            options[name] = "none"
        return stream_samples(source(**options), made_of)


def words_of(inputs: str | Path | Sequence[str | Path]) -> list[str | Path]:
    """Return one word or several as a list; "-" stands for the lines of standard input."""
    entries = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    entries = [line for line in sys.stdin.read().splitlines() if line.strip()] if entries == ["-"] else entries
    if not entries:
        raise ValueError("expected a folder, a file, a text or some of these, got none: name one")
    return entries


def _is_place(word: str) -> bool:
    return exists(expanded(word)) or is_file_name(word) or (len(word.split()) == 1 and "/" in word)


def options_of(model: Model, source: str) -> dict[str, Any]:
    """Return the options of a model's training data, if its source was of this kind.

    For a table these are columns of numbers; for pairs, the column of the model's side, and the column of labels.
    """
    facts = model.encoder.file.metadata if isinstance(model.encoder, OnnxEncoder) else {}
    facts = model.run.metadata if model.run else facts
    spec = (facts.get("parts") or {}).get("data") or {}
    args, learned = spec.get("init_args") or {}, str(spec.get("class_path")).rpartition(".")[2]
    if learned == "Pairs" and args.get("path") and source in {"Table", "Text"}:
        column = {"text": args[model.side]} if source == "Text" else {"inputs": [args[model.side]]}
        return {"label": args.get("label") or "none", **column}
    columns = facts.get("columns") if source in {"Table", "Hub"} else None
    return {**(args if learned == source else {}), **({"inputs": columns} if columns else {})}


def of_side(samples: T, side: Side) -> T:
    """Return one side of pairs, each input once, with the labels of its pair; return other samples unchanged."""
    if samples.counterparts is None:
        return samples
    selected: Any = samples if side == "first" else samples.counterparts
    alone: Any = {"negatives": None, "parts": samples.parts} if isinstance(samples, Samples) else {}
    selected = replace(selected, labels=samples.labels, names=samples.names, counterparts=None, **alone)
    if selected.items is None:
        return selected
    return selected[torch.from_numpy(np.sort(np.unique(selected.items.numpy(), return_index=True)[1]))]


def stream_samples(source: Source, made_of: ImagePreprocessing | None = None) -> Samples:
    """Read samples on demand, with labels if they have some; else a warning gives the reason."""
    if getattr(source, "label", "none") is not None:  # it has no such option, or it is set
        return source.stream(made_of)
    try:
        with warnings.catch_warnings(record=True) as caught:
            samples = source.stream(made_of)
    except ValueError as error:
        without = copy(source)
        vars(without)["label"] = "none"
        samples = without.stream(made_of)
        warnings.warn(f"without labels: {error}", stacklevel=3)
        return samples
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return samples


def samples_for(model: Model, source: Source) -> Samples:
    """Read samples in the form for a model, images on demand and of any size; with labels where there are some."""
    read = stream_samples(source, model.preprocessing or ImagePreprocessing(3, 1, 1))  # any images: refused below
    samples = of_side(read, model.side)
    check_kind(model, samples)
    return samples


def check_kind(model: Model, samples: Samples) -> None:
    """Raise a ValueError unless samples are of the kind that a model takes."""
    takes, shape = model.encoder.input_shape, samples.input_shape
    if len(takes) != len(shape) or (model.preprocessing is None and takes != shape):
        other = f"they may be of the {model.across.side} side, see --side" if model.paired else "give others"
        raise ValueError(f"expected {_in_words(takes)}, as the encoder takes, got {_in_words(shape)}: {other}")


def _in_words(shape: Sequence[int]) -> str:
    return {0: "texts", 1: f"vectors of {sum(shape)} numbers"}.get(len(shape), "images")


def encode_pieces(
    model: Model, inputs: Tensor | LazyInputs, spans: Sequence[range], workers: int | None = None
) -> Iterator[Piece]:
    """Encode pieces of inputs from `samples_for`, while workers read the next ones; see `read_ahead`."""
    if isinstance(inputs, Tensor) and model.preprocessing is not None:
        for span in spans:
            images = model.preprocessing.of_tensor(inputs[span.start : span.stop])
            yield Piece(torch.arange(span.start, span.stop), model.encoder.encode(images), {})
        return
    yield from pieces(model.encoder, inputs, spans, workers)


def digest_of(model: Model, file: Path | None = None) -> str:
    """Return a digest of the weights, and of their file where it isn't a run's; "" if unknown."""
    if isinstance(model.encoder, Given):
        return model.encoder.digest
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.encoder.state_dict().items():
        digest.update(name.encode() + np.ascontiguousarray(tensor.detach().cpu().float().numpy()).tobytes())
    if file is not None and file.is_file():
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
    return digest.hexdigest()
