"""An encoder that stands in where features exist already and no network does: it takes them as they are."""

from pathlib import Path
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from likewise.models.encoder import SizedEncoder


@final
class Given(SizedEncoder):
    """Takes features as they are, perhaps of two sides of pairs; `digest` is their encoder's, or ""."""

    def __init__(self, width: int, *, paired: bool = False, digest: str = "") -> None:
        super().__init__((width,))
        self._feature_dim, self.paired, self.digest = width, paired, digest

    def forward(self, inputs: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Return the features, in float32."""
        return self.standardized(inputs)

    @classmethod
    def at(cls, path: Path) -> Any:
        """Return what takes the features in a file, or a folder, as they are; None where it has none."""
        from likewise.inference.stored import open_features  # noqa: PLC0415 - it imports this module

        stored = open_features(path)
        return None if stored is None else cls(stored.width, paired=stored.paired, digest=stored.encoder)
