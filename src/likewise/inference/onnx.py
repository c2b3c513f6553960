"""Encoders without a PyTorch network: an exported one, run by onnxruntime, and one that returns features unchanged."""

import json
import warnings
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from likewise.evaluation.linear import LinearPredictor
from likewise.evaluation.logistic_regression import LinearClassifier
from likewise.models import TextEncoder
from likewise.models.encoder import SizedEncoder
from likewise.models.onnx import check_installed
from likewise.models.wrapped import shortened


@final
class OnnxFile:
    """An open file from `to_onnx`, on "cpu", on "cuda", which needs onnxruntime-gpu, or on the best device there is.

    A ValueError means that the file is damaged, or of another origin.
    """

    def __init__(self, path: Path | str, device: str | torch.device | None = None) -> None:
        check_installed("onnxruntime")
        import onnxruntime  # noqa: PLC0415 - onnxruntime is optional

        if not Path(path).is_file():
            raise ValueError(f"expected an ONNX file, got {path}, which does not exist: check the path")
        there = onnxruntime.get_available_providers()
        on_gpu = "CUDAExecutionProvider" in there and str(device or "cuda").startswith("cuda")
        if not on_gpu and device is not None and str(device) != "cpu":
            message = f"the CPU computes {path}: this onnxruntime has no {device}, onnxruntime-gpu may"
            warnings.warn(message, stacklevel=2)
        providers = [*(["CUDAExecutionProvider"] if on_gpu else []), "CPUExecutionProvider"]
        try:
            session = onnxruntime.InferenceSession(path, providers=providers)
            entries = session.get_modelmeta().custom_metadata_map
            ours = entries if "likewise" in entries else {}
            self.metadata: dict[str, Any] = {name: json.loads(entry) for name, entry in ours.items()}
        except Exception as error:
            raise ValueError(f"expected an ONNX file, got {path}: {shortened(str(error))}: export it again") from error
        if not self.metadata:
            got = f"got {path}, which doesn't say what its inputs are: export the run again"
            raise ValueError(f"expected an ONNX file by likewise export, {got}")
        self.path, self._session = path, session

    @property
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""
        return self.metadata["feature_dim"]

    def features(self, inputs: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """Compute features."""
        features, *_ = self._session.run(["features"], {"inputs": np.ascontiguousarray(inputs.cpu().numpy())})
        return torch.from_numpy(features)

    @cached_property
    def probe(self) -> LinearPredictor | None:
        """The linear probe that was exported with the encoder, if one was."""
        if "classifier" not in self.metadata:
            return None
        import onnx  # noqa: PLC0415 - optional, too

        graph: Any = onnx.load(self.path).graph
        held = {proto.name: torch.tensor(onnx.numpy_helper.to_array(proto)) for proto in graph.initializer}
        limits, about = self.metadata.get("thresholds"), self.metadata
        classifier = LinearClassifier(held["classifier.weight"], held["classifier.bias"])
        thresholds = None if limits is None else torch.tensor(limits, dtype=torch.float64)
        args = about["classifier"], tuple(about["names"]), self.feature_dim, classifier, about.get("temperature", 1.0)
        return LinearPredictor(*args, thresholds=thresholds)


def onnx_encoder(path: Path | str, device: str | torch.device | None = None) -> "OnnxEncoder | OnnxTexts":
    """Open a file as an encoder of images or vectors, or of texts; see `OnnxFile`."""
    file = OnnxFile(path, device)
    return OnnxEncoder(tuple(file.metadata["input_shape"]), file) if file.metadata["input_shape"] else OnnxTexts(file)


@final
class OnnxEncoder(SizedEncoder):
    """The encoder of images or vectors in a file, a path or an `OnnxFile`, for inputs of its shape only.

    It can't be trained.
    """

    observes = False

    def __init__(self, input_shape: tuple[int, ...], file: Any) -> None:
        file = file if isinstance(file, OnnxFile) else OnnxFile(file)
        expected = tuple(file.metadata["input_shape"])
        if not expected or expected != tuple(input_shape):
            made_for = f"inputs of shape {expected}" if expected else "texts, which only a run is transferred to"
            got = f"got {tuple(input_shape)}: give data of that shape; data.size resizes images"
            raise ValueError(f"expected {made_for}, which {file.path} was made for, {got}")
        super().__init__(expected)
        self.mean.copy_(torch.tensor(file.metadata["mean"]).view_as(self.mean))
        self.std.copy_(torch.tensor(file.metadata["std"]).view_as(self.std))
        self.file, self._feature_dim = file, file.feature_dim

    def forward(self, inputs: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """Encode inputs of exactly the input shape, uint8 or floating-point."""
        if inputs.shape[1:] != self.input_shape:
            shape = ", ".join(map(str, ("N", *self.input_shape)))
            raise ValueError(f"expected inputs of shape ({shape}), got {tuple(inputs.shape)}: resize them")
        return self.file.features(inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs.float())


@final
class OnnxTexts(TextEncoder, SizedEncoder):
    """The encoder of texts in a file, with its tokenizer; it can't be trained."""

    def __init__(self, file: OnnxFile) -> None:
        super().__init__((), file.metadata["length"])
        self.tokenizer = torch.frombuffer(bytearray(file.metadata["tokenizer"].encode()), dtype=torch.uint8)
        self.prompt = file.metadata.get("prompt", "")
        self.file, self._feature_dim = file, file.feature_dim

    def trained(self, texts: Iterable[str]) -> Any:
        """Refuse to learn a tokenizer."""
        del texts
        raise ValueError(f"expected an encoder that can be trained, got {self.file.path}: load the run")

    def numbered(self, ids: list[int]) -> list[int]:
        """Return the tokens of a text, from the tokenizer's own numbers."""
        return [token + self.file.metadata["first_token"] for token in ids]

    def forward(self, inputs: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        """Encode rows of tokens."""
        return self.file.features(inputs)


@final
class Given(SizedEncoder):
    """An encoder that returns features unchanged, also of two sides of pairs; `digest` is their encoder's, or ""."""

    def __init__(self, width: int, *, paired: bool = False, digest: str = "") -> None:
        super().__init__((width,))
        self._feature_dim, self.paired, self.digest = width, paired, digest

    def forward(self, inputs: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Return the features, in float32."""
        return self.standardized(inputs)

    @classmethod
    def at(cls, path: Path) -> Any:
        """Return the encoder for the features in a file, or a folder; None if there are none."""
        from likewise.inference.search import open_features  # noqa: PLC0415 - it imports this module

        stored = open_features(path)
        return None if stored is None else cls(stored.width, paired=stored.paired, digest=stored.encoder)
