"""SigLIP: tell for each pair by itself whether a query and a key belong together."""

from typing import Annotated, Unpack, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.inputs import Embeddings, References
from likewise.operator import Problem, Push
from likewise.operator.inputs import check_bias


@final
class SigLIPLoss(ContrastiveLoss):
    r"""SigLIP: tell for each pair by itself whether a query and a key belong together.

    $$
    \ell_i = \log \bigl( 1 + e^{-(q_i \cdot k_i / \tau + b)} \bigr)
             + \sum_{u \ne i} \log \bigl( 1 + e^{q_i \cdot k_u / \tau + b} \bigr)
    $$

    Pairs do not compete as in a softmax: each is a classification of its own, so that no row needs the sum over all
    others. The bias b makes up for there being so many more negatives.

    Args:
        temperature: τ > 0, a number, "learned", or a 0-d or (1,) tensor or parameter, which then receives a gradient.
        bias: b, a number, "learned" from −10 on, or a 0-d or (1,) tensor or parameter, which then receives a gradient.
        **options: reduction, normalize, gather_distributed, backend; see `LossOptions`. If gathered, the keys are those
            of all processes. Kernels leave it to tiles.

    Memory:
        O(B·D + tile).

    Source:
        Zhai, Mustafa, Kolesnikov, Beyer, "Sigmoid Loss for Language Image Pre-Training", 2023, algorithm 1; there log
        1/τ is learned from log 10 and b from −10. The authors' code, and open_clip's, give the same values.

    Example:
        >>> import torch
        >>> SigLIPLoss(temperature=0.1, bias=-5.0)(torch.eye(3), torch.eye(3))
        tensor(0.0201)

        With both learned:

        >>> tau, b = (torch.nn.Parameter(torch.tensor(value)) for value in (0.1, -10.0))
        >>> loss_of = SigLIPLoss(temperature=tau, bias=b)
        >>> loss_of(torch.eye(3), torch.eye(3)).backward()
        >>> b.grad
        tensor(-0.4999)
    """

    def __init__(
        self, *, temperature: Temperature = 0.1, bias: Temperature = -10.0, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(temperature, **options)
        bias = nn.Parameter(torch.tensor([-10.0])) if bias == "learned" else bias
        check_bias(bias)
        self.bias = bias

    def forward(
        self,
        queries: Annotated[Float[Tensor, "b d"], Embeddings()],
        keys: Annotated[Float[Tensor, "b d"], References("queries", aligned=True)],
    ) -> Float[Tensor, "..."]:
        """Return the loss of queries and their keys in the same order, (B, D) each."""
        rows = self.rows(queries, keys)
        own, bias = rows.beside(), self.bias.to(queries.device) if isinstance(self.bias, Tensor) else self.bias
        pushes = Push(~own, 1.0, "softplus", bias), Push(own, -1.0, "softplus", -bias)
        negatives, positives = self.outcome(rows, Problem(pushes)).logsums
        everyone = torch.ones_like(negatives)
        return self.reduce(negatives + positives, everyone.bool(), everyone.detach())
