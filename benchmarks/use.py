"""What was learned, in use: `embed` beside the loader alone, and its memory with few inputs and many.

An encoder on the processors that decode takes their time; one that waits stands for an encoder on a GPU.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measuring.case import Contender
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.results import Timing, summary
from likewise.data import Folder
from likewise.data.lazy_inputs import fetch, spans_of
from likewise.inference import Model
from likewise.inference.inputs import encode_pieces, samples_for
from likewise.models import MLP, ConvNet
from likewise.models.encoder import SizedEncoder
from likewise.runs import Run

TIMES = 10  # that the photos are read in a walk
# the largest anonymous memory, which pages of a mapped file are no part of, while an embedding runs in a process
CHILD = """
import json, sys, threading, time
import likewise
from likewise.workflows import Silent
most, stop = 0, False
def watch():
    global most
    while not stop:
        lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
        most = max(most, int(lines["RssAnon"].split()[0]) * 1024)
        time.sleep(0.01)
watcher = threading.Thread(target=watch)
watcher.start()
started = time.monotonic()
likewise.embed(sys.argv[1], sys.argv[2], output=sys.argv[3], workers=0, progress=Silent())
stop = True
watcher.join()
print(json.dumps([time.monotonic() - started, most]))
"""


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure the rate of photos decoded alone and encoded too, in turns, and the memory with vectors in Parquet."""

    sizes: tuple[int, ...] = option((10_000, 1_000_000), "Numbers of vectors.", least=32)
    features: int = option(64, "Features of a vector.", least=2)
    photos: int = option(400, "How many photos, of 1,024 x 768 pixels.", least=32)
    workers: int = option(2, "Processes that decode photos.", least=0)
    repeats: int = option(5, "Times that photos are walked through.", least=1)

    def contenders(self) -> list[Contender]:
        return []

    def summary(self, results: Sequence[Timing]) -> str:
        del results
        return "the rate of photos is that of the fastest walk; memory is anonymous, of the whole process"

    def total(self) -> int:
        return 3 + len(self.sizes)

    def results(self, tell: Callable[[str], object]) -> Iterator[Timing]:
        with tempfile.TemporaryDirectory() as folder:
            tell("photos")
            yield from self._rates(Path(folder))
            for rows in self.sizes:
                tell(f"{rows:,} vectors")
                yield self._memory(Path(folder), rows)

    def _rates(self, folder: Path) -> Iterator[Timing]:
        """Time the loader alone, with an encoder that waits half of its time, and with a small network, in turns."""
        from PIL import Image  # noqa: PLC0415 - of an extra

        (folder / "photos").mkdir()
        rng = np.random.default_rng(0)
        for number in range(self.photos):
            coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
            coarse.resize((1024, 768), Image.Resampling.BICUBIC).save(folder / "photos" / f"{number:05}.jpg")
        small, waiting = Model(ConvNet((3, 64, 64), width=8)), Waiting((3, 64, 64))
        inputs: Any = samples_for(small, Folder(str(folder / "photos"), label="none")).inputs
        spans = spans_of(inputs, [range(self.photos)], 32) * TIMES
        walks: dict[str, Callable[[], Iterable[Any]]] = {
            "loader alone": lambda: fetch(_Reads(inputs, spans), self.workers),
            "embed, encoder elsewhere": lambda: encode_pieces(Model(waiting), inputs, spans, self.workers),
            "embed, ConvNet on the same cores": lambda: encode_pieces(small, inputs, spans, self.workers),
        }
        took: dict[str, list[float]] = {name: [] for name in walks}
        for _ in range(self.repeats):
            for name, walk in walks.items():
                started = time.monotonic()
                for _ in walk():
                    pass
                took[name].append(time.monotonic() - started)
                waiting.seconds = min(took["loader alone"]) / len(spans) / 2
        for name, seconds in took.items():
            rate = {"per_second": round(TIMES * self.photos / min(seconds))}
            yield Timing("photos", name, "", self.photos, "uint8", **summary(seconds), figures=rate)

    def _memory(self, folder: Path, rows: int) -> Timing:
        """Embed vectors in a process of its own."""
        import pyarrow as pa  # noqa: PLC0415 - of an extra
        from pyarrow import parquet  # noqa: PLC0415 - likewise

        run = Run.create(folder, f"run{rows}")
        spec = {"class_path": "likewise.models.MLP", "init_args": {"input_shape": [self.features], "width": 64}}
        run.describe({"parts": {"encoder": spec}})
        run.save_encoder(MLP((self.features,), width=64))
        rng, file = np.random.default_rng(0), folder / f"{rows}.parquet"
        schema = pa.schema({"x": pa.list_(pa.float32(), self.features)})
        with parquet.ParquetWriter(file, schema) as writer:
            for start in range(0, rows, 10_000):
                some = rng.standard_normal((min(10_000, rows - start), self.features), dtype=np.float32)
                writer.write_table(
                    pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(some.ravel()), self.features)})
                )
        words = [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            CHILD,
            str(run.folder),
            str(file),
            f"{folder}/{rows}.out.parquet",
        ]
        seconds, most = json.loads(subprocess.check_output(words).splitlines()[-1])  # noqa: S603 - of our own
        return Timing("vectors", "embed", "", rows, "float32", **summary([seconds]), peak_bytes=most)


class Waiting(SizedEncoder):
    """An encoder that takes time and no processor."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__(input_shape)
        self._feature_dim, self.seconds = 8, 0.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.zeros(len(inputs), self.feature_dim)


class _Reads(torch.utils.data.Dataset[torch.Tensor]):
    """Pieces of inputs, and nothing else."""

    def __init__(self, inputs: Any, spans: list[range]) -> None:
        self.inputs, self.spans = inputs, spans

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, place: int) -> torch.Tensor:
        return self.inputs[torch.arange(self.spans[place].start, self.spans[place].stop)]
