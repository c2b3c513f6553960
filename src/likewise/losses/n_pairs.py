"""The multi-class N-pair loss."""

from typing import Annotated, Unpack, final

from jaxtyping import Float
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions
from likewise.losses.inputs import Embeddings, References
from likewise.pairs import AllPairs


@final
class NPairsLoss(ContrastiveLoss):
    r"""N-pairs: identify the anchor's own positive among the positives of all anchors.

    $$
    \ell_i = \log \Bigl( 1 + \sum_{j \ne i} e^{a_i \cdot p_j - a_i \cdot p_i} \Bigr)
           = \log \sum_j e^{a_i \cdot p_j} - a_i \cdot p_i
    $$

    Embeddings are used as they are, and there is no temperature: their lengths are learned and play its role. Every
    pair should come from a different class: a second pair of the same class would be a negative.

    Args:
        **options: See `LossOptions`. Here normalize is False unless given.

    Memory:
        O(N·D + tile).

    Source:
        Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", 2016, the loss N-pair-mc. The
        paper also penalises the squared lengths of the embeddings; add that to the loss if you want it.

    Example:
        >>> import torch
        >>> NPairsLoss()(torch.eye(2), 2 * torch.eye(2))
        tensor(0.1269)
    """

    supports_fullgraph = True

    def __init__(self, **options: Unpack[LossOptions]) -> None:
        options.setdefault("normalize", False)
        super().__init__(1.0, **options)

    def forward(
        self,
        anchors: Annotated[Float[Tensor, "n d"], Embeddings()],
        positives: Annotated[Float[Tensor, "n d"], References("anchors", aligned=True)],
    ) -> Float[Tensor, "..."]:
        """Return the loss of anchors, (N, D), and their positives in the same order, (N, D)."""
        rows = self.rows(anchors, positives)
        aligned = rows.aligned()
        return self.evaluate(rows, pull=aligned, push=AllPairs(*aligned.shape), positives=aligned)
