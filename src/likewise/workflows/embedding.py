"""Features of any data, by the encoder of a run, an exported encoder, or published weights without any training."""

import json
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

import torch

from likewise.configuration import resolve
from likewise.configuration.options import EmbedOptions
from likewise.configuration.recipes import published_options
from likewise.data import ImagePreprocessing, Samples, Source, Texts, inputs_for_encoder, same_source
from likewise.data.lazy_inputs import in_words, spans_of
from likewise.data.reload import parted_as
from likewise.evaluation.arrays import is_arrays
from likewise.files.detection import expanded
from likewise.files.formats import image_suffixes
from likewise.inference.inputs import digest_of, encode_pieces, options_of, samples_for, stream_samples
from likewise.inference.model import Model, load
from likewise.inference.outputs import EmbeddingShards, check_apart, check_output, state_of
from likewise.instantiate import Spec, instantiate
from likewise.models import Encoder
from likewise.models.weights import load_weights
from likewise.runs import Run
from likewise.runs.machine import device_named
from likewise.workflows.arguments import EmbedArguments, Part, given_options
from likewise.workflows.progress import PRINTED, Progress

SUFFIXES = (".parquet", ".npz")
COLUMNS = ("inputs", "text")  # data options that select the encoder's inputs: the run's by default


def embed(
    run: Run | Path | str | EmbedOptions | Mapping[str, Any] | None = None,
    data: Path | Part | None = None,
    *,
    progress: Progress = PRINTED,
    **options: Unpack[EmbedArguments],
) -> Path:
    """Encode any data into one file of ids, features, and labels and parts if there are any.

    Parts come from the data, or for a run's own data from the run, so no test sample was trained on. After Ctrl-C or a
    failure, the same call keeps the finished work.

    Args:
        run: A run, its folder, or the file of an exported encoder. None: `encoder` names one. Or options, see
            `EmbedOptions`, dotted or nested; or all of them as a record.
        data: A folder of images, a file, or the name of a data set; or a part in its configuration form.
        progress: Receives messages during the work.
        **options: More options; they win.

    Returns:
        The file.

    Raises:
        ValueError: The run has no encoder, the data can't be read or is of another kind, the output exists, or no image
            can be decoded.

    Memory:
        A shard, and ids, labels and texts. Images, and numbers in tables and .npy files, are read on demand.

    Example:
        >>> import numpy as np
        >>> from likewise.workflows import Silent
        >>> np.savez("flowers.npz", vectors=np.eye(3), labels=["lily", "rose", "lily"])
        >>> options = {"encoder": "MLP", "encoder.width": 8, "output": "found.npz"}
        >>> np.load(embed(options, "flowers.npz", progress=Silent()))["features"].shape
        (3, 8)
    """
    named = {} if data is None else {"data": data}
    first = {**named, **run} if isinstance(run, Mapping) else run  # a class before its arguments
    all_options = given_options(EmbedOptions, first, {**named, **options}, "run")
    config: EmbedOptions = resolve(all_options, verb="embed")
    output = _check_options(config)
    model, samples = _model_and_samples(config, progress)
    described: Mapping[str, Any] = config.encoder or {}
    facts = {
        "run": model.run.name if model.run else str(config.run or described["class_path"]),
        "side": model.side,
        "encoder": digest_of(model, config.run),
        "encoder_options": json.loads(json.dumps(described.get("init_args"), default=str)),
        "data": json.loads(json.dumps(config.data, default=str)),
        "state_of_files": state_of(samples, config.data.get("init_args", {}).get("path"), output),
        "preprocessing": None if model.preprocessing is None else asdict(model.preprocessing),
    }
    made: Any = {"size": config.shard_size, "width": model.feature_dim, "dtype": config.dtype, "anew": config.force}
    shards = EmbeddingShards(output, samples, facts, **made)
    list_of_lost = output.with_name(f"{output.name}.unreadable.txt")
    try:
        rate = _fill_shards(shards, model, config, progress)
        lost = _list_unreadable(shards, list_of_lost)
        shards.join()
    except BaseException as error:
        if shards.folder.is_dir() and len(shards.left) < len(shards.all):
            error.add_note(f"what was finished is in {shards.folder}: the same command goes on from there")
        else:
            shutil.rmtree(shards.folder, ignore_errors=True)
        raise
    if lost:
        progress.result(f"{in_words(lost)}; all are in {list_of_lost}")
    progress.result(f"{output}: {len(samples) - len(lost):,} x {model.feature_dim:,} {config.dtype}{rate}")
    return output


def _check_options(config: EmbedOptions) -> Path:
    if (config.run is None) == (config.encoder is None):
        got = "neither" if config.run is None else "both"
        raise ValueError(f"expected RUN or --encoder, got {got}: name a run, or a class with its weights")
    if config.run is None and config.side != "first":
        raise ValueError("expected a run of pairs for the second side, got --encoder: leave out --side")
    if config.run is not None and config.weights is not None:
        raise ValueError("expected no --weights beside a run, which has its own, got some: name --encoder in its place")
    path = config.data.get("init_args", {}).get("path")
    suffix = SUFFIXES[0] if find_spec("pyarrow") else SUFFIXES[1]
    output = Path(config.output or (f"{Path(path).resolve().stem}{suffix}" if path else ""))
    check_output(output, SUFFIXES, force=config.force)
    check_apart(output, path or "")
    for name, least in (("shard_size", 1), ("batch_size", 1), ("workers", 0)):
        value = getattr(config, name)
        if value is not None and value < least:
            raise ValueError(f"expected --{name} of at least {least}, got {value}")
    if config.run is not None and "size" in config.data.get("init_args", {}):
        raise ValueError("expected no --data.size beside a run, whose own rule is used: leave it out")
    return output


def _model_and_samples(config: EmbedOptions, progress: Progress) -> tuple[Model, Samples]:
    device, data = device_named(config.device), config.data
    if config.encoder is None:
        model = load(config.run or "", device=None if config.device == "auto" else device)
        model = model.of(config.side) if model.run or config.side == "second" else model
        progress.log("reading ...")
        learned = options_of(model, data["class_path"].rpartition(".")[2])
        same = {name: learned[name] for name in COLUMNS if name in learned}
        if model.paired and learned.get("label") == "none":
            same["label"] = "none"
        source = instantiate({**data, "init_args": {**same, **data.get("init_args", {})}}, Source)
        with warnings.catch_warnings():
            if model.paired:
                warnings.filterwarnings("ignore", "without labels")  # pairs need none
            samples = samples_for(model, source)
        return model, _parted(model, data, samples)
    samples = stream_samples(instantiate(data, Source))
    torch.manual_seed(0)
    encoder: Encoder = instantiate(config.encoder, Encoder, input_shape=samples.input_shape)
    encoder.observe(inputs_for_encoder(samples, observed=encoder.observes))
    if encoder.origin:
        progress.log(f"encoder: {encoder.origin}")
    if config.weights is not None:
        progress.log(f"weights: {load_weights(encoder, config.weights)}")
    return Model(encoder.to(device), samples.preprocessing), samples


def published_model(source: Path | str, queries: Sequence[str], device: torch.device, progress: Progress) -> Model:
    """Return the model for photos or texts, by the source's contents, or for a file of features by the queries."""
    if is_arrays(expanded(source)):
        photos = any(Path(query).suffix.lower() in image_suffixes() for query in queries)
        chosen = published_options("image-folder" if photos else "texts")
    else:
        chosen = vars(resolve({"data": str(source), "output": "x.npz"}, verb="embed"))
    if chosen["encoder"] is None:
        got = f"got {source}, which is neither: name a run"
        raise ValueError(f"expected photos or texts to search without a run, {got}")
    size = chosen["data"].get("init_args", {}).get("size")
    shape = () if size is None else (3, size, size)
    encoder = instantiate(chosen["encoder"], Encoder, input_shape=shape)
    if not shape:
        encoder.observe(Texts([""]))  # it has its own tokenizer
    progress.log(f"encoder: {encoder.origin}")
    return Model(encoder.to(device), ImagePreprocessing(*shape) if shape else None)


def _parted(model: Model, data: Spec, samples: Samples) -> Samples:
    """Return samples with their parts in the model's run, if they come from the run's own data."""
    facts: Any = model.run.metadata if model.run else {}
    if model.run is None or "samples" not in facts or not same_source(facts["parts"]["data"], data):
        return samples
    try:
        return parted_as(model.run, samples, model.side)
    except (ValueError, OSError, ImportError) as error:
        warnings.warn(f"without the parts of {model.run.name}, which did not train on all of it: {error}", stacklevel=5)
        return samples


def _fill_shards(shards: EmbeddingShards, model: Model, config: EmbedOptions, progress: Progress) -> str:
    """Compute the missing shards; return the rate as text."""
    left, inputs = shards.left, shards.samples.inputs
    count, done = sum(map(len, left)), len(shards.samples) - sum(map(len, left))
    if done:
        progress.log(f"going on: {done:,} of {len(shards.samples):,} are in {shards.folder}")
    bar = progress.steps(len(shards.samples), "encoding")
    if bar is not None:
        bar.unit, bar.initial, bar.n = "", done, done
    ends, pieces, started = {shard.stop: shard for shard in left}, [], time.monotonic()
    spans = spans_of(inputs, left, config.batch_size)
    with nullcontext() if bar is None else closing(bar):
        for span, piece in zip(spans, encode_pieces(model, inputs, spans, config.workers), strict=True):
            pieces.append(piece)
            if span.stop in ends:
                shards.write(ends[span.stop], pieces)
                pieces = []
            if bar is not None:
                bar.update(len(span))
    return f", {count / (time.monotonic() - started):,.0f} a second" if count else ""


def _list_unreadable(shards: EmbeddingShards, path: Path) -> dict[int, str]:
    """Write the list of unreadable files, replacing an earlier one, and return them."""
    lost = shards.lost
    if len(lost) == len(shards.samples):
        shutil.rmtree(shards.folder)
        raise ValueError(f"expected images that can be read, got none of {len(lost):,}: check the files")
    path.unlink(missing_ok=True)
    if lost:
        path.write_text("".join(f"{lost[item]}\n" for item in sorted(lost)), encoding="utf-8")
    return lost
