"""Hard negatives for a run's training pairs, found by the run's encoders: a table for further training."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from likewise.data import Samples, Texts, never_apart, parts_of_run
from likewise.files.detection import expanded
from likewise.inference import load
from likewise.inference.inputs import of_side
from likewise.inference.outputs import check_apart, check_output, label_cells, table_at
from likewise.inference.search import encode_samples, hard_negatives
from likewise.runs import Run, Side
from likewise.runs.scores import places_of
from likewise.workflows.progress import Progress

NEGATIVES = "negatives"
"""The column of hard negatives."""
SUFFIXES = (".jsonl", ".parquet")  # formats with lists


def mine(
    run: Run | Path | str,
    output: Path | None,
    limits: Mapping[str, Any],
    progress: Progress,
    *,
    beside: Mapping[str, object],
    device: torch.device | None,
    force: bool,
) -> Path:
    """Write a run's training pairs as a table, each with up to k hard negatives from the counterparts of other pairs.

    `limits` are k, from_rank, margin and at_least, and `beside` other options of a search, which are invalid here.
    Columns are named as in the run's own table, or first and second, and negatives; columns of labels and groups are
    kept. Pairs that are never apart are not negatives of each other; see `never_apart`. Memory: the training pairs,
    their features, and a tile of similarities.
    """
    output = _check_mined(output, limits, beside, force=force)
    model = load(run, device=device)
    trained: Any = model.run
    if not (model.paired and model.encodes):
        got = trained.folder if trained else "an encoder or features alone"
        raise ValueError(f"expected a run of pairs with --negatives, got {got}: train one with --data Pairs")
    data = trained.metadata["parts"]["data"]["init_args"]
    check_apart(output, data.get("path") or "")
    progress.log("reading ...")
    parts, refit = parts_of_run(trained)
    train = _numbered((parts.refitted() if refit else parts).train)
    sides = [encode_samples(of_side(train, side), model.of(side), progress.bar) for side in get_args(Side)]
    alone: Any = [side.samples for side in sides]
    cells = [_cells(samples, data, output) for samples in alone]
    item_ids: Any = (train.items, train.counterparts and train.counterparts.items)
    positions = [places_of(items, samples.items) for items, samples in zip(item_ids, alone, strict=True)]
    numbers, candidate_numbers = never_apart(train), torch.full((len(sides[1]),), -1)
    candidate_numbers[positions[1][positions[1] >= 0]] = numbers[positions[1] >= 0]
    read = ((positions[0] >= 0) & (positions[1] >= 0)).nonzero().flatten()
    firsts, seconds = (places[read] for places in positions)
    vectors = [torch.cat([piece for _, piece in side.pieces()]) for side in sides]
    rule: Any = {"from_rank": limits["from_rank"], "margin": limits["margin"], "least": limits["at_least"]}
    among = vectors[0][firsts], vectors[1], seconds, (numbers[read], candidate_numbers)
    negatives = hard_negatives(*among, limits["k"], **rule, bar=progress.bar)
    names = (data["first"], data["second"]) if data.get("path") else get_args(Side)
    done = total = without = 0
    with table_at(output) as write:
        for _, places in negatives:
            rows = slice(done, done + len(places))
            counts = (places >= 0).sum(dim=1)
            wrong = iter(cells[1](places[places >= 0]))
            write(
                {
                    names[0]: cells[0](firsts[rows]),
                    names[1]: cells[1](seconds[rows]),
                    NEGATIVES: [[next(wrong) for _ in range(count)] for count in counts.tolist()],
                    **_copy_columns(train[read[rows]], data),
                }
            )
            done, total, without = rows.stop, total + int(counts.sum()), without + int((counts == 0).sum())
        if total == 0:
            raise ValueError(f"expected hard negatives of {done:,} pairs, got none: lower --from_rank or --margin")
    lost = f"; {len(train) - done:,} pairs left out, whose images cannot be read" if done < len(train) else ""
    none = f"; {without:,} pairs have none" if without else ""
    progress.result(f"{output}: {total:,} hard negatives of {done:,} pairs{none}{lost}")
    return output


def _check_mined(output: Path | None, limits: Mapping[str, Any], beside: Mapping[str, object], *, force: bool) -> Path:
    if other := next((name for name, value in beside.items() if value), None):
        raise ValueError(f"expected --negatives of a run's own pairs, got {other} beside it: leave it out")
    if output is None:
        raise ValueError("expected --output FILE.jsonl with --negatives, got none: name one")
    for name, least, most in (("k", 1, inf), ("from_rank", 1, inf), ("margin", -2, 2), ("at_least", -1, 1)):
        value = limits[name]
        if value is not None and not least <= value <= most:  # written so that NaN fails
            raise ValueError(f"expected --{name} from {least} to {most}, got {value}")
    check_output(output, SUFFIXES, force=force)
    return output


def _numbered(train: Samples) -> Samples:
    """Return pairs with an item number for each input of both sides; without numbers, all inputs are distinct."""
    counterparts: Any = train.counterparts
    each = torch.arange(len(train))
    counterparts = replace(counterparts, items=each) if counterparts.items is None else counterparts
    return replace(train, counterparts=counterparts, items=each if train.items is None else train.items)


def _cells(samples: Any, data: Any, output: Path) -> Callable[[Tensor], list[Any]]:
    """Return a function from rows of a side to table cells: texts, paths of images, or vectors."""
    if isinstance(samples.inputs, Texts):
        strings = samples.inputs.strings
        return lambda rows: [strings[row] for row in rows.tolist()]
    if len(samples.input_shape) == 3:
        paths = _paths(samples, data, output)
        return lambda rows: [paths[row] for row in rows.tolist()]
    if output.suffix.lower() != ".jsonl":
        raise ValueError(f"expected an output ending in .jsonl for vectors, got {output}: name it so")
    return lambda rows: samples.inputs[rows].tolist()


def _paths(samples: Samples, data: Any, output: Path) -> list[str]:
    table, here = expanded(data.get("path") or "").absolute(), output.absolute().parent
    folder, paths = table if table.is_dir() else table.parent, list[str]()
    for name in samples.ids:
        names = (name, re.sub(r" \(\d+\)$", "", name))  # repeats of an image in other pairs are numbered
        file = next((file for candidate in names if (file := folder / candidate).is_file()), None)
        if file is None:
            raise ValueError(f"expected images in files, got {name}, which is in none: write them, and their paths")
        paths.append(str(file.relative_to(here) if file.is_relative_to(here) else file))
    return paths


def _copy_columns(pairs: Samples, data: Any) -> dict[str, list[Any]]:
    columns = dict[str, list[Any]]()
    if pairs.labels is not None and data.get("label"):
        columns[data["label"]] = label_cells(pairs.names, pairs.labels)
    if pairs.groups is not None and data.get("group"):
        columns[data["group"]] = pairs.groups.tolist()
    return columns
