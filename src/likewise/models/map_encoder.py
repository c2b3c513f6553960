"""The abstract encoder of images whose features are pooled feature maps."""

from jaxtyping import Float
from torch import Tensor

from likewise.models.encoder import Encoder


class MapEncoder(Encoder):
    """Abstract: an encoder that defines `maps`, and sets the length of its features when it is made."""

    _feature_dim: int

    @property
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""
        return self._feature_dim

    def forward(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d"]:
        """Encode a batch of images."""
        return self.pool(self.maps(inputs))
