"""Shards: tars of images with their labels, as WebDataset writes them, read at random where they are."""

import json
import re
import warnings
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likewise.data.columns import labels_of
from likewise.data.ids import Ids
from likewise.data.image_files import Item, Size, Within, check_size, read_images
from likewise.data.preprocessing import Resize
from likewise.data.samples import Samples, Source
from likewise.data.tars import CLASS, Tar, opened, tars_at
from likewise.files import encodings
from likewise.files.detection import exists, expanded, near
from likewise.files.formats import PART_NAMES, as_class, first_of, image_suffixes, lines_in, with_test_part

DOTS = "write 22_05.png for 22.05.png, as the name of a sample ends at its first dot"
FOLDERS = "folder"
INTEGER = re.compile("0|-?[1-9][0-9]*")  # as numbers are written: 007 is a name
JSON_LABELS = ("label", "labels", "cls", "class", "target")


@final
@dataclass(repr=False, eq=False)
class Shards(Source):
    """Images in tars, in which the files of a sample lie next to each other: `n01/7.jpg`, `n01/7.cls`, `n01/7.json`.

    That is how WebDataset writes them. An image is read where it lies, so samples are shuffled over all shards, and a
    training resumes bit by bit, as from a folder. Shards with train, val and test in their names are these parts; if
    there is a validation part and no test part, it is used for testing. A sample is called by its path in the tar, up
    to the first dot of its name; where that comes again, it is another sample.

    Args:
        path: A folder of tars, one tar, or a pattern: shards/train-*.tar, shards/train-{000..146}.tar.
        label: Where labels are: "cls", a file of a number or a word; "json.FIELD", a field of the json file, with a
            label or a list of them; "txt"; "folder", the folder in the tar; or "none". None: what is there first of
            cls, json (the field label, labels, cls, class or target) and folder.
        names: A file of the classes' names, one a line, where labels are numbers from 0.
        encoding: What that file is in, and text in the tars, such as "latin-1". None: UTF-8.
        image: The kind of file that is the image, such as "jpg" or "left.png", where samples have several.
        size: Side of the square that images are resized to, in pixels, or height and width. None: all have one size.
        resize: How images of another ratio are brought to it; see `ImagePreprocessing`.
        memory: GiB of decoded images to hold in memory. A larger data set is decoded on demand.
        store: Shorter side, in pixels, of images that are resized once and kept on disk; see `Folder`.

    Raises:
        ValueError: There are no tars, one is compressed, cut, or one of a range is missing, samples have no image or
            several, or labels are missing.

    Memory:
        The decoded images, up to `memory`, else names and places. These are kept in the folder that LIKEWISE_CACHE
        names, or the user's cache: a second start reads no tar, but for labels in json and txt files.

    Source:
        The format: https://github.com/webdataset/webdataset

    Example:
        >>> import shutil, tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("lily", "rose"):
        ...         Path(folder, name).mkdir()
        ...         Image.new("L", (20, 16)).save(f"{folder}/{name}/1.png")
        ...     tar = shutil.make_archive(f"{folder}/flowers", "tar", folder)
        ...     flowers = Shards(tar, size=16).load()
        >>> flowers.input_shape, flowers.names, list(flowers.ids)
        ((1, 16, 16), ('lily', 'rose'), ['lily/1', 'rose/1'])
    """

    path: str
    label: str | None = None
    _: KW_ONLY
    names: str | None = None
    encoding: str | None = None
    image: str | None = None
    size: Size = None
    resize: Resize = "crop"
    memory: float = 2.0
    store: int | None = None

    def __post_init__(self) -> None:
        check_size(self.size, self.resize, self.memory, self.store)

    def load(self) -> Samples:
        tars = opened(tars_at(self.path))
        same = [name for tar in tars for name, count in Counter(tar.keys).items() if count > 1]
        if same:
            warnings.warn(f"{len(same):,} names come again in their tar, such as {same[0]}: all are read", stacklevel=2)
        images = TarImages(tars, self._images(tars))
        parts = torch.from_numpy(np.repeat(self._parts(tars), [len(tar.keys) for tar in tars]))[images.rows]
        labels, names = self._labels(tars, images.rows) if self.label != "none" else (None, ())
        memory = 0.0 if self.streams else self.memory
        read, kept, made_of, found = read_images(images, self.size, self.resize, memory, self.made_of, store=self.store)
        return Samples(
            read,
            None if labels is None else labels[kept],
            names,
            parts[kept] if len(parts.unique()) > 1 else None,
            ids=Ids.of(key for tar in tars for key in tar.keys)[images.rows][kept],
            preprocessing=made_of,
            found=found,
        )

    def _images(self, tars: Sequence[Tar]) -> list[str]:
        kinds = dict.fromkeys(kind for tar in tars for kind in tar.kinds)
        if self.image is not None:
            found = [self.image.lower().lstrip(".")]
            if found[0] not in kinds:
                raise ValueError(f"expected files called .{found[0]} in {self.path}, got {_words(kinds)}")
            return found
        found = [kind for kind in kinds if f".{kind.rpartition('.')[2]}" in image_suffixes()]
        if not found:
            raise ValueError(
                f"expected an image in each sample of {self.path}, got {'only ' if kinds else ''}{_words(kinds)}"
            )
        return found

    def _parts(self, tars: Sequence[Tar]) -> list[int]:
        words = [[word for word in re.split("[^a-z]+", tar.path.name.lower()) if word in PART_NAMES] for tar in tars]
        found = [PART_NAMES[of[-1]] if of else None for of in words]
        known = [part for part in found if part is not None]
        if not known or set(found) == {known[0]}:
            return [0] * len(tars)
        if None in found or 0 not in known:
            odd = tars[found.index(None) if None in found else 0].path.name
            raise ValueError(
                f"expected tars named after their parts, train and test, in {self.path}, got {odd}: rename it, or give "
                "a pattern of those of one part"
            )
        return with_test_part(known)

    def _labels(self, tars: Sequence[Tar], rows: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        values = list(self._values(tars, self.label or self._usual(tars)))
        chosen = [values[row] for row in rows.tolist()]
        blank = sum(value in (None, "") for value in chosen)
        if blank and not self.in_part:
            raise ValueError(
                f"expected a label of each of {len(chosen):,} samples in {self.path}, got none of {blank:,}: set "
                "data.label to where they are, or to none"
            )
        names = None if self.names is None else self._names()
        if all(isinstance(value, str) and INTEGER.fullmatch(value) for value in chosen if value not in (None, "")):
            chosen = [None if value in (None, "") else int(value) for value in chosen]
        elif names is not None and (words := [value for value in chosen if isinstance(value, str) and value]):
            raise ValueError(
                f"expected numbers from 0 as labels in {self.path} for the names in {self.names}, got {words[0]!r}: "
                "leave out data.names"
            )
        return labels_of(chosen, names=names, in_part=self.in_part)

    def _names(self) -> list[str]:
        file = expanded(str(self.names))
        if not (exists(file) and file.is_file()):
            raise ValueError(f"expected a file of names, got {file}, which is no file: check data.names{near(file)}")
        return [as_class(line.strip()) for line in lines_in(file, self.encoding) if line.strip()]

    def _usual(self, tars: Sequence[Tar]) -> str:
        """Return where labels are: what is there first of the usual places."""
        if any(any(tar.classes) for tar in tars):
            return CLASS
        kinds = dict.fromkeys(kind for tar in tars for kind in tar.kinds)
        dotted = any(kind.endswith(f".{CLASS}") for kind in kinds)  # which are not to be passed over
        first = next((tar for tar in tars if "json" in tar.kinds), None)
        if first is not None:
            fields = self._json(first, int((first.places[:, first.kinds.index("json"), 0] >= 0).argmax()))
            field = next((name for name in JSON_LABELS if name in fields), None)
            if field is not None:
                return f"json.{field}"
        if all("/" in key for tar in tars for key in tar.keys[:1]) and not dotted:
            return FOLDERS
        raise ValueError(
            f"expected labels in {self.path}, files called .cls, fields of .json, or folders, got "
            f"{_words(kinds)}: {DOTS if dotted else 'set data.label, or set that to none'}"
        )

    def _values(self, tars: Sequence[Tar], where: str) -> Iterator[Any]:
        kind, _, field = where.partition(".")
        if kind not in {CLASS, "json", "txt", FOLDERS} or (kind == "json") != bool(field):
            raise ValueError(f"expected data.label as cls, json.FIELD, txt, folder or none, got {where!r}")
        for tar in tars:
            if kind == CLASS:
                for row, name in enumerate(tar.classes):
                    yield name if name.isascii() else self._text(tar, row, kind).strip()
            elif kind == FOLDERS:
                yield from (key.rpartition("/")[0].rpartition("/")[2] for key in tar.keys)
            elif kind == "txt":
                yield from (self._text(tar, row, kind).strip() for row in range(len(tar.keys)))
            else:
                yield from (self._json(tar, row).get(field) for row in range(len(tar.keys)))

    def _json(self, tar: Tar, row: int) -> dict[str, Any]:
        text = self._text(tar, row, "json")
        try:
            found = json.loads(text or "{}")
        except ValueError as error:
            raise ValueError(f"expected JSON in {tar.path}/{tar.keys[row]}.json, got none: write it again") from error
        return found if isinstance(found, dict) else {}

    def _text(self, tar: Tar, row: int, kind: str) -> str:
        called = f"{tar.path}/{tar.keys[row]}.{kind}"
        with encodings.opened(tar.content(row, kind), self.encoding, called=called) as text:
            return text.read()


def _words(kinds: Iterable[str]) -> str:
    return first_of([f".{kind}" for kind in kinds]) or "no file"


@final
class TarImages(Sequence[Item]):
    """The images in tars, by their numbers among the samples that have one."""

    def __init__(self, tars: Sequence[Tar], kinds: Sequence[str]) -> None:
        self.tars, self.kinds = tars, kinds
        self.places = np.concatenate([self._places(tar) for tar in tars])
        self.rows = torch.from_numpy((self.places[:, 0] >= 0).nonzero()[0])
        self._starts = [0, *accumulate(len(tar.keys) for tar in tars)]
        if lacking := len(self.places) - len(self.rows):
            warnings.warn(f"left out {lacking:,} of {len(self.places):,} samples, without an image", stacklevel=3)

    def _places(self, tar: Tar) -> NDArray[np.int64]:
        """Return offset and length of each sample's image, (n, 2); -1 where there is none."""
        columns = [column for column, kind in enumerate(tar.kinds) if kind in self.kinds]
        if not columns:
            return np.full((len(tar.keys), 2), -1)
        places = tar.places[:, columns]
        there = places[:, :, 0] >= 0
        if (several := there.sum(axis=1) > 1).any():
            row = int(several.argmax())
            got = _words([tar.kinds[column] for column, has in zip(columns, there[row], strict=True) if has])
            remedy = "name one in data.image" if len(there) > 1 and there.all() else DOTS
            raise ValueError(f"expected one image in {tar.keys[row]} of {tar.path}, got {got}: {remedy}")
        return places[np.arange(len(places)), there.argmax(axis=1)]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def files(self) -> list[str | None]:
        """Where each image is: its tar, NUL, and its path in it."""
        return [self._name(row, "\0") for row in self.rows.tolist()]

    def _name(self, row: int, between: str = "/") -> str:
        tar, within = self._tar(row)
        kind = next(
            kind for kind in self.kinds if kind in tar.kinds and tar.places[within, tar.kinds.index(kind), 0] >= 0
        )
        return f"{tar.path}{between}{tar.keys[within]}.{kind}"

    def _tar(self, row: int) -> tuple[Tar, int]:
        place = bisect(self._starts, row) - 1
        return self.tars[place], row - self._starts[place]

    def __getitem__(self, item: Any) -> Any:
        row = int(self.rows[item])
        offset, length = self.places[row].tolist()
        return Within(self._name(row), self._tar(row)[0].path, offset, length)
