"""Arrays of vectors and labels in memory: checked, and divided into parts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likewise.data import Samples, Split
from likewise.data.arrays import labels_of, words_of
from likewise.evaluation.features import FeatureParts, Features
from likewise.evaluation.subsample import capped
from likewise.files.formats import PARTS

MIN_SETS = 10  # with fewer label sets, a tenth rounds to none
Given = tuple[str, Any, str, Any]
"""The vectors of a part and their labels, each after its name."""


def vectors_of(values: Any, name: str) -> NDArray[np.float32]:
    """Return vectors (N, D) in float32, or raise a ValueError with their name if they aren't vectors."""
    array = values if isinstance(values, np.memmap) else array_of(values, name)
    if array.ndim != 2 or array.dtype.kind not in "uifb":
        remedy = f": {name}.reshape(-1, 1) if it is one number a sample" if array.ndim == 1 else ""
        raise ValueError(f"expected {name} (N, D), numbers, got {array.shape} of {array.dtype}{remedy}")
    if array.shape[1] == 0:
        raise ValueError(f"expected {name} (N, D) with D of at least 1, got {array.shape}")
    if isinstance(array, np.memmap):
        return array  # read, and checked, row by row
    with np.errstate(over="ignore"):  # reported as infinity
        array = array.astype(np.float32, copy=False)
    wrong = int((~np.isfinite(array)).any(axis=1).sum())
    if wrong:
        raise ValueError(f"expected finite {name}, got NaN or infinity in {wrong} of {len(array)}: drop or mend them")
    return array


def gather_samples(arrays: Mapping[str, Given], names: Sequence[str] | None = None) -> Samples:
    """Check the arrays of parts, and put them together, with classes numbered, or named, over all of them."""
    vectors = {part: vectors_of(x, name) for part, (name, x, _, _) in arrays.items()}
    labels = {part: _labels(y, name) for part, (_, _, name, y) in arrays.items()}
    first = next(iter(arrays))
    for part, (name, _, name_of_labels, _) in arrays.items():
        part_labels, count = labels[part], len(vectors[part])
        if part_labels.ndim == 0 or len(part_labels) != count or count == 0:
            got = "none" if part_labels.ndim == 0 or count == 0 else f"{len(part_labels)} labels"
            expected = f"expected samples in {name}, with a label of each in {name_of_labels}"
            raise ValueError(f"{expected}, got {count} samples and {got}: drop what has no partner")
        _check_like(vectors[part], name, vectors[first], arrays[first][0], "encode both with one encoder")
        _check_like(part_labels, name_of_labels, labels[first], arrays[first][2], "give both labels of one kind")
    every, named = labels_of(np.concatenate([*labels.values()]), None if names is None else np.array(names))
    parts = torch.cat([torch.full((len(array),), PARTS.index(part)) for part, array in vectors.items()])
    return Samples(torch.from_numpy(np.concatenate([*vectors.values()])), every, named, parts).numbered()


def three_parts(samples: Samples) -> FeatureParts:
    """Return the parts that the samples have; a part without samples is empty."""
    return features_of_parts(_own_parts(samples))


def cut(samples: Samples, split: Split) -> list[Samples]:
    """Cut the parts that are missing; parts with classes of their own, pairs, and test samples alone stay unchanged."""
    if samples.labels is None and samples.counterparts is not None:
        return _own_parts(samples)
    if samples.parts is not None and samples.labels is not None:
        three = _own_parts(samples)
        if samples.label_kind == "classes":
            train, _, test = (set(torch.as_tensor(part.labels).tolist()) for part in three)
            if not test <= train:
                return [part.compact() for part in three]
        elif len(three[2]) == len(samples):
            return three
    parts = split(samples)
    return [parts.train, parts.validation, parts.test]


def _own_parts(samples: Samples) -> list[Samples]:
    part_index = torch.zeros(len(samples), dtype=torch.int64) if samples.parts is None else samples.parts
    return [samples[part_index == number] for number in range(len(PARTS))]


def features_of_parts(parts: Sequence[Samples], most: int | None = None) -> FeatureParts:
    """Return the inputs of three parts as features; at most `most` of each are read."""
    some = zip(capped(parts, most), PARTS, strict=True)
    return FeatureParts(*(subsample.of(_features(subsample.samples, part)) for subsample, part in some))


def can_be_cut(samples: Samples) -> bool:
    """Return whether the training samples can spare some for validation."""
    train = samples if samples.parts is None else samples[samples.parts == 0]
    if train.label_kind == "classes":
        return bool((train.counts > 1).any())
    return len(train) >= MIN_SETS


def _check_like(array: NDArray[Any], name: str, other: NDArray[Any], name_of_other: str, remedy: str) -> None:
    if array.shape[1:] != other.shape[1:]:
        theirs, ours = (str(("N", *values.shape[1:])).replace("'", "") for values in (other, array))
        raise ValueError(f"expected {name} like {name_of_other}, {theirs}, got {ours}: {remedy}")
    theirs, ours = ("words" if values.dtype.kind in "UST" else "numbers" for values in (other, array))
    if theirs != ours and "O" not in (other.dtype.kind, array.dtype.kind):
        raise ValueError(f"expected {name} like {name_of_other}, {theirs}, got {ours}: {remedy}")


def _features(samples: Samples, part: str) -> Features:
    inputs = samples.inputs
    inputs = inputs if isinstance(inputs, Tensor) else inputs[torch.arange(len(samples))]
    counterparts = None if samples.counterparts is None else _features(samples.counterparts, part)
    return Features.of(samples, inputs, part, counterparts=counterparts)


def array_of(values: Any, name: str) -> NDArray[Any]:
    """Return values as an array; a tensor without its gradient, from any device."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    try:
        return np.asarray(values)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"expected {name} as one array, got rows of different lengths: pad or drop some") from error


def _labels(values: Any, name: str) -> NDArray[Any]:
    array = array_of(values, name)
    if array.ndim == 2 and array.shape[1] == 1:
        raise ValueError(f"expected {name} (N,), or of several labels (N, L), got {array.shape}: {name}.ravel() is one")
    if array.dtype.kind == "O" and all(isinstance(value, str | bytes | int) for value in array.ravel().tolist()):
        array = np.asarray(array.tolist())
    return words_of(array, name) if array.dtype.kind == "S" else array
