"""Inputs from wherever people keep them, as an encoder that is trained takes them."""

from pathlib import Path
from typing import Any

import torch

from likewise import data
from likewise.data import ImagePreprocessing, Samples
from likewise.data.ids import Ids
from likewise.data.image_files import ImageFiles
from likewise.data.rows import SomeRows
from likewise.files import formats
from likewise.files.detection import expanded, source_for

LABELLED_OR_NOT = ("Folder", "Table", "Text")


def samples_at(place: str | Path, preprocessing: ImagePreprocessing | None = None) -> Samples:
    """Return the samples at a path or of a name, whatever `likewise train` takes as data; also a single image.

    Images in files are decoded on demand, by the preprocessing of the run. Samples need no labels.

    Raises:
        ValueError: There is nothing that a source of data reads.

    Example:
        >>> len(samples_at("digits"))
        1797
    """
    where = expanded(place)
    if where.is_file() and where.suffix.lower() in formats.image_suffixes() and preprocessing is not None:
        return Samples(ImageFiles([where], preprocessing), ids=Ids.of([where.name]), preprocessing=preprocessing)
    kind, options = source_for(where if where.exists() else place)
    if kind in {"Folder", "Table"} and preprocessing is not None:
        size = {"size": (preprocessing.height, preprocessing.width), "resize": preprocessing.resize}
        options = {**options, **size, "memory": 0.0}
    samples = _loaded(kind, options)
    inputs: Any = samples.inputs
    if preprocessing is None or not isinstance(inputs, SomeRows) or not isinstance(inputs.all_rows, ImageFiles):
        return samples
    files = ImageFiles(inputs.all_rows.items, preprocessing)  # grey or not, as the encoder takes them
    return Samples(SomeRows(files, inputs.rows), samples.labels, samples.names, samples.parts, ids=samples.ids)


def _loaded(kind: str, options: dict[str, Any]) -> Samples:
    """Load samples, without labels where there are none."""
    source: Any = getattr(data, kind)
    if kind not in LABELLED_OR_NOT:
        return source(**options).load()
    try:
        return source(**options).load()
    except ValueError as error:
        try:
            return source(**options, label="none").load()
        except ValueError:
            raise error from None


def chunked(samples: Samples, size: int) -> list[Samples]:
    """Return the samples some at a time, without reading them."""
    return [samples[rows] for rows in torch.arange(len(samples)).split(size)]
