"""The triplet loss with a soft margin: one positive and one negative for each anchor."""

from typing import Annotated, Unpack, final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature, scalar
from likewise.losses.batch_triplet import Distance
from likewise.losses.checks import check_number
from likewise.losses.inputs import Embeddings, References
from likewise.operator.inputs import one_of


@final
class TripletLoss(ContrastiveLoss):
    r"""Triplet: tell the positive from the negative.

    With s the cosine, $s_p = a \cdot p$ and $s_n = a \cdot n$,

    $$
    \ell = \log \bigl( 1 + e^{(s_n - s_p + m) / \tau} \bigr)
         = \log \bigl( e^{s_p / \tau} + e^{m / \tau} e^{s_n / \tau} \bigr) - s_p / \tau
    $$

    which is the equation of all contrastive losses, with push 1 on the positive and $e^{m/\tau}$ on the negative. No
    anchor is compared with another's references, so it is evaluated row by row, and ``backend`` has no effect.

    With one negative and m = 0 it is exactly SupCon. As τ → 0, τℓ becomes $\max(0, s_n - s_p + m)$, the triplet loss
    with a hinge.

    Args:
        margin: m, by how much the positive's similarity is to exceed the negative's; in units of the cosine, or of the
            distance.
        distance: "cosine", or "euclidean": s is then −‖a − p‖ and −‖a − n‖, and the gradient of two equal rows is 0.
        **options: See `LossOptions`. Gathered, an anchor still meets its own triple only; the mean is over all triples.

    Memory:
        O(N·D).

    Source:
        Schroff, Kalenichenko, Philbin, "FaceNet", 2015, with the hinge; Hermans, Beyer, Leibe, "In Defense of the
        Triplet Loss for Person Re-Identification", 2017, with the soft margin; as a contrastive loss, Khosla et al.,
        "Supervised Contrastive Learning", 2020, supplement. These compare distances; this loss compares similarities.

    Example:
        >>> TripletLoss(temperature=1.0, margin=1.0)(torch.eye(2), torch.eye(2), -torch.eye(2))
        tensor(0.3133)
    """

    supports_fullgraph = True

    def __init__(
        self, *, temperature: Temperature = 0.1, margin: float = 0.0, distance: Distance = "cosine",
        **options: Unpack[LossOptions],
    ) -> None:  # fmt: skip
        super().__init__(temperature, **options)
        self.margin = check_number("margin", margin, -1e6, 1e6, "0 to 0.5")
        self.distance: Distance = one_of("distance", distance, Distance)

    def forward(
        self,
        anchors: Annotated[Float[Tensor, "n d"], Embeddings()],
        positives: Annotated[Float[Tensor, "n d"], References("anchors", aligned=True)],
        negatives: Annotated[Float[Tensor, "n d"], References("anchors", aligned=True)],
    ) -> Float[Tensor, "..."]:
        """Return the loss of anchors, (N, D), with their positives and negatives in the same order, (N, D) each."""
        rows = self.rows(anchors, positives, replicated=(negatives,), local=True)
        a, p, n = (self.scaled(v, rows.dtype) for v in (rows.queries, *rows.sections))
        temperature = scalar(self.temperature, a)
        if self.distance == "cosine":
            nearer = (a * (n - p)).sum(dim=1)
        else:
            nearer = torch.linalg.vector_norm(a - p, dim=1) - torch.linalg.vector_norm(a - n, dim=1)
        logits = (nearer + self.margin) / temperature
        losses = torch.logaddexp(logits, torch.zeros_like(logits))
        return self.reduce(losses)
