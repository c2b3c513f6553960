"""Losses that identify each query's key among candidates: InfoNCE (MoCo, DPR, GTE), CLIP, and SigLIP."""

from typing import Annotated, Any, Literal, NamedTuple, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from likewise import distributed
from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature, check_number, wide
from likewise.losses.contrast_batch import ContrastBatch
from likewise.losses.inputs import UNSIGNED_DTYPES, Embeddings, PerAnchor, References, check_tensor, describe_missing
from likewise.operator import ContrastSpec, Push
from likewise.operator.inputs import check_bias, check_finite, check_floating, check_temperature, one_of
from likewise.pairs import AllPairs, Below, Equal, NoPairs, PairWeight, SameSample, concat


class Candidates(NamedTuple):
    """The optional inputs besides queries and keys; see `InfoNCELoss.forward`."""

    negatives: Tensor | None = None
    queue: Tensor | None = None
    ids: Tensor | None = None
    negative_ids: Tensor | None = None
    queue_ids: Tensor | None = None
    guide_queries: Tensor | None = None
    guide_keys: Tensor | None = None
    guide_negatives: Tensor | None = None
    guide_margin: float = 0.0

    @property
    def back(self) -> "Candidates":
        """The candidates of the reverse direction, from a key to its query."""
        return self._replace(guide_queries=self.guide_keys, guide_keys=self.guide_queries)

    def sections(
        self, loss: ContrastiveLoss, queries: Tensor, keys: Tensor
    ) -> tuple[ContrastBatch, PairWeight, PairWeight]:
        """Return the batch with all candidates, the pull of each query's own key, and the push, own keys included."""
        only_queue = self.queue is not None and self.negatives is None
        rows = loss.rows(queries, keys, replicated=() if self.queue is None else (self.queue,), local=only_queue)
        push = [rows.aligned() if only_queue else self.nearby(rows)]
        if self.negatives is not None:
            negatives, pushed = self.hard(rows, self.negatives)
            rows, push = rows._replace(replicated=(negatives, *rows.replicated)), [*push, pushed]
        if self.queue is not None:
            push = [*push, self._apart(rows, self.queue_ids, None, len(self.queue))]
        return rows, concat([rows.aligned(), *(NoPairs(*weight.shape) for weight in push[1:])]), concat(push)

    def nearby(self, rows: ContrastBatch) -> PairWeight:
        """Return the pairs of a query with its own key, and with other keys that may push it."""
        return rows.aligned().__or__(self.others(rows, self.guide_keys))

    def others(self, rows: ContrastBatch, guide: Tensor | None) -> PairWeight:
        """Return the pairs of a query with references that may push it, by the keys' ids and this guide's vectors."""
        ids, guide = (None if values is None else of_all(rows, values) for values in (self.ids, guide))
        return self._apart(rows, ids, guide, len(rows.references))

    def hard(self, rows: ContrastBatch, negatives: Tensor) -> tuple[Tensor, PairWeight]:
        """Return all hard negatives as a section of rows, and the pairs in which they push."""
        every = of_all(rows, negatives).flatten(0, -2)
        ids = None if self.negative_ids is None else of_all(rows, self.negative_ids).flatten()
        guide = None if self.guide_negatives is None else of_all(rows, self.guide_negatives).flatten(0, -2)
        return every, self._apart(rows, ids, guide, len(every))

    def _apart(self, rows: ContrastBatch, ids: Tensor | None, guide: Tensor | None, count: int) -> PairWeight:
        """Return the pairs of a query with references of other ids that the guide finds dissimilar enough."""
        device, pairs = rows.queries.device, AllPairs(len(rows.queries), count)
        if self.ids is not None and ids is not None:
            mine, references = (values.to(device, torch.int64) for values in (self.ids, ids))
            pairs = Equal(mine, references, name="ids").__invert__()
        if self.guide_queries is None or self.guide_keys is None or guide is None:
            return pairs
        queries, keys, references = (
            normalize(vectors.detach().to(device, torch.promote_types(vectors.dtype, torch.float32)), dim=-1)
            for vectors in (self.guide_queries, self.guide_keys, guide)
        )
        limits = (queries * keys).sum(dim=1) - self.guide_margin
        return pairs & Below(queries.to(references.dtype), references, limits=limits)


def of_all(rows: ContrastBatch, values: Tensor) -> Tensor:
    """Return the values for the queries of all processes, gathered from the values for each process's queries."""
    dtype = torch.promote_types(rows.dtype, values.dtype) if values.is_floating_point() else torch.int64
    here = values.to(rows.queries.device, dtype) if rows.gathered else values  # ranks may differ in narrower dtypes
    return distributed.gather(here, rows.reference_shards)


def check_ids(name: str, rows_name: str, also: str, inputs: dict[str, Any]) -> None:
    """Raise unless ids, if given, are integers, one per row of (…, D), and these rows and ``also`` are given too."""
    if (ids := inputs[name]) is None:
        return
    check_tensor(name, ids)
    for needed in (rows_name, also):
        if inputs[needed] is None:
            raise ValueError(f"expected {needed} with {name}, got none: pass both or neither")
    shape = inputs[rows_name].shape[:-1]
    if ids.is_floating_point() or ids.is_complex() or ids.dtype in UNSIGNED_DTYPES or ids.shape != shape:
        expected = f"expected {name} to be integers, one for each of the {rows_name}, shape {tuple(shape)}"
        raise ValueError(f"{expected}, got {ids.dtype} of shape {tuple(ids.shape)}: number them, equal ones alike")


def check_candidates(inputs: dict[str, Any]) -> None:
    """Raise unless ids of negatives, and a guide's finite vectors of one width, match the rows they describe."""
    check_ids("negative_ids", "negatives", "ids", inputs)
    for side in ("queries", "keys", "negatives"):
        name, first = f"guide_{side}", inputs["guide_queries"]
        vectors, rows = inputs[name], inputs[side]
        if vectors is None and (side == "negatives" or first is None):
            continue
        if vectors is None or first is None or rows is None:
            expected = f"expected guide_queries and guide_keys together, and {side} with {name}"
            got = describe_missing(("guide_queries", name, side), inputs)
            raise ValueError(f"{expected}, got {got}: pass the guide's vectors of both sides, or none")
        check_tensor(name, vectors)
        check_floating(name, vectors)
        if vectors.shape[:-1] != rows.shape[:-1] or vectors.shape[-1:] != first.shape[-1:]:
            shape = (*rows.shape[:-1], *first.shape[-1:])
            expected = f"expected {name} to be vectors of the guide's width, one for each of the {side}, shape {shape}"
            raise ValueError(f"{expected}, got shape {tuple(vectors.shape)}: encode the batch's own")
        check_finite(name, vectors)


@final
class InfoNCELoss(ContrastiveLoss):
    r"""InfoNCE: identify the query's own key among all keys.

    $$
    \ell_i = \log \sum_{u \in U(i)} e^{q_i \cdot k_u / \tau} - q_i \cdot k_i / \tau
    $$

    U(i) contains every key of the batch and every hard negative of every query. With a queue, it contains query i's own
    key and every key of the queue, and other keys of the batch only if there are hard negatives. The symmetric form is
    the mean of two losses: finding the key among keys and negatives, and the query among the queries,

    $$
    \tfrac{1}{2} \left( \log \sum_u e^{q_i \cdot k_u / \tau} + \log \sum_u e^{q_u \cdot k_i / \tau} \right)
    - q_i \cdot k_i / \tau
    $$

    The joint form has all four directions in one softmax, with d over all keys and hard negatives, D(i) those of i:

    $$
    \log \Big( \sum_d e^{q_i \cdot d / \tau} + \sum_{u \ne i} e^{q_i \cdot q_u / \tau} + \sum_u e^{q_u \cdot k_i / \tau}
    + \sum_{d \notin D(i)} e^{d \cdot k_i / \tau} \Big) - q_i \cdot k_i / \tau
    $$

    With an empty queue and no negatives only the query's own key remains: the loss is then 0, with gradient 0.

    Args:
        symmetric: Whether to average both directions (CLIP); "joint": four in one softmax (GTE). A queue needs False.
        guide_margin: How much less similar than the own key, by a guide's cosine, a reference must be to push (GIST).
        **options: See `LossOptions`. Gathered, keys and negatives come from all processes, but the queue does not.

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
        self, *, temperature: Temperature = 0.07, symmetric: bool | Literal["joint"] = False,
        guide_margin: float = 0.0, **options: Unpack[LossOptions],
    ) -> None:  # fmt: skip
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
            ids: Document number of each key, any integers, (B,). Other references with a query's id do not push it.
            negative_ids: Document number of each negative, (B,) or (B, K). Without them, all negatives push.
            queue_ids: Document number of each key of the queue, (Q,).
            guide_queries: Vectors of the queries from another model, a guide, (B, G). A reference that it finds more
                similar to a query than its own key, less the margin, may be another positive, and does not push.
            guide_keys: The guide's vectors of the keys, (B, G).
            guide_negatives: The guide's vectors of the negatives, (B, G) or (B, K, G). Without them, all push.
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
        only_queue = inputs["queue"] is not None and inputs["negatives"] is None  # keys' ids alone then have no effect
        check_ids("ids", "keys", "queue_ids" if only_queue else "ids", inputs)
        check_ids("queue_ids", "queue", "ids", inputs)
        check_candidates(inputs)


def both_ways(
    loss: ContrastiveLoss, queries: Tensor, keys: Tensor, among: Candidates, temperature: Tensor | float | None = None
) -> Tensor:
    """Return the mean loss of both directions: from queries to keys, and from keys to queries."""
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
    """Return the loss of identifying each query's key among keys, negatives and a queue."""
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


@final
class ClipLoss(ContrastiveLoss):
    r"""CLIP: identify each image's text, and each text's image, with a scale learned by the model.

    $$
    \ell_i = \tfrac{1}{2} \left( \log \sum_u e^{\alpha x_i \cdot t_u} + \log \sum_u e^{\alpha x_u \cdot t_i} \right)
    - \alpha x_i \cdot t_i
    $$

    It is `InfoNCELoss` with ``symmetric=True`` and τ = 1/α, with open_clip's call signature: α comes with each call.

    Args:
        **options: See `LossOptions`. Here normalize is False by default, as open_clip normalises features itself.

    Returns:
        The loss, a scalar; with ``output_dict=True``, a dictionary with it as ``"contrastive_loss"``.

    Memory:
        O(B·D + tile); both directions share one product of similarities.

    Source:
        Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021, figure 3.

    Example:
        >>> ClipLoss()(torch.eye(2), torch.eye(2), torch.tensor(1.0))
        tensor(0.3133)
    """

    supports_fullgraph = True

    def __init__(self, **options: Unpack[LossOptions]) -> None:
        super().__init__(1.0, **{"normalize": False, **options})

    def forward(
        self,
        image_features: Annotated[Float[Tensor, "b d"], Embeddings()],
        text_features: Annotated[Float[Tensor, "b d"], References("image_features", aligned=True)],
        logit_scale: Float[Tensor, "..."],
        *,
        output_dict: bool = False,
    ) -> Any:
        """Return the loss of a batch.

        Args:
            image_features: One row for each image, (B, D).
            text_features: Each image's text, in the same order, (B, D).
            logit_scale: α = 1/τ, already the exponential of the learned parameter: a 0-d or (1,) tensor.
            output_dict: Whether to return a dictionary, as open_clip's trainer asks for.
        """
        scale = logit_scale.to(torch.promote_types(logit_scale.dtype, torch.float32))  # for a more exact 1/α
        loss = both_ways(self, image_features, text_features, Candidates(), 1 / scale)
        return {"contrastive_loss": loss} if output_dict else loss

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise unless the scale is positive."""
        check_tensor("logit_scale", inputs["logit_scale"])
        check_floating("logit_scale", inputs["logit_scale"])
        check_temperature(inputs["logit_scale"], "logit_scale", "1 to 100; it is 1/τ")


@final
class SigLIPLoss(ContrastiveLoss):
    r"""SigLIP: classify each pair of a query and a key, independently of all others, as matching or not.

    $$
    \ell_i = \log \bigl( 1 + e^{-(q_i \cdot k_i / \tau + b)} \bigr)
             + \sum_{u \ne i} \log \bigl( 1 + e^{q_i \cdot k_u / \tau + b} \bigr)
    $$

    Pairs do not compete as in a softmax: each is a separate classification. The bias b compensates for the much larger
    number of negatives. The second sum includes the hard negatives of all queries, if there are any.

    Args:
        bias: b, a number, "learned" (from −10), or a 0-d or (1,) tensor or parameter, which then receives a gradient.
        guide_margin: How much less similar than the own key, by a guide's cosine, a reference must be to push a query.
        **options: See `LossOptions`. Gathered, keys and negatives come from all processes. "triton" uses tiles.

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
        self, *, temperature: Temperature = 0.1, bias: Temperature = -10.0, guide_margin: float = 0.0,
        **options: Unpack[LossOptions],
    ) -> None:  # fmt: skip
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
        """Return the loss of a batch; the arguments are the same as in `InfoNCELoss.forward`."""
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
