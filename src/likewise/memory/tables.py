"""Tables of vectors: the latest features of each sample, and a learned prototype of each label; checks of sizes."""

import operator
from collections.abc import Callable
from typing import Any, Self, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from likewise.operator.inputs import check_dense, check_finite
from likewise.pairs import weight
from likewise.pairs.keys import Keys
from likewise.pairs.weight import widest


def check_size(name: str, value: Any, *, remedy: str) -> int:
    """Return a size as an int; raise unless it is an integer of at least 1, from Python, NumPy or another library."""
    try:
        size = operator.index(value)
    except (TypeError, RuntimeError):  # not an integer, or a tensor without values
        size = 0
    if isinstance(value, bool) or size < 1:
        raise ValueError(f"expected {name} to be an integer of at least 1, got {value!r}: {remedy}")
    return size


def check_tensor(name: str, value: Any, device: torch.device, *, holder: str) -> None:
    """Raise unless the value is a dense tensor on the device of its holder."""
    weight.check_tensor(f"{name} for the {holder}", value)
    if value.device != device:
        raise ValueError(f"expected {name} to be on the device of the {holder}, {device}, got {value.device}: move it")
    check_dense(name, value)


@final
class FeatureCache(nn.Module):
    r"""The latest features of each of S samples, their validity, and the time of their last write.

    $$
    h_s \leftarrow \frac{1}{|\{b : s_b = s\}|} \sum_{b : s_b = s} z_b
    $$

    A sample that occurs several times in a batch is written once, with the mean of its features. The mean is computed
    in float64, always in the same order and without atomics: the mean of equal features equals them, bit for bit.

    The cache keeps its dtype: ``.half()``, or ``.to(dtype)`` of a module that contains it, does not change it.

    Args:
        num_samples: S, the number of samples in the training set; indices start at 0.
        feature_dim: D, the number of features of a sample.
        dtype: The dtype of the stored features.
        persistent: Whether ``state_dict`` contains the cache.

    Attributes:
        features: (S, D), zero for samples never written.
        valid: (S,), whether a sample was ever written.
        last_seen: (S,), int64, the latest write of each sample, counted from 0; −1 for a sample never written.
        step: 0-d, int64, the number of writes so far.

    Memory:
        O(S·D).

    Source:
        A memory bank as in Wu et al., "Unsupervised Feature Learning via Non-Parametric Instance Discrimination", 2018,
        section 3.1. The authors' code averages new features with earlier ones; here new features replace them.

    Example:
        >>> cache = FeatureCache(num_samples=3, feature_dim=2)
        >>> cache.write(torch.tensor([2, 0, 2]), torch.tensor([[1.0, 0.0], [5.0, 5.0], [0.0, 1.0]]))
        >>> cache.read(torch.tensor([2, 1]))
        (tensor([[0.5000, 0.5000],
                [0.0000, 0.0000]]), tensor([ True, False]))
    """

    features: Tensor
    valid: Tensor
    last_seen: Tensor
    step: Tensor

    def __init__(
        self, num_samples: int, feature_dim: int, *, dtype: torch.dtype = torch.float32, persistent: bool = True
    ) -> None:
        super().__init__()
        num_samples = check_size("num_samples", num_samples, remedy="pass the length of the training set")
        feature_dim = check_size("feature_dim", feature_dim, remedy="pass the features of an embedding")
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"expected dtype to be a floating torch dtype, got {dtype!r}: use torch.float32")
        self.register_buffer("features", torch.zeros(num_samples, feature_dim, dtype=dtype), persistent=persistent)
        self.register_buffer("valid", torch.zeros(num_samples, dtype=torch.bool), persistent=persistent)
        self.register_buffer("last_seen", torch.full((num_samples,), -1), persistent=persistent)
        self.register_buffer("step", torch.tensor(0), persistent=persistent)

    def write(self, sample_index: Int[Tensor, " n"], features: Float[Tensor, "n d"]) -> None:
        """Replace the features of the given samples and count the write; on a GPU this does not synchronise.

        Args:
            sample_index: Indices of the samples, integers, (N,).
            features: (N, D), any floating dtype; they are detached and stored in the dtype of the cache.
        """
        self.check_index(sample_index)
        expected = len(sample_index), self.features.shape[1]
        check_tensor("features", features, self.features.device, holder="cache")
        if tuple(features.shape) != expected or not features.is_floating_point():
            got = f"{features.dtype} of shape {tuple(features.shape)}"
            raise ValueError(f"expected features to be floating, of shape {expected}, a row an index, got {got}")
        index = sample_index.long()
        sample = Keys(index, index)
        with torch.no_grad():
            total = sample.sum(features.to(widest(features.device)))
            mean = (total / torch.as_tensor(sample.counts(index.device)).unsqueeze(-1)).to(self.features.dtype)
            check_finite("features", mean)
            self.features[index] = mean
            self.valid[index] = True
            self.last_seen[index] = self.step
            self.step += 1

    def read(self, sample_index: Int[Tensor, " n"]) -> tuple[Float[Tensor, "n d"], Bool[Tensor, " n"]]:
        """Return a copy of the samples' features, (N, D), and a mask of the samples ever written, (N,)."""
        self.check_index(sample_index)
        index = sample_index.long()
        return self.features[index], self.valid[index]

    def hit_rate(self, sample_index: Int[Tensor, " n"]) -> Float[Tensor, ""]:
        """Return the fraction of the samples ever written, 0-d; 0 without samples."""
        self.check_index(sample_index)
        valid = self.valid[sample_index.long()]
        return valid.sum() / max(len(valid), 1)

    def check_index(self, sample_index: Tensor) -> None:
        """Raise a ValueError unless indices are integers, (N,), on the cache's device; on a CPU, within 0 … S − 1."""
        size, device = self.features.shape[0], self.features.device
        check_tensor("sample_index", sample_index, device, holder="cache")
        fractional = sample_index.is_floating_point() or sample_index.is_complex()
        if sample_index.ndim != 1 or fractional or sample_index.dtype == torch.bool:
            got = f"{sample_index.dtype} of shape {tuple(sample_index.shape)}: for a mask, use .nonzero()"
            raise ValueError(f"expected sample_index to be integers of shape (N,), got {got}")
        if device.type == "cpu" and len(sample_index):
            low, high = (int(end) for end in sample_index.long().aminmax())  # unsigned dtypes have no aminmax
            if low < 0 or high >= size:
                got = f"{low} … {high}: build the cache with num_samples of the whole training set"
                raise ValueError(f"expected sample_index to be within 0 … {size - 1}, got {got}")

    def reset(self) -> None:
        """Clear all features and steps."""
        for buffer, empty in ((self.features, 0), (self.valid, 0), (self.last_seen, -1), (self.step, 0)):
            buffer.fill_(empty)

    def extra_repr(self) -> str:
        """Return the arguments shown by ``repr``."""
        num_samples, feature_dim = self.features.shape
        return f"{num_samples=}, {feature_dim=}, dtype={self.features.dtype}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the cache with its module to another device, but never to another dtype."""

        def moved(buffer: Tensor) -> Tensor:
            there = fn(buffer)
            return there if there.dtype == buffer.dtype else buffer.to(there.device)

        return super()._apply(moved, recurse)


@final
class Prototypes(nn.Module):
    """One learned vector w_k for each of K labels or classes, row k for label k.

    Call the module to get the rows, and pass them to a loss: ``loss(queries, labels, prototypes())``. They are learned
    with the encoder, so add their parameters to the optimiser. They are not normalised here; losses normalise them.

    Args:
        num_prototypes: K, the number of rows, one for each label or class.
        feature_dim: D, the number of features of a row, the same as for queries.

    Returns:
        From a call: the rows, (K, D), the parameter ``weight`` itself.

    Memory:
        O(K·D).

    Source:
        Initialised as in Glorot, Bengio, "Understanding the difficulty of training deep feedforward neural networks",
        2010, equation 16 (Xavier uniform): a row's length is about √(2D / (K + D)); a longer one turns less in a step.

    Example:
        >>> prototypes = Prototypes(num_prototypes=10, feature_dim=32)
        >>> prototypes().shape
        torch.Size([10, 32])
    """

    def __init__(self, num_prototypes: int, feature_dim: int) -> None:
        super().__init__()
        num_prototypes = check_size("num_prototypes", num_prototypes, remedy="use one for each label or class")
        feature_dim = check_size("feature_dim", feature_dim, remedy="pass the features of an embedding")
        self.weight = nn.Parameter(torch.empty(num_prototypes, feature_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the rows at random."""
        nn.init.xavier_uniform_(self.weight)

    def forward(self) -> Float[Tensor, "k d"]:
        """Return the rows."""
        return self.weight

    def extra_repr(self) -> str:
        """Return the arguments shown by ``repr``."""
        return "num_prototypes={}, feature_dim={}".format(*self.weight.shape)
