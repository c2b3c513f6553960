"""Tables that are written some rows at a time: .csv, JSON lines or Parquet."""

import csv
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from likewise.files.detection import expanded, source_for
from likewise.files.formats import check_text
from likewise.runs.run import written_whole

ENDINGS = (".csv", ".jsonl", ".parquet")
SEPARATOR = ";"  # between labels in a cell of .csv
Write = Callable[[Mapping[str, Sequence[Any]]], None]
"""Writes the columns of some rows."""


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
    """Raise a ValueError where an output would overwrite what it is made from, or be read along with it next time."""
    source_path = expanded(str(source)).resolve()
    if path.exists() and path.resolve() == source_path:
        raise ValueError(f"expected an output beside the input, got {path} for both: name another")
    if source and source_path in path.resolve().parents and _has_tables(source_path):
        raise ValueError(f"expected --output outside of the tables that are read, got {path}: name another folder")


def label_cells(names: Sequence[str], labels: Tensor) -> list[Any]:
    """Return the name of each sample's class, or those of its labels."""
    if labels.ndim == 1:
        return [names[label] for label in labels.tolist()]
    return [[names[label] for label in row.nonzero().flatten().tolist()] for row in labels]


def _has_tables(folder: Path) -> bool:
    with suppress(ValueError):  # which reading it will say
        return source_for(folder)[0] in {"Table", "Text"} and not (folder / "run.json").is_file()
    return False


@contextmanager
def table_at(path: Path) -> Generator[Write]:
    """Give what writes the columns of some rows at a time; the file has its name once it is whole."""
    write_to = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}[path.suffix.lower()]
    with written_whole(path) as beside, write_to(beside) as write:
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
    from pyarrow import parquet  # noqa: PLC0415 - likewise

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
