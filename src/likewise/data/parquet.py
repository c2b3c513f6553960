"""Tables in Parquet files whose images stay where they are: an image is read from its place when it is asked for."""

import warnings
from bisect import bisect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from likewise.data import columns
from likewise.data.pages import places_in
from likewise.data.tars import content_of
from likewise.files import folders

MOST_HELD = 2**28  # bytes of row groups that a process holds
MOST_READ = 2**26  # bytes of one that may be read for one image without a word


class Chunk(NamedTuple):
    """The images of a row group."""

    file: str
    column: str
    nested: bool
    """Whether the column has structs of bytes and path."""
    group: int
    row: int
    """The number of its first row in the file."""
    rows: int
    size: int
    """Its bytes, when they are not compressed."""
    nulls: bool
    """Whether it may have values that are null."""
    pages: tuple[int, int, int] | None
    """What `places_in` needs to know; None where pages are compressed or coded."""


@final
class Contents:
    """The contents of images in Parquet files, numbered through all row groups, and read in place.

    Where pages are neither compressed nor coded, as `datasets` writes images today, an image is read at its offset,
    which is found when the first of its row group is asked for. Otherwise its row group is read, and held.

    Memory:
        16 bytes an image, and of row groups that are read up to 256 MiB and one more, in each process.
    """

    def __init__(self) -> None:
        self.chunks, self.starts = list[Chunk](), [0]
        self._places = dict[int, NDArray[np.int64] | None]()
        self.held = dict[int, Any]()
        self._size, self._alone = 0, Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_alone"} | {"held": {}, "_size": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _alone=Lock())

    def add(self, chunk: Chunk) -> NDArray[np.bool_]:
        """Number the images of one more row group, and return which are null."""
        at = len(self.chunks)
        self.chunks.append(chunk)
        self.starts.append(self.starts[-1] + chunk.rows)
        places = self.placed(at) if chunk.nulls else np.zeros((chunk.rows, 1))
        return self._group(at).is_null().to_numpy() if places is None else places[:, 0] < 0

    def __getitem__(self, number: int) -> bytes | None:
        """Read an image; None if it is null, or its row group cannot be read."""
        at = bisect(self.starts, number) - 1
        row = number - self.starts[at]
        try:
            places = self.placed(at)
            if places is None:
                with self._alone:  # headers are read by threads
                    group = self._group(at)
                return group[row].as_py()
            offset, length = places[row].tolist()
            return None if offset < 0 else content_of(Path(self.chunks[at].file), offset, length)
        except (OSError, ValueError, IndexError, NotImplementedError):  # pyarrow's errors are of these
            return None

    def place(self, number: int) -> str:
        """Return where an image is, as `headers_of` takes it: its file, NUL, its column and row."""
        at = bisect(self.starts, number) - 1
        chunk = self.chunks[at]
        return f"{chunk.file}\0{chunk.column}/{chunk.row + number - self.starts[at]}"

    def placed(self, at: int) -> NDArray[np.int64] | None:
        """Return the places of a row group's images, or None if it has to be read."""
        chunk = self.chunks[at]
        if chunk.pages is not None and at not in self._places:
            try:
                places = places_in(chunk.file, *chunk.pages)
            except ValueError:
                places = None
            self._places[at] = None if places is None or len(places) != chunk.rows else places
        return self._places.get(at)

    def warn(self) -> None:
        """Say so where much is to be read for an image in random order."""
        slow = [chunk for chunk in self.chunks if chunk.pages is None]
        largest = max(slow, key=lambda chunk: chunk.size, default=None)
        if largest is not None and largest.size > MOST_READ and sum(chunk.size for chunk in slow) > MOST_HELD:
            warnings.warn(
                f"images of {largest.file} are in compressed or coded row groups of up to {largest.size >> 20:,} MiB, "
                "each of which is read for one image in random order: write it with pyarrow.parquet.write_table(table, "
                'file, compression="none", use_dictionary=False)',
                stacklevel=2,
            )

    def _group(self, at: int) -> Any:
        """Return the images of a row group; of those that were read, the last are held."""
        from pyarrow import compute as typed  # noqa: PLC0415 - only Parquet files need it
        from pyarrow import parquet  # noqa: PLC0415 - likewise

        compute: Any = typed  # its functions are made at import
        held = self.held.pop(at, None)
        if held is None:
            chunk = self.chunks[at]
            with parquet.ParquetFile(chunk.file, pre_buffer=False) as file:
                leaf = f"{chunk.column}.bytes" if chunk.nested else chunk.column
                held = file.read_row_group(chunk.group, columns=[leaf], use_threads=False).column(chunk.column)
            held = compute.struct_field(held, "bytes") if chunk.nested else held
            self._size += held.nbytes
        self.held[at] = held
        while self._size > MOST_HELD and len(self.held) > 1:
            self._size -= self.held.pop(next(iter(self.held))).nbytes
        return held


@final
class Columns:
    """The columns of a part in Parquet files, each read when it is asked for; of a row group, the last are held."""

    def __init__(self, data: Any, features: Any, *, held: bool = False) -> None:
        self.data, self.features, self.held = data, features, held
        self.rows = sum(group.num_rows for file in data.get_fragments() for group in file.row_groups)

    def __len__(self) -> int:
        return self.rows

    @property
    def groups(self) -> "list[Columns]":
        """The row groups, one by one."""
        from pyarrow.dataset import FileSystemDataset  # noqa: PLC0415 - only Parquet files need it

        data, pieces = self.data, [piece for file in self.data.get_fragments() for piece in file.split_by_row_group()]
        each = (FileSystemDataset([piece], data.schema, data.format, data.filesystem) for piece in pieces)
        return [Columns(piece, self.features, held=True) for piece in each]

    def select_columns(self, names: Sequence[str]) -> Any:
        """Read some columns."""
        return (_last_read if self.held else _read)(self, tuple(names))


def _read(of: Columns, names: tuple[str, ...]) -> Any:
    import datasets  # noqa: PLC0415 - only sets that the library reads need it
    from datasets.table import table_cast  # noqa: PLC0415 - comes with it

    features = datasets.Features({name: of.features[name] for name in names})
    try:
        table = table_cast(of.data.to_table(columns=list(names)), features.arrow_schema)
    except (OSError, ValueError) as error:
        raise ValueError(f"expected columns {', '.join(names)} of a Parquet file, got {error}: repair it") from error
    return datasets.Dataset(table, fingerprint=f"{names}")


_last_read = lru_cache(maxsize=1)(_read)


def columns_of(part: str, files: Sequence[Path]) -> Columns:
    """Return the columns of a part, of the types that they have in its first file."""
    import datasets  # noqa: PLC0415 - only sets that the library reads need it
    from pyarrow import dataset  # noqa: PLC0415 - comes with it

    data = dataset.dataset([str(file) for file in files], format="parquet")
    found = Columns(data, datasets.Features.from_arrow_schema(data.schema))
    if odd := next((of for of in data.get_fragments() if {*of.physical_schema.names} != {*found.features}), None):
        got = ", ".join(odd.physical_schema.names)
        raise folders.RefusedError(f"expected the columns {', '.join(found.features)} in {odd.path}, got {got}")
    if not len(found):
        raise folders.empty(part, files[0])
    return found


def read_in_place(parts: Mapping[str, Sequence[Path]]) -> tuple[dict[str, Any], Contents] | None:
    """Read all columns but images' bytes, in whose place numbers are; None if the first part has no such images."""
    import datasets  # noqa: PLC0415 - only sets that the library reads need it
    import pyarrow as pa  # noqa: PLC0415 - comes with it
    from datasets.table import table_cast  # noqa: PLC0415 - likewise
    from pyarrow import parquet  # noqa: PLC0415 - likewise

    contents, read = Contents(), dict[str, Any]()
    for part, files in parts.items():
        schema = parquet.read_schema(files[0])
        features = datasets.Features.from_arrow_schema(schema)
        images = [name for name, of in features.items() if columns.kind_of(of) == "images" and _has(schema, name)]
        if not images and not read:
            return None
        numbered = {"bytes": datasets.Value("int64"), "path": datasets.Value("string")}
        schema = datasets.Features(features | dict.fromkeys(images, numbered)).arrow_schema
        table = pa.concat_tables([table_cast(_table(file, images, contents), schema) for file in files])
        if not len(table):
            raise folders.empty(part, files[0])
        read[part] = datasets.Dataset(table, fingerprint=part)
    return read, contents


def _has(schema: Any, name: str) -> bool:
    """Tell whether a column has images' bytes, alone or in a struct beside a path."""
    import pyarrow as pa  # noqa: PLC0415 - only Parquet files need it

    of: Any = schema.field(name).type if name in schema.names else None
    content, text = (pa.binary(), pa.large_binary()), (pa.string(), pa.large_string())
    if of is None or not pa.types.is_struct(of):
        return of in content
    kinds = {field.name: field.type for field in of}
    return kinds.keys() == {"bytes", "path"} and kinds["bytes"] in content and kinds["path"] in text


def _table(path: Path, images: Sequence[str], contents: Contents) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - only Parquet files need it
    from pyarrow import parquet  # noqa: PLC0415 - likewise

    with parquet.ParquetFile(path, pre_buffer=False) as file:
        if lost := [name for name in images if not _has(file.schema_arrow, name)]:
            raise ValueError(f"{path} has no images in column {lost[0]!r}, as other files of its part do")
        nested = {name: pa.types.is_struct(file.schema_arrow.field(name).type) for name in images}
        others = [name for name in file.schema_arrow.names if name not in nested]
        table = file.read([*others, *(f"{name}.path" for name in images if nested[name])])
        made = {name: table.column(name) for name in others}
        for name in images:
            start, chunks = contents.starts[-1], _chunks(str(path), file.metadata, name, nested=nested[name])
            lacks = np.concatenate([np.zeros(0, dtype=bool), *map(contents.add, chunks)])
            numbers = pa.array(np.arange(start, contents.starts[-1]), mask=lacks)
            paths, none = pa.nulls(len(numbers), pa.string()), lacks
            if nested[name]:
                structs = table.column(name).combine_chunks()
                none, paths = structs.is_null().to_numpy(zero_copy_only=False), structs.field("path").cast(pa.string())
            made[name] = pa.StructArray.from_arrays([numbers, paths], ["bytes", "path"], mask=pa.array(none))
    return pa.table(made)


def _chunks(path: str, metadata: Any, column: str, *, nested: bool) -> list[Chunk]:
    leaf = f"{column}.bytes" if nested else column
    names = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    number, row, found = names.index(leaf), 0, list[Chunk]()
    levels = metadata.schema.column(number).max_definition_level
    for group in range(metadata.num_row_groups):
        of = metadata.row_group(group).column(number)
        plain = of.compression == "UNCOMPRESSED" and not of.has_dictionary_page
        first = of.data_page_offset
        pages = (first, first + of.total_compressed_size, levels) if plain else None
        known = of.statistics
        nulls = levels > 0 and (known is None or not known.has_null_count or known.null_count > 0)
        rows = metadata.row_group(group).num_rows
        found.append(Chunk(path, column, nested, group, row, rows, of.total_uncompressed_size, nulls, pages))
        row += rows
    return found
