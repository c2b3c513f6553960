"""The networks of a transfer: the trained encoder of a run, a file or a library, and the same from random weights."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from likewise.configuration.command_line import as_words
from likewise.configuration.values import Option
from likewise.files.detection import expanded
from likewise.runs import Run

WEIGHTS = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")


@final
@dataclass(frozen=True)
class TransferNetworks:
    """The options for the trained encoder, and for the same network with random weights, if it can be trained.

    `taken` are the names of the user's options among them; `file` and `run` are where the weights are, if anywhere.
    """

    trained: list[str]
    fresh: list[str] | None
    taken: frozenset[str] = frozenset()
    file: Path | None = None
    run: Run | None = None

    @property
    def digest(self) -> str:
        """A digest of the weights; empty where a library has them."""
        if self.file is None or not self.file.is_file():
            return ""  # a missing file is reported when a run is assembled
        with self.file.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @classmethod
    def of(cls, source: str, options: Sequence[Option], weights: str | None = None) -> "TransferNetworks":
        """Return the options for a run, a name, or a file, beside the user's own options and the weights they name."""
        path = Path(source).expanduser()
        encoder = [option for option in options if option.name.partition(".")[0] == "encoder"]
        taken = frozenset([*(option.name for option in encoder), "weights"])
        none = ["--weights", "null"]
        if path.suffix.lower() == ".onnx":
            if encoder or weights:
                raise ValueError(f"expected no --encoder and no --weights beside {source}, got some: leave them out")
            arguments = ["--encoder", "likewise.inference.onnx.OnnxEncoder", "--encoder.file", str(path)]
            return cls(arguments, None, file=path)
        if path.suffix.lower() in WEIGHTS and not path.is_dir():
            if not encoder:
                raise ValueError(f"expected the network that {source} is of, got none: --encoder ResNet, for one")
            if weights:
                raise ValueError("expected weights once, got a file and --weights: leave out one")
            return cls([*as_words(encoder), "--weights", str(path)], [*as_words(encoder), *none], taken, path)
        if encoder:
            raise ValueError(f"expected no --encoder beside {source}, which is one, got one: leave it out")
        if path.is_dir() or len(path.parts) > 1:
            if weights:
                raise ValueError("expected no --weights beside a run, which has its own, got some: leave them out")
            opened = Run.open(path)
            if not opened.weights.is_file():
                raise ValueError(f"expected a trained run, got {path}: finish it with likewise train --resume {path}")
            arguments = ["--encoder", "likewise.models.FromRun", "--encoder.run", str(path)]
            return cls(arguments, [*arguments, "--encoder.trained", "false"], file=opened.weights, run=opened)
        arguments = ["--encoder", "likewise.models.Timm", "--encoder.name", source, "--encoder.pretrained"]
        begun = [*arguments, "false", "--weights", str(weights)] if weights else [*arguments, "true"]
        return cls(begun, [*arguments, "false", *none], taken, expanded(weights) if weights else None)
