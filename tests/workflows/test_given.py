"""Data given as objects: what a source reads of the file that they are kept in is what was given."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from PIL import Image

from likewise.data import Arrays, Table
from likewise.workflows.arguments import write_data

GENERATOR = np.random.default_rng(0)
VECTORS, LABELS = GENERATOR.normal(size=(12, 3)).astype(np.float32), np.arange(12) % 3
PIXELS = GENERATOR.integers(0, 256, size=(12, 3, 8, 8), dtype=np.uint8)
TEXTS = [f"text {number} of a fox" for number in range(12)]
NAMES = ("lily", "rose", "tulip")


class Items(torch.utils.data.Dataset):
    """A map-style data set."""

    def __init__(self, items, classes=None):
        self.items = items
        if classes is not None:
            self.classes = list(classes)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        return self.items[place]


def pictures():
    """Return images of Pillow."""
    return [Image.fromarray(pixels.transpose(1, 2, 0)) for pixels in PIXELS]


ARRAYS = {
    "arrays": (VECTORS, LABELS),
    "tensors": (torch.from_numpy(VECTORS), torch.from_numpy(LABELS)),
    "lists": (VECTORS.tolist(), LABELS.tolist()),
    "tuples": Items(list(zip(torch.from_numpy(VECTORS), LABELS.tolist(), strict=True))),
    "numbers": Items(list(zip(torch.from_numpy(VECTORS), torch.from_numpy(LABELS), strict=True))),
    "dictionaries": Items([{"x": x, "label": y} for x, y in zip(torch.from_numpy(VECTORS), LABELS, strict=True)]),
    "images": (PIXELS, np.asarray(NAMES)[LABELS]),
    "channels last": (PIXELS.transpose(0, 2, 3, 1), np.asarray(NAMES)[LABELS]),
    "classes": Items(list(zip(torch.from_numpy(PIXELS), LABELS.tolist(), strict=True)), NAMES),
    "named": Items([{"thing": 1, "image": x, "kind": NAMES[y]} for x, y in zip(PIXELS, LABELS, strict=True)]),
}


TABLES = {
    "frame": pd.DataFrame({"text": TEXTS, "label": np.asarray(NAMES)[LABELS]}, index=range(5, 17)),
    "datasets": Dataset.from_dict({"text": TEXTS, "label": [NAMES[of] for of in LABELS]}),
    "lists": (TEXTS, [NAMES[of] for of in LABELS]),
    "array of words": (np.asarray(TEXTS), [NAMES[of] for of in LABELS]),
    "tuples": Items(list(zip(TEXTS, LABELS.tolist(), strict=True)), NAMES),
    "dictionaries": Items([{"text": x, "label": NAMES[y]} for x, y in zip(TEXTS, LABELS, strict=True)]),
}


@pytest.mark.parametrize("data", ARRAYS.values(), ids=ARRAYS)
def test_arrays_are_what_was_given(data, tmp_path):
    samples = Arrays(write_data(data, tmp_path, "kind")).load()
    assert torch.equal(samples.inputs, torch.from_numpy(VECTORS if samples.inputs.ndim == 2 else PIXELS))
    assert samples.labels.tolist() == LABELS.tolist()
    assert samples.names == (("0", "1", "2") if samples.inputs.ndim == 2 else NAMES)


@pytest.mark.parametrize("data", TABLES.values(), ids=TABLES)
def test_texts_are_what_was_given(data, tmp_path):
    samples = Table(str(write_data(data, tmp_path))).load()
    assert list(samples.inputs.strings) == TEXTS
    assert [samples.names[of] for of in samples.labels] == [NAMES[of] for of in LABELS]


def test_data_is_kept_by_its_contents_and_the_names_of_its_parts(tmp_path):
    assert write_data((VECTORS, LABELS), tmp_path) == write_data((VECTORS.copy(), LABELS), tmp_path)
    assert write_data((VECTORS + 1, LABELS), tmp_path) != write_data((VECTORS, LABELS), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    frame = pd.DataFrame({"text": TEXTS, "label": LABELS})
    for other in ("validation", "test"):
        place = write_data({"train": frame, other: frame[:4]}, tmp_path)
        assert {file.name for file in place.iterdir()} == {"train.parquet", f"{other}.parquet"}


@pytest.mark.parametrize("kind", ["arrays", "table"])
def test_parts_are_those_given(kind, tmp_path):
    one = {"arrays": (VECTORS, LABELS), "table": pd.DataFrame({"text": TEXTS, "label": LABELS})}[kind]
    two = {"arrays": (VECTORS[:4], LABELS[:4]), "table": pd.DataFrame({"text": TEXTS[:4], "label": LABELS[:4]})}[kind]
    path = write_data({"train": one, "test": two}, tmp_path)
    samples = (Arrays(path) if kind == "arrays" else Table(str(path))).load()
    assert samples.parts.tolist() == [0] * 12 + [2] * 4


def test_a_subset_has_the_names_of_its_data_set_and_half_precision_is_read(tmp_path):
    whole = Items(list(zip(torch.from_numpy(VECTORS), LABELS.tolist(), strict=True)), NAMES)
    samples = Arrays(write_data({"train": torch.utils.data.Subset(whole, range(6)), "test": whole}, tmp_path)).load()
    assert samples.names == NAMES
    halves = torch.from_numpy(VECTORS).bfloat16().requires_grad_()
    assert torch.equal(Arrays(write_data((halves, LABELS), tmp_path)).load().inputs, halves.detach().float())


def test_series_of_any_index_are_what_was_given(tmp_path):
    rows = range(5, 17)
    samples = Arrays(write_data((pd.DataFrame(VECTORS, rows), pd.Series(LABELS, rows)), tmp_path)).load()
    assert torch.equal(samples.inputs, torch.from_numpy(VECTORS))
    texts = pd.Series(TEXTS, rows), pd.Series(LABELS, rows)
    assert list(Table(str(write_data(texts, tmp_path))).load().inputs.strings) == TEXTS


def test_inputs_are_pictures_with_labels_or_alone_or_tuples_too(tmp_path):
    samples = Table(str(write_data(Items(list(zip(pictures(), LABELS.tolist(), strict=True)), NAMES), tmp_path))).load()
    assert torch.equal(samples.inputs[torch.arange(12)], torch.from_numpy(PIXELS))
    assert samples.names == NAMES
    assert len(Table(str(write_data(pictures(), tmp_path)), label="none").load()) == 12
    assert len(Arrays(write_data(torch.utils.data.TensorDataset(torch.from_numpy(VECTORS)), tmp_path)).load()) == 12


WRONG = {
    "of labels beyond the names": (Items([(VECTORS[0], 0), (VECTORS[1], -1)], NAMES), "labels from 0 to 2, the places"),
    "of names and numbers": (
        {"train": Items([(VECTORS[0], 0)], NAMES), "test": (VECTORS, LABELS)},
        "labels of one kind",
    ),
    "of a dictionary": ({"x": VECTORS, "y": LABELS}, "got a dictionary of x, y"),
    "of odd items": (
        Items([{"text": "a", "label": 1}, {"text": "b"}]),
        "the keys text, label in all items, got others",
    ),
    "of a loader": (
        torch.utils.data.DataLoader(Items([(VECTORS[0], 0)])),
        "got torch.utils.data.dataloader.DataLoader",
    ),
    "of an object": (object(), "map-style Dataset.*got builtins.object: give one"),
    "of nothing": ([], "got an empty one"),
    "of too few labels": ((VECTORS, LABELS[:3]), "as many labels as inputs, got 3 and 12"),
    "of several shapes": (Items([(np.zeros(2), 0), (np.zeros(3), 1)]), "inputs of one shape, got others: resize them"),
    "of items without a label": (Items([object()]), "items such as object"),
    "of other parts": ({"train": (VECTORS, LABELS), "test": (VECTORS[:, :2], LABELS)}, "vectors of one shape in all"),
    "of other columns": ({"train": (VECTORS, LABELS), "test": VECTORS}, "vectors, labels, in test, got vectors"),
}


@pytest.mark.parametrize(("data", "words"), WRONG.values(), ids=WRONG)
def test_what_is_no_data_is_told(data, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        write_data(data, Path(tmp_path))
