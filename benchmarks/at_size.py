"""What takes long with large sets: starts, reading images, neighbours of many vectors, many labels, evaluation.

    python benchmarks/at_size.py FILE.json [--rows start shards parquet images ...] [--images 100000]

Each row runs in a process of its own, on data that is made in a temporary folder and removed. FILE.json is written as
they come: processor seconds, seconds of the wall clock, and the most memory, in MiB, that the process had; likewise and
its libraries are imported before the clock starts, and counted in the memory, as are the arrays that it is given.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from copy import copy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

CLASSES = 100
READ = 2000  # images that are cropped
EVALUATIONS = ("Retrieval", "LinearProbe", "KNN")
MOST = 100_000  # samples of each part, where all evaluations take place
MEASURED = """
import json, resource, sys, time
sys.path.insert(0, {folder!r})
import at_size
run = at_size.RUNS[{run!r}](*{given!r})
cpu, wall = time.process_time(), time.perf_counter()
run()
seconds = time.process_time() - cpu, time.perf_counter() - wall
print(json.dumps([*seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024]))
"""
Step = Callable[[], Any]
Rows = Iterator[tuple[str, list[float]]]


def folder_start(root: str) -> Step:
    """Read the names and headers of images; another start finds the headers in LIKEWISE_CACHE."""
    folder = import_module("likewise.data").Folder
    import_module("datasets")
    return lambda: folder(root, size=64, memory=0).load()


def table_start(path: str) -> Step:
    """Read the columns and headers of images in a Parquet file; another start finds what was kept of these."""
    table = import_module("likewise.data").Table
    import_module("datasets")
    return lambda: table(path, size=224, memory=0).load()


def table_read(path: str, decoded: bool) -> Step:
    """Read 300 images of a Parquet file in random order, or decode them, too."""
    inputs = table_start(path)().inputs
    rows = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[:300]
    items = inputs.all_rows.items
    items.contents = copy(items.contents)  # which holds no row group
    return lambda: inputs[rows] if decoded else [items[row] for row in rows.tolist()]


def shards_start(root: str) -> Step:
    """Find the samples in tars, and read the headers of their images."""
    shards = import_module("likewise.data").Shards
    return lambda: shards(root, size=64, memory=0).load()


def cropped(root: str, source: str, size: int) -> Step:
    """Crop two views of each of 2,000 images, as a worker does for SimCLR; a start is not counted."""
    data, crops = import_module("likewise.data"), import_module("likewise.data.image_files").Crops
    inputs = getattr(data, source)(root, label="none", size=size, memory=0).load().inputs
    of = crops(data.RandomResizedCrop(), 2)
    rows = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[:READ]
    numbers = of.numbers(0, READ, slice(0, READ))
    return lambda: [of.read(inputs, some, numbers[place]) for place, some in _batches(rows)]


def _batches(rows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(place, rows[place]) for place in torch.arange(len(rows)).split(64)]


def evaluation(path: str, runs: str, evaluations: str | None, most: int | None) -> Step:
    """Evaluate an array file with the command's function; the page has no sections."""
    workflows = import_module("likewise.workflows")
    given = {"sections": []} | ({"evaluations": evaluations} if evaluations else {})
    return lambda: workflows.evaluate(path, runs=runs, evaluation_samples=most, progress=workflows.Silent(), **given)


def neighbours(queries: int, references: int, k: int, by: str) -> Step:
    """Find the nearest of vectors in clusters, by likewise or by faiss."""
    torch.manual_seed(0)
    centres = torch.randn(CLASSES, 128)
    x, y = (centres[torch.randint(CLASSES, (n,))] + torch.randn(n, 128) for n in (queries, references))
    if by == "likewise":
        nearest = import_module("likewise.evaluation.nearest").nearest
        return lambda: [indices for _, _, indices in nearest(x, y, k)]
    faiss: Any = import_module("faiss")
    faiss.omp_set_num_threads(torch.get_num_threads())

    def search() -> Any:
        index = faiss.IndexFlatIP(128)
        index.add(normalize(y).numpy())
        return index.search(normalize(x).numpy(), k)

    return search


def labels(samples: int, count: int, each: int) -> Step:
    """Compute the similarity of labels, whose frequencies fall as 1 over their rank."""
    torch.manual_seed(0)
    frequencies, sets = 1 / torch.arange(1, count + 1), torch.zeros(samples, count, dtype=torch.bool)
    for some in torch.arange(samples).split(5000):
        sets[some[:, None], torch.multinomial(frequencies.expand(len(some), -1), each)] = True
    similarity = import_module("likewise").label_pair_similarity
    return lambda: similarity(sets, "npmi")


RUNS: dict[str, Callable[..., Step]] = {
    "start": folder_start,
    "shards": shards_start,
    "parquet": table_start,
    "read": table_read,
    "images": cropped,
    "neighbours": neighbours,
    "labels": labels,
    "evaluation": evaluation,
}


def make_images(root: Path, count: int) -> None:
    """Write a JPEG of 256 pixels for each class, and give it many names."""
    from PIL import Image  # noqa: PLC0415 - for one row

    for number in range(CLASSES):
        (root / f"{number:03}").mkdir(parents=True)
        first = root / f"{number:03}" / "0.jpg"
        small = torch.randint(256, (16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))
        Image.fromarray(small.numpy()).resize((256, 256)).save(first, quality=90)
        for name in range(1, count // CLASSES):
            os.link(first, first.with_name(f"{name}.jpg"))


def make_table(path: Path, count: int, group: int, compression: str) -> None:
    """Write JPEGs of 256 pixels and 55 kB, of which 100 differ, as `datasets` does, or compressed and coded."""
    pa, parquet, image = (import_module(name) for name in ("pyarrow", "pyarrow.parquet", "PIL.Image"))
    contents, drawn = list[bytes](), torch.Generator().manual_seed(0)
    for _ in range(100):
        small = torch.randint(256, (16, 16, 3), dtype=torch.uint8, generator=drawn).numpy()
        noise = torch.randn(256, 256, 3, generator=drawn) * 25
        pixels = torch.from_numpy(np.array(image.fromarray(small).resize((256, 256)))) + noise
        file = io.BytesIO()
        image.fromarray(pixels.clip(0, 255).byte().numpy()).save(file, "jpeg", quality=95)
        contents.append(file.getvalue())
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", kind), ("label", pa.int64())])
    coded = compression != "none"
    with parquet.ParquetWriter(path, schema, compression=compression, use_dictionary=coded) as writer:
        for start in range(0, count, group):
            rows = range(start, min(start + group, count))
            own = [contents[row % 100] + row.to_bytes(8) for row in rows]  # bytes after its end that differ
            cells = [{"bytes": content, "path": f"{row}.jpg"} for content, row in zip(own, rows, strict=True)]
            columns = {"image": pa.array(cells, kind), "label": [row % CLASSES for row in rows]}
            writer.write_table(pa.table(columns, schema=schema), row_group_size=group)


def make_tars(images: Path, root: Path, count: int) -> None:
    """Write images and classes into tars of 2,500 samples each."""
    root.mkdir()
    contents = [file.read_bytes() for file in sorted(images.glob("*/0.jpg"))]
    for first in range(0, count, 2500):
        with tarfile.open(root / f"{first // 2500:05}.tar", "w") as tar:
            for number in range(first, min(first + 2500, count)):
                own = number % CLASSES
                for kind, content in (("jpg", contents[own]), ("cls", str(own).encode())):
                    about = tarfile.TarInfo(f"{number:08}.{kind}")
                    about.size = len(content)
                    tar.addfile(about, io.BytesIO(content))


def make_vectors(path: Path, count: int, width: int, classes: int) -> None:
    """Write vectors in clusters that overlap, and their classes."""
    random = np.random.default_rng(0)
    centres, of = random.normal(size=(classes, width)).astype(np.float32), random.integers(classes, size=count)
    vectors = np.empty((count, width), np.float32)
    for first in range(0, count, 2**16):
        some = slice(first, first + 2**16)
        vectors[some] = centres[of[some]] + 2 * random.standard_normal((len(of[some]), width), np.float32)
    np.savez(path, features=vectors, labels=of)


def measured(run: str, *given: Any, cache: str = "") -> list[float]:
    """Run one row in a process of its own."""
    code = MEASURED.format(folder=str(Path(__file__).parent), run=run, given=given)
    environment = os.environ | ({"LIKEWISE_CACHE": cache} if cache else {})
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)  # noqa: S603 - our own
    return json.loads(done.stdout.splitlines()[-1])


def start_rows(asked: argparse.Namespace, folder: str) -> Rows:
    """Start with image files, and again with what was kept."""
    make_images(Path(folder, "images"), asked.images)
    for time in ("first", "second"):
        row = measured("start", f"{folder}/images", cache=f"{folder}/cache")
        yield f"{time} start, {asked.images:,} images", row


def shards_rows(asked: argparse.Namespace, folder: str) -> Rows:
    """Start with tars, and again."""
    make_images(Path(folder, "images"), CLASSES)
    make_tars(Path(folder, "images"), Path(folder, "tars"), asked.images)
    for time in ("first", "second"):
        row = measured("shards", f"{folder}/tars", cache=f"{folder}/cache")
        yield f"{time} start, {asked.images:,} samples in tars", row


def parquet_rows(asked: argparse.Namespace, folder: str) -> Rows:
    """Start with images in Parquet files, and read some of them in random order."""
    del asked
    for group, how in ((100, "none"), (1000, "none"), (100, "snappy"), (1000, "snappy")):
        path, called = f"{folder}/{group}-{how}.parquet", f"10,000 images in Parquet, {how}, groups of {group:,}"
        make_table(Path(path), 10_000, group, how)
        for time in ("first", "second"):
            yield f"{time} start, {called}", measured("parquet", path, cache=f"{folder}/cache")
        for decoded in (False, True):
            row = measured("read", path, decoded, cache=f"{folder}/cache")
            yield f"300 {'decoded' if decoded else 'read'} in random order, {called}", row


def images_rows(asked: argparse.Namespace, folder: str) -> Rows:
    """Crop images from files, and from tars."""
    del asked
    make_images(Path(folder, "images"), 2 * READ)
    make_tars(Path(folder, "images"), Path(folder, "tars"), 2 * READ)
    for size in (96, 224):
        for source, place in (("Folder", "images"), ("Shards", "tars")):
            row = measured("images", f"{folder}/{place}", source, size, cache=f"{folder}/cache")
            yield f"two crops of {size} pixels of {READ:,} images, {place}", row


def neighbours_rows(asked: argparse.Namespace, folder: str) -> Rows:
    """Search, beside faiss where it is installed."""
    del asked, folder
    for by in ("likewise", *(["faiss"] if find_spec("faiss") else [])):
        row = measured("neighbours", 1000, 200_000, 200, by)
        yield f"200 nearest of 1,000 among 200,000, {by}", row


def labels_rows(asked: argparse.Namespace, folder: str) -> Rows:
    """Compute the similarity of many labels."""
    del asked, folder
    yield "similarity of 10,000 labels, 50,000 samples", measured("labels", 50_000, 10_000, 8)


def evaluation_rows(asked: argparse.Namespace, folder: str) -> Rows:
    """Evaluate vectors: a fifth of them by each evaluation, and all evaluations of some of them."""
    for count, names, most in ((asked.vectors // 5, EVALUATIONS, None), (asked.vectors, (None,), MOST)):
        make_vectors(Path(folder, f"{count}.npz"), count, 128, 1000)
        for name in names:
            row = measured("evaluation", f"{folder}/{count}.npz", f"{folder}/runs", name, most)
            few = "" if most is None else f", {most:,} of each part"
            yield f"evaluate {count:,} vectors, {name or 'all'}{few}", row


ROWS: dict[str, Callable[[argparse.Namespace, str], Rows]] = {
    "start": start_rows,
    "shards": shards_rows,
    "parquet": parquet_rows,
    "images": images_rows,
    "neighbours": neighbours_rows,
    "labels": labels_rows,
    "evaluation": evaluation_rows,
}


def main() -> None:
    """Measure the rows, and write them as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    asked = parser.parse_args()
    found: dict[str, list[float]] = {}
    for of in asked.rows:
        with tempfile.TemporaryDirectory() as folder:
            for name, row in ROWS[of](asked, folder):
                found[name] = row
                asked.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
                print(f"{name}: {row[0]:.2f} CPU-seconds, {row[1]:.2f} s, {row[2]:,} MiB", flush=True)


if __name__ == "__main__":
    main()
