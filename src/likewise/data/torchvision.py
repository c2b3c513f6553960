"""Any classification data set of torchvision, by name and root."""

import inspect
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from likewise.data.arrays import as_images
from likewise.data.columns import Labels
from likewise.data.image_files import ImageSource, check_one_size
from likewise.data.lazy_inputs import Ids, JoinedRows, LazyInputs, distinct
from likewise.data.preprocessing import ImagePreprocessing, plain_image
from likewise.data.samples import EvalLabels, Samples
from likewise.files.detection import suggest
from likewise.files.formats import with_test_part

# torchvision's names of parts, by our numbers
_SPLITS = {0: ("train", "trainval", "train-standard"), 1: ("val", "valid"), 2: ("test",)}
_NAMES = ("classes", "categories", "attr_names", "_characters")
# labellings, from the coarsest to the finest, which is the default
_LEVELS = {"CIFAR100": ("coarse", "fine"), "FGVCAircraft": ("manufacturer", "family", "variant")}
_UNLABELLED_SPLIT, _FOLDS = "unlabeled", 10  # STL10's part without classes, and how many folds it has
# options passed on to the base class
_INHERITED_OPTIONS = {"ImageNet": "loader", "EMNIST": "download", "QMNIST": "download"}


class _Part(NamedTuple):
    number: int
    images: Tensor | Sequence[Path]
    targets: Tensor
    names: tuple[str, ...]
    fine: Labels | None = None


@final
@dataclass(repr=False, eq=False)
class Torchvision(ImageSource):
    """A classification data set of torchvision: its images, classes or label sets, and parts.

    Images that are not in files are always held in memory. If there is a validation part and no test part, it is used
    for testing. For EMNIST, the balanced split is used. STL10 includes 100,000 training images without a class if
    samples may lack one, as in `likewise train`; they are read on demand if all of its images take more than `memory`.

    Args:
        name: The data set's name in torchvision.datasets.
        root: The folder for its files.
        download: Whether to download missing files.
        label: The labelling to train on: for CIFAR100 "coarse", its 20 superclasses, or "fine"; for FGVCAircraft
            "manufacturer", "family" or "variant". None: the finest, or the only one of other data sets.
        fine_label: A finer labelling for evaluation. None: `label`.
        fold: The fold of STL10 to train on, 0 to 9, with 1,000 labelled images. None: all 5,000.

    Raises:
        ValueError: There is no such data set or fold, it is not for classification, its files are missing, or images
            differ in size and size is None.

    Example:
        >>> Torchvision("CIFAR10O").load()
        Traceback (most recent call last):
        ValueError: expected a data set of torchvision.datasets, got CIFAR10O, did you mean CIFAR10 or CIFAR100?
    """

    name: str
    root: Path = Path("data")
    download: bool = False
    _: KW_ONLY
    label: str | None = None
    fine_label: str | None = None
    fold: int | None = None

    def __post_init__(self) -> None:
        if self.fold is not None and not 0 <= self.fold < _FOLDS:
            raise ValueError(f"expected data.fold from 0 to {_FOLDS - 1}, got {self.fold}: choose one, or leave it out")
        self.root = Path(self.root)
        super().__post_init__()
        levels = _LEVELS.get(self.name, ())
        for option, level in (("label", self.label), ("fine_label", self.fine_label)):
            if level is not None and level not in levels:
                remedy = f"choose one of {', '.join(levels)}" if levels else "it has one labelling: leave it out"
                raise ValueError(f"expected a labelling of {self.name} as data.{option}, got {level!r}: {remedy}")

    def load(self) -> Samples:
        parts = [part for part in self._parts() if len(part.targets)]
        if not parts:
            raise ValueError(f"expected a data set with targets, got {self.name}, which has none")
        names = tuple(dict.fromkeys(name for part in parts for name in part.names))
        labels = torch.cat([_renamed(part, names) for part in parts])
        second = None
        if self.fine_label is not None:
            fine = [part.fine for part in parts if part.fine is not None]
            second = EvalLabels.finer(torch.cat([classes for classes, _ in fine]), fine[0][1], labels, names)
        roles = with_test_part([part.number for part in parts])
        numbers = torch.cat([torch.full((len(part.targets),), role) for role, part in zip(roles, parts, strict=True)])
        part_numbers = None if len(parts) == 1 else numbers
        tensors = [part.images for part in parts if isinstance(part.images, Tensor)]
        if tensors:
            images = torch.cat(tensors)
            made_of = ImagePreprocessing.of(images, self.resize)
            if self.in_part and _UNLABELLED_SPLIT in getattr(self._class, "splits", ()):
                return self._with_blank(images, labels, names, numbers, made_of)
            return Samples(images, labels, names, part_numbers, preprocessing=made_of, evaluated=second)
        files = [file for part in parts for file in part.images if isinstance(file, Path)]
        read, kept, made_of, stats = self.read_images(files)
        ids = Ids.of(str(file.relative_to(self.root) if file.is_relative_to(self.root) else file) for file in files)
        part_numbers = None if part_numbers is None else part_numbers[kept]
        second = None if second is None else second[kept]
        images = Samples(read, labels[kept], names, part_numbers, ids=ids[kept], preprocessing=made_of, found=stats)
        return replace(images, evaluated=second)

    def _with_blank(
        self, images: Tensor, labels: Tensor, names: tuple[str, ...], parts: Tensor, made_of: ImagePreprocessing
    ) -> Samples:
        unlabelled = _Mapped(self.root / self._class.base_folder / self._class.train_list[2][0], made_of)
        inputs: Tensor | LazyInputs = JoinedRows(images, unlabelled)
        if not self.streams and math.prod(inputs.shape) <= self.memory * 2**30:
            inputs = inputs[torch.arange(len(inputs))]
        blank = torch.full((len(unlabelled),), -1)
        parts = torch.cat([parts, torch.zeros_like(blank)])
        return Samples(inputs, torch.cat([labels, blank]), names, parts, preprocessing=made_of)

    def _parts(self) -> Iterator[_Part]:
        # one after another: only one at a time is held twice
        dataset_class = self._class
        parameters = inspect.signature(dataset_class).parameters
        if self.fold is not None and "folds" not in parameters:
            raise ValueError(f"expected no fold of {self.name}, got {self.fold}: leave out data.fold; STL10 has folds")
        for number, names in _ways(parameters):
            for options in names:
                try:
                    part = dataset_class(**self._options(self.label), **options)
                    fine = None if self.fine_label is None else self._labelled(part, options)
                except (ValueError, RuntimeError, OSError, ImportError, IndexError) as error:
                    if isinstance(error, ValueError) and "Unknown value" in str(error):
                        continue  # the part has another name here, or does not exist
                    raise ValueError(self._missing(error)) from error
                read = self._read(part, number)
                del part
                yield read._replace(fine=fine)
                break

    @cached_property
    def _class(self) -> Any:
        from torchvision import datasets  # noqa: PLC0415 - only this source needs it

        kinds: dict[str, Any] = {name: getattr(datasets, name) for name in datasets.__all__ if name != "VisionDataset"}
        if self.name not in kinds:
            got = self.name + suggest(self.name, kinds, f": choose one of {', '.join(sorted(kinds))}", most=2)
            raise ValueError(f"expected a data set of torchvision.datasets, got {got}")
        dataset_class = kinds[self.name]
        parameters = inspect.signature(dataset_class).parameters.values()
        named = [parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        if {parameter.name for parameter in named if parameter.default is parameter.empty} - {"root", "split"}:
            raise ValueError(f"expected a data set for classification, got {self.name}")
        return dataset_class

    def _options(self, label: str | None) -> dict[str, Any]:
        # the loader returns the path: images are decoded here
        offered: dict[str, Any] = {"root": self.root, "loader": Path, "download": self.download, "folds": self.fold}
        offered |= {} if label is None else {"annotation_level": label}
        known = {*inspect.signature(self._class).parameters, _INHERITED_OPTIONS.get(self.name)}
        return {"transform": _file_or_pixels} | {name: value for name, value in offered.items() if name in known}

    def _labelled(self, part: Any, options: Mapping[str, Any]) -> Labels:
        if self.name == "CIFAR100":
            return _cifar100(part, str(self.fine_label))
        other = self._class(**self._options(self.fine_label), **options)
        return torch.tensor([other[row][1] for row in range(len(other))]), _names(other)

    def _missing(self, error: Exception) -> str:
        what = (str(error).splitlines() or [type(error).__name__])[0]
        can = "download" in self._options(None) and not self.download
        remedy = "add --data.download true, or check data.root" if can else "put them there yourself"
        return f"expected the files of {self.name} in {self.root}, got: {what.rstrip('.')}: {remedy}"

    def _read(self, part: Any, number: int) -> _Part:
        names = _names(part)
        if self.name == "CIFAR100" and self.label is not None:
            part.targets, names = _cifar100(part, self.label)
        data = torch.as_tensor(part.data) if isinstance(getattr(part, "data", None), (np.ndarray, Tensor)) else None
        labels = getattr(part, "targets", getattr(part, "labels", None))
        if data is not None and data.dtype == torch.uint8 and labels is not None and np.ndim(labels) == 1:
            targets = torch.as_tensor(labels).long()
            images = as_images(data.numpy(), self.size, self.resize)
            return _Part(number, images, targets, names or _number_classes(targets))
        stored, wanted = list[Any](), list[Tensor]()
        for item in (part[row] for row in range(len(part))):
            if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[1], int | Tensor | None):
                raise ValueError(f"expected a data set for classification, got {self.name} with other targets")
            if item[1] is not None:
                stored.append(item[0] if isinstance(item[0], Path) else np.array(plain_image(item[0])))
                wanted.append(torch.as_tensor(item[1]))
        targets = torch.stack(wanted) if wanted else torch.zeros(0, dtype=torch.int64)
        targets = targets.bool() if targets.ndim == 2 else targets.long()
        files = all(isinstance(image, Path) for image in stored)
        return _Part(number, stored if files else self._stacked(stored), targets, names or _number_classes(targets))

    def _stacked(self, images: Sequence[Any]) -> Tensor:
        if any(image.ndim == 3 for image in images):
            images = [image if image.ndim == 3 else np.stack([image] * 3, axis=-1) for image in images]
        if self.size is None:
            check_one_size({image.shape[:2] for image in images})
            return as_images(np.stack(images))
        return torch.cat([as_images(image[None], self.size, self.resize) for image in images])


@final
class _Mapped(LazyInputs):
    """Images of STL-10 in their file, read on demand: each is three channels, written column by column."""

    def __init__(self, file: Path, made_of: ImagePreprocessing) -> None:
        self.file, self.made_of = file, made_of
        self.shape, self.dtype = (file.stat().st_size // (3 * 96 * 96), *made_of.shape), torch.uint8

    def __getitem__(self, rows: Tensor) -> Tensor:
        pixels = np.memmap(self.file, np.uint8, "r", shape=(self.shape[0], 3, 96, 96))[rows.numpy()]
        return self.made_of.of_tensor(torch.from_numpy(np.asarray(pixels)).mT.contiguous())


def _ways(parameters: Mapping[str, Any]) -> list[tuple[int, list[dict[str, Any]]]]:
    if "background" in parameters:  # Omniglot's parts have disjoint classes
        return [(0, [{"background": True}]), (0, [{"background": False}])]
    if "split" in parameters and parameters["split"].default is not inspect.Parameter.empty:
        return [(number, [{"split": name} for name in names]) for number, names in _SPLITS.items()]
    fixed: dict[str, Any] = {"split": "balanced"} if "split" in parameters else {}
    if "train" in parameters or fixed:
        return [(0, [{"train": True, **fixed}]), (2, [{"train": False, **fixed}])]
    return [(0, [{}])]


def _names(part: Any) -> tuple[str, ...]:
    names = next((getattr(part, name) for name in _NAMES if getattr(part, name, None)), ())
    # ImageNet's names have synonyms, and crane is a bird and a machine; CelebA's end with an empty name
    return tuple(distinct([name if isinstance(name, str) else ", ".join(name) for name in names if name]))


def _cifar100(part: Any, level: str) -> Labels:
    """Return one of the two labellings of CIFAR-100, from the files that torchvision has checked by their digests."""
    folder = Path(part.root) / part.base_folder

    def read(name: str) -> Any:
        return pickle.loads((folder / name).read_bytes(), encoding="latin1")  # noqa: S301 - its digest was checked

    files = part.train_list if part.train else part.test_list
    targets = [label for name, _ in files for label in read(name)[f"{level}_labels"]]
    return torch.tensor(targets), tuple(read(part.meta["filename"])[f"{level}_label_names"])


def _number_classes(targets: Tensor) -> tuple[str, ...]:
    count = targets.shape[1] if targets.ndim == 2 else int(targets.max()) + 1 if len(targets) else 0
    return tuple(str(label) for label in range(count))


def _renamed(part: _Part, names: tuple[str, ...]) -> Tensor:
    if part.targets.ndim == 2 or part.names == names[: len(part.names)]:
        return part.targets
    return torch.tensor([names.index(name) for name in part.names])[part.targets]


def _file_or_pixels(image: Any) -> Any:
    file = getattr(image, "filename", None)
    if not file or not Path(file).is_file():
        return image
    image.close()
    return Path(file)
