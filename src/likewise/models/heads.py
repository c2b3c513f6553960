"""Heads, networks between features and loss used only in training, and an encoder followed by a head."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.instantiate import Described
from likewise.models.encoder import Encoder, Progress, check_sizes, frozen

if TYPE_CHECKING:
    from likewise.data.lazy_inputs import LazyInputs

FEATURE_BATCH = 4096  # features passed to the head at a time


class Head(Described, nn.Module, ABC):
    """Abstract: a head g, from features to the embeddings that a loss contrasts."""

    @property
    @abstractmethod
    def embedding_dim(self) -> int:
        """Length of an embedding, E."""

    @abstractmethod
    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
        """Map a batch of features."""


class _Layers(Head):
    def __init__(self, inputs: int, hidden_dim: int | None, outputs: int, count: int, *, batch_norm: bool) -> None:
        super().__init__()
        hidden = inputs if hidden_dim is None else hidden_dim
        check_sizes(inputs=inputs, hidden_dim=hidden, out_dim=outputs, layers=count)
        layers: list[nn.Module] = []
        for level in range(count):
            # batch norm would cancel a bias
            layers.append(nn.Linear(hidden if level else inputs, hidden, bias=not batch_norm))
            layers += [nn.BatchNorm1d(hidden), nn.ReLU()] if batch_norm else [nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, outputs))
        self._embedding_dim = outputs

    @property
    def embedding_dim(self) -> int:
        return self._embedding_dim

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
        return self.layers(features)


@final
class ProjectionHead(_Layers):
    """Hidden layers and a linear layer; with one hidden layer z = W₂ · relu(W₁ h), as in SimCLR.

    With other sizes, the default is the head of SimCLR and MoCo v2. BYOL's has hidden_dim 4096, out_dim 256 and
    batch_norm.

    Args:
        feature_dim: Length of a feature vector; the command fills it in from the encoder.
        hidden_dim: Units of a hidden layer. None: as many as features.
        out_dim: Length of an embedding.
        layers: Number of hidden layers.
        batch_norm: Whether hidden layers are batch-normalised before relu.

    Source:
        T. Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020, section 2.1; with
        batch norm J.-B. Grill et al., Bootstrap Your Own Latent, 2020, section 3.3.

    Example:
        >>> import torch
        >>> ProjectionHead(16, out_dim=4)(torch.zeros(2, 16)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        feature_dim: int,
        hidden_dim: int | None = None,
        out_dim: int = 64,
        layers: int = 1,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(feature_dim, hidden_dim, out_dim, layers, batch_norm=batch_norm)


@final
class PredictionHead(_Layers):
    """BYOL's predictor, from the embeddings of one network to those of the other: one hidden layer, E to E.

    Args:
        embedding_dim: Length of an embedding, E.
        hidden_dim: Units of the hidden layer. None: embedding_dim. BYOL has 4096 for E = 256.
        batch_norm: Whether the hidden layer is batch-normalised before relu.

    Source:
        J.-B. Grill et al., Bootstrap Your Own Latent, 2020, section 3.3.

    Example:
        >>> import torch
        >>> PredictionHead(8, hidden_dim=32)(torch.rand(4, 8)).shape
        torch.Size([4, 8])
    """

    def __init__(self, embedding_dim: int, hidden_dim: int | None = None, batch_norm: bool = True) -> None:
        super().__init__(embedding_dim, hidden_dim, embedding_dim, 1, batch_norm=batch_norm)


@final
class NoHead(Head):
    """No head: the features are the embeddings, as is common for supervised losses with prototypes or logits.

    Args:
        feature_dim: Length of a feature vector; the command fills it in from the encoder.

    Example:
        >>> import torch
        >>> NoHead(16)(torch.zeros(2, 16)).shape
        torch.Size([2, 16])
    """

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        check_sizes(feature_dim=feature_dim)
        self._embedding_dim = feature_dim

    @property
    def embedding_dim(self) -> int:
        return self._embedding_dim

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return features


@final
class Projected(Encoder):
    """An encoder followed by a head, so its features are the embeddings g(f(x)).

    A training of two towers keeps these, since features of the bare encoders are not comparable. The encoder's
    attributes, such as mean, standard deviation and tokenizer, are available here too.

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
