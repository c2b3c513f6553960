"""Runs whose encoders have trained nothing, a reader of tables, and a listener, for tests of what a run is used for."""

import csv
import json

import pyarrow.parquet as pq

from likewise.runs import Run
from likewise.workflows import Silent


class Listener(Silent):
    """Remembers what is said on the way, and what is told as a result."""

    def __init__(self):
        self.said, self.told = [], []

    def log(self, doing):
        self.said.append(doing)

    def result(self, result):
        self.told.append(result)


def encoder_run(root, encoder, arguments, **facts):
    """Write a run with an encoder that was made with these arguments."""
    run = Run.create(root, "mine")
    spec = {"class_path": f"likewise.models.{type(encoder).__name__}", "init_args": arguments}
    run.describe({"parts": {"encoder": spec}, **facts})
    run.save_encoder(encoder)
    return run


def rows_of(path):
    """Return the rows of a table, .csv, .jsonl or .parquet."""
    if path.suffix == ".csv":
        return list(csv.DictReader(path.read_text().splitlines()))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return pq.read_table(path).to_pylist()


def write_rows(path, rows):
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
