"""Features of samples with what the samples are called: in memory, or in a file that is read piece by piece."""

import json
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.lib import format as npy
from torch import Tensor

from likewise.data import Samples, Texts
from likewise.data.arrays import labels_of
from likewise.data.columns import labels_of as labels_of_column
from likewise.data.ids import Ids
from likewise.data.rows import files_of, unreadable
from likewise.evaluation import Features, load_features
from likewise.evaluation.array_files import feature_batches, width_of_table
from likewise.evaluation.encoding import features_of
from likewise.evaluation.feature_files import NAMES
from likewise.evaluation.features import Bar, silent
from likewise.files.detection import expanded
from likewise.files.formats import first_of
from likewise.inference.embedding import check_kind, digest_of
from likewise.inference.inputs import of_side, samples_at
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
        names: Of the classes or labels.
        samples: The inputs, where they are at hand.
        texts: What each sample says, (N,), likewise: strings, or what `str` makes one of.
        folder: Where a file of features stands.
        encoder: The digest of the encoder that a file of features is from; "" where it doesn't say.
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

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.ids)

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], ids: Sequence[str], samples: Samples | None = None) -> "Stored":
        """Return features in memory, with the labels of their samples."""
        labels, names = (None, ()) if samples is None else (samples.labels, samples.names)
        texts = samples.inputs.strings if samples is not None and isinstance(samples.inputs, Texts) else None
        return cls(ids, features.shape[1], lambda: iter(features.split(PIECE)), labels, names, samples, texts)

    def pieces(self) -> Iterator[tuple[int, Float[Tensor, "n d"]]]:
        """Yield where each piece begins, and its features in float32.

        Raises:
            ValueError: A feature is not finite, or the file is damaged.
        """
        start = 0
        for piece in self.read():
            vectors = piece.float()
            if not bool(torch.isfinite(vectors).all()):
                row = int((~torch.isfinite(vectors)).any(1).nonzero()[0])
                raise ValueError(
                    f"expected finite features, got NaN or infinity of {self.ids[start + row]}: embed it again"
                )
            yield start, vectors
            start += len(piece)

    def take(self, rows: Sequence[int]) -> Float[Tensor, "m d"]:
        """Return the features of some samples."""
        wanted = torch.tensor(rows, dtype=torch.int64)
        found = torch.empty(len(rows), self.width, dtype=torch.float32)
        for start, piece in self.pieces():
            here = (wanted >= start) & (wanted < start + len(piece))
            found[here] = piece[wanted[here] - start]
        return found

    def label(self, row: int) -> str:
        """Return the label of a sample in words, or its labels."""
        return "" if self.labels is None else self.words(self.labels[row])

    def words(self, label: Tensor) -> str:
        """Return a class or a label set in words."""
        numbers = label.nonzero().flatten().tolist() if label.ndim else [int(label)]
        return " + ".join(self.names[number] for number in numbers)


def open_features(path: Path, side: Side = "first") -> Stored | None:
    """Open a file of features; None where it is something else.

    - Parquet with a column `features`, lists of one size, and optionally `id` and `label`, as `likewise embed` writes.
    - An .npz file with `features` (or `embeddings`, `vectors`), and optionally `ids`, `labels` and `names`; or one of
      three parts, as a run keeps it. An .npy file of one array.

    Args:
        path: The file.
        side: Of a run's features of pairs, which.

    Raises:
        ValueError: The file can't be read.

    Memory:
        Of an .npz file of three parts its features; else ids, labels, and a piece.
    """
    suffix = path.suffix.lower()
    try:
        return _of_table(path) if suffix in TABLES else _of_arrays(path, side) if suffix in {".npz", ".npy"} else None
    except (OSError, EOFError, KeyError, zipfile.BadZipFile, ValueError) as error:
        raise ValueError(
            f"expected features in {path}, got a file that can't be read, {error}: write it again"
        ) from error


def stored_at(place: Path | str, model: Model, bar: Bar = silent) -> Stored:
    """Return the features at a place: of a run, of a file of features, or of a source that is encoded now.

    Raises:
        ValueError: There is nothing there, it can't be read, it is a run without features, or features are of another
            width than the model's.
    """
    path = expanded(place)
    if (path / "run.json").is_file():
        path = Run.open(path).embeddings
        if not path.is_file():
            raise ValueError(
                f"expected a run with features, got {place}, which keeps no {path.name}: likewise evaluate {place} "
                "makes them, or name the data itself"
            )
    found = open_features(path, model.side) if path.is_file() else None
    if found is None or (found.width != model.feature_dim and model.encoder.input_shape == (found.width,)):
        return encoded(samples_at(place, model), model, bar)
    if found.width != model.feature_dim:
        raise ValueError(
            f"expected features of {model.feature_dim} numbers, as this run gives, got {found.width} in {place}: "
            "embed again with this run"
        )
    if found.encoder and model.run is not None and found.encoder != digest_of(model):
        got, remedy = "those of another", "embed again with this run" + f" and --side {model.side}" * model.paired
        if found.encoder == digest_of(model.across):
            got, remedy = f"those of the {model.across.side} side", f"give the other --side, or {remedy}"
        side = f"the {model.side} side of this run" if model.paired else "this run's encoder"
        raise ValueError(f"expected features of {side}, got {got} in {place}: {remedy}")
    return found


def encoded(samples: Samples, model: Model, bar: Bar = silent) -> Stored:
    """Return the features of samples that can be read, with these samples; a warning names others."""
    check_kind(model, samples)
    given = replace(samples, inputs=model.rows(samples))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "an image that cannot be read")
        found = features_of(given, model.encoder, "test", bar)
    if lost := files_of(unreadable(given.inputs, torch.arange(len(given)))):
        named = first_of(list(lost.values()))
        warnings.warn(f"left out {len(lost)} of {len(given)} images that cannot be read: {named}", stacklevel=4)
    return Stored.of(found.vectors, list(found.ids), given.readable())


def _of_table(path: Path) -> Stored | None:
    import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`
    from pyarrow import parquet  # noqa: PLC0415 - likewise

    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        facts = json.loads((schema.metadata or {}).get(FACTS.encode(), b"{}"))
        if (width := width_of_table(path)) is None:
            return None
        beside = file.read([name for name in ("id", "label", TEXT) if name in schema.names])
        count = file.metadata.num_rows
    ids = beside["id"].cast(pa.string()).to_pylist() if "id" in beside.column_names else _numbers(count)
    labels, names = None, ()
    if "label" in beside.column_names:
        values = beside["label"]
        blank = None if pa.types.is_list(values.type) else ""
        labels, names = labels_of_column([blank if one is None else one for one in values.to_pylist()])

    def read() -> Iterator[Tensor]:
        return map(torch.from_numpy, feature_batches(path, PIECE))

    encoder = "" if str(facts.get("run", "")).endswith(".onnx") else str(facts.get("encoder", ""))
    texts = beside[TEXT] if facts and TEXT in beside.column_names else None
    return Stored(ids, width, read, labels, names, texts=texts, folder=path.parent, encoder=encoder)


def _of_arrays(path: Path, side: Side) -> Stored | None:
    if path.suffix.lower() == ".npy":
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        starts = range(0, len(array), PIECE) if array.ndim == 2 else ()
        read = lambda: (torch.from_numpy(array[start : start + PIECE].astype(np.float32)) for start in starts)  # noqa: E731
        return Stored(_numbers(len(array)), array.shape[1], read, folder=path.parent) if array.ndim == 2 else None
    with np.load(path, allow_pickle=False) as file:
        key = next((name for name in NAMES if name in file.files), None)
        beside = {name: file[name] for name in ("ids", "labels", "names") if name in file.files}
        if key is None and "test_features" not in file.files:
            return None
    if key is None:
        return _of_parts([part for part in load_features(path) if len(part)], side)
    with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as opened:
        count, width = _header(opened)[:2]
    labels, names = labels_of(beside["labels"], beside.get("names")) if "labels" in beside else (None, ())
    ids = beside["ids"].astype(str).tolist() if "ids" in beside else _numbers(count)
    return Stored(ids, width, lambda: _read(path, key), labels, names, folder=path.parent)


def _of_parts(parts: Sequence[Features], side: Side) -> Stored:
    """Return the features of a run, of all its parts; of pairs those of one side, each input once."""
    parts = [of_side(part, side) for part in parts]
    vectors, ids = torch.cat([part.vectors for part in parts]), Ids.of([name for part in parts for name in part.ids])
    labels, names = None, ()
    if all(part.labels is not None for part in parts):
        labels, names = labels_of_column([one for part in parts for one in _words(part)])
    return replace(Stored.of(vectors, list(ids)), labels=labels, names=names)


def _words(part: Features) -> list[Any]:
    if part.label_kind == "classes":
        return [part.names[label] for label in part.classes.tolist()]
    return [[part.names[label] for label in row.nonzero().flatten().tolist()] for row in part.sets]


def _read(path: Path, key: str) -> Iterator[Tensor]:
    """Read the rows of an array in an .npz file, piece by piece, compressed or not."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
        count, width, dtype = _header(file)
        for start in range(0, count, PIECE):
            content = file.read(min(PIECE, count - start) * width * dtype.itemsize)
            yield torch.from_numpy(np.frombuffer(content, dtype).reshape(-1, width).astype(np.float32))


def _header(file: IO[bytes]) -> tuple[int, int, np.dtype[Any]]:
    """Read what an array is: its rows and columns, and their type."""
    first = npy.read_magic(file) == (1, 0)
    shape, by_column, dtype = (npy.read_array_header_1_0 if first else npy.read_array_header_2_0)(file)
    if len(shape) != 2 or by_column or dtype.kind != "f":
        raise ValueError(f"(N, D) of floats, row by row, is expected, not {shape} of {dtype}")
    return *shape, dtype


def _numbers(count: int) -> list[str]:
    return list(map(str, range(count)))
