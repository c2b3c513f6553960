"""InfoNCE: a query's own key among other keys, hard negatives or a queue (MoCo); or both directions (CLIP, GTE)."""

from typing import Annotated, Any, Literal, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature, wide
from likewise.losses.candidates import Candidates, of_all
from likewise.losses.checks import check_candidates, check_ids, check_number
from likewise.losses.inputs import Embeddings, PerAnchor, References
from likewise.operator import ContrastSpec, Push
from likewise.operator.inputs import one_of
from likewise.pairs import NoPairs, SameSample, concat


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
        symmetric: Whether to average both directions (CLIP); "joint": four in one softmax (GTE). Neither with a queue.
        guide_margin: How much less similar than its own key, by cosine, a guide must find what pushes a query (GIST).
        **options: See `LossOptions`. Gathered, keys and negatives are those of all processes, but not the queue.

    Memory:
        O(((1 + K)·B + Q)·D + tile), for K negatives of each query, and as much for a guide's vectors. A queue without
        gradient takes only one pass.

    Source:
        Van den Oord, Li, Vinyals, "Representation Learning with Contrastive Predictive Coding", 2018, equation 4; with
        a queue, He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", 2020, equation 1;
        symmetric, Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021,
        figure 3; negatives, Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering", 2020;
        joint, Li et al., "Towards General Text Embeddings with Multi-stage Contrastive Learning", 2023; guides,
        Solatorio, "GISTEmbed: Guided In-sample Selection of Training Negatives for Text Embedding Fine-tuning", 2024.
        The authors' code gives the same values.

    Example:
        >>> queries, keys, negatives = torch.eye(2), torch.eye(2), -torch.eye(2)
        >>> InfoNCELoss(temperature=1.0)(queries, keys)
        tensor(0.3133)
        >>> InfoNCELoss(temperature=1.0)(queries, keys, negatives=negatives)
        tensor(0.6265)
    """

    def __init__(
        self,
        *,
        temperature: Temperature = 0.07,
        symmetric: bool | Literal["joint"] = False,
        guide_margin: float = 0.0,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(temperature, **options)
        self.symmetric = one_of("symmetric", symmetric, Literal[True, False, "joint"])
        self.guide_margin = check_number("guide_margin", guide_margin, -2, 2, "0 to 0.1")
        self.supports_fullgraph = symmetric != "joint"

    def forward(
        self,
        queries: Annotated[Float[Tensor, "b d"], Embeddings()],
        keys: Annotated[Float[Tensor, "b d"], References("queries", aligned=True)],
        *,
        negatives: Annotated[Float[Tensor, "..."] | None, PerAnchor("queries")] = None,
        queue: Annotated[Float[Tensor, "q d"] | None, References("queries")] = None,
        ids: Int[Tensor, " b"] | None = None,
        negative_ids: Int[Tensor, "..."] | None = None,
        queue_ids: Int[Tensor, " q"] | None = None,
        guide_queries: Float[Tensor, "b g"] | None = None,
        guide_keys: Float[Tensor, "b g"] | None = None,
        guide_negatives: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            queries: One row for each sample, (B, D).
            keys: Each query's positive, in the same order, (B, D). A momentum encoder already returns them detached.
            negatives: Hard negatives of each query, (B, D) or (B, K, D), which push the other queries, too.
            queue: Keys of other samples, (Q, D), such as earlier ones; see `likewise.memory.Queue`.
            ids: Which document each key is, any integers, (B,). What else has a query's id does not push it.
            negative_ids: Which document each negative is, (B,) or (B, K). Without them, all negatives push.
            queue_ids: Which document each key of the queue is, (Q,).
            guide_queries: Vectors that another model, a guide, has of the queries, (B, G). What it finds more similar
                to a query than the query's own key, less the margin, may be another key of it, and does not push it.
            guide_keys: The guide's vectors of the keys, (B, G).
            guide_negatives: The guide's vectors of the negatives, (B, G) or (B, K, G). Without them, all of these push.
        """
        guides = guide_queries, guide_keys, guide_negatives
        among = Candidates(negatives, queue, ids, negative_ids, queue_ids, *guides, self.guide_margin)
        if not self.symmetric:
            return one_way(self, queries, keys, among)
        return joint(self, queries, keys, among) if self.symmetric == "joint" else both_ways(self, queries, keys, among)

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise if a symmetric loss gets a queue, or ids or a guide's vectors do not match the rows they describe."""
        if self.symmetric and inputs["queue"] is not None:
            remedy = "leave it out, or set symmetric=False"
            raise ValueError(f"expected no queue for a symmetric InfoNCELoss, got a queue: {remedy}")
        only_queue = inputs["queue"] is not None and inputs["negatives"] is None  # keys' ids alone then have no use
        check_ids("ids", "keys", "queue_ids" if only_queue else "ids", inputs)
        check_ids("queue_ids", "queue", "ids", inputs)
        check_candidates(inputs)


def both_ways(
    loss: ContrastiveLoss, queries: Tensor, keys: Tensor, among: Candidates, temperature: Tensor | float | None = None
) -> Tensor:
    """Return the mean of both directions: keys find queries, too."""
    if among.negatives is not None or among.guide_keys is not None or loss.gathers:  # directions have different pairs
        queries, keys = wide(queries, keys)
        back = one_way(loss, keys, queries, among.back._replace(negatives=None), temperature)
        return (one_way(loss, queries, keys, among, temperature) + back) / 2
    rows = loss.rows(queries, keys)
    problem = ContrastSpec((Push(among.nearby(rows)),), rows.aligned(), both_ways=True)
    (forth,), (back,), attraction, *_ = loss.outcome(rows, problem, temperature)
    return loss.reduce((forth + back) / 2 - attraction)


def one_way(
    loss: ContrastiveLoss, queries: Tensor, keys: Tensor, among: Candidates, temperature: Tensor | float | None = None
) -> Tensor:
    """Return the loss of finding a query's key among keys, negatives and a queue."""
    rows, pull, push = among.sections(loss, queries, keys)
    return loss.evaluate(rows, pull=pull, push=push, positives=pull, temperature=temperature)


def joint(loss: ContrastiveLoss, queries: Tensor, keys: Tensor, among: Candidates) -> Tensor:
    """Return the loss of both directions, among queries as well as keys, in one softmax."""
    queries, keys = wide(queries, keys)
    rows = loss.rows(queries, keys)
    back, sample, not_own = among.back, rows.samples()[0], rows.aligned().__invert__()
    of_query = [among.nearby(rows), not_own & among.others(rows, among.guide_queries)]
    of_key = [not_own & back.others(rows, among.guide_keys), back.nearby(rows)]
    sections = [of_all(rows, queries)]
    if among.negatives is not None:
        negatives, pushed = among.hard(rows, among.negatives)
        each = among.negatives.shape[1] if among.negatives.ndim == 3 else 1
        of_sample = of_all(rows, sample).repeat_interleave(each)
        sections, of_query = [*sections, negatives], [*of_query, pushed]
        pushed = back.hard(rows, among.negatives)[1]
        of_key = [*of_key, pushed & SameSample(sample, of_sample).__invert__()]
    rows = rows._replace(replicated=tuple(sections))
    pull = concat([rows.aligned(), *(NoPairs(*weight.shape) for weight in of_query[1:])])
    (forth,), _, attraction, *_ = loss.outcome(rows, ContrastSpec((Push(concat(of_query)),), pull))
    (back,), *_ = loss.outcome(rows._replace(queries=keys), ContrastSpec((Push(concat(of_key)),)))
    return loss.reduce(torch.logaddexp(forth, back) - attraction)
