"""The samples in tars, as WebDataset names them: where each of their files begins."""

import glob
import re
import tarfile
from pathlib import Path
from typing import NamedTuple

from likewise.files.detection import expanded, near

PACKED_SUFFIXES = (".gz", ".tgz", ".bz2", ".xz", ".zst")
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
NAME = re.compile(r"(?:\./)?((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)  # a sample's name ends at the first dot
BLOCK = 512  # bytes of a header, and of what ends a tar


class Sample(NamedTuple):
    """A sample in a tar: its name, and of each kind of file where it begins and how long it is, in bytes."""

    key: str
    files: dict[str, tuple[int, int]]


def tars_at(path: str) -> list[Path]:
    """Return the tars at a path: one, those in a folder, or those of a pattern such as train-{000..099}.tar."""
    where = expanded(path)
    numbered = RANGE.search(path)
    if where.is_dir():
        tars = sorted(file for file in where.iterdir() if ".tar" in file.name or file.suffix in PACKED_SUFFIXES)
        tars = [file for file in tars if not file.name.startswith(".") and file.is_file()]
    elif numbered and not where.exists():
        first, last = numbered[1], numbered[2]
        names = (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
        tars = [expanded(f"{path[: numbered.start()]}{name}{path[numbered.end() :]}") for name in names]
        missing = [file for file in tars if not file.is_file()]
        if missing:
            got = f"{len(tars) - len(missing):,}: {missing[0]} does not exist"
            raise ValueError(f"expected {len(tars):,} tars, {path}, got {got}")
    else:
        tars = [where] if where.is_file() else sorted(map(Path, glob.glob(str(where))))  # noqa: PTH207 - of any root
    if not tars:
        remedy = "give a folder, a file, or a pattern in quotation marks"
        remedy += near(where) if not glob.has_magic(path) and not numbered else ""
        raise ValueError(f"expected tars, got {path}, where there are none: {remedy}")
    if packed := next((file for file in tars if file.suffix in PACKED_SUFFIXES), None):
        raise ValueError(f"expected tars that are not compressed, got {packed}: unpack it with gunzip or the like")
    return tars


def samples_in(path: Path) -> list[Sample]:
    """Return the samples of a tar: files that share a name up to its first dot, no two with the same suffix."""
    samples, latest = list[Sample](), dict[str, Sample]()
    try:
        with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
            while (member := tar.next()) is not None:
                named = NAME.fullmatch(member.name)
                if named is None or not member.isreg() or member.issparse():
                    continue
                key, suffix = named[1], named[2].lower()
                if key not in latest or suffix in latest[key].files:
                    latest[key] = Sample(key, {})
                    samples.append(latest[key])
                latest[key].files[suffix] = member.offset_data, member.size
            end = tar.offset  # what cannot be read as a header ends a tar, too
        with path.open("rb") as file:
            file.seek(end)
            if any(file.read(BLOCK)):
                raise tarfile.ReadError(f"no header at byte {end:,}")
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        whole = f"whole up to {samples[-1].key!r}" if samples else "which can't be read as one"
        raise ValueError(f"expected a tar, got {path}, {whole}: {error}: copy it again") from error
    return samples


def read_content(path: Path, offset: int, length: int) -> bytes:
    """Read a part of a file; an OSError says that it is not there, or shorter."""
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        content = file.read(length)
    if len(content) < length:
        raise OSError(f"{path} ends within what begins at byte {offset:,}")
    return content
