"""InfoNCE: a query's own key among other keys, those of a queue (MoCo) or those of the batch (CLIP, both ways)."""

from typing import Unpack, final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions
from likewise.losses.checks import Flag, check_aligned, check_embeddings, check_references, one_of
from likewise.operator import Push
from likewise.pairs import AllPairs, NoPairs, concat


@final
class InfoNCELoss(ContrastiveLoss):
    r"""InfoNCE: of all keys, tell the query's own.

    $$
    \ell_i = \log \sum_{u \in U(i)} e^{q_i \cdot k_u / \tau} - q_i \cdot k_i / \tau
    $$

    With a queue, U(i) is query i's own key and every key of the queue; the other keys of the batch take no part.
    Without, U(i) is every key of the batch. Symmetric, a pair's loss is the mean of two: the key among the keys,
    and the query among the queries,

    $$
    \tfrac{1}{2} \left( \log \sum_u e^{q_i \cdot k_u / \tau} + \log \sum_u e^{q_u \cdot k_i / \tau} \right)
    - q_i \cdot k_i / \tau
    $$

    An empty queue leaves the own key alone: the loss is then 0, with gradient 0.

    Args:
        temperature: τ > 0, a number, or a 0-d tensor or parameter, which then receives its gradient. One that is
            learned stays positive as the exponential of what is learned; see the example.
        symmetric: Whether to average both directions, as between images and texts; it takes no queue.
        **options: reduction, normalize, gather_distributed, backend; see `LossOptions`. Gathered, the keys of the batch
            are those of all processes; the queue is taken to be the same on each, and is not gathered.

    Returns:
        From a call, see `forward`: the mean over the B queries, a scalar; with ``reduction="none"`` one loss for each,
        (B,).

    Raises:
        ValueError: If τ ≤ 0, or a call's input does not agree; see `forward`.

    Memory:
        O((B + Q)·D + tile), with Q keys in the queue. A queue without gradient costs one pass over it.

    Source:
        Van den Oord, Li, Vinyals, "Representation Learning with Contrastive Predictive Coding", 2018, equation 4; with
        a queue, He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", 2020, equation 1;
        symmetric, Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021,
        figure 3. The authors' code has the same values; CLIP's learns log 1/τ, and keeps 1/τ at 100 or less.

    Example:
        >>> import torch
        >>> queries, keys, queue = torch.eye(2), torch.eye(2), -torch.eye(2)
        >>> InfoNCELoss(temperature=1.0)(queries, keys)
        tensor(0.3133)
        >>> InfoNCELoss(temperature=1.0)(queries, keys, queue=queue)
        tensor(0.4076)

        A learned temperature, e to the power of what is learned, as in CLIP:

        >>> class Exponential(torch.nn.Module):
        ...     def forward(self, logarithm):
        ...         return logarithm.exp()
        ...
        ...     def right_inverse(self, temperature):
        ...         return temperature.log()
        >>> loss_of = InfoNCELoss(temperature=torch.nn.Parameter(torch.tensor(0.07)), symmetric=True)
        >>> _ = torch.nn.utils.parametrize.register_parametrization(loss_of, "temperature", Exponential())
        >>> loss_of(queries, keys).backward()
        >>> [name for name, _ in loss_of.named_parameters()]
        ['parametrizations.temperature.original']
    """

    def __init__(
        self, *, temperature: float | Tensor = 0.07, symmetric: bool = False, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(temperature, **options)
        self.symmetric = one_of("symmetric", symmetric, Flag)

    def forward(
        self, queries: Float[Tensor, "b d"], keys: Float[Tensor, "b d"], *, queue: Float[Tensor, "q d"] | None = None
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            queries: One row for each sample, (B, D).
            keys: Each query's positive, in the same order, (B, D). A momentum encoder's come detached from there.
            queue: Keys of other samples, (Q, D), such as earlier ones (see `likewise.memory.Queue`); not with
                ``symmetric``.

        Raises:
            ValueError: If shapes, features or devices disagree, values are not finite (looked at on the CPU), or a
                queue comes to a symmetric loss.
        """
        with self.checks(queries=queries, keys=keys, queue=queue):
            check_embeddings("queries", queries)
            check_aligned("keys", keys, queries, beside="queries")
            if queue is not None:
                if self.symmetric:
                    raise ValueError(
                        "a symmetric InfoNCELoss contrasts the batch with itself, got a queue; leave it out, or "
                        "take symmetric=False"
                    )
                check_references("queue", queue, queries, beside="queries")
        if queue is not None:
            return self._with_queue(queries, keys, queue)
        if not self.symmetric:
            return self._within_batch(queries, keys)
        if not self.gathers:
            return self._both_ways(queries, keys)
        # With keys of all processes a query meets other pairs than its key does among the queries of all.
        wide = torch.promote_types(torch.promote_types(queries.dtype, keys.dtype), torch.float32)
        queries, keys = queries.to(wide), keys.to(wide)  # once, so that the sum of both gradients is rounded once
        return (self._within_batch(queries, keys) + self._within_batch(keys, queries)) / 2

    def _both_ways(self, queries: Tensor, keys: Tensor) -> Tensor:
        rows = self.rows(queries, keys)
        everything = Push(AllPairs(len(queries), len(keys)))
        (forth,), (back,), attraction, *_ = self.outcome(rows, pushes=(everything,), pull=rows.beside(), both_ways=True)
        losses = (forth + back) / 2 - attraction
        everyone = torch.ones_like(losses, dtype=torch.bool)
        return self.reduce(losses, everyone, everyone.float())

    def _with_queue(self, queries: Tensor, keys: Tensor, queue: Tensor) -> Tensor:
        rows = self.rows(queries, keys, whole=(queue,), local=True)
        own = rows.beside()
        pull = concat([own, NoPairs(len(queries), len(queue))])
        push = concat([own, AllPairs(len(queries), len(queue))])
        return self.evaluate(rows, pull=pull, push=push, positives=pull)

    def _within_batch(self, queries: Tensor, keys: Tensor) -> Tensor:
        rows = self.rows(queries, keys)
        own = rows.beside()
        return self.evaluate(rows, pull=own, push=AllPairs(*own.shape), positives=own)
