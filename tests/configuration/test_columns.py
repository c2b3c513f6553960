"""Naming the column of labels is enough: inputs, source, encoder and augmentation follow from what columns hold."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from likewise import data
from likewise.configuration.options import TrainOptions
from likewise.configuration.resolution import resolve
from likewise.data import Source

WORDS = ("small", "red", "fox", "runs", "over", "lazy", "sky", "sea", "rain", "sun", "went", "home", "again", "today")
OF_KIND = {
    "texts": ("PretrainedTransformer", "TokenDropout"),
    "images": ("Timm", "SimCLRViews"),
    "numbers": ("MLP", "FeatureDropout"),
}


def rows_of(kind: str) -> list[dict[str, Any]]:
    """Return rows whose column of labels has no usual name, beside others that are neither inputs nor labels."""
    rng, topics = np.random.default_rng(0), ("card", "loan", "fees")
    inputs = {
        "texts": lambda row: {"message": f"{topics[row % 3]} {' '.join(rng.choice(WORDS, 8))}"},
        "images": lambda row: {"file": f"{row}.png"},
        "numbers": lambda _: {"width": round(rng.random(), 3), "height": round(rng.random(), 3)},
    }[kind]
    return [{"id": row + 7, **inputs(row), "topic": topics[row % 3]} for row in range(30)]


def written(folder: Path, suffix: str, rows: list[dict[str, Any]]) -> Path:
    """Write rows as a table of a kind, and the images that they name."""
    file = folder / f"some{suffix}"
    for row in rows:
        if "file" in row:
            Image.new("RGB", (8, 8)).save(folder / row["file"])
    if suffix == ".parquet":
        import pyarrow as pa  # noqa: PLC0415 - of this kind alone
        from pyarrow import parquet  # noqa: PLC0415 - likewise

        parquet.write_table(pa.Table.from_pylist(rows), file)
    else:
        lines = [",".join(map(str, line)) for line in (rows[0], *(row.values() for row in rows))]
        file.write_text("\n".join(lines if suffix == ".csv" else map(json.dumps, rows)))
    return file


def source_of(chosen: dict[str, Any]) -> Source:
    """Make the source that options name."""
    return getattr(data, chosen["class_path"].rpartition(".")[2])(**chosen["init_args"])


def parts_of(options: TrainOptions) -> tuple[str, str]:
    """Return the encoder and the augmentation that options name."""
    parts = options.encoder, options.batches["init_args"]["augmentation"]
    first, second = (part["class_path"].rpartition(".")[2] for part in parts)
    return first, second


@pytest.mark.parametrize(
    ("kind", "suffix"), [("texts", ".csv"), ("texts", ".jsonl"), ("images", ".parquet"), ("numbers", ".csv")]
)
def test_a_column_of_labels_keeps_the_defaults_of_the_kind_of_data(kind, suffix, tmp_path):
    file = written(tmp_path, suffix, rows_of(kind))
    options = resolve({"data": str(file), "data.label": "topic"})
    assert parts_of(options) == OF_KIND[kind]
    samples = source_of(options.data).load()
    assert (samples.names, len(samples)) == (("card", "fees", "loan"), 30)
    assert samples.input_shape == {"texts": (), "images": (3, 160, 160), "numbers": (2,)}[kind]
    with pytest.raises(ValueError, match=rf": likewise train {file} --data\.label topic \(or none\)$"):
        source_of(resolve({"data": str(file)}).data).load()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_texts_among_other_columns_are_the_long_ones_or_are_named(suffix, tmp_path):
    rows = [{**row, "lang": ("en", "de")[place % 2]} for place, row in enumerate(rows_of("texts"))]
    file = written(tmp_path, suffix, rows)
    told = {"data": str(file), "data.label": "topic"}
    for more in ({}, {"data.inputs": "message"}, {"data.inputs": ["message"]}):
        options = resolve(told | more)
        assert parts_of(options) == OF_KIND["texts"]
        assert source_of(options.data).load().inputs.strings == [row["message"] for row in rows]
    with pytest.raises(ValueError, match=r"--data\.label topic \(or lang, none\)$"):
        source_of(resolve({"data": str(file)}).data).load()


def test_numbers_beside_texts_without_a_usual_name_are_the_inputs(tmp_path):
    file = written(tmp_path, ".csv", [{**row, "age": place / 7} for place, row in enumerate(rows_of("texts"))])
    assert parts_of(resolve({"data": str(file), "data.label": "topic"})) == OF_KIND["numbers"]
    named = resolve({"data": str(file), "data.label": "topic", "data.text": "message"})
    assert (parts_of(named), named.data["class_path"]) == (OF_KIND["texts"], "likewise.data.Text")


@pytest.mark.parametrize("named", ["Table", "Text"])
def test_a_source_that_is_named_has_the_defaults_of_what_it_reads(named, tmp_path):
    told = {"data": named, "data.path": str(written(tmp_path, ".csv", rows_of("texts"))), "data.label": "topic"}
    options = resolve(told)
    assert (options.data["class_path"], parts_of(options)) == (f"likewise.data.{named}", OF_KIND["texts"])
    assert resolve(told | {"encoder": "BagOfTokens"}).batches["init_args"].get("augmentation") is None


def test_named_sides_are_pairs(tmp_path):
    rows = [{"question": row["message"], "answer": row["topic"]} for row in rows_of("texts")]
    options = resolve({"data": str(written(tmp_path, ".csv", rows)), "data.first": "question", "data.second": "answer"})
    assert options.data["class_path"] == "likewise.data.Pairs"
    assert options.encoder["class_path"] == "likewise.models.PretrainedTransformer"
    assert len(source_of(options.data).load()) == 30
