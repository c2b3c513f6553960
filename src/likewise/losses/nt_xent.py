"""NT-Xent, the normalised temperature-scaled cross-entropy of SimCLR."""

from typing import Annotated, Unpack, final

from jaxtyping import Float
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.inputs import Views


@final
class NTXentLoss(ContrastiveLoss):
    r"""NT-Xent: identify the other views of the same sample among all other views in the batch.

    $$
    \ell_i = \log \sum_{u \ne i} e^{z_i \cdot z_u / \tau} - \frac{1}{V - 1} \sum_{p} z_i \cdot z_p / \tau
    $$

    where p runs over the other views of anchor i's sample; with two views there is only one.

    Memory:
        O(B·V·D); see `likewise.contrast`.

    Source:
        Chen, Kornblith, Norouzi, Hinton, "A Simple Framework for Contrastive Learning of Visual Representations", 2020,
        equation 1, where V = 2; with more views, the loss averages over the positives.

    Example:
        >>> import torch
        >>> view_0, view_1 = torch.eye(2), torch.eye(2)
        >>> NTXentLoss(temperature=1.0)(view_0, view_1)
        tensor(0.5514)
    """

    def __init__(self, *, temperature: Temperature = 0.5, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)

    def forward(self, *views: Annotated[Float[Tensor, "..."], Views()]) -> Float[Tensor, "..."]:
        """Return the loss of two or more views, each (B, D), or of embeddings (B, V, D)."""
        rows = self.rows(*views)
        push = rows.not_self()
        positives = rows.same_sample() & push
        return self.evaluate(rows, pull=positives.mean_over_row(), push=push, positives=positives)
