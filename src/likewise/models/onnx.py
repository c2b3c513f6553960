"""ONNX files of encoders, checked against the encoder."""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Generator, Mapping
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from likewise.data.texts import PADDING
from likewise.models.encoder import Encoder
from likewise.models.heads import Projected
from likewise.models.text_encoder import TextEncoder, reads_texts
from likewise.models.wrapped import FromRun, shortened

BATCHES = (1, 7)  # batch sizes to check; the export uses a batch of two
OUTPUTS = ("features", "logits", "probabilities")


def to_onnx(
    encoder: Encoder,
    path: str | Path,
    *,
    classifier: nn.Module | None = None,
    facts: Mapping[str, Any] | None = None,
    opset: int | None = None,
    tolerance: float = 1e-4,
) -> None:
    """Write an encoder as ONNX, including its standardisation, for batches of any size.

    The file's input is `inputs`: images (N, channels, height, width) from 0 to 1 or vectors (N, F), float32, or tokens
    of texts (N, T), int64, padded with 0 at the end. Its output is `features` (N, D), float32, and with a classifier
    also `logits` and `probabilities` (N, C). Its metadata are, as JSON, `likewise` (the version), `input_shape`,
    `feature_dim`, `mean`, `std`, and the facts; for texts also `tokenizer`, as the library of that name writes it,
    `length`, the number of tokens read of a text, `first_token`, the number of its token 0, and `prompt`, the text put
    before every text, if any. The encoder is not changed.

    Args:
        encoder: The encoder; it is exported in evaluation mode.
        path: The .onnx file. It is written under a temporary name, checked, and renamed.
        classifier: Takes features (N, D), and returns logits and probabilities, each (N, C).
        facts: Further metadata, such as {"names": ["cat", "dog"]}.
        opset: The ONNX opset version. None: the exporter's default.
        tolerance: Largest accepted difference from the encoder's features on random inputs, relative to the largest
            feature, or absolute if that is below 1; the same for logits and probabilities.

    Raises:
        ValueError: The encoder cannot be exported, or the outputs of the file differ.
        ModuleNotFoundError: The extra `likewise[onnx]` is not installed.

    Memory:
        A copy of the encoder on the CPU, and the file.

    Example:
        >>> from likewise.models import MLP
        >>> to_onnx(MLP((3,), width=4), "mlp.onnx")
        >>> Path("mlp.onnx").exists()
        True
    """
    check_installed("onnx", "onnxscript", "onnxruntime")
    if reads_texts(encoder) and len(encoder.tokenizer) == 0:
        raise ValueError("expected an encoder with a tokenizer, got none: call observe(Texts(training_strings)) first")
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"expected a folder to write {path.name} into, got {path.parent}: create it first")
    partial = path.with_name(f"{path.name}.partial")
    try:
        copy = deepcopy(encoder).cpu().float().eval()
        module = copy if classifier is None else _Classified(copy, deepcopy(classifier).cpu().float().eval())
        about = _metadata(copy) | dict(facts or {})
        _export(module, copy, partial, {name: json.dumps(value) for name, value in about.items()}, opset)
        _check_outputs(module, copy, partial, tolerance)
        partial.replace(path)
    except (OSError, _DifferentError):
        raise
    except Exception as error:
        raise ValueError(
            f"expected an encoder that can be written as ONNX, got {type(error).__name__}: "
            f"{shortened(str(error.__cause__ or error))}: export it as safetensors"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def check_installed(*modules: str) -> None:
    """Raise a ModuleNotFoundError unless modules of the extra are installed."""
    for name in modules:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"expected {name}, got none: pip install 'likewise[onnx]'", name=name)


class _DifferentError(ValueError): ...


@final
class _Classified(nn.Module):
    def __init__(self, encoder: Encoder, classifier: nn.Module) -> None:
        super().__init__()
        self.encoder, self.classifier = encoder, classifier

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.encoder(inputs)
        return features, *self.classifier(features)


def _metadata(encoder: Encoder) -> dict[str, Any]:
    inner = encoder
    while isinstance(inner, FromRun | Projected):  # wrappers, which leave mean and std to the encoder inside
        inner = inner.encoder
    of_texts = {}
    if reads_texts(encoder):
        of_texts = {"tokenizer": _tokenizer(encoder), "length": encoder.length, "first_token": encoder.numbered([0])[0]}
        of_texts |= {"prompt": encoder.prompt} if encoder.prompt else {}
    return of_texts | {
        "likewise": str(import_module("likewise").__version__),
        "input_shape": list(encoder.input_shape),
        "feature_dim": encoder.feature_dim,
        "mean": inner.mean.flatten().tolist(),
        "std": inner.std.flatten().tolist(),
    }


def _tokenizer(encoder: TextEncoder) -> str:
    return bytes(encoder.tokenizer.cpu().numpy()).decode()


def _export(module: nn.Module, encoder: Encoder, path: Path, metadata: dict[str, str], opset: int | None) -> None:
    inputs = _inputs(encoder, 2)
    batch = torch.export.Dim("batch", min=1)
    sizes = {0: batch, 1: torch.export.Dim("tokens", min=1)} if reads_texts(encoder) else {0: batch}
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module,
            (inputs,),
            dynamo=True,
            dynamic_shapes=(sizes,),
            input_names=["inputs"],
            output_names=OUTPUTS[: 1 if module is encoder else None],
            opset_version=opset,
            verbose=False,
        )
        if program is None:  # as older exporters return
            raise RuntimeError("no program")
        program.model.metadata_props.update(metadata)
        program.save(path, external_data=False)


def _check_outputs(module: nn.Module, encoder: Encoder, path: Path, tolerance: float) -> None:
    import onnxruntime  # noqa: PLC0415 - onnxruntime is optional

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in BATCHES:
        inputs = _inputs(encoder, batch)
        with torch.no_grad():
            made, computed = module(inputs), session.run(None, {"inputs": inputs.numpy()})
        expected: tuple[Tensor, ...] = (made,) if module is encoder else made
        for name, values, got in zip(OUTPUTS, expected, computed, strict=False):
            outputs = torch.from_numpy(got)
            away = float((outputs - values).abs().max()) if outputs.shape == values.shape else float("inf")
            if not away <= tolerance * max(1.0, float(values.abs().max())):  # written so that NaN fails
                raise _DifferentError(
                    f"expected {name} of the ONNX file within {tolerance:g} of the encoder's, got {away:.2g} in a "
                    f"batch of {batch}: export it as safetensors"
                )


def _inputs(encoder: Encoder, batch: int) -> Tensor:
    """Return random inputs from 0 to 1, or tokens of texts, the same in every call."""
    generator = torch.Generator().manual_seed(batch)
    if not reads_texts(encoder):
        return torch.rand(batch, *encoder.input_shape, generator=generator)
    from tokenizers import Tokenizer  # noqa: PLC0415 - of the extra `text`

    tokens: Any = Tokenizer.from_str(_tokenizer(encoder))
    most, length = tokens.get_vocab_size() + encoder.numbered([0])[0], min(batch + 1, encoder.length)
    ids = torch.randint(2, most, (batch, length), generator=generator)
    ids[1:, length - 1 :] = PADDING
    return ids


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Suppress the exporter's output, logs and warnings; its result is checked."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        silence = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
