"""ProxyNCA++, a softmax over one learned prototype per class."""

from typing import Annotated, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.inputs import Classes, Embeddings, References
from likewise.pairs import AllPairs, SameClass


@final
class ProxyNCALoss(ContrastiveLoss):
    r"""ProxyNCA++: identify the prototype of the anchor's class among those of all classes.

    $$
    \ell_i = \log \sum_{c} e^{z_i \cdot w_c / \tau} - z_i \cdot w_{y_i} / \tau
    $$

    where w_c is the prototype of class c. Rows of the batch are not compared with each other.

    Args:
        temperature: τ > 0, a number, "learned", or a 0-d or (1,) tensor or parameter, which then receives a gradient.
            It is half the paper's T, which divides squared distances.
        **options: reduction, normalize (of embeddings and prototypes), gather_distributed, backend; see `LossOptions`.

    Memory:
        O((N + C)·D + tile).

    Source:
        Teh, DeVries, Taylor, "ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component Analysis", 2020,
        sections 3.3 and 3.4, with squared distances: −d²/T = (2·cos − 2)/T, so τ = T/2, and the default is T = 1/9.

    Example:
        >>> import torch
        >>> embeddings, prototypes = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.eye(2)
        >>> ProxyNCALoss(temperature=1.0)(embeddings, torch.tensor([0, 1]), prototypes)
        tensor(0.3133)
    """

    label_kinds = frozenset({"classes"})

    def __init__(self, *, temperature: Temperature = 1 / 18, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)

    def forward(
        self,
        embeddings: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, " b"], Classes("embeddings", below="prototypes")],
        prototypes: Annotated[Float[Tensor, "c d"], References("embeddings")],
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            embeddings: One view of each sample, (N, D), or V views, (B, V, D). B below is N for one view.
            labels: Classes of the samples, 0 … C − 1, (B,).
            prototypes: One row for each class, (C, D), usually a parameter; the same on every process.
        """
        rows = self.rows(embeddings, prototypes[:0], whole=(prototypes,))  # the only references: no rows to gather
        classes = rows.of_anchors(labels.to(rows.queries.device))
        own = SameClass(classes, torch.arange(len(prototypes), device=classes.device))
        return self.evaluate(rows, pull=own, push=AllPairs(*own.shape), positives=own)
