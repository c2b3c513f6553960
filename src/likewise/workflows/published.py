"""A model with published weights, for what needs no training: search, and embedding."""

from collections.abc import Sequence
from pathlib import Path

import torch

from likewise.configuration import resolve
from likewise.configuration.starts import published_options
from likewise.data import ImagePreprocessing, Texts
from likewise.evaluation.arrays import is_arrays
from likewise.files.detection import expanded
from likewise.files.formats import image_suffixes
from likewise.inference import Model
from likewise.instantiate import instantiate
from likewise.models import Encoder
from likewise.workflows.progress import Progress

COLOURS = 3


def published_model(source: Path | str, queries: Sequence[str], device: torch.device, progress: Progress) -> Model:
    """Return the model for photos or texts: by what the source holds, or for a file of features by the queries."""
    if is_arrays(expanded(source)):
        photos = any(Path(query).suffix.lower() in image_suffixes() for query in queries)
        chosen = published_options("image-folder" if photos else "texts")
    else:
        chosen = vars(resolve({"data": str(source), "output": "x.npz"}, verb="embed"))
    if chosen["encoder"] is None:
        raise ValueError(
            f"expected photos or texts to search without a run, got {source}, which is neither: name a run"
        )
    size = chosen["data"].get("init_args", {}).get("size")
    shape = () if size is None else (COLOURS, size, size)
    encoder = instantiate(chosen["encoder"], Encoder, input_shape=shape)
    if not shape:
        encoder.observe(Texts([""]))  # it has a tokenizer of its own
    progress.log(f"encoder: {encoder.origin}")
    return Model(encoder.to(device), ImagePreprocessing(*shape) if shape else None)
