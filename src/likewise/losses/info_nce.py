"""InfoNCE: a query's own key among other keys, hard negatives or a queue (MoCo); or both directions (CLIP, GTE)."""

from typing import Annotated, Any, Literal, NamedTuple, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise import distributed
from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.checks import check_ids, check_negatives, one_of
from likewise.losses.inputs import Embeddings, References
from likewise.losses.rows import Rows
from likewise.operator import Problem, Push
from likewise.pairs import AllPairs, Equal, NoPairs, PairWeight, SameSample, concat


@final
class InfoNCELoss(ContrastiveLoss):
    r"""InfoNCE: identify the query's own key among all keys.

    $$
    \ell_i = \log \sum_{u \in U(i)} e^{q_i \cdot k_u / \tau} - q_i \cdot k_i / \tau
    $$

    U(i) is every key of the batch and every hard negative of every query. With a queue it is query i's own key and
    every key of the queue, and other keys of the batch only if there are hard negatives. The symmetric form is the mean
    of two losses: finding the key among keys and negatives, and the query among the queries,

    $$
    \tfrac{1}{2} \left( \log \sum_u e^{q_i \cdot k_u / \tau} + \log \sum_u e^{q_u \cdot k_i / \tau} \right)
    - q_i \cdot k_i / \tau
    $$

    The joint form has all four directions in one softmax, with d over all keys and hard negatives, D(i) query i's own:

    $$
    \log \Big( \sum_d e^{q_i \cdot d / \tau} + \sum_{u \ne i} e^{q_i \cdot q_u / \tau} + \sum_u e^{q_u \cdot k_i / \tau}
    + \sum_{d \notin D(i)} e^{d \cdot k_i / \tau} \Big) - q_i \cdot k_i / \tau
    $$

    With an empty queue and no negatives only the query's own key is left: the loss is then 0, with gradient 0.

    Args:
        temperature: τ > 0, a number, "learned", or a 0-d or (1,) tensor or parameter, which then receives a gradient.
        symmetric: Whether to average both directions (CLIP); "joint": four in one softmax (GTE). Neither with a queue.
        **options: reduction, normalize, gather_distributed, backend; see `LossOptions`. If gathered, keys and negatives
            are those of all processes; the queue must be the same on every process and is not gathered.

    Memory:
        O(((1 + K)·B + Q)·D + tile), for K negatives of each query. A queue without gradient takes only one pass.

    Source:
        Van den Oord, Li, Vinyals, "Representation Learning with Contrastive Predictive Coding", 2018, equation 4; with
        a queue, He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", 2020, equation 1;
        symmetric, Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021,
        figure 3; negatives, Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering", 2020;
        joint, Li et al., "Towards General Text Embeddings with Multi-stage Contrastive Learning", 2023. The authors'
        code gives the same values.

    Example:
        >>> import torch
        >>> queries, keys, negatives = torch.eye(2), torch.eye(2), -torch.eye(2)
        >>> InfoNCELoss(temperature=1.0)(queries, keys)
        tensor(0.3133)
        >>> InfoNCELoss(temperature=1.0)(queries, keys, queue=negatives)
        tensor(0.4076)
        >>> InfoNCELoss(temperature=1.0)(queries, keys, negatives=negatives)
        tensor(0.6265)
        >>> [name for name, _ in InfoNCELoss(temperature="learned").named_parameters()]
        ['log_temperature']
    """

    def __init__(
        self,
        *,
        temperature: Temperature = 0.07,
        symmetric: bool | Literal["joint"] = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(temperature, **options)
        self.symmetric = one_of("symmetric", symmetric, Literal[True, False, "joint"])
        self.whole = symmetric != "joint"

    def forward(
        self,
        queries: Annotated[Float[Tensor, "b d"], Embeddings()],
        keys: Annotated[Float[Tensor, "b d"], References("queries", aligned=True)],
        *,
        negatives: Float[Tensor, "..."] | None = None,
        queue: Annotated[Float[Tensor, "q d"] | None, References("queries")] = None,
        ids: Int[Tensor, " b"] | None = None,
        negative_ids: Int[Tensor, "..."] | None = None,
        queue_ids: Int[Tensor, " q"] | None = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            queries: One row for each sample, (B, D).
            keys: Each query's positive, in the same order, (B, D). A momentum encoder already returns them detached.
            negatives: Hard negatives of each query, (B, D) or (B, K, D), which push the other queries, too.
            queue: Keys of other samples, (Q, D), such as earlier ones; see `likewise.memory.Queue`.
            ids: Which document each key is, any integers, (B,). What else has a query's id does not push it.
            negative_ids: Which document each negative is, (B,) or (B, K). Without them, all negatives push.
            queue_ids: The same of the queue, (Q,).
        """
        among = Among(negatives, queue, ids, negative_ids, queue_ids)
        if not self.symmetric:
            return one_way(self, queries, keys, among)
        return joint(self, queries, keys, among) if self.symmetric == "joint" else both_ways(self, queries, keys, among)

    def check(self, given: dict[str, Any]) -> None:
        """Raise if a symmetric loss is given a queue, or ids do not go with what they are of."""
        if self.symmetric and given["queue"] is not None:
            raise ValueError(
                "expected no queue for a symmetric InfoNCELoss, which contrasts within the batch, got a queue: "
                "leave it out, or set symmetric=False"
            )
        if given["negatives"] is not None:
            check_negatives(given["negatives"], given["queries"])
        only_queue = given["queue"] is not None and given["negatives"] is None  # then the ids of keys alone have no use
        check_ids("ids", "keys", "queue_ids" if only_queue else "ids", given)
        check_ids("negative_ids", "negatives", "ids", given)
        check_ids("queue_ids", "queue", "ids", given)


class Among(NamedTuple):
    """What there is beside queries and keys; see `InfoNCELoss.forward`."""

    negatives: Tensor | None = None
    queue: Tensor | None = None
    ids: Tensor | None = None
    negative_ids: Tensor | None = None
    queue_ids: Tensor | None = None


def both_ways(
    loss: ContrastiveLoss, queries: Tensor, keys: Tensor, among: Among, temperature: Tensor | float | None = None
) -> Tensor:
    """Return the mean of both directions; a key is found among the queries."""
    if among.negatives is not None or loss.gathers:  # the directions have different pairs
        queries, keys = _wide(queries, keys)
        back = one_way(loss, keys, queries, Among(ids=among.ids), temperature)
        return (one_way(loss, queries, keys, among, temperature) + back) / 2
    rows = loss.rows(queries, keys)
    problem = Problem((Push(_nearby(rows, among)),), rows.beside(), both_ways=True)
    (forth,), (back,), attraction, *_ = loss.outcome(rows, problem, temperature)
    everyone = torch.ones_like(forth, dtype=torch.bool)
    return loss.reduce((forth + back) / 2 - attraction, everyone, everyone.float())


def one_way(
    loss: ContrastiveLoss, queries: Tensor, keys: Tensor, among: Among, temperature: Tensor | float | None = None
) -> Tensor:
    """Return the loss of finding a query's key among keys, negatives and a queue."""
    only_queue = among.queue is not None and among.negatives is None
    rows = loss.rows(queries, keys, whole=() if among.queue is None else (among.queue,), local=only_queue)
    push = [rows.beside() if only_queue else _nearby(rows, among)]
    if among.negatives is not None:
        negatives, pushed = _negatives(rows, among.negatives, among)
        rows, push = rows._replace(whole=(negatives, *rows.whole)), [*push, pushed]
    if among.queue is not None:
        push = [*push, _apart(rows, among.ids, among.queue_ids, len(among.queue))]
    pull = concat([rows.beside(), *(NoPairs(*of.shape) for of in push[1:])])
    return loss.evaluate(rows, pull=pull, push=concat(push), positives=pull, temperature=temperature)


def joint(loss: ContrastiveLoss, queries: Tensor, keys: Tensor, among: Among) -> Tensor:
    """Return the loss of both directions, among queries as well as keys, in one softmax."""
    queries, keys = _wide(queries, keys)
    rows = loss.rows(queries, keys)
    nearby, sample = _nearby(rows, among), rows.samples()[0]
    others = nearby & rows.beside().__invert__()
    sections, of_query, of_key = [_of_all(rows, queries)], [nearby, others], [others, nearby]
    if among.negatives is not None:
        negatives, pushed = _negatives(rows, among.negatives, among)
        each = among.negatives.shape[1] if among.negatives.ndim == 3 else 1
        of_sample = _of_all(rows, sample).repeat_interleave(each)
        sections, of_query = [*sections, negatives], [*of_query, pushed]
        of_key = [*of_key, pushed & SameSample(sample, of_sample).__invert__()]
    rows = rows._replace(whole=tuple(sections))
    pull = concat([rows.beside(), *(NoPairs(*of.shape) for of in of_query[1:])])
    (forth,), _, attraction, *_ = loss.outcome(rows, Problem((Push(concat(of_query)),), pull))
    (back,), *_ = loss.outcome(rows._replace(queries=keys), Problem((Push(concat(of_key)),)))
    everyone = torch.ones_like(forth, dtype=torch.bool)
    return loss.reduce(torch.logaddexp(forth, back) - attraction, everyone, everyone.float())


def _wide(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in float32 or wider, so that the sum of several gradients is rounded once."""
    dtype = torch.promote_types(torch.promote_types(queries.dtype, keys.dtype), torch.float32)
    return queries.to(dtype), keys.to(dtype)


def _of_all(rows: Rows, values: Tensor) -> Tensor:
    """Return what is given for each query of this process for the queries of all processes."""
    dtype = torch.promote_types(rows.dtype, values.dtype) if values.is_floating_point() else torch.int64
    here = values.to(rows.queries.device, dtype) if rows.gathered else values  # ranks may differ in narrower ones
    return distributed.gather(here, rows.reference_shards)


def _nearby(rows: Rows, among: Among) -> PairWeight:
    """Return each query's own key, and all keys that have another id."""
    ids = None if among.ids is None else _of_all(rows, among.ids)
    return rows.beside().__or__(_apart(rows, among.ids, ids, len(rows.references)))


def _negatives(rows: Rows, negatives: Tensor, among: Among) -> tuple[Tensor, PairWeight]:
    """Return all hard negatives as a section of rows, and which of them push."""
    every = _of_all(rows, negatives).reshape(-1, negatives.shape[-1])
    ids = None if among.negative_ids is None else _of_all(rows, among.negative_ids).flatten()
    return every, _apart(rows, among.ids, ids, len(every))


def _apart(rows: Rows, ids: Tensor | None, others: Tensor | None, count: int) -> PairWeight:
    """Return the pairs of a query and what does not have its id, as far as ids are known."""
    if ids is None or others is None:
        return AllPairs(len(rows.queries), count)
    ids, others = (of.to(rows.queries.device, torch.int64) for of in (ids, others))
    return Equal(ids, others, name="ids").__invert__()
