"""Arrays of vectors and labels: reading files, memory-mapping large arrays, checks, and division into parts."""

import json
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likewise.data import Samples, Split
from likewise.data.arrays import labels_of, read_array, words_of
from likewise.evaluation.features import FeatureParts, Features, capped
from likewise.files.formats import PARTS

MIN_MAPPED_BYTES = 2**24  # of arrays mapped rather than read
TABLE_BATCH = 2**14  # rows of a table at a time
LOCAL_HEADER = 26  # offset of the lengths of name and extra field in a zip member's header
SUFFIXES = (".npz", ".npy", ".parquet")
NAMES = ("features", "embeddings", "vectors")
"""Names of the features in arrays and in table columns; the first one present counts."""
COLUMNS = {"id": "ids", "label": "labels", "part": "parts"}
"""The array names of table columns."""
READ_ERRORS = ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, AttributeError, TypeError, struct.error
MIN_SETS = 10  # with fewer label sets, a tenth rounds to none
Given = tuple[str, Any, str, Any]
"""The vectors and labels of a part, each after its name."""


def is_arrays(path: Path) -> bool:
    """Tell whether a path holds arrays: a file of them, or a folder of .npy or .parquet files other than a run."""
    return path.suffix.lower() in SUFFIXES or any(_in_folder(path))


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file or folder by their names, without running any code in it.

    - .npz: each array by its key. Uncompressed arrays of 16 MiB and more are memory-mapped.
    - .npy: its array as `features`. A folder of them: each by the file's name, without `.npy`.
    - .parquet, or a folder of such files: `features`, from a column of lists named features, embeddings or vectors, and
      `ids`, `labels` and `parts` from the columns id, label and part, as written by `likewise embed`.
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
    from pyarrow import parquet  # noqa: PLC0415 - as above

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
    from pyarrow import parquet  # noqa: PLC0415 - as above

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
    """Turn a library's error about an unreadable file into one line."""
    try:
        yield
    except READ_ERRORS as error:
        if str(error).startswith("expected "):
            raise
        table = path.suffix.lower() == ".parquet"
        remedy = "write it again with likewise embed" if table else "use numpy.savez, of plain arrays"
        raise ValueError(f"expected a file of arrays, got {path}, which can't be read: {remedy}") from error


def link_array(array: "np.memmap[Any, Any]", folder: Path) -> dict[str, NDArray[Any]]:
    """Link the file of a memory-mapped array into a folder instead of copying it, and return the array's location."""
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


def vectors_of(values: Any, name: str) -> NDArray[np.float32]:
    """Return vectors (N, D) in float32, or raise a ValueError with their name if they aren't vectors."""
    array = values if isinstance(values, np.memmap) else array_of(values, name)
    if array.ndim != 2 or array.dtype.kind not in "uifb":
        remedy = f": {name}.reshape(-1, 1) if it is one number a sample" if array.ndim == 1 else ""
        raise ValueError(f"expected {name} (N, D), numbers, got {array.shape} of {array.dtype}{remedy}")
    if array.shape[1] == 0:
        raise ValueError(f"expected {name} (N, D) with D of at least 1, got {array.shape}")
    if isinstance(array, np.memmap):
        return array  # read, and checked, row by row
    with np.errstate(over="ignore"):  # reported as infinity
        array = array.astype(np.float32, copy=False)
    wrong = int((~np.isfinite(array)).any(axis=1).sum())
    if wrong:
        raise ValueError(f"expected finite {name}, got NaN or infinity in {wrong} of {len(array)}: drop or mend them")
    return array


def gather_samples(arrays: Mapping[str, Given], names: Sequence[str] | None = None) -> Samples:
    """Check the arrays of parts, and join them, with classes numbered, or named, over all parts."""
    vectors = {part: vectors_of(x, name) for part, (name, x, _, _) in arrays.items()}
    labels = {part: _labels(y, name) for part, (_, _, name, y) in arrays.items()}
    first = next(iter(arrays))
    for part, (name, _, name_of_labels, _) in arrays.items():
        part_labels, count = labels[part], len(vectors[part])
        if part_labels.ndim == 0 or len(part_labels) != count or count == 0:
            got = "none" if part_labels.ndim == 0 or count == 0 else f"{len(part_labels)} labels"
            expected = f"expected samples in {name}, with a label of each in {name_of_labels}"
            raise ValueError(f"{expected}, got {count} samples and {got}: drop what has no partner")
        _check_like(vectors[part], name, vectors[first], arrays[first][0], "encode both with one encoder")
        _check_like(part_labels, name_of_labels, labels[first], arrays[first][2], "give both labels of one kind")
    every, named = labels_of(np.concatenate([*labels.values()]), None if names is None else np.array(names))
    parts = torch.cat([torch.full((len(array),), PARTS.index(part)) for part, array in vectors.items()])
    return Samples(torch.from_numpy(np.concatenate([*vectors.values()])), every, named, parts).numbered()


def three_parts(samples: Samples) -> FeatureParts:
    """Return the samples' own parts; a part without samples is empty."""
    return features_of_parts(_own_parts(samples))


def cut(samples: Samples, split: Split) -> list[Samples]:
    """Cut missing parts; parts with new test classes, unlabelled pairs, and test samples alone stay unchanged."""
    if samples.labels is None and samples.counterparts is not None:
        return _own_parts(samples)
    if samples.parts is not None and samples.labels is not None:
        three = _own_parts(samples)
        if samples.label_kind == "classes":
            train, _, test = (set(torch.as_tensor(part.labels).tolist()) for part in three)
            if not test <= train:
                return [part.compact() for part in three]
        elif len(three[2]) == len(samples):
            return three
    parts = split(samples)
    return [parts.train, parts.validation, parts.test]


def _own_parts(samples: Samples) -> list[Samples]:
    part_index = torch.zeros(len(samples), dtype=torch.int64) if samples.parts is None else samples.parts
    return [samples[part_index == number] for number in range(len(PARTS))]


def features_of_parts(parts: Sequence[Samples], most: int | None = None) -> FeatureParts:
    """Return the inputs of three parts as features, reading at most `most` of each."""
    some = zip(capped(parts, most), PARTS, strict=True)
    return FeatureParts(*(subsample.of(_features(subsample.samples, part)) for subsample, part in some))


def can_be_cut(samples: Samples) -> bool:
    """Return whether some training samples can be set aside for validation."""
    train = samples if samples.parts is None else samples[samples.parts == 0]
    if train.label_kind == "classes":
        return bool((train.counts > 1).any())
    return len(train) >= MIN_SETS


def _check_like(array: NDArray[Any], name: str, other: NDArray[Any], name_of_other: str, remedy: str) -> None:
    if array.shape[1:] != other.shape[1:]:
        theirs, ours = (str(("N", *values.shape[1:])).replace("'", "") for values in (other, array))
        raise ValueError(f"expected {name} like {name_of_other}, {theirs}, got {ours}: {remedy}")
    theirs, ours = ("words" if values.dtype.kind in "UST" else "numbers" for values in (other, array))
    if theirs != ours and "O" not in (other.dtype.kind, array.dtype.kind):
        raise ValueError(f"expected {name} like {name_of_other}, {theirs}, got {ours}: {remedy}")


def _features(samples: Samples, part: str) -> Features:
    inputs = samples.inputs
    inputs = inputs if isinstance(inputs, Tensor) else inputs[torch.arange(len(samples))]
    counterparts = None if samples.counterparts is None else _features(samples.counterparts, part)
    return Features.of(samples, inputs, part, counterparts=counterparts)


def array_of(values: Any, name: str) -> NDArray[Any]:
    """Return values as an array; a tensor without its gradient, from any device."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    try:
        return np.asarray(values)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"expected {name} as one array, got rows of different lengths: pad or drop some") from error


def _labels(values: Any, name: str) -> NDArray[Any]:
    array = array_of(values, name)
    if array.ndim == 2 and array.shape[1] == 1:
        raise ValueError(f"expected {name} (N,), or of several labels (N, L), got {array.shape}: {name}.ravel() is one")
    if array.dtype.kind == "O" and all(isinstance(value, str | bytes | int) for value in array.ravel().tolist()):
        array = np.asarray(array.tolist())
    return words_of(array, name) if array.dtype.kind == "S" else array
