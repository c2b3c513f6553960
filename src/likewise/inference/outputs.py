"""Files written some rows at a time: tables, and features in shards that are finally joined into one file."""

import csv
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from likewise.data import Samples, Texts
from likewise.evaluation.encoding import Piece
from likewise.files.detection import expanded, source_for
from likewise.files.formats import PARTIAL_SUFFIX, PARTS, check_text
from likewise.runs import fsync
from likewise.runs.run import atomic_write

ENDINGS = (".csv", ".jsonl", ".parquet")
SEPARATOR = ";"  # between labels in a cell of .csv
FACTS = "likewise"
"""The key of a file's metadata."""
TEXT = "input"
"""The column of texts; a column called text would be an input of training."""
MANIFEST = "manifest.json"
DTYPES = {"float32": torch.float32, "float16": torch.float16}
Write = Callable[[Mapping[str, Sequence[Any]]], None]
"""A function that writes the columns of some rows."""


def check_output(path: Path, endings: Sequence[str] = ENDINGS, *, force: bool = False) -> None:
    """Raise a ValueError unless a table, or a file of another ending, can be written there."""
    if path.suffix.lower() not in endings:
        got = path if path.name else "none"
        raise ValueError(f"expected --output of {' or '.join(endings)}, got {got}: name a file")
    if path.suffix.lower() not in {".csv", ".jsonl"}:
        check_text(path)
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"whose folder {path.parent} does not exist"
        raise ValueError(f"expected a file to write, got {path}, which {what}")
    if path.exists() and not force:
        raise ValueError(f"expected an output that does not exist, got {path}: name another, or --force replaces it")


def check_apart(path: Path, source: Any) -> None:
    """Raise a ValueError if an output would overwrite its source, or be read along with it next time."""
    source_path = expanded(str(source)).resolve()
    if path.exists() and path.resolve() == source_path:
        raise ValueError(f"expected an output beside the input, got {path} for both: name another")
    if source and source_path in path.resolve().parents and _has_tables(source_path):
        raise ValueError(f"expected --output outside of the tables that are read, got {path}: name another folder")


def label_cells(names: Sequence[str], labels: Tensor) -> list[Any]:
    """Return the name of each sample's class, or the names of its labels."""
    if labels.ndim == 1:
        return [names[label] for label in labels.tolist()]
    return [[names[label] for label in row.nonzero().flatten().tolist()] for row in labels]


def _has_tables(folder: Path) -> bool:
    with suppress(ValueError):  # reading it will report that
        return source_for(folder)[0] in {"Table", "Text"} and not (folder / "run.json").is_file()
    return False


@contextmanager
def table_at(path: Path) -> Generator[Write]:
    """Yield a function that writes the columns of some rows; the file gets its name once complete."""
    write_to = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}[path.suffix.lower()]
    with atomic_write(path) as beside, write_to(beside) as write:
        yield write


@contextmanager
def _csv(path: Path) -> Generator[Write]:
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")

        def write(columns: Mapping[str, Sequence[Any]]) -> None:
            if file.tell() == 0:
                writer.writerow(columns)
            writer.writerows([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))

        yield write


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return SEPARATOR.join(str(_cell(entry)) for entry in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return f"{value:.6g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else value


@contextmanager
def _json_lines(path: Path) -> Generator[Write]:
    with path.open("w", encoding="utf-8") as file:

        def write(columns: Mapping[str, Sequence[Any]]) -> None:
            rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
            file.writelines(json.dumps(row) + "\n" for row in rows)

        yield write


@contextmanager
def _parquet(path: Path) -> Generator[Write]:
    import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`
    from pyarrow import parquet  # noqa: PLC0415 - as above

    writers: list[Any] = []
    lists = {"labels": pa.list_(pa.string()), "probability": pa.list_(pa.float64()), "score": pa.list_(pa.float64())}

    def write(columns: Mapping[str, Sequence[Any]]) -> None:
        of_lists = {name for name, values in columns.items() if any(isinstance(value, list) for value in values)}
        kinds = {name: lists.get(name, pa.list_(pa.string())) for name in of_lists}
        made = pa.table({name: pa.array(values, kinds.get(name)) for name, values in columns.items()})
        if not writers:
            writers.append(parquet.ParquetWriter(path, made.schema))
        writers[0].write_table(made.cast(writers[0].schema))

    try:
        yield write
        if not writers:
            parquet.write_table(pa.table({"id": pa.array([], pa.string())}), path)
    finally:
        for writer in writers:
            writer.close()


@final
class EmbeddingShards:
    """The shards of a file of features, .parquet or .npz, in a folder next to it, each complete or absent.

    `facts` describe the origin of the features: existing shards must have the same facts, unless begun `anew`.
    """

    def __init__(
        self, output: Path, samples: Samples, facts: Mapping[str, Any], *, size: int, width: int, dtype: str, anew: bool
    ) -> None:
        self.output, self.samples, self.size, self.width, self.dtype = output, samples, size, width, dtype
        self.folder = output.with_name(output.name + PARTIAL_SUFFIX)
        names = hashlib.blake2b(digest_size=16)
        for name in samples.ids:
            names.update(f"{name}\n".encode(errors="surrogatepass"))
        labels = hashlib.blake2b(digest_size=16)
        for tensor in (samples.labels, samples.parts):
            labels.update(b"" if tensor is None else tensor.numpy().tobytes())
        known = {**facts, "samples": len(samples), "ids": names.hexdigest(), "labelling": labels.hexdigest()}
        known |= {"width": width, "normalised": False}
        self.metadata = {**known, "dtype": dtype, "shard_size": size, "names": list(samples.names)}
        self._begin_or_go_on(anew)

    def _begin_or_go_on(self, anew: bool) -> None:
        manifest = self.folder / MANIFEST
        before = json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else {}
        now = json.loads(json.dumps(self.metadata))
        other = next((name for name in now if before.get(name) != now[name]), None)
        if before and other and not anew:
            expected = f"expected in {self.folder} what was begun with the same encoder, data and options"
            remedy = "remove the folder, or begin anew with --force"
            raise ValueError(f"{expected}, got another {other.replace('_', ' ')}: {remedy}")
        if other:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            with atomic_write(manifest) as path:
                path.write_text(json.dumps(self.metadata, indent=2), encoding="utf-8")

    def _file(self, shard: range) -> Path:
        return self.folder / f"{shard.start:012}.parquet"

    @property
    def all(self) -> list[range]:
        """The rows of each shard."""
        rows = range(len(self.samples))
        return [rows[start : start + self.size] for start in range(0, len(rows), self.size)]

    @property
    def left(self) -> list[range]:
        """The rows of each missing shard."""
        return [shard for shard in self.all if not self._file(shard).is_file()]

    def write(self, shard: range, pieces: Sequence[Piece]) -> None:
        """Write a shard; raise a ValueError if a feature isn't finite in the dtype of the file."""
        import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`
        from pyarrow import parquet  # noqa: PLC0415 - as above

        rows = torch.cat([piece.rows for piece in pieces])
        features = torch.cat([piece.features for piece in pieces]).to(DTYPES[self.dtype])
        wrong = (~torch.isfinite(features).all(dim=1)).nonzero().flatten()
        if len(wrong):
            name = next(iter(self.samples.ids[rows[wrong[:1]]]))
            remedy = "check its input" if self.dtype == "float32" else "check its input, or leave out --dtype"
            raise ValueError(f"expected finite features of {self.dtype}, got others of {name}: {remedy}")
        lists = pa.FixedSizeListArray.from_arrays(pa.array(features.numpy().ravel()), self.width)
        columns = {"id": pa.array(list(self.samples.ids[rows]), pa.string()), "features": lists}
        if self.samples.labels is not None:
            label_type = pa.string() if self.samples.label_kind == "classes" else pa.list_(pa.string())
            columns["label"] = pa.array(label_cells(self.samples.names, self.samples.labels[rows]), label_type)
        if self.samples.parts is not None:
            columns["part"] = pa.array([PARTS[number] for number in self.samples.parts[rows].tolist()], pa.string())
        lost = {item: name for piece in pieces for item, name in piece.lost.items()}
        table = pa.table(columns).replace_schema_metadata({FACTS: json.dumps(lost)})
        with atomic_write(self._file(shard)) as path:
            parquet.write_table(table, path)

    @property
    def lost(self) -> dict[int, str]:
        """The unreadable files, by their numbers in the source."""
        from pyarrow import parquet  # noqa: PLC0415 - comes with `datasets`

        metadata = (parquet.read_schema(self._file(shard)).metadata or {} for shard in self.all)
        return {int(item): name for footer in metadata for item, name in json.loads(footer[FACTS.encode()]).items()}

    def join(self) -> None:
        """Join all shards into one file, a shard at a time, named once it is complete, and remove their folder."""
        beside = self.folder / f"whole{self.output.suffix}"
        {".parquet": self._as_table, ".npz": self._as_arrays}[self.output.suffix.lower()](beside)
        fsync(beside)
        beside.replace(self.output)
        fsync(self.output.absolute().parent)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tables(self, *columns: str) -> Iterator[Any]:
        from pyarrow import parquet  # noqa: PLC0415 - comes with `datasets`

        for shard in self.all:
            yield parquet.read_table(self._file(shard), columns=list(columns) or None, memory_map=False)

    def _as_table(self, path: Path) -> None:
        import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`
        from pyarrow import parquet  # noqa: PLC0415 - as above

        schema = parquet.read_schema(self._file(self.all[0])).with_metadata({FACTS: json.dumps(self.metadata)})
        texts = self.samples.inputs.strings if isinstance(self.samples.inputs, Texts) else None
        schema = schema if texts is None else schema.append(pa.field(TEXT, pa.string()))
        with parquet.ParquetWriter(path, schema) as writer:
            for shard, table in zip(self.all, self._tables(), strict=True):
                beside = () if texts is None else (pa.array(texts[shard.start : shard.stop], pa.string()),)
                writer.write_table(pa.table([*table.columns, *beside], schema=schema))

    def _as_arrays(self, path: Path) -> None:
        ids = [np.array(table["id"].to_pylist() or [""]).dtype.itemsize for table in self._tables("id")]
        count = sum(len(table) for table in self._tables("id"))
        index = {name: number for number, name in enumerate(self.samples.names)}
        with zipfile.ZipFile(path, "w") as archive:

            def put(name: str, dtype: Any, shape: Sequence[int], blocks: Iterable[Any]) -> None:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    head = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False}
                    np.lib.format.write_array_header_1_0(file, {**head, "shape": (count, *shape)})
                    for block in blocks:
                        file.write(np.ascontiguousarray(block, dtype).tobytes())

            def values(column: str) -> Iterator[list[Any]]:
                return (table[column].to_pylist() for table in self._tables(column))

            put("ids", f"<U{max(ids) // 4}", (), values("id"))
            flat = (table["features"].combine_chunks().flatten() for table in self._tables("features"))
            put("features", self.dtype, (self.width,), (array.to_numpy(zero_copy_only=False) for array in flat))
            if self.samples.label_kind == "classes":
                put("labels", np.int64, (), ([index[name] for name in some] for some in values("label")))
            elif index:
                sets = ([[name in row for name in index] for row in some] for some in values("label"))
                put("labels", np.bool_, (len(index),), sets)
            if self.samples.parts is not None:
                put("parts", f"<U{max(map(len, PARTS))}", (), values("part"))
            if index:
                names = np.array(list(index))
                with archive.open("names.npy", "w") as file:
                    np.lib.format.write_array(file, names)


def state_of(samples: Samples, source: str | Path | None, output: Path) -> str | None:
    """Return a digest of the sizes and modification times of a source's files, except the output."""
    if source is None or not Path(source).expanduser().exists():
        return None
    root, written = Path(source).expanduser(), str(output.absolute())
    folder = root if root.is_dir() else root.parent
    digest, count = hashlib.blake2b(digest_size=16), 0
    named = () if samples.preprocessing is None or samples.ids.plain else samples.ids
    for file in chain((str(root),), (f"{folder}{os.sep}{name}" for name in named)):
        if os.path.isfile(file):  # noqa: PTH113 - there may be millions
            digest.update(_state(file))
            count += 1
    if not count:
        for file in sorted(file for file in root.rglob("*") if file.is_file()):
            if not str(file.absolute()).startswith(written):
                digest.update(str(file).encode(errors="surrogatepass") + _state(file))
    return digest.hexdigest()


def _state(file: str | Path) -> bytes:
    about = os.stat(file)  # noqa: PTH116 - as above
    return f" {about.st_size} {about.st_mtime_ns}\n".encode()
