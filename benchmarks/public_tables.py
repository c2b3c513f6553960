"""Tables of public data, as `likewise train TABLE.csv` reads them.

    python benchmarks/public_tables.py grocery GroceryStoreDataset/dataset
    python benchmarks/public_tables.py ants ants_and_bees
    python benchmarks/public_tables.py banking task-specific-datasets/banking_data TABLES [--each 5 10] [--seeds 3]
    python benchmarks/public_tables.py clinc oos-eval/data TABLES [--each 5 10] [--seeds 3]

The first folder is that of the repository's files: marcusklasson/GroceryStoreDataset, jaddoescad/ants_and_bees,
PolyAI-LDN/task-specific-datasets, clinc/oos-eval. Tables of photos are written into it, as they name photos relative to
themselves. Grocery Store has three: grocery.csv with its own parts; new-classes.csv without parts, which are to be made
of classes; development.csv, of its training part alone. Tables of
texts have N training texts of each intent, drawn by the seed, up to 3 further ones for validation, and the published
test part; development.csv has its test texts from the training part, too. clinc also writes outside.csv, its
out-of-scope queries of the test part.
"""

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

VALIDATION = 3
Texts = dict[str, list[str]]


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table, and say how long it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = list(rows)
    with path.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([header, *listed])
    print(f"{path}: {len(listed):,} rows")


def grocery(folder: Path) -> None:
    """Write the tables of Grocery Store."""
    with (folder / "classes.csv").open(encoding="utf-8") as opened:
        names = {row["Class ID (int)"]: row for row in csv.DictReader(opened)}
    rows = list[tuple[str, str, str, str]]()
    for part, file in (("train", "train.txt"), ("validation", "val.txt"), ("test", "test.txt")):
        for line in (folder / file).read_text().splitlines():
            path, fine, _ = (of.strip() for of in line.split(","))
            rows.append((path, names[fine]["Class Name (str)"], names[fine]["Coarse Class Name (str)"], part))
    write(folder / "grocery.csv", ("image", "fine", "coarse", "part"), rows)

    write(folder / "new-classes.csv", ("image", "fine"), ((path, fine) for path, fine, _, _ in rows))

    photos: Texts = defaultdict(list)
    for path, fine, _, part in rows:
        if part == "train":
            photos[fine].append(path)
    most = sorted(photos, key=lambda fine: (-len(photos[fine]), fine))[:20]
    write(folder / "development.csv", ("image", "fine", "part"), _drawn({fine: photos[fine] for fine in most}, 10, 0))


def ants(folder: Path) -> None:
    """Write the table of ants and bees, whose `val` is the test part."""
    write(
        folder / "ants.csv",
        ("image", "insect", "part"),
        (
            (str(path.relative_to(folder)), path.parent.name, part)
            for name, part in (("train", "train"), ("val", "test"))
            for path in sorted((folder / name).glob("*/*.jpg"))
        ),
    )


def banking(folder: Path, tables: Path, each: Sequence[int], seeds: int) -> None:
    """Write the tables of banking77."""
    texts: dict[str, Texts] = {}
    for part in ("train", "test"):
        texts[part] = defaultdict(list)
        with (folder / f"{part}.csv").open(encoding="utf-8") as opened:
            for row in csv.DictReader(opened):
                texts[part][row["category"]].append(row["text"])
    few_texts(texts, tables / "banking", each, seeds)


def clinc(folder: Path, tables: Path, each: Sequence[int], seeds: int) -> None:
    """Write the tables of CLINC150, and its out-of-scope queries."""
    read = json.loads((folder / "data_full.json").read_text())
    texts: dict[str, Texts] = {}
    for part in ("train", "test"):
        texts[part] = defaultdict(list)
        for text, intent in read[part]:
            texts[part][intent].append(text)
    few_texts(texts, tables / "clinc", each, seeds)
    write(tables / "outside.csv", ("text",), ([text] for text, _ in read["oos_test"]))


def few_texts(parts: Mapping[str, Texts], path: Path, each: Sequence[int], seeds: int) -> None:
    """Write tables with so many training texts of each intent, with all of them, and one of the training part alone."""
    header = ("text", "intent", "part")
    tested = [(text, intent, "test") for intent, of in parts["test"].items() for text in of]
    for seed in range(seeds):
        for count in (*each, None):
            drawn = (row for row in _drawn(parts["train"], count, seed) if row[2] != "test")
            write(Path(f"{path}-{count or 'all'}-{seed}.csv"), header, [*drawn, *tested])
    write(Path(f"{path}-development.csv"), header, _drawn(parts["train"], 10, seeds, test=15))


def _drawn(of: Texts, each: int | None, seed: int, *, test: int | None = None) -> Iterable[tuple[str, str, str]]:
    """Yield so many samples of each class for training, up to 3 for validation, and others as test."""
    drawing = np.random.default_rng(seed)
    for name, samples in of.items():
        shuffled = [samples[place] for place in drawing.permutation(len(samples))]
        validation = min(VALIDATION, len(samples) // 10) if each is None else VALIDATION
        train = len(samples) - validation if each is None else each
        for place, sample in enumerate(shuffled[: None if test is None else train + validation + test]):
            part = "train" if place < train else "validation" if place < train + validation else "test"
            yield sample, name, part


def main() -> None:
    """Write the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = parser.add_subparsers(dest="name", required=True)
    for photos in (grocery, ants):
        names.add_parser(photos.__name__).add_argument("folder", type=Path)
    for of_texts in (banking, clinc):
        parser_of = names.add_parser(of_texts.__name__)
        parser_of.add_argument("folder", type=Path)
        parser_of.add_argument("tables", type=Path)
        parser_of.add_argument("--each", nargs="+", type=int, default=[5, 10])
        parser_of.add_argument("--seeds", type=int, default=3)
    asked = vars(parser.parse_args())
    {"grocery": grocery, "ants": ants, "banking": banking, "clinc": clinc}[asked.pop("name")](**asked)


if __name__ == "__main__":
    main()
