"""Arrays in an .npz file: whatever data set a NumPy user has at hand."""

import zipfile
import zlib
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likewise.data.samples import Samples
from likewise.data.source import LabelledData


@final
class Arrays(LabelledData):
    """Images or vectors with labels, from a file written by numpy.savez.

    The file's keys:

    - `images`, (N, height, width) or (N, height, width, channels), channels last; integers are divided by 255,
      floating-point values stay as they are. Or `vectors`, (N, F), any numbers.
    - `labels`, (N,), integers or strings.
    - `test`, (N,), booleans, optional: which samples are held out. Without it the split is stratified by class.

    Args:
        path: The .npz file. Keys: `images` (N, height, width) or (N, height, width, channels), or `vectors` (N, F);
            `labels` (N,), integers or strings; optional `test` (N,), booleans, True for a held-out sample.
        **options: What every source takes, see LabelledData.

    Raises:
        ValueError: There is no such file, it is no .npz, lacks a key, or holds an array of the wrong shape or kind.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = Path(folder.name) / "flowers.npz"
        >>> np.savez(file, vectors=np.zeros((8, 3)), labels=["lily", "rose"] * 4)
        >>> Arrays(file).train_samples.class_names
        ('lily', 'rose')
        >>> folder.cleanup()
    """

    def __init__(self, path: str | Path, **options: Any) -> None:
        super().__init__(**options)
        self.path = Path(path)

    def load(self) -> Samples:
        """Read the file."""
        arrays = self._read()
        kinds = [key for key in ("images", "vectors") if key in arrays]
        if len(kinds) != 1 or "labels" not in arrays:
            keys = "both" if len(kinds) == 2 else ", ".join(sorted(arrays)) or "none"
            save = f"save it with numpy.savez(path, {kinds[0] if kinds else 'images'}=..., labels=...)"
            raise ValueError(
                f"expected the keys 'labels' and one of 'images', 'vectors' (optional: 'test') in {self.path}, "
                f"got {keys}: {'keep one' if len(kinds) == 2 else save}"
            )
        if arrays[kinds[0]].size == 0:
            shape = arrays[kinds[0]].shape
            raise ValueError(f"expected {kinds[0]} of samples with values, got {shape}: fill the array before saving")
        inputs = _images(arrays["images"]) if kinds == ["images"] else _vectors(arrays["vectors"])
        labels, names = _classes(arrays["labels"])
        return Samples(inputs, labels, names, _mask(arrays.get("test")))

    def _read(self) -> dict[str, NDArray[Any]]:
        if not self.path.is_file():
            raise ValueError(f"expected an .npz file, got {self.path}, which does not exist: check data.path")
        try:
            with np.load(self.path, allow_pickle=False) as file:
                return {key: _plain(file, key) for key in file.files}
        except _ObjectsError as error:
            raise ValueError(str(error)) from error
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError, TypeError) as error:
            raise ValueError(
                f"expected an .npz file of plain arrays, got {self.path}, which is none: write it with numpy.savez"
            ) from error


class _ObjectsError(ValueError):
    """An array of Python objects, which only pickle would read."""


def _plain(file: Any, key: str) -> NDArray[Any]:
    try:
        return file[key]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        remedy = "labels.astype(str) or labels.astype(int)" if key == "labels" else f"{key}.astype(float)"
        raise _ObjectsError(f"expected {key} of plain values, got Python objects: save {remedy}") from error


def _images(images: NDArray[Any]) -> Tensor:
    if images.ndim not in {3, 4} or images.dtype.kind not in "uif":
        raise ValueError(
            "expected images of shape (N, height, width) or (N, height, width, channels), integer or floating-point, "
            f"got {images.shape} of {images.dtype}: reshape them, or save vectors under 'vectors'"
        )
    scale = 255 if images.dtype.kind in "ui" else 1
    tensor = torch.from_numpy(images.astype(np.float32) / scale)
    return tensor.unsqueeze(1) if images.ndim == 3 else tensor.movedim(-1, 1).contiguous()


def _vectors(vectors: NDArray[Any]) -> Tensor:
    if vectors.ndim != 2 or vectors.dtype.kind not in "uifb":
        raise ValueError(
            f"expected vectors of shape (N, F), numbers, got {vectors.shape} of {vectors.dtype}: "
            "flatten them, or save images under 'images'"
        )
    return torch.from_numpy(vectors.astype(np.float32))


def _classes(labels: NDArray[Any]) -> tuple[Tensor, tuple[str, ...]]:
    if labels.ndim != 1 or labels.dtype.kind not in "uibSU" or len(labels) == 0:
        remedy = "save labels.astype(int)" if labels.ndim == 1 and labels.dtype.kind == "f" else "one class a sample"
        raise ValueError(
            f"expected labels of shape (N,), integers or strings, got {labels.shape} of {labels.dtype}: {remedy}"
        )
    names, classes = np.unique(labels, return_inverse=True)
    return torch.from_numpy(classes.astype(np.int64)), tuple(str(name) for name in names)


def _mask(test: NDArray[Any] | None) -> Tensor | None:
    if test is None:
        return None
    if test.dtype.kind != "b":
        raise ValueError(f"expected test of booleans, True for a held-out sample, got {test.dtype}: compare it first")
    return torch.from_numpy(test)
