"""Whole runs beside others': an epoch of SimCLR, photos tuned and encoded, texts tuned and encoded.

    python benchmarks/whole_runs.py FILE.json [--rows simclr tune photos texts] [--turns 3]
        [--images CIFAR.npz] [--photos FOLDER] [--texts FILE.csv] [--timm NAME] [--model FOLDER]

Each way is a process of its own, in turns. FILE.json has, of each process: inputs a second of the work itself, seconds
of the wall clock and of the processor from its start to its end, and the most memory in MiB. Work is timed from the
first to the last step, or input, by the process; a second of warm-up (a batch) is not in it. Inputs in two views count
once. `--images` has uint8 `images` (N, 32, 32, 3); without it they are random.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

BATCH, IMAGES, PHOTOS, SIDE = 256, 2048, 384, 224
Asked = argparse.Namespace


def images_of(asked: Asked) -> np.ndarray:
    """Return the first images, uint8 (N, 32, 32, 3)."""
    if asked.images is None:
        return np.random.default_rng(0).integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)
    return np.load(asked.images)["images"][:IMAGES]


def small_resnet() -> nn.Module:
    """Return torchvision's ResNet-18 for images of 32 pixels, with a projection head."""
    from torchvision.models import resnet18  # noqa: PLC0415 - of a way's own process

    network: Any = resnet18()
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    network.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128))
    return network


def nt_xent(embeddings: Tensor) -> Tensor:
    """Return NT-Xent of two views, one after the other, (2N, D)."""
    z = normalize(embeddings)
    similarities = (z @ z.T / 0.5).fill_diagonal_(-torch.inf)
    return cross_entropy(similarities, torch.arange(len(z)).roll(len(z) // 2))


def loop(
    network: nn.Module,
    batches: Any,
    loss: Callable[[Tensor], Tensor],
    learning_rate: float = 0.01,
    *,
    channels_last: bool = True,
    bf16: bool = False,
) -> tuple[int, float]:
    """Train on batches of two views, and return how many inputs there were after the first batch, and the seconds."""
    network = network.to(memory_format=torch.channels_last) if channels_last else network
    optimizer = torch.optim.SGD(network.parameters(), lr=learning_rate, momentum=0.9)
    inputs, started = 0, time.perf_counter()
    for step, views in enumerate(batches):
        x = torch.cat(list(views))
        x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            embeddings = network(x)
        loss(embeddings.float()).backward()
        optimizer.step()
        if step == 0:
            started = time.perf_counter()
        else:
            inputs += len(x) // 2
    return inputs, time.perf_counter() - started


def torchvision_views(images: np.ndarray, side: int) -> Any:
    """Return batches of two views of images by torchvision's transforms, image by image."""
    from torchvision.transforms import v2  # noqa: PLC0415

    view = v2.Compose(
        [
            v2.RandomResizedCrop(side, scale=(0.2, 1)),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    pairs = [(image, image) for image in pixels]
    return torch.utils.data.DataLoader(
        pairs,  # pyright: ignore[reportArgumentType]
        batch_size=BATCH if side == images.shape[1] else 32,
        shuffle=True,
        drop_last=True,
        collate_fn=lambda chosen: [torch.stack([view(pair[k]) for pair in chosen]) for k in (0, 1)],
    )


def simclr_plain(asked: Asked) -> tuple[int, float]:
    """Run a plain loop with torchvision's views."""
    return loop(small_resnet(), torchvision_views(images_of(asked), 32), nt_xent, channels_last=False)


def simclr_plain_channels_last(asked: Asked, *, bf16: bool = False) -> tuple[int, float]:
    """Run a plain loop in its best setting for CPUs."""
    return loop(small_resnet(), torchvision_views(images_of(asked), 32), nt_xent, bf16=bf16)


def simclr_lightly(asked: Asked) -> tuple[int, float]:
    """Run a plain loop with lightly's views and loss."""
    from lightly.loss import NTXentLoss  # noqa: PLC0415
    from lightly.transforms.simclr_transform import SimCLRTransform  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    view = SimCLRTransform(input_size=32, gaussian_blur=0.0)
    pairs = [Image.fromarray(image) for image in images_of(asked)]
    batches = torch.utils.data.DataLoader(
        pairs,  # pyright: ignore[reportArgumentType]
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        collate_fn=lambda chosen: [torch.stack(views) for views in zip(*map(view, chosen), strict=True)],
    )
    loss = NTXentLoss(temperature=0.5)
    return loop(small_resnet(), batches, lambda z: loss(*z.chunk(2)), channels_last=False)


def trained(folder: str, **options: Any) -> tuple[int, float]:
    """Run `likewise train`, and return inputs and seconds after the first step."""
    from timed_steps import Ends  # noqa: PLC0415

    import likewise as lw  # noqa: PLC0415

    quiet = {"loss": "NTXentLoss", "epochs": 1, "validation_epochs": 0, "evaluations": [], "report": False}
    quiet |= {"runs": folder, "keep": "last"}
    lw.train(**options, **quiet, trainer={"callbacks": "timed_steps.Ends", "accelerator": "cpu"})  # pyright: ignore[reportArgumentType]
    return (len(Ends.seconds) - 1) * options["batch_size"], Ends.seconds[-1] - Ends.seconds[0]


def simclr_likewise(asked: Asked, precision: str = "32") -> tuple[int, float]:
    """Run an epoch of SimCLR on the images."""
    with tempfile.TemporaryDirectory() as folder:
        images = images_of(asked)
        np.savez(f"{folder}/images.npz", images=images, labels=np.arange(len(images)) % 2)
        options: dict[str, Any] = {"encoder": "ResNet", "encoder.depth": 18, "precision": precision}
        return trained(f"{folder}/runs", data=f"{folder}/images.npz", batch_size=BATCH, **options)


def tune_plain(asked: Asked, *, bf16: bool = False) -> tuple[int, float]:
    """Tune a network of timm in a plain loop, channels last, on photos of one size that are in memory."""
    import timm  # noqa: PLC0415

    network = timm.create_model(asked.timm, num_classes=0)
    photos = np.random.default_rng(0).integers(0, 256, (PHOTOS, SIDE, SIDE, 3), dtype=np.uint8)
    return loop(network, torchvision_views(photos, SIDE - 1), nt_xent, 1e-4, bf16=bf16)


def tune_likewise(asked: Asked, precision: str = "32") -> tuple[int, float]:
    """Tune the same network by `likewise train`."""
    with tempfile.TemporaryDirectory() as folder:
        photos = np.random.default_rng(0).integers(0, 256, (PHOTOS, SIDE, SIDE, 3), dtype=np.uint8)
        np.savez(f"{folder}/photos.npz", images=photos, labels=np.arange(PHOTOS) % 2)
        options: dict[str, Any] = {"encoder": "Timm", "encoder.name": asked.timm, "precision": precision}
        return trained(f"{folder}/runs", data=f"{folder}/photos.npz", batch_size=32, **options)


def photos_plain(asked: Asked) -> tuple[int, float]:
    """Encode a folder of photos in a plain loop, channels last, in batches of 32."""
    import timm  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    network = timm.create_model(asked.timm, num_classes=0).eval().to(memory_format=torch.channels_last)
    files = sorted(path for path in asked.photos.rglob("*") if path.is_file())
    started = time.perf_counter()
    with torch.inference_mode():
        for first in range(0, len(files), 32):
            batch = [np.asarray(photo(Image.open(path))) for path in files[first : first + 32]]
            x = torch.from_numpy(np.stack(batch)).permute(0, 3, 1, 2).float() / 255
            network(x.contiguous(memory_format=torch.channels_last))
    return len(files), time.perf_counter() - started


def photo(image: Any) -> Any:
    """Return the central square of a photo at 224 pixels, decoded at a smaller scale where that is enough."""
    image.draft("RGB", (SIDE, SIDE))
    image, side = image.convert("RGB"), min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    return image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))


def embedded(inputs: Path, some: Path, options: dict[str, Any]) -> tuple[int, float]:
    """Encode inputs by `lw.embed`, reading them too, after some of them, which load what others have imported."""
    import likewise as lw  # noqa: PLC0415

    options = {"data.label": "none", "device": "cpu", **options}
    with tempfile.TemporaryDirectory() as folder:
        lw.embed(None, some, output=f"{folder}/some.npz", **options)
        started = time.perf_counter()
        lw.embed(None, inputs, output=f"{folder}/features.npz", **options)
        return len(np.load(f"{folder}/features.npz")["features"]), time.perf_counter() - started


def photos_likewise(asked: Asked) -> tuple[int, float]:
    """Encode the same folder by `lw.embed`."""
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(path for path in asked.photos.rglob("*") if path.is_file())[:32]:
            shutil.copy(file, folder)
        options = {"encoder": "Timm", "encoder.name": asked.timm, "encoder.pretrained": True, "data.size": SIDE}
        return embedded(asked.photos, Path(folder), options)


def texts_of(asked: Asked) -> list[str]:
    """Return the texts of a table, of its column `text`."""
    import pandas as pd  # noqa: PLC0415

    return pd.read_csv(asked.texts)["text"].tolist()


def texts_theirs(asked: Asked) -> tuple[int, float]:
    """Encode texts by sentence-transformers."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    model, texts = SentenceTransformer(str(asked.model), device="cpu"), texts_of(asked)
    started = time.perf_counter()
    model.encode(texts)
    return len(texts), time.perf_counter() - started


def texts_likewise(asked: Asked) -> tuple[int, float]:
    """Encode the same table by `lw.embed`."""
    import pandas as pd  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        some = Path(folder, "some.csv")
        pd.read_csv(asked.texts).head(32).to_csv(some, index=False)
        options: dict[str, Any] = {"encoder": "PretrainedTransformer", "encoder.name": str(asked.model)}
        return embedded(asked.texts, some, options)


ROWS: dict[str, dict[str, Callable[[Asked], tuple[int, float]]]] = {
    "simclr": {
        "plain loop": simclr_plain,
        "plain loop, channels last": simclr_plain_channels_last,
        "plain loop, channels last, bf16": partial(simclr_plain_channels_last, bf16=True),
        "lightly": simclr_lightly,
        "likewise": simclr_likewise,
        "likewise, bf16": partial(simclr_likewise, precision="bf16-mixed"),
    },
    "tune": {
        "plain loop, channels last": tune_plain,
        "plain loop, channels last, bf16": partial(tune_plain, bf16=True),
        "likewise": tune_likewise,
        "likewise, bf16": partial(tune_likewise, precision="bf16-mixed"),
    },
    "photos": {"plain loop, channels last": photos_plain, "likewise": photos_likewise},
    "texts": {"sentence-transformers": texts_theirs, "likewise": texts_likewise},
}
NEEDS = {"photos": "photos", "texts": "texts"}


def measured(row: str, way: str) -> dict[str, float]:
    """Run one way in a process of its own, and return what it took."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, __file__, *sys.argv[1:], "--one", row, way]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 - itself
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    inputs, seconds, peak = json.loads(printed.splitlines()[-1])
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    wall = time.perf_counter() - started
    return {"inputs a second": inputs / seconds, "wall, s": wall, "processor, s": processor, "peak, MiB": peak / 1024}


def main() -> None:
    """Measure the rows that are asked for, in turns; each process's figures are written as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=["simclr", "tune"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--timm", default="tf_efficientnet_lite0")
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        row, way = asked.one
        took = ROWS[row][way](asked)
        print(json.dumps([*took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
        return
    if lacking := [name for row, name in NEEDS.items() if row in asked.rows and getattr(asked, name) is None]:
        parser.error(f"expected --{lacking[0]} for these rows, got none")
    taken: dict[str, list[dict[str, float]]] = {}
    for _ in range(asked.turns):
        for row in asked.rows:
            for way in ROWS[row]:
                taken.setdefault(f"{row}, {way}", []).append(measured(row, way))
                machine = {"threads": torch.get_num_threads(), "cores": os.cpu_count(), "torch": torch.__version__}
                asked.file.write_text(json.dumps({**machine, **taken}, indent=1))
    for name, each in taken.items():
        print(f"{name:40}", *(f"{of} {median(one[of] for one in each):.1f}" for of in each[0]), sep="  ")


if __name__ == "__main__":
    main()
