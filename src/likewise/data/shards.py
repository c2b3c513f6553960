"""Shards: tars of images with their labels, as WebDataset writes them, read at random where they are."""

import glob
import json
import re
import tarfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from likewise.data.columns import labels_of
from likewise.data.image_files import ImageSource, Within
from likewise.data.lazy_inputs import Ids, track
from likewise.data.samples import Samples
from likewise.files.detection import exists, expanded, near
from likewise.files.formats import PART_NAMES, as_class, first_of, image_suffixes, lines_in, opened, with_test_part

CLASS, FOLDERS = "cls", "folder"
DOTS = "write 22_05.png for 22.05.png, as the name of a sample ends at its first dot"
INTEGER = re.compile("0|-?[1-9][0-9]*")  # the usual form of integers: 007 is a name
JSON_LABELS = ("label", "labels", "cls", "class", "target")
PACKED_SUFFIXES = (".gz", ".tgz", ".bz2", ".xz", ".zst")
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
NAME = re.compile(r"(?:\./)?((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)  # a sample's name ends at the first dot
BLOCK = 512  # bytes of a header, and of the end mark of a tar


class Sample(NamedTuple):
    """A sample in a tar: its name, and the start and length of its file of each kind, in bytes."""

    key: str
    files: dict[str, tuple[int, int]]


Tars = Mapping[Path, list[Sample]]


@final
@dataclass(repr=False, eq=False)
class Shards(ImageSource):
    """Images in tars, in which the files of a sample lie next to each other: `n01/7.jpg`, `n01/7.cls`, `n01/7.json`.

    Images are read in place, so samples are shuffled over all shards, and training resumes bit for bit. Shards with
    train, val and test in their names are these parts; a validation part without a test part is used for testing. A
    sample's id is its path in the tar, up to the first dot of its name; a repeated path is another sample.

    Args:
        path: A folder of tars, one tar, or a pattern: shards/train-*.tar, shards/train-{000..146}.tar.
        label: The place of labels: "cls", a file of a number or a word; "json.FIELD", a field of the json file, with a
            label or a list of them; "txt"; "folder", the folder in the tar; or "none". None: the first available of
            cls, json (the field label, labels, cls, class or target) and folder.
        names: A file of the classes' names, one per line, if labels are numbers from 0.
        encoding: Encoding of that file, and of text in the tars, such as "latin-1". None: UTF-8.
        image: The suffix of the image file, such as "jpg" or "left.png", if samples have several.

    Raises:
        ValueError: There are no tars, one is compressed, cut, or one of a range is missing, samples have no image or
            several, or labels are missing.

    Memory:
        The decoded images, up to `memory`, and the name and position of each, about 300 bytes.

    Source:
        The format: https://github.com/webdataset/webdataset

    Example:
        >>> Shards("shards/train-{000..146}.tar", label="json.species", size=224).label
        'json.species'
    """

    path: str
    label: str | None = None
    _: KW_ONLY
    names: str | None = None
    encoding: str | None = None
    image: str | None = None

    def load(self) -> Samples:
        tars = {tar: _samples_in(tar) for tar in track(_tars_at(self.path), "reading names in tars")}
        keys = [Counter(sample.key for sample in samples) for samples in tars.values()]
        same = [key for counts in keys for key, count in counts.items() if count > 1]
        if same:
            warnings.warn(f"{len(same):,} names come again in their tar, such as {same[0]}: all are read", stacklevel=2)
        images = self._images(tars)
        rows = torch.tensor([row for row, image in enumerate(images) if image is not None], dtype=torch.int64)
        if lacking := len(images) - len(rows):
            warnings.warn(f"left out {lacking:,} of {len(images):,} samples, without an image", stacklevel=2)
        parts = torch.tensor(self._parts(list(tars))).repeat_interleave(torch.tensor(list(map(len, tars.values()))))
        labels, names = self._labels(tars, rows) if self.label != "none" else (None, ())
        inputs, kept, made_of, formats = self.read_images([image for image in images if image is not None])
        ids = Ids.of(sample.key for samples in tars.values() for sample in samples)[rows][kept]
        labels, parts = None if labels is None else labels[kept], parts[rows]
        part_numbers = parts[kept] if len(parts.unique()) > 1 else None
        return Samples(inputs, labels, names, part_numbers, ids=ids, preprocessing=made_of, found=formats)

    def _images(self, tars: Tars) -> list[Within | None]:
        known = _kinds(tars)
        if self.image is not None:
            kinds = {self.image.lower().lstrip(".")} & known.keys()
            if not kinds:
                raise ValueError(f"expected files called .{self.image} in {self.path}, got {_list_suffixes(known)}")
        else:
            kinds = {suffix for suffix in known if f".{suffix.rpartition('.')[2]}" in image_suffixes()}
            if not kinds:
                got = f"{'only ' if known else ''}{_list_suffixes(known)}"
                raise ValueError(f"expected an image in each sample of {self.path}, got {got}")
        images = list[Within | None]()
        for tar, samples in tars.items():
            for key, files in samples:
                matching = sorted(kinds & files.keys())
                if len(matching) > 1:
                    everywhere = len(samples) > 1 and all({*matching} <= sample.files.keys() for sample in samples)
                    remedy = "name one in data.image" if everywhere else DOTS
                    raise ValueError(f"expected one image in {key} of {tar}, got {_list_suffixes(matching)}: {remedy}")
                images += [Within(f"{tar}/{key}.{suffix}", tar, *files[suffix]) for suffix in matching] or [None]
        return images

    def _parts(self, tars: list[Path]) -> list[int]:
        part_names = [[word for word in re.split("[^a-z]+", tar.name.lower()) if word in PART_NAMES] for tar in tars]
        named = [PART_NAMES[each[-1]] if each else None for each in part_names]
        known = [part for part in named if part is not None]
        if not known or set(named) == {known[0]}:
            return [0] * len(tars)
        if None in named or 0 not in known:
            odd = tars[named.index(None) if None in named else 0].name
            got = f"{odd}: rename it, or give a pattern of those of one part"
            raise ValueError(f"expected tars named after their parts, train and test, in {self.path}, got {got}")
        return with_test_part(known)

    def _labels(self, tars: Tars, rows: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        values = list(self._values(tars, self.label or self._usual(tars)))
        values = [values[row] for row in rows.tolist()]
        blank = sum(value in (None, "") for value in values)
        if blank and not self.in_part:
            got = f"none of {blank:,}: set data.label to where they are, or to none"
            raise ValueError(f"expected a label of each of {len(values):,} samples in {self.path}, got {got}")
        names = None if self.names is None else self._names()
        if all(isinstance(value, str) and INTEGER.fullmatch(value) for value in values if value not in (None, "")):
            values = [None if value in (None, "") else int(value) for value in values]
        elif names is not None and (strings := [value for value in values if isinstance(value, str) and value]):
            where, got = f"{self.path} for the names in {self.names}", f"{strings[0]!r}: leave out data.names"
            raise ValueError(f"expected numbers from 0 as labels in {where}, got {got}")
        return labels_of(values, names=names, in_part=self.in_part)

    def _names(self) -> list[str]:
        file = expanded(str(self.names))
        if not (exists(file) and file.is_file()):
            raise ValueError(f"expected a file of names, got {file}, which is no file: check data.names{near(file)}")
        return [as_class(line.strip()) for line in lines_in(file, self.encoding) if line.strip()]

    def _usual(self, tars: Tars) -> str:
        kinds = _kinds(tars)
        if CLASS in kinds and any(self._texts(tars, CLASS)):
            return CLASS
        fields = next(filter(None, self._json(tars)), {}) if "json" in kinds else {}
        if field := next((name for name in JSON_LABELS if name in fields), None):
            return f"json.{field}"
        dotted = any(suffix.endswith(f".{CLASS}") for suffix in kinds)  # these must not be passed over
        if all("/" in sample.key for samples in tars.values() for sample in samples[:1]) and not dotted:
            return FOLDERS
        got = f"{_list_suffixes(kinds)}: {DOTS if dotted else 'set data.label, or set that to none'}"
        raise ValueError(f"expected labels in {self.path}, files called .cls, fields of .json, or folders, got {got}")

    def _values(self, tars: Tars, where: str) -> Iterator[Any]:
        source, _, field = where.partition(".")
        if source not in {CLASS, "json", "txt", FOLDERS} or (source == "json") != bool(field):
            raise ValueError(f"expected data.label as cls, json.FIELD, txt, folder or none, got {where!r}")
        if source == FOLDERS:
            return (sample.key.rpartition("/")[0].rpartition("/")[2] for each in tars.values() for sample in each)
        return (fields.get(field) for fields in self._json(tars)) if source == "json" else self._texts(tars, source)

    def _json(self, tars: Tars) -> Iterator[dict[str, Any]]:
        keys = (f"{tar}/{sample.key}.json" for tar, samples in tars.items() for sample in samples)
        for name, text in zip(keys, self._texts(tars, "json"), strict=True):
            try:
                fields = json.loads(text or "{}")
            except ValueError as error:
                raise ValueError(f"expected JSON in {name}, got none: write it again") from error
            yield fields if isinstance(fields, dict) else {}

    def _texts(self, tars: Tars, suffix: str) -> Iterator[str]:
        """Yield the text of each sample's file with a suffix; "" without one."""
        for tar, samples in tars.items():
            with tar.open("rb") as file:
                for key, files in samples:
                    offset, length = files.get(suffix, (0, 0))
                    file.seek(offset)
                    content = file.read(length)
                    if suffix == CLASS and content.isascii():  # numbers are ASCII, whatever the encoding of names
                        yield content.replace(b"\0", b"").decode().strip()
                        continue
                    with opened(content, self.encoding, called=f"{tar}/{key}.{suffix}") as text:
                        yield text.read().strip()


def _kinds(tars: Tars) -> dict[str, None]:
    each = ({suffix for sample in samples for suffix in sample.files} for samples in tars.values())
    return dict.fromkeys(suffix for kinds in each for suffix in sorted(kinds))


def _list_suffixes(kinds: Iterable[str]) -> str:
    return first_of([f".{suffix}" for suffix in kinds]) or "no file"


def _tars_at(path: str) -> list[Path]:
    """Return the tars at a path: one file, a folder's, or the matches of a pattern such as train-{000..099}.tar."""
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


def _samples_in(path: Path) -> list[Sample]:
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
            end = tar.offset  # an unreadable header ends a tar, too
        with path.open("rb") as file:
            file.seek(end)
            if any(file.read(BLOCK)):
                raise tarfile.ReadError(f"no header at byte {end:,}")
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        whole = f"whole up to {samples[-1].key!r}" if samples else "which can't be read as one"
        raise ValueError(f"expected a tar, got {path}, {whole}: {error}: copy it again") from error
    return samples
