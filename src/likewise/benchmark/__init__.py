"""What `likewise bench` measures: one module for each measurement, the rest of this package is what they share.

To add a measurement, write a module with a class ``Measure``, whose fields are the command's options, and a line below.
If it times steps and measures their memory, derive it from `measurement.Timed` and define only its ``contenders``.
"""

from importlib import import_module

from likewise.benchmark.measurement import Measurement

MEASUREMENTS = {
    "losses": "every loss and backend, the dense form, torch.compile and other libraries; the default",
    "sup-con": "SupCon in all its forms, the matrix products it cannot avoid, and other sets of references",
    "rascal": "RASCAL's rankings and SupCon, with few and many classes",
    "steps": "a training step of a small network, and its pieces: encoder, views, losses",
    "label-sets": "losses of label sets with a long queue",
    "views": "the augmentations, and torchvision's image by image",
    "evaluation": "the linear probe, kNN and retrieval of frozen features",
    "texts": "a training step of a small transformer on texts, and its pieces: encoder, losses of label sets",
    "few-shot": "episodes of ready features, and a training step of Conv-4",
    "targets": "on a GPU: what the fused operator is expected to reach, and whether it does",
    "kernels": "registers, spills and shared memory of the compiled GPU kernels; needs no GPU",
    "tiles": "on a GPU: the kernels in other tile sizes than those chosen for them",
}


def find(name: str) -> type[Measurement]:
    """Return the measurement with a name.

    Example:
        >>> find("label-sets")(queries=64).sizes
        (65536,)
    """
    return import_module(f"likewise.benchmark.{name.replace('-', '_')}").Measure
