"""SigLIP: tell for each pair by itself whether a query and a key belong together."""

from typing import Annotated, Any, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.candidates import Candidates
from likewise.losses.checks import check_candidates, check_ids, check_number
from likewise.losses.inputs import Embeddings, PerAnchor, References
from likewise.operator import ContrastSpec, Push
from likewise.operator.inputs import check_bias


@final
class SigLIPLoss(ContrastiveLoss):
    r"""SigLIP: tell for each pair by itself whether a query and a key belong together.

    $$
    \ell_i = \log \bigl( 1 + e^{-(q_i \cdot k_i / \tau + b)} \bigr)
             + \sum_{u \ne i} \log \bigl( 1 + e^{q_i \cdot k_u / \tau + b} \bigr)
    $$

    Pairs do not compete as in a softmax: each is a classification of its own. The bias b makes up for there being so
    many more negatives. The second sum is over the hard negatives of all queries, too, if there are some.

    Args:
        bias: b, a number, "learned" from −10 on, or a 0-d or (1,) tensor or parameter, which then receives a gradient.
        guide_margin: How much less similar than its own key, by cosine, a guide must find what pushes a query.
        **options: See `LossOptions`. Gathered, keys and negatives are those of all processes. Never by kernels.

    Memory:
        O((1 + K)·B·D + tile), for K negatives of each query, and as much for a guide's vectors.

    Source:
        Zhai, Mustafa, Kolesnikov, Beyer, "Sigmoid Loss for Language Image Pre-Training", 2023, algorithm 1; there log
        1/τ is learned from log 10 and b from −10. The authors' code, and open_clip's, give the same values.

    Example:
        >>> SigLIPLoss(temperature=0.1, bias=-5.0)(torch.eye(3), torch.eye(3))
        tensor(0.0201)
    """

    def __init__(
        self,
        *,
        temperature: Temperature = 0.1,
        bias: Temperature = -10.0,
        guide_margin: float = 0.0,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(temperature, **options)
        bias = nn.Parameter(torch.tensor([-10.0])) if bias == "learned" else bias
        check_bias(bias)
        self.bias = bias
        self.guide_margin = check_number("guide_margin", guide_margin, -2, 2, "0 to 0.1")

    def forward(
        self,
        queries: Annotated[Float[Tensor, "b d"], Embeddings()],
        keys: Annotated[Float[Tensor, "b d"], References("queries", aligned=True)],
        *,
        negatives: Annotated[Float[Tensor, "..."] | None, PerAnchor("queries")] = None,
        ids: Int[Tensor, " b"] | None = None,
        negative_ids: Int[Tensor, "..."] | None = None,
        guide_queries: Float[Tensor, "b g"] | None = None,
        guide_keys: Float[Tensor, "b g"] | None = None,
        guide_negatives: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch, whose arguments are those of `InfoNCELoss.forward`."""
        guides = guide_queries, guide_keys, guide_negatives
        among = Candidates(negatives, None, ids, negative_ids, None, *guides, self.guide_margin)
        rows, positives, nearby = among.sections(self, queries, keys)
        bias = self.bias.to(queries.device) if isinstance(self.bias, Tensor) else self.bias
        pushes = Push(nearby & ~positives, 1.0, "softplus", bias), Push(positives, -1.0, "softplus", -bias)
        apart, together = self.outcome(rows, ContrastSpec(pushes)).logsums
        return self.reduce(apart + together)

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise if ids or a guide's vectors do not match the rows they describe."""
        check_ids("ids", "keys", "ids", inputs)
        check_candidates(inputs)
