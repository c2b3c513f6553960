"""Features of samples with what the samples are called: in memory, or in a file that is read piece by piece."""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.data import Samples, Texts
from likewise.data.arrays import labels_of, words_of
from likewise.data.columns import labels_of as labels_of_column
from likewise.data.ids import distinct
from likewise.data.lazy_inputs import files_of, unreadable
from likewise.evaluation.arrays import NAMES, feature_batches, is_arrays, vectors_of, width_of_table
from likewise.evaluation.encoding import features_of
from likewise.evaluation.feature_files import joined_arrays, whole_arrays
from likewise.evaluation.features import Bar, silent
from likewise.files.detection import exists, expanded
from likewise.files.formats import first_of
from likewise.inference.embedding import check_kind, digest_of
from likewise.inference.inputs import samples_at
from likewise.inference.model import Model
from likewise.inference.shards import FACTS, TEXT
from likewise.runs import Run, Side

PIECE = 2**15  # samples read at a time
TABLES = (".parquet", ".pq")


@final
@dataclass(frozen=True)
class Stored:
    """Features, (N, D), in pieces, and the ids of their samples; see `open_features`.

    Args:
        ids: What each sample is called, (N,).
        width: D.
        read: Yields the features in their order, at most so many at a time, in any floating-point type.
        labels: Classes (N,), or label sets (N, L), or None.
        names: Names of the classes or labels.
        samples: The inputs, where they are at hand.
        texts: What each sample says, (N,), where it is at hand: strings, or objects that `str` turns into strings.
        folder: Where a file of features stands.
        encoder: The digest of the encoder that a file of features is from; "" where it doesn't say.
        paired: Whether a file has features of the two sides of pairs, of which these are one.
    """

    ids: Sequence[str]
    width: int
    read: Callable[[], Iterator[Tensor]]
    labels: Int[Tensor, " n"] | Bool[Tensor, "n l"] | None = None
    names: tuple[str, ...] = ()
    samples: Samples | None = None
    texts: Any = None
    folder: Path | None = None
    encoder: str = ""
    paired: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], ids: Sequence[str], samples: Samples | None = None) -> "Stored":
        """Return features in memory, with the labels of their samples."""
        labels, names = (None, ()) if samples is None else (samples.labels, samples.names)
        texts = samples.inputs.strings if samples is not None and isinstance(samples.inputs, Texts) else None
        return cls(ids, features.shape[1], lambda: iter(features.split(PIECE)), labels, names, samples, texts)

    def pieces(self) -> Iterator[tuple[int, Float[Tensor, "n d"]]]:
        """Yield where each piece begins, and its features in float32; a ValueError if one is not finite."""
        start = 0
        for piece in self.read():
            vectors = piece.float()
            if not bool(torch.isfinite(vectors).all()):
                name = self.ids[start + int((~torch.isfinite(vectors)).any(1).nonzero()[0])]
                raise ValueError(f"expected finite features, got NaN or infinity of {name}: embed it again")
            yield start, vectors
            start += len(piece)

    def take(self, rows: Sequence[int]) -> Float[Tensor, "m d"]:
        """Return the features of some samples."""
        wanted = torch.tensor(rows, dtype=torch.int64)
        features = torch.empty(len(rows), self.width, dtype=torch.float32)
        for start, piece in self.pieces():
            here = (wanted >= start) & (wanted < start + len(piece))
            features[here] = piece[wanted[here] - start]
        return features

    def label(self, row: int) -> str:
        """Return the label of a sample in words, or its labels."""
        return "" if self.labels is None else self.words(self.labels[row])

    def words(self, label: Tensor) -> str:
        """Return a class or a label set in words."""
        numbers = label.nonzero().flatten().tolist() if label.ndim else [int(label)]
        return " + ".join(self.names[number] for number in numbers)


def open_features(path: Path, side: Side = "first") -> Stored | None:
    """Open a file of features; None where it is something else.

    - Parquet with a column `features` of lists, and optionally `id` and `label`, as `likewise embed` writes it.
    - An .npz file with `features` (or `embeddings`, `vectors`), and optionally `ids`, `labels` and `names`; or one of
      three parts, as a run keeps it. An .npy file of one array.
    - A folder of Parquet files, or of .npy files that are called as the arrays of an .npz file.

    Args:
        path: The file or folder.
        side: The side to open, of features of pairs.

    Raises:
        ValueError: The file can't be read.

    Memory:
        Ids, labels and a piece; of arrays that `read_arrays` can't map, and of three parts, the features.
    """
    tables = [path] if path.suffix.lower() in TABLES else sorted(path.glob("*.parquet"))
    try:
        if not (path.is_dir() and any(path.glob("*.npy"))) and tables:
            return _of_tables(tables)
        return _of_arrays(path, side) if is_arrays(path) else None
    except (OSError, EOFError, KeyError, ValueError) as error:
        if str(error).startswith("expected "):
            raise
        raise ValueError(f"expected features in {path}, got a file that can't be read, {error}") from error


def stored_at(source: Path | str, model: Model, bar: Bar = silent) -> Stored:
    """Return the features of a run, of a file of features, or of any other source, which is encoded now."""
    path = expanded(source)
    if (path / "run.json").is_file():
        path = Run.open(path).embeddings
        if not path.is_file():
            got = f"got {source}, which keeps no {path.name}: likewise evaluate {source} makes them"
            raise ValueError(f"expected a run with features, {got}")
    stored = open_features(path, model.side) if exists(path) else None
    if stored is None or (stored.width != model.feature_dim and model.encoder.input_shape == (stored.width,)):
        return encode_samples(samples_at(source, model), model, bar)
    if stored.width != model.feature_dim:
        got = f"got {stored.width} in {source}: embed again with this run"
        raise ValueError(f"expected features of {model.feature_dim} numbers, as this run gives, {got}")
    known = model.run is not None or not model.encodes
    if stored.encoder and known and digest_of(model) not in {"", stored.encoder}:
        got, remedy = "those of another", "embed again with this run" + f" and --side {model.side}" * model.paired
        if stored.encoder == digest_of(model.across):
            got, remedy = f"those of the {model.across.side} side", f"give the other --side, or {remedy}"
        side = f"the {model.side} side of this run" if model.paired else "this run's encoder"
        raise ValueError(f"expected features of {side}, got {got} in {source}: {remedy}")
    return stored


def encode_samples(samples: Samples, model: Model, bar: Bar = silent) -> Stored:
    """Return the features of the samples that can be read, with these samples; a warning names the rest."""
    check_kind(model, samples)
    prepared = replace(samples, inputs=model.rows(samples))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "an image that cannot be read")
        features = features_of(prepared, model.encoder, "test", bar)
    if lost := files_of(unreadable(prepared.inputs, torch.arange(len(prepared)))):
        named = first_of(list(lost.values()))
        warnings.warn(f"left out {len(lost)} of {len(prepared)} images that cannot be read: {named}", stacklevel=4)
    return Stored.of(features.vectors, list(features.ids), prepared.readable())


def _of_tables(files: Sequence[Path]) -> Stored | None:
    import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`
    from pyarrow import parquet  # noqa: PLC0415 - likewise

    width, schema = width_of_table(files[0]), parquet.read_schema(files[0])
    if width is None:
        return None
    footers = [(parquet.read_metadata(file).metadata or {}).get(FACTS.encode(), b"{}") for file in files]
    facts = json.loads(footers[0]) if len(set(footers)) == 1 else {}
    named = [name for name in ("id", "label", TEXT) if name in schema.names]
    beside = pa.concat_tables([parquet.read_table(file, columns=named) for file in files])
    count = sum(parquet.read_metadata(file).num_rows for file in files)
    ids = beside["id"].cast(pa.string()).to_pylist() if "id" in named else list(map(str, range(count)))
    labels, names = None, ()
    if "label" in named:
        values = beside["label"]
        blank = None if pa.types.is_list(values.type) else ""
        labels, names = labels_of_column([blank if value is None else value for value in values.to_pylist()])

    def read() -> Iterator[Tensor]:
        return (torch.from_numpy(some) for file in files for some in feature_batches(file, PIECE))

    encoder = "" if str(facts.get("run", "")).endswith(".onnx") else str(facts.get("encoder", ""))
    texts = beside[TEXT] if facts and TEXT in named else None
    return Stored(ids, width, read, labels, names, texts=texts, folder=files[0].parent, encoder=encoder)


def _of_arrays(path: Path, side: Side) -> Stored | None:
    arrays = joined_arrays(whole_arrays(path), path)
    key = next((name for name in NAMES if name in arrays), None)
    if key is None or (path.suffix.lower() == ".npy" and arrays[key].ndim != 2):
        return None
    paired = "counterpart_features" in arrays
    other = "counterpart_" * (paired and side == "second")
    vectors = vectors_of(arrays[f"{other}features" if other else key], key)
    labels, names = labels_of(arrays["labels"], arrays.get("names")) if "labels" in arrays else (None, ())
    ids = arrays.get(f"{other}ids", arrays.get("ids", arrays.get("rows", np.arange(len(vectors)))))
    ids = words_of(ids, "ids")
    if paired and f"{other}items" in arrays:  # numbers within a part: each input once
        parts = np.unique(arrays.get("parts", np.zeros(len(vectors))), return_inverse=True)[1]
        once = np.sort(np.unique(np.stack([parts, arrays[f"{other}items"]]), axis=1, return_index=True)[1])
        vectors, ids, labels = vectors[once], ids[once], None if labels is None else labels[once]

    def read() -> Iterator[Tensor]:
        starts = range(0, len(vectors), PIECE)
        return (torch.from_numpy(np.asarray(vectors[start : start + PIECE], np.float32)) for start in starts)

    ids = list(distinct(ids.tolist()))
    return Stored(ids, vectors.shape[1], read, labels, names, folder=path.parent, paired=paired)
