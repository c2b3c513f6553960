"""Where the values of a column lie in a Parquet file, whose pages are neither compressed nor coded."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER = 2**14  # bytes in which the header of a page fits, with its statistics
_DATA, _DATA_2 = 0, 3  # kinds of pages
_PLAIN, _RUNS = 0, 3  # codes of values and of levels
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12  # types of Thrift's compact protocol
_INTEGERS = (4, 5, 6)


def places_in(path: str, first: int, end: int, levels: int) -> NDArray[np.int64]:
    """Return the offset of each value of a column chunk in its file, and its length, (n, 2); -1 of one that is null.

    Its pages lie from `first` to before `end`; one of another kind is a ValueError. `levels` counts what may be null:
    the column, and the structs that it is in.
    """
    import pyarrow as pa  # noqa: PLC0415 - only Parquet files need it

    places, at = list[tuple[int, int]](), first
    with pa.OSFile(path) as file:
        while at < end:
            try:
                header, length = _struct(file.read_at(min(HEADER, end - at), at), 0)
                begin, after = at + length, at + length + header[3]
                if header[1] == _DATA:
                    count, code, coded = (header[5][of] for of in (1, 2, 3))
                    size = int.from_bytes(file.read_at(4, begin), "little") if levels else 0
                    begin += 4 * bool(levels)
                elif header[1] == _DATA_2:
                    count, code, coded, size = (*(header[8][of] for of in (1, 4)), _RUNS, header[8][5])
                else:
                    raise ValueError(f"expected pages of values, got one of kind {header[1]}")
                if code != _PLAIN or coded != _RUNS:
                    raise ValueError(f"expected plain values, got code {code}")
                given = _runs(file.read_at(size, begin), levels.bit_length(), count) if levels else [0] * count
            except (IndexError, KeyError, TypeError) as error:
                raise ValueError("expected the header of a page") from error
            at = begin + size
            for level in given:
                if level < levels:
                    places.append((-1, -1))
                    continue
                length = int.from_bytes(file.read_at(4, at), "little")
                places.append((at + 4, length))
                at += 4 + length
            if at != after:
                raise ValueError(f"expected values to the end of the page, {after}, got {at}")
    return np.array(places, dtype=np.int64).reshape(-1, 2)


def _runs(data: bytes, width: int, count: int) -> list[int]:
    """Read so many small numbers, which are written as runs of one number or as groups of eight."""
    numbers, at = list[int](), 0
    while len(numbers) < count:
        head, at = _integer(data, at)
        size = (head >> 1) * width if head & 1 else (width + 7) // 8
        bits = int.from_bytes(data[at : at + size], "little")
        if head & 1:
            numbers += [bits >> width * place & (1 << width) - 1 for place in range((head >> 1) * 8)]
        else:
            numbers += [bits] * min(head >> 1, count)
        at += size
    return numbers[:count]


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Read an integer of as many bytes as it needs, and return it with where it ends."""
    value, shift = 0, 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Read a struct of Thrift's compact protocol: its fields by their numbers, and where it ends."""
    fields, number = dict[int, Any](), 0
    while head := data[at]:
        at, kind = at + 1, head & 15
        if head >> 4:
            number += head >> 4
        else:
            value, at = _integer(data, at)
            number = value >> 1 ^ -(value & 1)
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        elif kind in _INTEGERS:
            value, at = _integer(data, at)
            fields[number] = value >> 1 ^ -(value & 1)
        elif kind == _BINARY:
            length, at = _integer(data, at)
            at += length
        elif kind == _STRUCT:
            fields[number], at = _struct(data, at)
        elif kind in (_BYTE, _DOUBLE):
            at += 1 if kind == _BYTE else 8
        else:
            raise ValueError(f"expected the header of a page, got a field of type {kind}")
    return fields, at + 1
