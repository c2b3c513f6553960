"""Samples from wherever people keep them, as a trained model takes them."""

import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from likewise import data
from likewise.data import ImagePreprocessing, Samples, Source
from likewise.data.ids import Ids
from likewise.data.image_files import ImageFiles
from likewise.evaluation import Features
from likewise.files import formats
from likewise.files.detection import exists, expanded, is_file_name, source_for
from likewise.inference.model import Model
from likewise.inference.onnx import OnnxEncoder
from likewise.models import reads_texts
from likewise.runs import Side

T = TypeVar("T", Samples, Features)


def samples_at(
    place: str | Path | Sequence[str | Path], model: Model | None = None, *, labelled: bool = False
) -> Samples:
    """Read the samples at a path or of a name, as a run was trained to read them; also images or texts one by one.

    Images are decoded on demand, by the model's preprocessing. Samples need no labels.

    Args:
        place: A folder, a file, or the name of a data set, whatever `likewise train` takes as data; images, or texts.
        model: Options of its run's data hold for a source of the same kind. None: for features.
        labelled: Whether labels are wanted though the run was trained without.
    """
    other = ImagePreprocessing(3, 1, 1)  # any images, to be refused
    words, made_of = words_of(place), None if model is None else model.preprocessing or other
    files = list(map(expanded, words))
    if made_of is not None and all(of.is_file() and of.suffix.lower() in formats.image_suffixes() for of in files):
        names = [of.name for of in files] if len(files) == 1 else map(str, words)
        return Samples(ImageFiles(files, made_of), ids=Ids.of(names), preprocessing=made_of)
    if model is not None and reads_texts(model.encoder) and (len(words) > 1 or not _is_place(str(words[0]))):
        if file := next(filter(is_file_name, map(str, words)), None):
            raise ValueError(f"expected texts, or one file of them, got {file} among {len(words)}: give it alone")
        return Samples(model.rows(words), ids=Ids.of(map(str, words)))
    if len(words) > 1:
        got = next((of for of, file in zip(words, files, strict=True) if not file.is_file()), words[0])
        raise ValueError(f"expected one folder, file or name, or images, got {got} among {len(words)}: check it")
    (place,), (where,) = words, files
    learned = {} if model is None else options_of(model, "Text")
    columns = {name: learned.get(name) for name in ("text", "label") if "path" in learned}
    kind, given = source_for(where if where.exists() else place, columns)
    options = {**({} if model is None else options_of(model, kind)), **given}
    options.pop("encoding", None)  # new files need not be in the same
    if labelled and options.get("label") == "none":
        del options["label"]
    source: Any = getattr(data, kind)
    if made_of is not None:  # of any size
        options = {name: value for name, value in options.items() if name not in {"size", "resize", "memory"}}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "without labels")  # new samples seldom have some
        for name in [name for name in ("part", "label") if options.get(name) not in (None, "none")]:
            with suppress(ValueError):
                return streamed(source(**options), made_of)
            options[name] = "none"
        return streamed(source(**options), made_of)


def words_of(given: str | Path | Sequence[str | Path]) -> list[str | Path]:
    """Return one word or several as a list; "-" stands for the lines of the standard input."""
    words = [given] if isinstance(given, str | Path) else list(given)
    words = [line for line in sys.stdin.read().splitlines() if line.strip()] if words == ["-"] else words
    if not words:
        raise ValueError("expected a folder, a file, a text or some of these, got none: name one")
    return words


def _is_place(word: str) -> bool:
    return exists(expanded(word)) or is_file_name(word) or (len(word.split()) == 1 and "/" in word)


def options_of(model: Model, kind: str) -> dict[str, Any]:
    """Return the options of the data that a model was trained on, if that was a source of this kind.

    Of a table they are columns of numbers; of one of pairs the column of the model's side, and that of the labels.
    """
    facts = model.run.facts if model.run else model.encoder.file.facts if isinstance(model.encoder, OnnxEncoder) else {}
    spec = (facts.get("parts") or {}).get("data") or {}
    given, learned = spec.get("init_args") or {}, str(spec.get("class_path")).rpartition(".")[2]
    if learned == "Pairs" and given.get("path") and kind in {"Table", "Text"}:
        column = given[model.side]
        return {"label": given.get("label") or "none", **({"text": column} if kind == "Text" else {"inputs": [column]})}
    columns = facts.get("columns") if kind in {"Table", "Hub"} else None
    return {**(given if learned == kind else {}), **({"inputs": columns} if columns else {})}


def of_side(given: T, side: Side) -> T:
    """Return one side of pairs, each input once, with the labels of its pair; what are no pairs, as they are."""
    if given.counterparts is None:
        return given
    one: Any = given if side == "first" else given.counterparts
    alone: Any = {"negatives": None, "parts": given.parts} if isinstance(given, Samples) else {}
    one = replace(one, labels=given.labels, names=given.names, counterparts=None, **alone)
    if one.items is None:
        return one
    return one[torch.from_numpy(np.sort(np.unique(one.items.numpy(), return_index=True)[1]))]


def streamed(source: Source, made_of: ImagePreprocessing | None = None) -> Samples:
    """Read samples on demand, with labels if they have some; a warning says why they have none."""
    if getattr(source, "label", "none") is not None:  # it has none, or one is named
        return source.stream(made_of)
    try:
        with warnings.catch_warnings(record=True) as told:
            samples = source.stream(made_of)
    except ValueError as error:
        without = copy(source)
        vars(without)["label"] = "none"
        samples = without.stream(made_of)
        warnings.warn(f"without labels: {error}", stacklevel=3)
        return samples
    for one in told:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return samples
