"""Sources of NumPy arrays: scikit-learn's digits, .npz and .npy files, and images in any usual layout and range."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likewise.data import columns
from likewise.data.image_files import Size, check_size, sides
from likewise.data.lazy_inputs import Ids, LazyInputs
from likewise.data.preprocessing import ImagePreprocessing, Resize
from likewise.data.samples import EvalLabels, Samples, Source
from likewise.files.detection import describe_pickle
from likewise.files.formats import PART_NAMES, as_class

_INPUTS = ("images", "vectors")
_FEATURES = ("features", "embeddings")  # names of vectors in `likewise evaluate`
_OPTIONAL_KEYS = ("labels", "names", "fine_labels", "fine_names", "ids", "test", "parts")
_CHANNELS = {1, 3}
_ROUNDING = 1e-4  # tolerance around [0, 1] for floating-point images; half precision needs it


@final
class Digits(Source):
    """1,797 handwritten digits of 8 by 8 pixels, values from 0 to 1, ten classes.

    Source:
        E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998:
        the test part, as scikit-learn ships it.

    Example:
        >>> digits = Digits().load()
        >>> digits.input_shape, len(digits), digits.counts.min()
        ((1, 8, 8), 1797, tensor(174))
    """

    def load(self) -> Samples:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - only this source needs it

        pixels, classes = load_digits(return_X_y=True)
        images = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 16
        names = tuple(str(digit) for digit in range(10))
        return Samples(images, torch.from_numpy(classes), names, preprocessing=ImagePreprocessing(1, 8, 8))


@final
class Arrays(Source):
    """Images or vectors from a file written by numpy.savez, with classes, label sets or no labels.

    A file written by numpy.save has vectors, (N, F), without labels. Keys of an .npz file:

    - `images`, (N, height, width), (N, height, width, channels) or (N, channels, height, width), 1 or 3 channels:
      integers from 0 to 255, which stay uint8, floating-point values from 0 to 1, or booleans, True for white. Or
      `vectors`, (N, F), any numbers, also called `features` or `embeddings`.
    - `labels`, optional: one class per sample, (N,), integers or strings; or label sets, (N, L), booleans or 0 and 1. A
      sample without a class, usable by some losses only, has an empty string, or -1 if there are names.
    - `fine_labels`, optional: one finer class per sample, (N,), each in one class of `labels`: training uses `labels`,
      evaluation the finer classes. `fine_names`, (C,), optional, are their names.
    - `ids`, optional: the name of each sample, (N,), strings or integers. The default is its position.
    - `names`, optional: the names of the L labels, (L,), or of the classes 0 to C - 1, (C,).
    - `test`, (N,), booleans, optional: True for held-out samples. Or `parts`, (N,), strings: "train", "validation",
      "test".

    Args:
        path: The .npz or .npy file.
        size: Side of the square that images are resized to, in pixels, or height and width. None: keep their size.
        resize: How images of another aspect ratio are fitted to `size`; see `ImagePreprocessing`.

    Raises:
        ValueError: The file is missing or of another kind, lacks a key, or has an array of the wrong shape or dtype.

    Memory:
        uint8 images take one byte per pixel, and twice as much while channels are moved to the front.

    Example:
        >>> Arrays("photos.npz", size=32).size
        32
    """

    def __init__(self, path: str | Path, size: Size = None, resize: Resize = "crop") -> None:
        self.path = Path(path)
        check_size(size, resize)
        self.size: Size = size
        self.resize: Resize = resize

    def load(self) -> Samples:
        arrays = self._read()
        input_key = _inputs_in(tuple(arrays))[0]
        if arrays[input_key].size == 0:
            raise ValueError(f"expected {input_key} that are not empty, got {arrays[input_key].shape}: fill the array")
        for key in ("labels", "fine_labels", "ids", "test", "parts"):
            if key in arrays and arrays[key].shape[:1] != arrays[input_key].shape[:1]:
                expected = f"{key} of shape ({len(arrays[input_key])},), one per input"
                raise ValueError(f"expected {expected}, got {arrays[key].shape}")
        known = arrays.get("names")
        labels, names = labels_of(arrays["labels"], known, in_part=self.in_part) if "labels" in arrays else (None, ())
        parts, ids, second = parts_of_arrays(arrays), ids_of(arrays), None
        if "fine_labels" in arrays:
            fine = labels_of(arrays["fine_labels"], arrays.get("fine_names"), in_part=self.in_part, key="fine_labels")
            second = EvalLabels.finer(*fine, labels, names, "fine_labels")
        inputs = arrays.pop(input_key)
        if input_key != "images" and self.size is not None:
            raise ValueError(f"expected no size for {input_key}, got {self.size}: leave out data.size")
        if input_key != "images":
            return Samples(_vectors(inputs), labels, names, parts, ids=ids, evaluated=second)
        images = as_images(inputs, self.size, self.resize)
        made_of = ImagePreprocessing.of(images, self.resize)
        return Samples(images, labels, names, parts, ids=ids, preprocessing=made_of, evaluated=second)

    def _read(self) -> dict[str, NDArray[Any]]:
        if not self.path.is_file():
            raise ValueError(f"expected an .npz file, got {self.path}, which does not exist: check data.path")
        objects = describe_pickle(self.path)
        if objects:
            raise ValueError(f"expected an .npz file, got {self.path}, {objects}")
        try:
            loaded = np.load(self.path, mmap_mode="r" if self.streams else None, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"vectors": loaded}
            with loaded as file:
                keys = file.files
                arrays = {key: read_array(file, key) for key in keys if key in {*_inputs_in(keys), *_OPTIONAL_KEYS}}
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError, TypeError) as error:
            if str(error).startswith("expected "):
                raise
            message = f"expected an .npz file of plain arrays, got {self.path}: write it with numpy.savez"
            raise ValueError(message) from error
        _check_keys(keys, self.path)
        return arrays


def read_array(file: Any, key: str) -> NDArray[Any]:
    """Return an array of an open file; refuse an array of Python objects without loading them."""
    try:
        return file[key]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        remedy = f"save np.array({key}.tolist())"
        raise ValueError(f"expected {key} of plain values, got Python objects: {remedy}") from error


def words_of(array: NDArray[Any], key: str) -> NDArray[Any]:
    """Return values as strings; bytes are read as UTF-8."""
    try:
        return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array.astype(str)
    except UnicodeDecodeError as error:
        remedy = f"save np.char.decode({key}, 'latin-1'), if they are that"
        raise ValueError(f"expected {key} of strings, or bytes in utf-8, got {error.object!r}: {remedy}") from error


def _inputs_in(keys: Sequence[str]) -> list[str]:
    return [key for key in _INPUTS if key in keys] or [key for key in _FEATURES if key in keys][:1]


def _check_keys(keys: Sequence[str], path: Path) -> None:
    # an unknown key may be misspelt labels
    kinds, known_keys = _inputs_in(keys), {*_INPUTS, *_FEATURES, *_OPTIONAL_KEYS}
    if len(kinds) == 1 and ("labels" in keys or set(keys) <= known_keys):
        for key in sorted(set(keys) - known_keys):
            alike = {key.lower(), f"{key.lower()}s", key.lower().removesuffix("s")}
            if meant := sorted(alike & set(_OPTIONAL_KEYS) - set(keys)):
                raise ValueError(f"expected {meant[0]!r} in {path}, got {key!r}: rename it, or leave it out")
        return
    got = "both" if len(kinds) == 2 else ", ".join(sorted(keys)) or "none"
    save = f"save it with numpy.savez(path, {kinds[0] if kinds else 'images'}=..., labels=...)"
    known = f"{', '.join(map(repr, (*_INPUTS, *_FEATURES)))} (optional: {', '.join(map(repr, _OPTIONAL_KEYS))})"
    remedy = "keep one" if len(kinds) == 2 else save
    raise ValueError(f"expected one of the keys {known} in {path}, got {got}: {remedy}")


@final
class ArrayRows(LazyInputs):
    """Vectors, (N, F), read on demand from a memory-mapped file."""

    def __init__(self, vectors: NDArray[Any]) -> None:
        self.vectors = vectors
        self.shape, self.dtype = vectors.shape, torch.float32

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.vectors[rows.numpy()], np.float32))


def _vectors(vectors: NDArray[Any]) -> Tensor | LazyInputs:
    if vectors.ndim != 2 or vectors.dtype.kind not in "uifb":
        got = f"{vectors.shape} of {vectors.dtype}: flatten them, or save images under 'images'"
        raise ValueError(f"expected vectors of shape (N, F), numbers, got {got}")
    return ArrayRows(vectors) if isinstance(vectors, np.memmap) else torch.from_numpy(vectors.astype(np.float32))


def labels_of(
    labels: NDArray[Any], names: NDArray[Any] | None, *, in_part: bool = False, key: str = "labels"
) -> columns.Labels:
    """Return classes (N,), int64, or label sets (N, L), boolean, and their names; with `in_part`, -1 is no class."""
    labels = words_of(labels, key) if labels.dtype.kind == "S" else labels
    known = None if names is None else tuple(map(as_class, words_of(names, "names").tolist()))
    if labels.ndim == 2 and labels.dtype.kind in "uib" and labels.size and bool(((labels == 0) | (labels == 1)).all()):
        return torch.from_numpy(labels.astype(bool)), known or tuple(map(str, range(labels.shape[1])))
    if labels.ndim != 1 or labels.dtype.kind not in "uibU":
        remedies = {("f", 1): "labels.astype(int)", ("f", 2): "labels > 0.5"}
        remedy = remedies.get((labels.dtype.kind, labels.ndim), "one class per sample, or labels > 0")
        expected = "classes (N,), integers or strings, or label sets (N, L), booleans or 0 and 1"
        raise ValueError(f"expected {expected} as labels, got {labels.shape} of {labels.dtype}: give {remedy}")
    classes = labels[labels >= 0] if known and in_part and labels.dtype.kind == "i" else labels
    if known and len(classes) and (labels.dtype.kind not in "ui" or classes.min() < 0 or classes.max() >= len(known)):
        got = f"{labels.dtype}" if labels.dtype.kind not in "ui" else f"{classes.min()} to {classes.max()}"
        raise ValueError(f"expected labels from 0 to {len(known) - 1} for {len(known)} names, got {got}")
    return columns.labels_of(labels.tolist(), names=known, in_part=in_part, separable=False)


def ids_of(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return the ids of samples; None, for their positions, if the arrays have none."""
    ids: Any = arrays.get("ids")
    if ids is not None and (ids.ndim != 1 or ids.dtype.kind not in "uiSU"):
        raise ValueError(f"expected ids of shape (N,), strings, got {ids.shape} of {ids.dtype}")
    return ids if ids is None else Ids.of(words_of(ids, "ids").tolist())


def parts_of_arrays(arrays: Mapping[str, NDArray[Any]]) -> Tensor | None:
    """Return the part of each sample, (N,): 0 train, 1 validation, 2 test; None if the arrays have no parts."""
    if "test" in arrays and "parts" in arrays:
        raise ValueError("expected one of the keys 'test' and 'parts', got both: keep one")
    if "test" in arrays:
        test = arrays["test"]
        if test.dtype.kind != "b":
            raise ValueError(f"expected test of booleans, True for what is held out, got {test.dtype}")
        if not test.any():
            raise ValueError("expected a test mask with every class in training, got no test sample")
        return torch.from_numpy(test).long() * 2
    if "parts" not in arrays:
        return None
    part_names = words_of(arrays["parts"], "parts")
    unknown = sorted(set(part_names.tolist()) - set(PART_NAMES))
    if unknown:
        raise ValueError(f"expected parts of 'train', 'validation' and 'test', got {unknown[0]!r}")
    return torch.tensor([PART_NAMES[part] for part in part_names.tolist()])


def as_images(images: NDArray[Any], size: Size = None, resize: Resize = "crop") -> Tensor:
    """Return images as a tensor (N, channels, height, width): uint8 if they are integers or booleans, else float32."""
    tensor = _channels_first(torch.from_numpy(np.require(_pixels(images), requirements="W")))
    if size is None:
        return tensor.contiguous()
    height, width = sides(size)
    return ImagePreprocessing(tensor.shape[1], height, width, resize).of_tensor(tensor)


def _pixels(images: NDArray[Any]) -> NDArray[Any]:
    if images.ndim not in {3, 4} or images.dtype.kind not in "uifb":
        shapes = "(N, height, width), (N, height, width, channels) or (N, channels, height, width)"
        got = f"{images.shape} of {images.dtype}: reshape them, or save vectors under 'vectors'"
        raise ValueError(f"expected images of shape {shapes}, numbers, got {got}")
    if images.dtype.kind == "b":
        return images.astype(np.uint8) * np.uint8(255)
    low, high = images.min(), images.max()
    if images.dtype.kind == "f":
        if low < -_ROUNDING or high > 1 + _ROUNDING:  # Samples reports NaN
            got = f"values from {low:.4g} to {high:.4g}: divide them by their largest possible value"
            raise ValueError(f"expected floating-point images from 0 to 1, got {got}, or save uint8 from 0 to 255")
        return images.astype(np.float32, copy=False).clip(0, 1)
    if low < 0 or high > 255:
        got = f"values from {low} to {high}: divide them by their largest possible value, as floating-point numbers"
        raise ValueError(f"expected integer images from 0 to 255, got {got}")
    if high == 1:
        raise ValueError("expected integer images from 0 to 255, got only 0 and 1: save images.astype(bool)")
    return images.astype(np.uint8, copy=False)


def _channels_first(images: Tensor) -> Tensor:
    if images.ndim == 3:
        return images.unsqueeze(1)
    first, last = images.shape[1] in _CHANNELS, images.shape[-1] in _CHANNELS
    if first == last:
        got = "could be either: save grey images as (N, height, width)" if first else "has neither 1 nor 3"
        raise ValueError(f"expected images of 1 or 3 channels, last or first, got {tuple(images.shape)}, which {got}")
    return images if first else images.movedim(-1, 1)
