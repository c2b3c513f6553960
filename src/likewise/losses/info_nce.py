"""InfoNCE: a query's own key among other keys, from a queue (MoCo) or from the batch (CLIP, in both directions)."""

from typing import Annotated, Any, Unpack, final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions
from likewise.losses.checks import Flag, one_of
from likewise.losses.inputs import Embeddings, References
from likewise.operator import Problem, Push
from likewise.pairs import AllPairs, NoPairs, concat


@final
class InfoNCELoss(ContrastiveLoss):
    r"""InfoNCE: identify the query's own key among all keys.

    $$
    \ell_i = \log \sum_{u \in U(i)} e^{q_i \cdot k_u / \tau} - q_i \cdot k_i / \tau
    $$

    With a queue, U(i) is query i's own key and every key of the queue; the other keys of the batch are not used.
    Without a queue, U(i) is every key of the batch. In the symmetric form, a pair's loss is the mean of two: finding
    the key among the keys, and the query among the queries,

    $$
    \tfrac{1}{2} \left( \log \sum_u e^{q_i \cdot k_u / \tau} + \log \sum_u e^{q_u \cdot k_i / \tau} \right)
    - q_i \cdot k_i / \tau
    $$

    With an empty queue only the query's own key is left: the loss is then 0, with gradient 0.

    Args:
        temperature: τ > 0, a number, or a 0-d or (1,) tensor or parameter, which then receives a gradient. To keep a
            learned temperature positive, learn its logarithm; see the example.
        symmetric: Whether to average both directions, as for images and texts; cannot be used with a queue.
        **options: reduction, normalize, gather_distributed, backend; see `LossOptions`. If gathered, the keys of the
            batch are those of all processes; the queue must be the same on every process and is not gathered.

    Returns:
        A call returns the mean over the B queries, a scalar; with ``reduction="none"``, one loss for each,
        (B,).

    Raises:
        ValueError: If τ ≤ 0, or a call's input is invalid; see `forward`.

    Memory:
        O((B + Q)·D + tile), with Q keys in the queue. A queue without gradient takes only one pass.

    Source:
        Van den Oord, Li, Vinyals, "Representation Learning with Contrastive Predictive Coding", 2018, equation 4; with
        a queue, He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", 2020, equation 1;
        symmetric, Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021,
        figure 3. The authors' code gives the same values; CLIP's learns log 1/τ, and limits 1/τ to 100.

    Example:
        >>> import torch
        >>> queries, keys, queue = torch.eye(2), torch.eye(2), -torch.eye(2)
        >>> InfoNCELoss(temperature=1.0)(queries, keys)
        tensor(0.3133)
        >>> InfoNCELoss(temperature=1.0)(queries, keys, queue=queue)
        tensor(0.4076)

        A temperature learned through its logarithm, as in CLIP:

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

    whole = True

    def __init__(
        self, *, temperature: float | Tensor = 0.07, symmetric: bool = False, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(temperature, **options)
        self.symmetric = one_of("symmetric", symmetric, Flag)

    def forward(
        self,
        queries: Annotated[Float[Tensor, "b d"], Embeddings()],
        keys: Annotated[Float[Tensor, "b d"], References("queries", aligned=True)],
        *,
        queue: Annotated[Float[Tensor, "q d"] | None, References("queries")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            queries: One row for each sample, (B, D).
            keys: Each query's positive, in the same order, (B, D). A momentum encoder already returns them detached.
            queue: Keys of other samples, (Q, D), such as earlier ones (see `likewise.memory.Queue`); not with
                ``symmetric``.

        Raises:
            ValueError: If shapes, features or devices do not match, values are not finite (checked on the CPU only),
                or a symmetric loss is given a queue.
        """
        if queue is not None:
            return self._with_queue(queries, keys, queue)
        if not self.symmetric:
            return self._within_batch(queries, keys)
        if not self.gathers:
            return self._both_ways(queries, keys)
        # Gathered, the two directions contrast different pairs: own queries with all keys, own keys with all queries.
        wide = torch.promote_types(torch.promote_types(queries.dtype, keys.dtype), torch.float32)
        queries, keys = queries.to(wide), keys.to(wide)  # once, so that the sum of both gradients is rounded once
        return (self._within_batch(queries, keys) + self._within_batch(keys, queries)) / 2

    def check(self, given: dict[str, Any]) -> None:
        """Raise if a symmetric loss is given a queue."""
        if self.symmetric and given["queue"] is not None:
            raise ValueError(
                "expected no queue for a symmetric InfoNCELoss, which contrasts within the batch, got a queue: "
                "leave it out, or set symmetric=False"
            )

    def _both_ways(self, queries: Tensor, keys: Tensor) -> Tensor:
        rows = self.rows(queries, keys)
        everything = Push(AllPairs(len(queries), len(keys)))
        (forth,), (back,), attraction, *_ = self.outcome(rows, Problem((everything,), rows.beside(), both_ways=True))
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
