"""Pair weights from vectors: their products, as of soft labels, and the pairs that a guide finds no more similar."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.pairs.expressions import PairWeight
from likewise.pairs.form import EVERYTHING, ClosedForm, Term, ThinProduct
from likewise.pairs.weight import check_tensor


@final
class LowRank(PairWeight):
    r"""The product of a vector of the anchor and one of the reference, $w_{ir} = a_i \cdot b_r$.

    Two rows of class probabilities give the probability of a common class: soft labels, or a teacher's, as a pull.

    Args:
        anchors: a, floating, shape (N, K); it receives a gradient if it requires one, as does b.
        references: b, floating, shape (R, K); None: the anchors are the references, with the same vectors.

    Memory:
        O((N + R)·K), with gradients too; a product with references (R, D) takes O((N + R)·K·D) time.

    Example:
        >>> LowRank(torch.tensor([[1.0, 0.0], [0.25, 0.75]])).dense()
        tensor([[1.0000, 0.2500],
                [0.2500, 0.6250]])
    """

    within_tiles = False

    def __init__(self, anchors: Float[Tensor, "n k"], references: Float[Tensor, "r k"] | None = None) -> None:
        self.anchors, self.references = checked_vectors(anchors, references)
        seen = anchors.device.type == "cpu"  # elsewhere it is assumed, as for `Explicit`
        positive = not seen or (bool((self.anchors >= 0).all()) and bool((self.references >= 0).all()))
        symmetric = 0 if references is None else None
        shape = len(self.anchors), len(self.references)
        super().__init__(shape, is_set=False, is_nonnegative=positive, symmetric_at=symmetric)
        self.is_learned = self.anchors.requires_grad or self.references.requires_grad

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.anchors[rows].to(device, dtype) @ self.references[columns].to(device, dtype).T

    def product(self, references: Float[Tensor, "r d"]) -> Float[Tensor, "n d"]:
        return self.anchors.to(references) @ (self.references.to(references).T @ references)

    def transposed_product(self, anchors: Float[Tensor, "n d"]) -> Float[Tensor, "r d"]:
        return self.references.to(anchors) @ (self.anchors.to(anchors).T @ anchors)

    def form(self) -> ClosedForm:
        return (Term(EVERYTHING, overlaps=(ThinProduct(self.anchors, self.references, "as it is"),)),)


@final
class Below(PairWeight):
    r"""The set of pairs that a guide finds no more similar than the anchor's limit, $a_i \cdot b_r \le t_i$.

    A guide's vectors tell which references are probably no negatives. GISTEmbed leaves out those that it finds more
    similar to the query than its own key, less a margin:

    ``Below(guide_queries, guide_keys, limits=(guide_queries * guide_keys).sum(dim=1) - margin) | own``

    Args:
        anchors: a, the guide's vectors, floating, shape (N, K), normalised where cosines are meant.
        references: b, floating, shape (R, K); None: the anchors are the references, with the same vectors.
        limits: t, one for each anchor, shape (N,).

    Memory:
        O((N + R)·K).

    Source:
        Solatorio, "GISTEmbed: Guided In-sample Selection of Training Negatives for Text Embedding Fine-tuning", 2024.

    Example:
        >>> guide = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> Below(guide, limits=torch.tensor([0.5, 0.7, 0.7])).dense()
        tensor([[0., 0., 1.],
                [0., 0., 1.],
                [1., 1., 0.]])
    """

    def __init__(
        self,
        anchors: Float[Tensor, "n k"],
        references: Float[Tensor, "r k"] | None = None,
        *,
        limits: Float[Tensor, " n"],
    ) -> None:
        self.anchors, self.references = checked_vectors(anchors, references)
        shape = limits.shape if isinstance(limits, Tensor) else type(limits).__name__  # pyright: ignore[reportUnnecessaryIsInstance]
        if shape != anchors.shape[:1]:
            raise ValueError(f"expected limits as a tensor, one for each of {len(anchors)} anchors, got {shape}")
        if limits.device.type == "cpu" and limits.isnan().any():
            raise ValueError("expected limits that are numbers or infinite, got NaN")
        if anchors.requires_grad or self.references.requires_grad or limits.requires_grad:
            message = "expected a guide without gradient, as a set of pairs has none, got one that requires it"
            raise ValueError(f"{message}: .detach() it, or weigh pairs by a sigmoid, in a pair weight of your own")
        self.limits = limits
        super().__init__((len(self.anchors), len(self.references)), is_set=True, is_nonnegative=True, symmetric_at=None)

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        similarities = self.anchors[rows].to(device) @ self.references[columns].to(device).T
        return (similarities <= self.limits[rows, None].to(similarities)).to(dtype)


def checked_vectors(anchors: Tensor, references: Tensor | None, role: str = "anchors") -> tuple[Tensor, Tensor]:
    """Return the vectors of both sides; raise unless they are finite, floating and of the same width."""
    inputs = {role: anchors} | ({} if references is None else {"references": references})
    for name, vectors in inputs.items():
        check_tensor(name, vectors)
        if not vectors.is_floating_point() or vectors.ndim != 2 or vectors.shape[1] != anchors.shape[1]:
            expected = (
                f"expected {name} to be floating vectors of the width of the {role}', shape (n, {anchors.shape[-1]})"
            )
            raise ValueError(f"{expected}, got {vectors.dtype} of shape {tuple(vectors.shape)}")
        if vectors.device.type == "cpu" and not vectors.isfinite().all():
            raise ValueError(f"expected {name} to be finite, got NaN or infinity")
    return anchors, anchors if references is None else references
