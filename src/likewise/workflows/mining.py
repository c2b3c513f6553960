"""Hard negatives of a run's training pairs, found by the run's encoders: a table to train on again."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from likewise.data import Samples, Texts, never_apart, parts_of_run
from likewise.files.detection import expanded
from likewise.inference import Model
from likewise.inference.inputs import of_side
from likewise.inference.search import hard_negatives
from likewise.inference.stored import encoded
from likewise.inference.tables import check_apart, table_at
from likewise.runs import Side
from likewise.scores import places_of
from likewise.workflows.progress import Progress

MINED = "negatives"
"""The column of hard negatives."""


class Limits(NamedTuple):
    """How many negatives a pair has, and which: see `hard_negatives`."""

    k: int
    from_rank: int
    margin: float | None
    at_least: float | None


def mine(model: Model, output: Path, limits: Limits, progress: Progress) -> Path:
    """Write a run's training pairs as a table, each with up to k hard negatives among the counterparts of others.

    Columns are called as in the run's own table, or first and second, and negatives; those of labels and groups are
    there, too. Pairs that are never apart are no negatives of each other; see `never_apart`.

    Raises:
        ValueError: The run is none of pairs, its data has changed, its images are in no files, or none has a negative.

    Memory:
        The training pairs, their features, and a tile of similarities.
    """
    run: Any = model.run
    if not (model.paired and model.encodes):
        got = run.folder if run else "an encoder or features alone"
        raise ValueError(f"expected a run of pairs with --negatives, got {got}: train one with --data Pairs")
    data = run.facts["parts"]["data"]["init_args"]
    check_apart(output, data.get("path") or "")
    progress.say("reading ...")
    parts, refit = parts_of_run(run)
    train = _numbered((parts.refitted() if refit else parts).train)
    sides = [encoded(of_side(train, side), model.of(side), progress.bar) for side in get_args(Side)]
    alone: Any = [side.samples for side in sides]
    cells = [_cells(of, data, output) for of in alone]
    given: Any = (train.items, train.counterparts and train.counterparts.items)
    own = [places_of(items, of.items) for items, of in zip(given, alone, strict=True)]
    numbers, others = never_apart(train), torch.full((len(sides[1]),), -1)
    others[own[1][own[1] >= 0]] = numbers[own[1] >= 0]
    read = ((own[0] >= 0) & (own[1] >= 0)).nonzero().flatten()
    firsts, seconds = (places[read] for places in own)
    vectors = [torch.cat([piece for _, piece in side.pieces()]) for side in sides]
    rule: Any = {"from_rank": limits.from_rank, "margin": limits.margin, "least": limits.at_least}
    among = vectors[0][firsts], vectors[1], seconds, (numbers[read], others)
    found = hard_negatives(*among, limits.k, **rule, bar=progress.bar)
    names = (data["first"], data["second"]) if data.get("path") else get_args(Side)
    done = total = without = 0
    with table_at(output) as write:
        for _, places in found:
            rows = slice(done, done + len(places))
            counts = (places >= 0).sum(dim=1)
            wrong = iter(cells[1](places[places >= 0]))
            write(
                {
                    names[0]: cells[0](firsts[rows]),
                    names[1]: cells[1](seconds[rows]),
                    MINED: [[next(wrong) for _ in range(count)] for count in counts.tolist()],
                    **_beside(train[read[rows]], data),
                }
            )
            done, total, without = rows.stop, total + int(counts.sum()), without + int((counts == 0).sum())
        if total == 0:
            raise ValueError(f"expected hard negatives of {done:,} pairs, got none: lower --from_rank or --margin")
    lost = f"; {len(train) - done:,} pairs left out, whose images cannot be read" if done < len(train) else ""
    none = f"; {without:,} pairs have none" if without else ""
    progress.tell(f"{output}: {total:,} hard negatives of {done:,} pairs{none}{lost}")
    return output


def _numbered(train: Samples) -> Samples:
    """Return pairs whose sides say which input each is; where they don't, all differ."""
    others: Any = train.counterparts
    each = torch.arange(len(train))
    others = replace(others, items=each) if others.items is None else others
    return replace(train, counterparts=others, items=each if train.items is None else train.items)


def _cells(samples: Any, data: Any, output: Path) -> Callable[[Tensor], list[Any]]:
    """Return what gives the cells of a side's samples by their places: texts, paths of images, or numbers."""
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
    folder, found = table if table.is_dir() else table.parent, list[str]()
    for name in samples.ids:
        names = (name, re.sub(r" \(\d+\)$", "", name))  # an image of several pairs is numbered from the second on
        file = next((file for one in names if (file := folder / one).is_file()), None)
        if file is None:
            got = f"got {name}, which is in none: write files, and their paths into the table"
            raise ValueError(f"expected images in files, {got}")
        found.append(str(file.relative_to(here) if file.is_relative_to(here) else file))
    return found


def names_of(samples: Samples, labels: Tensor) -> list[Any]:
    """Return the name of each sample's class, or those of its labels."""
    if labels.ndim == 1:
        return [samples.names[label] for label in labels.tolist()]
    return [[samples.names[label] for label in row.nonzero().flatten().tolist()] for row in labels]


def _beside(pairs: Samples, data: Any) -> dict[str, list[Any]]:
    columns = dict[str, list[Any]]()
    if pairs.labels is not None and data.get("label"):
        columns[data["label"]] = names_of(pairs, pairs.labels)
    if pairs.groups is not None and data.get("group"):
        columns[data["group"]] = pairs.groups.tolist()
    return columns
