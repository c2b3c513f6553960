"""Files of features with their labels: a run's own, and embeddings from elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likewise.data import Samples, Split, Stratified, Superclasses
from likewise.data.arrays import ArrayRows, ids_of, labels_of, parts_of_arrays, words_of
from likewise.data.lazy_inputs import Ids
from likewise.data.pairs import contents, grouped, numbered
from likewise.evaluation.arrays import NAMES, cut, features_of_parts, link_array, map_linked, read_arrays, vectors_of
from likewise.evaluation.features import FeatureParts, Features
from likewise.files.formats import PARTS

OTHER_SIDE = "_counterpart"
PAIR_ARRAYS = ("counterpart_features", "items", "counterpart_items", "counterpart_ids")
MIN_LINKED_BYTES = 2**27  # of arrays that a run links instead of copying
EXPECTED_ARRAYS = (
    "'features' (N, D) and 'labels' (N,), optionally 'parts' (N,) of train, validation, test; or "
    "'train_features', 'train_labels', 'test_features', 'test_labels', optionally 'validation_...'"
)


def save_features(path: Path, parts: FeatureParts, source: NDArray[Any] | None = None) -> None:
    """Write the features of three parts as an .npz file.

    Each part has `train_features` (N, D), `train_rows` (N,), and if present, `train_ids` (N,) other than numbers;
    `train_labels` and `train_names`; `train_superclasses` (C,) and `train_superclass_names` of coarser training
    classes; `train_logits` (N, C) of a classifier, or `train_predictions` if they are not logits; for a subset
    `train_whole` (C,), the number of samples of each class or label in the whole part. Pairs also have `train_items`
    (N,), equal for equal inputs, and the same arrays of the other side: `train_counterpart_features`, ....

    Args:
        path: The file.
        parts: The features.
        source: The array that holds the features as rows, if it is memory-mapped. From 128 MiB it is linked, not
            copied: `linked` takes the place of `train_features`, and rows are indices into that array.

    Example:
        >>> path = Path("embeddings.npz")
        >>> part = Features(torch.eye(2), torch.tensor([0, 1]), ("cat", "dog"))
        >>> save_features(path, FeatureParts(part, part, part))
        >>> load_features(path).test.names
        ('cat', 'dog')
    """
    mapped = source if isinstance(source, np.memmap) and source.nbytes >= MIN_LINKED_BYTES else None
    arrays: dict[str, NDArray[Any]] = {} if mapped is None else link_array(mapped, path.parent)
    for part, features in zip(PARTS, parts, strict=True):
        arrays |= _arrays_of_part(features, part)
        if mapped is not None:
            del arrays[f"{part}_features"]
        if features.counterparts is not None:
            other_side = replace(features.counterparts, rows=features.rows)
            arrays |= _arrays_of_part(other_side, f"{part}{OTHER_SIDE}")
    with path.open("wb") as file:  # given a path, NumPy would add .npz
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def _arrays_of_part(features: Features, part: str) -> dict[str, NDArray[Any]]:
    coarse = features.within
    values: dict[str, Any] = {
        "features": features.vectors,
        "rows": features.numbers,
        "whole": features.whole,
        "ids": None if features.ids.plain else np.array(list(features.ids), dtype=str),
        "items": features.items,
        "labels": features.labels,
        "names": None if features.labels is None else np.array(features.names, dtype=str),
        "superclasses": None if coarse is None else coarse.numbers,
        "superclass_names": None if coarse is None else np.array(coarse.names, dtype=str),
        "logits" if features.logits else "predictions": features.predictions,
    }
    return {f"{part}_{name}": np.asarray(value) for name, value in values.items() if value is not None}


def load_features(path: Path) -> FeatureParts:
    """Read features saved by `save_features`; raise a ValueError if the file is missing, damaged, or lacks an array."""
    arrays = whole_arrays(path)
    missing = [f"{part}_features" for part in PARTS if f"{part}_features" not in arrays]
    if missing:
        raise ValueError(f"expected {missing[0]} in {path}, got {', '.join(sorted(arrays))}: evaluate the run again")
    return FeatureParts(*(_of_part(arrays, part) for part in PARTS))


def whole_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays from `read_arrays`, and, if a run's features are linked, the features of each part."""
    arrays = read_arrays(path)
    if "linked" in arrays:
        vectors = ArrayRows(map_linked(arrays.pop("linked"), path.parent))
        rows = {part: torch.from_numpy(arrays[f"{part}_rows"]) for part in PARTS}
        arrays |= {f"{part}_features": vectors[index].numpy() for part, index in rows.items()}
    return arrays


def _of_part(arrays: Mapping[str, NDArray[Any]], part: str, side: str = "") -> Features:
    def get_tensor(name: str) -> Tensor | None:
        array = arrays.get(f"{part}{side}_{name}")
        return None if array is None else torch.from_numpy(array)

    names, ids = (arrays.get(f"{part}{side}_{name}") for name in ("names", "ids"))
    called: Any = None if ids is None else Ids.of(ids.tolist())
    logits, superclasses, within = get_tensor("logits"), get_tensor("superclasses"), None
    if superclasses is not None:
        within = Superclasses(superclasses, tuple(map(str, arrays[f"{part}{side}_superclass_names"])))
    paired = not side and f"{part}{OTHER_SIDE}_features" in arrays
    return Features(
        torch.from_numpy(arrays[f"{part}{side}_features"]),
        get_tensor("labels"),
        () if names is None else tuple(str(name) for name in names),
        get_tensor("rows"),
        part,
        predictions=get_tensor("predictions") if logits is None else logits,
        logits=logits is not None,
        ids=called,
        items=get_tensor("items"),
        whole=get_tensor("whole"),
        within=within,
        counterparts=_of_part(arrays, part, OTHER_SIDE) if paired else None,
    )


def features_of_file(path: Path, split: Split | None = None, most: int | None = None) -> FeatureParts:
    """Read features and labels from an .npz file, or another format of `read_arrays`, in either of two layouts.

    - `features` (or `embeddings`, `vectors`), (N, D), and `labels`, (N,), integers or strings; optionally `names`,
      (C,), `ids`, (N,), strings, and `parts`, (N,), of "train", "validation", "test", or `test`, (N,), booleans.
    - For each part `train_features`, `train_labels`, and so on, as in a run's `embeddings.npz`.

    A missing validation part is cut from the training part; without parts, a test part too. A file with only test
    samples is evaluated by retrieval.

    Pairs also have `counterpart_features` (`test_counterpart_features`, ...), (N, D), row by row; optionally
    `counterpart_ids`, and `items` and `counterpart_items`, (N,), equal for equal inputs; by default, for equal
    features. Labels are optional; without labels and parts, all pairs are the test part.

    Args:
        path: The file, or a folder of them.
        split: The split that cuts parts. None: `Stratified()`.
        most: The maximum number of samples read from each part. None: all.

    Raises:
        ValueError: There is no such file, it lacks a key, or features and labels disagree or aren't finite.

    Example:
        >>> file = Path("mine.npz")
        >>> np.savez(file, features=np.random.rand(40, 3), labels=["cat", "dog"] * 20)
        >>> [len(part) for part in features_of_file(file)]
        [27, 3, 10]
    """
    return features_of_parts(samples_of_arrays(whole_arrays(path), path, split), most)


def vectors_in(arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    """Return the array whose rows are the features of all parts; None where each part has its own, and for pairs."""
    features = (arrays[name] for name in NAMES if name in arrays)
    return None if "counterpart_features" in arrays else next(features, None)


def samples_of_arrays(arrays: dict[str, NDArray[Any]], path: Path, split: Split | None = None) -> list[Samples]:
    """Return the samples of the three parts, with features as inputs, without reading memory-mapped arrays."""
    together = [f"{part}_labels" for part in PARTS if f"{part}_features" in arrays]
    arrays = joined_arrays(arrays, path)
    key = next((name for name in NAMES if name in arrays), None)
    paired = "counterpart_features" in arrays
    if key is not None and "labels" not in arrays and not paired:
        if together:
            raise ValueError(f"expected {EXPECTED_ARRAYS} in {path}, got no {together[0]}")
        if path.suffix == ".npy":
            remedy = f"save both, numpy.savez({path.stem + '.npz'!r}, features=..., labels=...)"
            raise ValueError(f"expected features with labels, got {path}, which has one array: {remedy}")
        raise ValueError(f"expected 'labels' (N,) next to {key!r} in {path}, got {', '.join(sorted(arrays))}")
    if key is None:
        raise ValueError(f"expected {EXPECTED_ARRAYS} in {path}, got {', '.join(sorted(arrays)) or 'no array'}")
    vectors, labels = vectors_of(arrays[key], key), arrays.get("labels")
    if labels is not None and labels.ndim and len(vectors) != len(labels):
        raise ValueError(f"expected one label for each of {len(vectors)} {key}, got {len(labels)} labels")
    label_shape, part_shape = (arrays[name].shape if name in arrays else None for name in ("labels", "parts"))
    if label_shape == () or part_shape not in {None, vectors.shape[:1]}:
        raise ValueError(f"expected labels (N,) and parts (N,) in {path}, got {label_shape} and {part_shape}")
    classes, names = (None, ()) if labels is None else labels_of(labels, arrays.get("names"))
    rows = torch.from_numpy(arrays["rows"]) if together and "rows" in arrays else None
    parts = parts_of_arrays(arrays)
    parts = torch.full((len(vectors),), 2) if labels is None and parts is None else parts
    inputs = ArrayRows(vectors) if isinstance(vectors, np.memmap) and not paired else torch.from_numpy(vectors)
    samples = Samples(inputs, classes, names, parts, rows, ids_of(arrays))
    if paired:
        samples = _with_other_side(samples, arrays)
    try:
        return cut(samples.numbered(), split or Stratified())
    except ValueError as error:
        if len(samples.names) < 2:
            raise
        raise ValueError(f"{error}; or save parts='test' for all samples, to evaluate them by retrieval") from error


def _with_other_side(samples: Samples, arrays: Mapping[str, NDArray[Any]]) -> Samples:
    counterparts = torch.from_numpy(vectors_of(arrays["counterpart_features"], "counterpart_features"))
    if counterparts.shape != samples.inputs.shape:
        like = f"{tuple(samples.inputs.shape)}, got {tuple(counterparts.shape)}"
        raise ValueError(f"expected counterpart_features like features, {like}: encode both sides of the same pairs")
    items: list[Tensor] = []
    for name, side in (("items", samples.inputs), ("counterpart_items", counterparts)):
        array = arrays.get(name)
        if array is not None and array.shape != (len(side),):
            raise ValueError(f"expected {name} ({len(side)},), one per input, got {array.shape}")
        items.append(numbered(contents(side) if array is None else array.tolist())[0])
    ids: Any = ids_of({"ids": arrays["counterpart_ids"]}) if "counterpart_ids" in arrays else samples.ids
    paired = replace(samples, items=items[0], counterparts=Samples(counterparts, ids=ids, items=items[1]))
    return replace(paired, groups=grouped(paired))


def _check_part(arrays: Mapping[str, NDArray[Any]], part: str, first: str) -> None:
    features, labels, names = arrays[f"{part}_features"], arrays[f"{part}_labels"], arrays.get(f"{part}_names")
    if labels.ndim == 0 or len(labels) != len(features):
        count = "one" if labels.ndim == 0 else len(labels)
        raise ValueError(f"expected one label for each of {len(features)} {part}_features, got {count} {part}_labels")
    like = arrays[f"{first}_labels"]
    if labels.shape[1:] != like.shape[1:]:
        raise ValueError(f"expected {part}_labels like {first}_labels, {like.shape}, got {labels.shape}")
    if (names is None) != (f"{first}_names" not in arrays):
        lacking, having = (part, first) if names is None else (first, part)
        raise ValueError(f"expected {lacking}_names next to {having}_names, got none: name the classes of all parts")
    if names is None:
        return
    if names.ndim != 1:
        raise ValueError(f"expected {part}_names (C,), got {names.shape}: give a name for each class or label")
    if labels.ndim == 2:
        if names.shape != labels.shape[1:] or not np.array_equal(names, arrays[f"{first}_names"]):
            raise ValueError(f"expected {labels.shape[1]} {part}_names, the same in all parts, got {len(names)}")
        return
    if labels.dtype.kind not in "ui" or (len(labels) and (labels.min() < 0 or labels.max() >= len(names))):
        expected = f"expected {part}_labels as integers from 0 to {len(names) - 1}, the numbers of {part}_names"
        raise ValueError(f"{expected}, got {labels.dtype}: leave out {part}_names, or renumber the labels")


def joined_arrays(arrays: dict[str, NDArray[Any]], path: Path) -> dict[str, NDArray[Any]]:
    """Concatenate arrays given by part, renumbering classes by name; return other arrays unchanged."""
    part_names = [part for part in PARTS if f"{part}_features" in arrays]
    if not part_names or any(name in arrays for name in NAMES):
        return arrays
    pair_names = [name for name in PAIR_ARRAYS if any(f"{part}_{name}" in arrays for part in part_names)]
    for part, name in ((part, name) for part in part_names for name in pair_names):
        array, like = arrays.get(f"{part}_{name}"), arrays[f"{part}_features"].shape
        if array is None or array.shape != (like if name.endswith("features") else like[:1]):
            got = "none" if array is None else f"{array.shape} beside features {like}"
            raise ValueError(f"expected {part}_{name}, one for each of {part}_features, got {got}")
    missing = [f"{part}_labels" for part in part_names if f"{part}_labels" not in arrays]
    if 0 < len(missing) < len(part_names):
        raise ValueError(f"expected {EXPECTED_ARRAYS} in {path}, got no {missing[0]}")
    features = [arrays[f"{part}_features"] for part in part_names]
    shapes = {part: array.shape for part, array in zip(part_names, features, strict=True)}
    if len({array.shape[1:] for array in features}) > 1 or any(array.ndim != 2 for array in features):
        raise ValueError(f"expected features of one length in {path}, got {shapes}: encode all parts with one encoder")
    for part in [] if missing else part_names:
        _check_part(arrays, part, part_names[0])
    parts = np.concatenate([np.full(len(array), part) for part, array in zip(part_names, features, strict=True)])
    together = {"features": np.concatenate(features), "parts": parts}
    ids = [arrays.get(f"{part}_ids", np.empty(0)) for part in part_names]
    if all(part_ids.shape == array.shape[:1] for part_ids, array in zip(ids, features, strict=True)):
        together["ids"] = np.concatenate(ids)
    together |= {name: np.concatenate([arrays[f"{part}_{name}"] for part in part_names]) for name in pair_names}
    labels = {} if missing else _labels_together(arrays, part_names)
    return together | labels | _rows_together(arrays, part_names)


def _labels_together(arrays: Mapping[str, NDArray[Any]], part_names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the labels of all parts and any class names, whose order gives the numbers of the classes."""
    labels = [arrays[f"{part}_labels"] for part in part_names]
    names = [words_of(arrays[f"{part}_names"], f"{part}_names") for part in part_names if f"{part}_names" in arrays]
    if not names:
        return {"labels": np.concatenate(labels)}
    if labels[0].ndim == 2:
        return {"labels": np.concatenate(labels), "names": names[0]}
    every = {name: number for number, name in enumerate(dict.fromkeys(np.concatenate(names).tolist()))}
    numbers = [np.array([every[name] for name in class_names.tolist()], dtype=np.int64) for class_names in names]
    class_labels = [part_numbers[part_labels] for part_numbers, part_labels in zip(numbers, labels, strict=True)]
    return {"labels": np.concatenate(class_labels), "names": np.array(list(every))}


def _rows_together(arrays: Mapping[str, NDArray[Any]], part_names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the rows of all parts, which keep samples and episodes the same as in their run."""
    rows = [arrays[f"{part}_rows"] for part in part_names if f"{part}_rows" in arrays]
    if [array.shape for array in rows] != [arrays[f"{part}_features"].shape[:1] for part in part_names]:
        return {}
    joined = np.concatenate(rows)
    return {"rows": joined} if joined.dtype.kind == "i" and len(np.unique(joined)) == len(joined) else {}
