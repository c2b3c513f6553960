"""Where the files in tars lie, by samples, as WebDataset names them: found once, and kept."""

import glob
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from likewise.data.headers import states_of
from likewise.data.kept import ODD, alone, packed, place_of, save_or_warn, unpacked
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

    Files of one sample lie next to each other, and share their path up to the first dot of their name. One of a kind
    that the sample has begins another.
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
    """Read a part of a file; an OSError says that it is not there, or shorter."""
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        content = file.read(length)
    if len(content) < length:
        raise OSError(f"{path} ends within what begins at byte {offset:,}")
    return content


def tars_at(path: str) -> list[Path]:
    """Return the tars at a path: one, those in a folder, or those of a pattern such as train-{000..099}.tar."""
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
        places = [place_of("tar", f"{FORMAT} {tar.absolute()}") for tar in tars]
    except RuntimeError:  # no home
        return [_read(tar) for tar in waited_for(tars, DOING)]
    states = states_of(list(map(str, tars))).tolist()
    every = list(zip(tars, places, states, strict=True))
    found = [tar for tar in (_kept(*one) for one in every) if tar is not None]
    if len(found) == len(tars):
        return found
    with alone(place_of("tars", f"{FORMAT} {tars[0].absolute().parent}"), WAITING):
        return [_kept(*one) or _keep(*one) for one in waited_for(every, DOING)]


def _read(path: Path) -> Tar:
    """Walk through a tar: directories, links and the files that macOS adds are passed over."""
    keys, samples, last = list[str](), list[dict[str, tuple[int, int]]](), ""
    latest: dict[str, dict[str, tuple[int, int]]] = {}
    try:
        with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
            while (member := tar.next()) is not None:
                before, slash, name = member.name.removeprefix("./").rpartition("/")
                stem, _, kind = name.partition(".")
                if member.isreg() and not member.issparse() and stem and kind:
                    last = f"{before}{slash}{stem}"
                    if kind.lower() in latest.get(last, {kind.lower()}):  # another sample, perhaps of the same name
                        latest[last] = {}
                        keys.append(last)
                        samples.append(latest[last])
                    latest[last][kind.lower()] = member.offset_data, member.size
            end = tar.offset  # what cannot be read as a header ends a tar, too
        with path.open("rb") as tar:
            tar.seek(end)
            if any(tar.read(BLOCK)):
                raise tarfile.ReadError(f"no header at byte {end:,}")
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        whole = f"whole up to {last!r}" if last else "which can't be read as one"
        raise ValueError(f"expected a tar, got {path}, {whole}: {error}: copy it again") from error
    kinds = sorted({kind for files in samples for kind in files})
    column = {kind: number for number, kind in enumerate(kinds)}
    places = np.full((len(samples), len(kinds), 2), -1, dtype=np.int64)
    for row, files in enumerate(samples):
        for kind, place in files.items():
            places[row, column[kind]] = place
    return Tar(path, keys, kinds, places, _classes(path, [files.get(CLASS) for files in samples]))


def _classes(path: Path, files: Sequence[tuple[int, int] | None]) -> list[str]:
    found: list[str] = []
    with path.open("rb") as tar:
        for place in files:
            if place is not None:
                tar.seek(place[0])
            content = b"" if place is None else tar.read(min(place[1], LONGEST_CLASS))
            found.append(content.decode(*ODD).replace("\0", "").strip())
    return found


def _kept(tar: Path, place: Path, state: Sequence[int]) -> Tar | None:
    try:
        with place.open("rb") as file, np.load(file) as kept:
            if kept["state"].tolist() != state:
                return None
            keys, kinds, classes = (unpacked(kept[of]) for of in ("keys", "kinds", "classes"))
            found = Tar(tar, keys, kinds, kept["places"], classes)
    except Exception:  # noqa: BLE001 - a damaged file can raise anything
        return None
    return found if found.places.shape == (len(keys), len(kinds), 2) and len(keys) == len(classes) else None


def _keep(tar: Path, place: Path, state: Sequence[int]) -> Tar:
    found = _read(tar)
    words = {"keys": packed(found.keys), "kinds": packed(found.kinds), "classes": packed(found.classes)}
    save_or_warn(place, {"state": np.array(state), "places": found.places, **words}, WHAT)
    return found
