"""Logistic regression within episodes: all episodes at once, each on its own support."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

PASSES = 2000
TOLERANCE = 1e-5  # of an episode's gradient, relative to the penalty's part of it


def episode_probe(
    support: Float[Tensor, "e n k d"], queries: Float[Tensor, "e q d"], penalty: float
) -> tuple[Float[Tensor, "e q n"], Bool[Tensor, " e"]]:
    r"""Fit a classifier to each episode's support; return its logits for the queries, and whether it has converged.

    It minimises the sum of cross-entropies and $\frac{\lambda}{2} \lVert W \rVert^2$ over W, (D, N), without a bias:
    every class has as many samples. With W = XᵀA, X the support, only inner products are needed. Steps are by a fixed
    upper bound of the curvature, $\frac{1}{2} X X^\top + \lambda$, with momentum that begins anew where it leads
    uphill, until all gradients have vanished, or for 2,000 passes.

    Args:
        support: Features of N classes' K samples, (E, N, K, D).
        queries: Features to classify, (E, Q, D).
        penalty: λ > 0.

    Memory:
        O(E·(NK)² + E·Q·NK).

    Source:
        The bound: D. Böhning, Multinomial logistic regression algorithm, 1992. The momentum and its restart:
        B. O'Donoghue and E. Candès, Adaptive Restart for Accelerated Gradient Schemes, 2015.

    Example:
        >>> support = torch.eye(2).view(1, 2, 1, 2)
        >>> episode_probe(support, torch.tensor([[[1.0, 0.0]]]), penalty=1.0)
        (tensor([[[ 0.3374, -0.3374]]]), tensor([True]))
    """
    episodes, ways, shots, _ = support.shape
    x = support.flatten(1, 2).double()
    gram = x @ x.mT
    truth = torch.eye(ways, dtype=x.dtype, device=x.device).repeat_interleave(shots, dim=0)
    bound = gram / 2 + penalty * torch.eye(ways * shots, dtype=x.dtype, device=x.device)
    inverse = torch.linalg.inv(bound)
    weights = ahead = x.new_zeros(episodes, ways * shots, ways)
    since = x.new_ones(episodes, 1, 1)  # steps since an episode's momentum began anew
    done = torch.zeros(episodes, dtype=torch.bool, device=x.device)
    for _ in range(PASSES):
        residual = (gram @ ahead).softmax(dim=2) - truth + penalty * ahead
        before, weights = weights, ahead - inverse @ residual
        own = (penalty * weights).abs().amax(dim=(1, 2)).clamp(min=torch.finfo(x.dtype).tiny)
        done = residual.abs().amax(dim=(1, 2)) / own <= TOLERANCE
        if bool(done.all()):
            break
        moved = weights - before
        uphill = (residual * (gram @ moved)).sum(dim=(1, 2), keepdim=True) > 0
        since = torch.where(uphill, 1, since + 1)
        ahead = weights + (since - 1) / (since + 2) * moved
    return ((queries.double() @ x.mT) @ weights).to(queries.dtype), done
