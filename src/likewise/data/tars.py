"""Where the files in tars lie, by samples, as WebDataset names them: found once, and kept."""

import codecs
import glob
import hashlib
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from likewise.data.kept import ODD, alone, folder, packed, save_or_warn, unpacked
from likewise.files.detection import expanded, near
from likewise.files.waiting import waited_for

FORMAT = 2  # of what is kept; another one is read anew
CLASS = "cls"
LONGEST_CLASS = 256  # bytes of a class that is kept with the places
PACKED = (".gz", ".tgz", ".bz2", ".xz", ".zst")
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
WHAT = "names in tars"
DOING, WAITING = f"reading {WHAT}", f"waiting for another start, which reads {WHAT}"
BLOCK = 512  # bytes of a header, and of what ends a tar


@final
@dataclass(frozen=True, eq=False)
class Tar:
    """The samples in a tar: their keys, and of each kind of file where it begins and how long it is, in bytes.

    Files of one sample lie next to each other, and share their path up to the first dot of their name.
    """

    path: Path
    keys: list[str]
    kinds: list[str]
    places: NDArray[np.int64]
    """(N, kinds, 2): offset and length; -1 where a sample has no file of a kind."""
    classes: list[str]
    """What is in the files called cls; "" where there is none."""

    def content(self, sample: int, kind: str) -> bytes:
        """Read a file of a sample; nothing where it has none."""
        offset, length = self.places[sample, self.kinds.index(kind)].tolist() if kind in self.kinds else (-1, 0)
        return content_of(self.path, offset, length) if offset >= 0 else b""


def content_of(path: Path, offset: int, length: int) -> bytes:
    """Read a part of a file.

    Raises:
        OSError: The file is not there, or shorter.
    """
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        content = file.read(length)
    if len(content) < length:
        raise OSError(f"{path} ends within what begins at byte {offset:,}")
    return content


def tars_at(path: str) -> list[Path]:
    """Return the tars at a path: one, those in a folder, or those of a pattern such as train-{000..099}.tar.

    Raises:
        ValueError: There are none, one of a range is missing, or one is compressed.
    """
    where = expanded(path)
    numbered = RANGE.search(path)
    if where.is_dir():
        found = sorted(file for file in where.iterdir() if ".tar" in file.name or file.suffix in PACKED)
        found = [file for file in found if not file.name.startswith(".") and file.is_file()]
    elif numbered and not where.exists():
        first, last = numbered[1], numbered[2]
        names = (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
        found = [expanded(f"{path[: numbered.start()]}{name}{path[numbered.end() :]}") for name in names]
        missing = [file for file in found if not file.is_file()]
        if missing:
            raise ValueError(
                f"expected {len(found):,} tars, {path}, got {len(found) - len(missing):,}: {missing[0]} does not exist"
            )
    else:
        found = [where] if where.is_file() else sorted(map(Path, glob.glob(str(where))))  # noqa: PTH207 - of any root
    if not found:
        raise ValueError(
            f"expected tars, got {path}, where there are none: give a folder, a file, or a pattern in quotation marks"
            f"{near(where) if not glob.has_magic(path) and not numbered else ''}"
        )
    if packed := next((file for file in found if file.suffix in PACKED), None):
        raise ValueError(f"expected tars that are not compressed, got {packed}: unpack it with gunzip or the like")
    return found


def opened(tars: Sequence[Path]) -> list[Tar]:
    """Find the samples in tars. What was found is kept by path, time of change and length; one process reads it."""
    try:
        places = [folder() / f"tar-{_digest(tar.absolute())}.npz" for tar in tars]
    except RuntimeError:  # no home
        return [_read(tar) for tar in waited_for(tars, DOING)]
    states = [_state(tar) for tar in tars]
    found = [_kept(*one) for one in zip(tars, places, states, strict=True)]
    if None not in found:
        return [one for one in found if one is not None]
    with alone(folder() / f"tars-{_digest(tars[0].absolute().parent)}.npz", WAITING):
        return list(_each(tars, places, states))


def _each(tars: Sequence[Path], places: Sequence[Path], states: Sequence[Sequence[int]]) -> Iterator[Tar]:
    for tar, place, state in waited_for(list(zip(tars, places, states, strict=True)), DOING):
        found = _kept(tar, place, state)
        if found is None:
            found = _read(tar)
            _keep(found, place, state)
        yield found


def _read(path: Path) -> Tar:
    """Walk through a tar: directories, links and the files that macOS adds are passed over."""
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    last = ""
    try:
        with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
            while (member := tar.next()) is not None:
                before, slash, name = member.name.removeprefix("./").rpartition("/")
                stem, _, kind = name.partition(".")
                if member.isreg() and not member.issparse() and stem and kind:
                    last = f"{before}{slash}{stem}"
                    samples.setdefault(last, {})[kind.lower()] = member.offset_data, member.size
            end = tar.offset  # what cannot be read as a header ends a tar, too
        with path.open("rb") as tar:
            tar.seek(end)
            if any(tar.read(BLOCK)):
                raise tarfile.ReadError(f"no header at byte {end:,}")
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        whole = f"whole up to {last!r}" if last else "which can't be read as one"
        raise ValueError(f"expected a tar, got {path}, {whole}: {error}: copy it again") from error
    kinds = sorted({kind for files in samples.values() for kind in files})
    column = {kind: number for number, kind in enumerate(kinds)}
    places = np.full((len(samples), len(kinds), 2), -1, dtype=np.int64)
    for row, files in enumerate(samples.values()):
        for kind, place in files.items():
            places[row, column[kind]] = place
    return Tar(path, list(samples), kinds, places, _classes(path, [files.get(CLASS) for files in samples.values()]))


def _classes(path: Path, files: Sequence[tuple[int, int] | None]) -> list[str]:
    found: list[str] = []
    with path.open("rb") as tar:
        for place in files:
            if place is not None:
                tar.seek(place[0])
            content = b"" if place is None else tar.read(min(place[1], LONGEST_CLASS))
            found.append(text_of(content).replace("\0", "").strip())
    return found


def text_of(content: bytes) -> str:
    r"""Return the text of a small file, without a byte-order mark; what is no text in it is escaped.

    Example:
        >>> text_of("ash".encode("utf-8-sig")), text_of("ash".encode("utf-16")), text_of("élm".encode("latin-1"))
        ('ash', 'ash', '\\xe9lm')
    """
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if marked else "utf-8-sig", "backslashreplace")


def _digest(text: str | Path) -> str:
    return hashlib.sha256(f"{FORMAT} {text}".encode(*ODD)).hexdigest()[:32]


def _state(tar: Path) -> list[int]:
    about = tar.stat()
    return [about.st_mtime_ns, about.st_size]


def _kept(tar: Path, place: Path, state: Sequence[int]) -> Tar | None:
    """Return what is kept of a tar that is as it was."""
    try:
        with place.open("rb") as file, np.load(file) as kept:
            if kept["state"].tolist() != state:
                return None
            keys, kinds, classes = (unpacked(kept[of]) for of in ("keys", "kinds", "classes"))
            found = Tar(tar, keys, kinds, kept["places"], classes)
    except Exception:  # noqa: BLE001 - a damaged file can raise anything
        return None
    return found if found.places.shape == (len(keys), len(kinds), 2) and len(keys) == len(classes) else None


def _keep(found: Tar, place: Path, state: Sequence[int]) -> None:
    """Write what was found; a warning says if that fails."""
    words = {"keys": packed(found.keys), "kinds": packed(found.kinds), "classes": packed(found.classes)}
    save_or_warn(place, {"state": np.array(state), "places": found.places, **words}, WHAT)
