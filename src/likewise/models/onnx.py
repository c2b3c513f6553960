"""ONNX files of encoders, checked against the encoder."""

import contextlib
import io
import logging
import warnings
from collections.abc import Generator
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from likewise.models.encoder import Encoder
from likewise.models.wrapped import shortened

NEEDED = ("onnx", "onnxscript", "onnxruntime")
BATCHES = (1, 7)  # batch sizes to check; the export uses a batch of two


def to_onnx(encoder: Encoder, path: str | Path, *, opset: int | None = None, tolerance: float = 1e-4) -> None:
    """Write an encoder as ONNX, including its standardisation, for batches of any size.

    The file's input is `inputs`, images (N, channels, height, width) from 0 to 1, or vectors (N, F), float32; its
    output is `features` (N, D), float32. The encoder is not changed.

    Args:
        encoder: The encoder; it is exported in evaluation mode.
        path: The .onnx file. It is written under a temporary name, checked, and renamed.
        opset: The ONNX opset version. None: the exporter's default.
        tolerance: Largest accepted difference from the encoder's features on random inputs, relative to the largest
            feature, or absolute if that is below 1.

    Raises:
        ValueError: The encoder cannot be exported, or the features of the file differ.
        ModuleNotFoundError: The extra `likewise[onnx]` is not installed.

    Memory:
        A copy of the encoder on the CPU, and the file.

    Example:
        >>> import tempfile
        >>> from likewise.models import MLP
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "mlp.onnx"
        ...     to_onnx(MLP((3,), width=4), file)
        ...     file.exists()
        True
    """
    for module in NEEDED:
        if find_spec(module) is None:
            raise ModuleNotFoundError(
                f"expected the module {module}, which is not installed: pip install 'likewise[onnx]'", name=module
            )
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"expected a folder to write {path.name} into, got {path.parent}: create it first")
    copy = deepcopy(encoder).cpu().float().eval()
    partial = path.with_name(f"{path.name}.partial")
    try:
        _export(copy, partial, opset)
        _check(copy, partial, tolerance)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _export(encoder: Encoder, path: Path, opset: int | None) -> None:
    inputs = _inputs(encoder, 2)
    batch = torch.export.Dim("batch", min=1)
    try:
        with _quiet(), torch.no_grad():
            torch.onnx.export(
                encoder,
                (inputs,),
                path,
                dynamo=True,
                dynamic_shapes=({0: batch},),
                input_names=["inputs"],
                output_names=["features"],
                opset_version=opset,
                external_data=False,
                verbose=False,
            )
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"expected an encoder that can be written as ONNX, got {type(error).__name__} from the exporter: "
            f"{shortened(str(error.__cause__ or error))}: export it as safetensors"
        ) from error


def _check(encoder: Encoder, path: Path, tolerance: float) -> None:
    """Compare the file's features with the encoder's."""
    import onnxruntime  # noqa: PLC0415 - onnxruntime is optional

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in BATCHES:
        inputs = _inputs(encoder, batch)
        with torch.no_grad():
            expected = encoder(inputs)
        got = torch.from_numpy(session.run(["features"], {"inputs": inputs.numpy()})[0])
        away = float((got - expected).abs().max()) if got.shape == expected.shape else float("inf")
        if not away <= tolerance * max(1.0, float(expected.abs().max())):  # written so that NaN fails
            raise ValueError(
                f"expected features of the ONNX file within {tolerance:g} of the encoder's, got {away:.2g} in a batch "
                f"of {batch}: export it as safetensors"
            )


def _inputs(encoder: Encoder, batch: int) -> Tensor:
    """Return random inputs from 0 to 1, always the same."""
    return torch.rand(batch, *encoder.input_shape, generator=torch.Generator().manual_seed(batch))


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Suppress what the exporter prints, logs and warns about; its result is checked."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        silence = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
