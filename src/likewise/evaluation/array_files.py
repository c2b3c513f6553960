"""Arrays in files, by name, with large uncompressed ones memory-mapped."""

import json
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likewise.data.arrays import read_array

MIN_MAPPED_BYTES = 2**24  # of an array that is mapped rather than read
TABLE_BATCH = 2**14  # rows of a table at a time
LOCAL_HEADER = 26  # offset, in the header of a zip member, of the lengths of its name and extra field
SUFFIXES = (".npz", ".npy", ".parquet")
NAMES = ("features", "embeddings", "vectors")
"""Names of features among arrays and among the columns of a table: the first that is present counts."""
COLUMNS = {"id": "ids", "label": "labels", "part": "parts"}
"""The names that the columns of a table get as arrays."""
READ_ERRORS = ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, AttributeError, TypeError, struct.error


def is_arrays(path: Path) -> bool:
    """Tell whether there are arrays at a path: a file of them, or a folder of .npy or .parquet files and no run."""
    return path.suffix.lower() in SUFFIXES or any(_in_folder(path))


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file or folder by their names; nothing in it runs.

    - .npz: each array by its key. Those of 16 MiB and more that are not compressed are mapped.
    - .npy: its array as `features`. A folder of them: each by the file's name, without `.npy`.
    - .parquet, or a folder of such files: `features`, from a column of lists that is called so, or embeddings or
      vectors, and `ids`, `labels` and `parts` from the columns id, label and part, as `likewise embed` writes them.
    """
    if not path.exists():
        raise ValueError(f"expected an .npz file, got {path}, which does not exist: check the path")
    files = _in_folder(path) or [path]
    if files[0].suffix.lower() == ".parquet":
        return _of_tables(files)
    if path.is_dir():
        return {file.stem: next(iter(_read_array_file(file).values())) for file in files}
    return _read_array_file(path)


def _in_folder(path: Path) -> list[Path]:
    """Return the array files in a folder, of one format, sorted by name; none in a run's folder."""
    if not path.is_dir() or (path / "run.json").exists():
        return []
    return sorted(path.glob("*.npy")) or sorted(path.glob("*.parquet"))


def _read_array_file(path: Path) -> dict[str, NDArray[Any]]:
    with _explain_errors(path):
        if path.suffix.lower() == ".npy":
            return {"features": np.load(path, mmap_mode="c", allow_pickle=False)}
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            if isinstance(file, np.ndarray):
                return {"features": file}
            members = {info.filename.removesuffix(".npy"): info for info in file.zip.infolist()}
            mapped = {key: _mapped(path, members[key]) for key in file.files}
            return {key: read_array(file, key) if array is None else array for key, array in mapped.items()}


def _mapped(path: Path, member: zipfile.ZipInfo) -> "np.memmap[Any, Any] | None":
    """Map a large array of an .npz file; None if it is small, compressed, or in Fortran order."""
    if member.compress_type != zipfile.ZIP_STORED or member.file_size < MIN_MAPPED_BYTES:
        return None
    with path.open("rb") as file:
        file.seek(member.header_offset + LOCAL_HEADER)
        file.seek(sum(struct.unpack("<HH", file.read(4))), 1)
        version = np.lib.format.read_magic(file)
        head = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = head(file)
        if fortran or dtype.hasobject:
            return None
        return np.memmap(path, dtype, "c", file.tell(), shape)


def _of_tables(files: list[Path]) -> dict[str, NDArray[Any]]:
    import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`
    from pyarrow import parquet  # noqa: PLC0415 - likewise

    with _explain_errors(files[0]):
        widths = {width_of_table(file) for file in files}
        if len(widths) > 1 or None in widths:
            columns = ", ".join(parquet.read_schema(files[0]).names)
            got = f"columns {columns} in {files[0].name}: likewise embed writes such files"
            raise ValueError(f"expected a column 'features' of lists of one length in {files[0].parent}, got {got}")
        count = sum(parquet.read_metadata(file).num_rows for file in files)
        features, done = np.empty((count, next(iter(widths)) or 0), np.float32), 0
        for some in (some for file in files for some in feature_batches(file, TABLE_BATCH)):
            features[done : done + len(some)] = some
            done += len(some)
        named = [name for name in COLUMNS if name in parquet.read_schema(files[0]).names]
        beside = pa.concat_tables([parquet.read_table(file, columns=named) for file in files])
        arrays = {COLUMNS[name]: beside[name].to_pylist() for name in named}
        return {"features": features} | _convert_columns(arrays, files[0])


def width_of_table(path: Path) -> int | None:
    """Return the length of the features in a Parquet file; None if it has none."""
    from pyarrow import parquet  # noqa: PLC0415 - comes with `datasets`

    if (name := _read_feature_column(path)) is None:
        return None
    with parquet.ParquetFile(path) as file:
        column_type: Any = file.schema_arrow.field(name).type
        if hasattr(column_type, "list_size"):
            return column_type.list_size
        first = next(file.iter_batches(1, columns=[name]), None)
        return len(first.column(0)[0] or ()) or None if first is not None else None


def _read_feature_column(path: Path) -> str | None:
    import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`
    from pyarrow import parquet  # noqa: PLC0415 - likewise

    schema: Any = parquet.read_schema(path)
    for name in (name for name in NAMES if name in schema.names):
        dtype = getattr(schema.field(name).type, "value_type", None)
        if dtype and (pa.types.is_floating(dtype) or pa.types.is_integer(dtype)):
            return name
    return None


def feature_batches(path: Path, size: int) -> Iterator[NDArray[np.float32]]:
    """Yield the features in a Parquet file, `size` rows at a time, (n, D), or raise a ValueError if some are absent."""
    from pyarrow import parquet  # noqa: PLC0415 - comes with `datasets`

    width, name = width_of_table(path) or 0, _read_feature_column(path)
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(size, columns=[name]):
            column = batch.column(0)
            lengths = column.value_lengths().unique().to_pylist()
            if column.null_count or column.values.null_count:
                raise ValueError(f"expected a feature of each sample, got an empty cell in {path}: embed it again")
            if lengths != [width]:
                raise ValueError(f"expected features of one length in {path}, got {lengths[:3]}: embed all anew")
            values = column.flatten().to_numpy(zero_copy_only=False)
            yield values.reshape(len(batch), width).astype(np.float32)


def _convert_columns(columns: dict[str, list[Any]], path: Path) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for name, values in columns.items():
        if None in values:
            raise ValueError(f"expected {name} without empty cells in {path}, got some: drop the samples that lack one")
        if values and isinstance(values[0], list):
            from sklearn.preprocessing import MultiLabelBinarizer  # noqa: PLC0415 - for label sets only

            sets = MultiLabelBinarizer()
            arrays[name] = np.asarray(sets.fit_transform(values), dtype=bool)
            arrays["names"] = np.asarray(sets.classes_, dtype=str)
        else:
            arrays[name] = np.array(values)
    return arrays


@contextmanager
def _explain_errors(path: Path) -> Generator[None]:
    """Turn a library's error about a file that it can't read into one line."""
    try:
        yield
    except READ_ERRORS as error:
        if str(error).startswith("expected "):
            raise
        table = path.suffix.lower() == ".parquet"
        remedy = "write it again with likewise embed" if table else "use numpy.savez, of plain arrays"
        raise ValueError(f"expected a file of arrays, got {path}, which can't be read: {remedy}") from error


def link_array(array: "np.memmap[Any, Any]", folder: Path) -> dict[str, NDArray[Any]]:
    """Link the file of a memory-mapped array into a folder instead of copying it, and say where the array lies."""
    file = Path(str(array.filename)).absolute()
    beside = folder / f"vectors{file.suffix}"
    beside.unlink(missing_ok=True)
    try:
        beside.hardlink_to(file)
    except OSError:  # on another disk, or not allowed
        beside.symlink_to(file)
    about = beside.stat()
    link = {"file": beside.name, "dtype": array.dtype.str, "shape": array.shape, "offset": array.offset}
    return {"linked": np.array(json.dumps(link | {"size": about.st_size, "changed": about.st_mtime_ns}))}


def map_linked(link: NDArray[Any], folder: Path) -> "np.memmap[Any, Any]":
    """Map the array that `link_array` described, or raise a ValueError if its file is gone or has changed."""
    facts = json.loads(str(link))
    file = folder / facts["file"]
    if not file.is_file():
        raise ValueError(f"expected the vectors of {folder} in {file}, which is not there: evaluate their file again")
    about = file.stat()
    if (about.st_size, about.st_mtime_ns) != (facts["size"], facts["changed"]):
        raise ValueError(f"expected {file} as it was evaluated, got another: evaluate their file again")
    return np.memmap(file, np.dtype(facts["dtype"]), "c", facts["offset"], tuple(facts["shape"]))
