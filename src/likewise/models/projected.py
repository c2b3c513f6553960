"""An encoder with a head behind it, as a tower of two: its features are the embeddings that both share."""

from typing import TYPE_CHECKING, Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.models.encoder import Encoder, Progress, frozen
from likewise.models.heads import Head

if TYPE_CHECKING:
    from likewise.data.lazy_inputs import LazyInputs

FEATURE_BATCH = 4096  # features that the head is given at a time


@final
class Projected(Encoder):
    """An encoder with a head behind it, so that its features are the embeddings g(f(x)).

    What a training keeps of two towers: their features alone have nothing to do with each other. Mean, standard
    deviation, tokenizer and whatever else is the encoder's are found here too.

    Args:
        encoder: f.
        head: g, which takes features of f's length.

    Example:
        >>> from likewise.models import MLP, NoHead
        >>> Projected(MLP((3,), width=8), NoHead(8)).encode(torch.zeros(5, 3)).shape
        torch.Size([5, 8])
    """

    def __init__(self, encoder: Encoder, head: Head) -> None:
        nn.Module.__init__(self)  # it has no mean and standard deviation of its own
        self.encoder = encoder
        self.head = head
        self.input_shape, self.origin = encoder.input_shape, encoder.origin

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("encoder"), name)

    @property
    def feature_dim(self) -> int:
        return self.head.embedding_dim

    def forward(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n e"]:
        return self.head(self.encoder(inputs))

    def observe(self, inputs: "Tensor | LazyInputs") -> None:
        """Let the encoder observe the training part."""
        self.encoder.observe(inputs)

    def encode(
        self, inputs: "Tensor | LazyInputs", batch_size: int | None = None, *, progress: Progress | None = None
    ) -> Float[Tensor, "n e"]:
        """Encode inputs, as the encoder does, to embeddings (N, E), float32 on the CPU."""
        features = self.encoder.encode(inputs, batch_size, progress=progress)
        with frozen(self):
            mean = self.encoder.mean
            return torch.cat([self.head(some.to(mean)).float().cpu() for some in features.split(FEATURE_BATCH)])
