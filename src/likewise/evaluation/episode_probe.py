"""Logistic regression within episodes: all episodes at once, each on its own support."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.evaluation.column_search import ColumnSearch

MOST_PASSES = 500
TOLERANCE = 1e-11  # of the gap to the minimum, relative to the objective


def episode_probe(
    support: Float[Tensor, "e n k d"], queries: Float[Tensor, "e q d"], penalty: float
) -> tuple[Float[Tensor, "e q n"], Bool[Tensor, " e"]]:
    r"""Fit a classifier to each episode's support; return its logits for the queries, and whether it has converged.

    It minimises the sum of cross-entropies and $\frac{\lambda}{2} \lVert W \rVert^2$ over W, (D, N), without a bias:
    every class has as many samples. With W in the span of the support, X, only inner products are needed: in the basis
    of the principal components, X Xᵀ is diagonal, Λ, and the Hessian close to c·Λ + λ, with c the mean of p(1 - p) at
    the start. A fit ends when its gap to the minimum, which ‖gradient‖²/2λ bounds, is at most 1e-11 of the objective.
    Memory is O(E·(NK)² + E·Q·NK + E·N²K).
    """
    episodes, ways, shots, _ = support.shape
    x = support.flatten(1, 2).double()
    variances, basis = torch.linalg.eigh(x @ x.mT)
    lengths = variances.clamp(min=0).sqrt().unsqueeze(1)
    known = lengths > lengths.amax(dim=2, keepdim=True) * torch.finfo(torch.float32).eps
    inputs = basis * lengths.where(known, 0)
    truth = torch.arange(ways, device=x.device).repeat_interleave(shots).expand(episodes, -1)
    scale = (lengths.square() * (1 - 1 / ways) / ways + penalty).sqrt().mT.expand(-1, -1, ways)
    found, left = torch.zeros_like(scale), torch.arange(episodes, device=x.device)
    search = ColumnSearch(found.flatten(1).T)
    for _ in range(MOST_PASSES):
        weights = search.points.T.view(-1, ways * shots, ways) / scale[left]
        logs = (inputs[left] @ weights).log_softmax(dim=2)
        own = truth[left].unsqueeze(2)
        loss = penalty / 2 * weights.square().sum(dim=(1, 2)) - logs.gather(2, own).sum(dim=(1, 2))
        away = logs.exp_().scatter_add_(2, own, torch.full_like(own, -1, dtype=logs.dtype))
        slope = inputs[left].mT @ away + penalty * weights
        taken = search.tell(loss, (slope / scale[left]).flatten(1).T)
        found[left] = torch.where(taken[:, None, None], weights, found[left])
        going = ~(taken & (slope.square().sum(dim=(1, 2)) / (2 * penalty) <= TOLERANCE * loss))
        search.keep(going)
        left = left[going]
        if len(left) == 0:
            break
    done = torch.ones(episodes, dtype=torch.bool, device=x.device).index_fill_(0, left, value=False)
    weights = basis @ (found / lengths.mT.where(known.mT, torch.inf))
    return ((queries.double() @ x.mT) @ weights).to(queries.dtype), done
