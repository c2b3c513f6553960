"""Measurements for developers of the library: `python -m benchmarks NAME [OPTIONS]`, from the repository's folder.

`python benchmarks/first_gpu.py` is apart: everything that is to be known of a GPU, in one command.

To add one, write a module with a class ``Measure``, whose fields are its options, and a line below. If it times steps
and measures their memory, it defines only its ``contenders``.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

if find_spec("jaxtyping") is None:  # which only annotates
    sys.path.append(str(Path(__file__).with_name("stand_ins")))

from benchmarks import command
from benchmarks.measuring.measurement import Measurement

MEASUREMENTS = {
    "losses": "every loss and backend, and what others offer for the same, in about eight minutes",
    "sup-con": "SupCon in all its forms, the matrix products it cannot avoid, and other sets of references",
    "beside": "our losses beside those of other libraries: values, time, memory",
    "primitives": "`contrast` and `log_sum_exp`, with weights that cost more or less",
    "rascal": "RASCAL's rankings and SupCon, with few and many classes",
    "steps": "a training step of a small network, and its pieces: encoder, views, losses",
    "label-sets": "losses of label sets with a long queue",
    "views": "the augmentations, and torchvision's image by image",
    "evaluation": "the linear probe, kNN and retrieval of frozen features",
    "search": "exact search for nearest vectors, and that of faiss on the same threads",
    "use": "`embed` beside the loader alone, and its memory with few inputs and many",
    "texts": "a training step of a small transformer on texts, and its pieces: encoder, losses of label sets",
    "few-shot": "episodes of ready features, and a training step of Conv-4",
    "targets": "on a GPU: what the fused operator is expected to reach, and whether it does",
    "compiled-kernels": "registers, spills and shared memory of the compiled GPU kernels; needs no GPU",
    "host": "what Python costs a step with kernels, on a driver that computes nothing; needs no GPU",
}


def find(name: str) -> type[Measurement]:
    """Return the measurement with a name."""
    return import_module(f"benchmarks.{name.replace('-', '_')}").Measure


def main(words: Sequence[str]) -> int:
    """Measure what the words ask for; return the exit status."""
    if not words or words[0] in {"-h", "--help"}:
        listed = "\n".join(f"  {name:<18}{summary}" for name, summary in MEASUREMENTS.items())
        print(
            f"usage: python -m benchmarks NAME [OPTIONS]\n\n{listed}\n\npython -m benchmarks NAME --help: its options"
        )
        return 0
    name = words[0]
    try:
        command.check("a measurement to be one of", name, MEASUREMENTS)
        command.measure(name, find(name), words[1:], program=f"python -m benchmarks {name}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print("; ".join(["interrupted", *getattr(error, "__notes__", ())]), file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
