"""Losses of label sets: MulSupCon, MSC and NWS, and the shares of their pull by label."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Unpack, final, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, Flag, LossOptions, Temperature, check_positive
from likewise.losses.inputs import Embeddings, MultiHot, Prototypes, References
from likewise.losses.label_pair_similarity import Method, matrix
from likewise.operator.inputs import FLOAT_DTYPES, one_of, without_autocast
from likewise.pairs import (
    AllPairs,
    Explicit,
    Jaccard,
    MaxSimilarity,
    MeanSimilarity,
    Overlap,
    PairWeight,
    SharesLabel,
    concat,
)
from likewise.pairs.label_sets import Sets


def label_weights(
    sets: Sets, sections: Sequence[Sets], *, alpha: float, self_term: Literal["left out", "corrected", "none"],
    dtype: torch.dtype,
) -> tuple[list[PairWeight], PairWeight, Float[Tensor, " n"], Int[Tensor, " n"]]:  # fmt: skip
    """Return the shares of the references in each query's pull, which depend only on label sets.

        M_irc = α y_ic y_rc / |y_i ∪ y_r|      w_ir = Σ_c M_irc / D_ic      w_ic = y_ic / D_ic
        D_ic = Σ_r M_irc + y_ic                if nothing is excluded
        D_ic = Σ_r M_irc + y_ic (1 − α/|y_i|)  if the query's own term, M_iic = α y_ic / |y_i|, is excluded from the sum

    Σ_r w_ir = |y_i|, unless the own term is excluded from the sum but not from the pull.

    ``self_term`` says how the query's own term is treated: "left out" of sum and pull (the query itself is among the
    instances), "corrected", excluded only from the sum (its own key is among them), or "none".

    Returns:
        w_ir / |y_i|, (N, R) for each section of instances; w_ic / |y_i| of prototypes, (N, L); Σ_r w_ir / |y_i|, (N,);
        and the number of pulling references, (N,): instances that share a label, and prototypes of the query's labels.
    """
    label_sets = sets.rows
    with without_autocast(label_sets.device):
        by_label = [Jaccard(sets, section).by_label(dtype, label_sets.device) for section in sections]
    sizes = sets.sizes[:, None].clamp(min=1).to(dtype)
    prototype = torch.ones_like(sizes) if self_term == "none" else 1 - alpha / sizes
    share = sum((alpha * sums for sums, _ in by_label), start=label_sets * prototype)
    share = torch.where(label_sets, 1 / (share * sizes), 0)
    labelled = label_sets.any(dim=1)
    return (
        [Jaccard(sets, section, worth=alpha * share) for section in sections],
        Explicit(share),
        labelled + (alpha / sizes * share).sum(dim=1) if self_term == "corrected" else labelled.to(dtype),
        sum((count for _, count in by_label), start=sets.sizes - labelled.long() * (self_term == "left out")),
    )


@final
class MulSupConLoss(ContrastiveLoss):
    r"""MulSupCon: for each label of a query, identify the references that have it among all references.

    With R_c the references with label c, and n_ic the number of them that query i is compared with,

    $$\ell_{i} = \sum_{c \in y_i, \, n_{ic} > 0} \left( \log \sum_u e^{z_i \cdot v_u / \tau}
                 - \frac{1}{n_{ic}} \sum_{r \in R_c} z_i \cdot v_r / \tau \right)$$

    Pull is thus y_ic·y_rc / n_ic summed over labels, and push is 1 on every reference. Each (query, label) pair is an
    anchor: the mean is over these, not over queries. A label without any reference is not an anchor; a query without
    any anchor is inactive, with loss 0 and no gradient.

    Returns:
        A call returns the mean over all (query, label) anchors, a scalar; with ``reduction="none"``, each query's sum
        over its labels, (N,). ``last["active_anchors"]`` counts (query, label) anchors, and
        ``last["positives_per_anchor"]`` is each query's mean over its labels.

    Memory:
        O((N + R)·(D + L)); see `likewise.contrast`.

    Source:
        Zhang, Wu, "Multi-Label Supervised Contrastive Learning", AAAI 2024, equation 6.

    Example:
        >>> queries, labels = torch.eye(3), torch.tensor([[1, 0], [1, 1], [0, 1]])
        >>> MulSupConLoss(temperature=1.0)(queries, labels)
        tensor(0.6931)
    """

    label_kinds = frozenset({"label sets"})
    weight_by_pull = True

    def __init__(self, *, temperature: Temperature = 0.1, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)

    def forward(
        self,
        queries: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, "b l"], MultiHot("queries", rows="samples")],
        *,
        references: Annotated[Float[Tensor, "r d"] | None, References("queries")] = None,
        reference_labels: Annotated[Int[Tensor, "r l"] | None, MultiHot("references", like="labels")] = None,
        queue: Annotated[Float[Tensor, "q d"] | None, References("queries")] = None,
        queue_labels: Annotated[Int[Tensor, "q l"] | None, MultiHot("queue", like="labels")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of queries contrasted with references, or with each other, and with a queue.

        Args:
            queries: One view of each sample, (N, D), or V views, (B, V, D).
            labels: Multi-hot labels of the samples, zeros and ones, (B, L).
            references: Keys, (R, D), gathered across processes with ``gather_distributed``; None: the batch, without
                self.
            reference_labels: Their multi-hot labels, (R, L).
            queue: Further references, (Q, D), the same on every process (see `likewise.memory.Queue`).
            queue_labels: Their multi-hot labels, (Q, L).
        """
        replicated = () if queue is None else (queue,)
        rows = self.rows(queries, references, replicated=replicated)
        label_sets, sections = rows.sets(labels, reference_labels, queue_labels)
        counts = sum(section.counts for section in sections) - label_sets.rows.long() * (not rows.others)
        present = label_sets.rows & (counts > 0)
        worth = present / counts.clamp(min=1).to(rows.dtype)
        batch, *rest = (Overlap(label_sets, section, worth=worth) for section in sections)
        not_self = rows.not_self()
        anchors = present.sum(dim=1)
        return self.evaluate(
            rows,
            pull=concat([batch if rows.others else batch * not_self, *rest]).with_row_sums(anchors),
            push=concat([not_self, *(AllPairs(*weight.shape) for weight in rest)]),
            positives=(counts * present).sum(dim=1) / anchors.clamp(min=1),
        )


@final
class MSCLoss(ContrastiveLoss):
    r"""MSC: each label pulls the query toward its prototype and its instances; all labels have equal shares.

    With M_irc = α y_ic y_rc / |y_i ∪ y_r| over the instances (the batch without self, and the queue if there is one),

    $$D_{ic} = \sum_r M_{irc} + y_{ic}, \qquad
      w_{ir} = \sum_{c \in y_i} \frac{M_{irc}}{D_{ic}}, \qquad w_{i p_c} = \frac{y_{ic}}{D_{ic}}$$

    $$\ell_i = \log \sum_u \beta_u \, e^{z_i \cdot v_u / \tau} - \frac{1}{|y_i|} \sum_r w_{ir} \, z_i \cdot v_r / \tau$$

    where β_u is β for instances and 1 for prototypes, and Σ_r w_ir = |y_i|. A query without labels is inactive, but
    as an instance it pushes the others.

    Args:
        alpha: α > 0, the pull of instances relative to prototypes.
        beta: β > 0, the push of instances relative to prototypes.

    Returns:
        The loss, a scalar. ``last["positives_per_anchor"]`` counts instances and prototypes.

    Memory:
        O((N + R)·(D + L)); see `likewise.contrast`.

    Source:
        Audibert, Gauffre, Amini, "Exploring Contrastive Learning for Long-Tailed Multi-Label Text Classification",
        2024.

    Example:
        >>> queries, labels = torch.eye(3), torch.tensor([[1, 0], [1, 1], [0, 0]])
        >>> MSCLoss(temperature=1.0)(queries, labels, prototypes=torch.eye(2, 3))
        tensor(0.7823)
    """

    label_kinds = frozenset({"label sets"})
    recommended_inputs = ("Momentum", "KeyQueue")

    def __init__(
        self, *, alpha: float = 1.0, beta: float = 0.1, temperature: Temperature = 0.1, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(temperature, **options)
        self.alpha = check_positive("alpha", alpha)
        self.beta = check_positive("beta", beta)

    def forward(
        self,
        queries: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, "b l"], MultiHot("queries", rows="samples")],
        prototypes: Annotated[Float[Tensor, "l d"], Prototypes("queries", of="labels")],
        *,
        queue: Annotated[Float[Tensor, "q d"] | None, References("queries")] = None,
        queue_labels: Annotated[Int[Tensor, "q l"] | None, MultiHot("queue", like="labels")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of queries contrasted with each other, the prototypes and a queue.

        Args:
            queries: One view of each sample, (N, D), or V views, (B, V, D).
            labels: Multi-hot labels of the samples, zeros and ones, (B, L).
            prototypes: One for each label, (L, D), with gradient; the same on every process.
            queue: Further instances, (Q, D), the same on every process (see `likewise.memory.Queue`).
            queue_labels: Their multi-hot labels, (Q, L).
        """
        replicated = (prototypes,) if queue is None else (queue, prototypes)
        rows = self.rows(queries, replicated=replicated)
        label_sets, sections = rows.sets(labels, None, queue_labels)
        (batch, *rest), of_prototypes, totals, positives = label_weights(
            label_sets, sections, alpha=self.alpha, self_term="left out", dtype=rows.dtype
        )
        not_self = rows.not_self()
        push = [not_self * self.beta, *(AllPairs(*weight.shape) * self.beta for weight in rest)]
        return self.evaluate(
            rows,
            pull=concat([batch * not_self, *rest, of_prototypes]).with_row_sums(totals),
            push=concat([*push, AllPairs(*of_prototypes.shape)]),
            positives=positives,
        )


Aggregation = Literal["mean", "max"]
SIMILARITIES = {"mean": MeanSimilarity, "max": MaxSimilarity}


@final
class NWSLoss(ContrastiveLoss):
    r"""NWS: labels pull as in MSC; only references without a common label push, less so the more similar their labels.

    With M_irc = α y_ic y_rc / |y_i ∪ y_r| over keys and queue, and sim(y_i, y_u) the mean or the max of S over the
    pairs of their labels,

    $$D_{ic} = \sum_r M_{irc} + y_{ic} \left(1 - \frac{\alpha}{|y_i|}\right), \qquad
      w_{ir} = \sum_{c \in y_i} \frac{M_{irc}}{D_{ic}}, \qquad w_{i p_c} = \frac{y_{ic}}{D_{ic}}$$

    $$\text{push}_{iu} = [y_i \cdot y_u = 0] \cdot \begin{cases}
        \beta \, (1 - \text{sim}(y_i, y_u)) & \text{keys, queue} \\ 1 & \text{prototypes} \end{cases}$$

    $$\ell_i = c_i \log \sum_u \text{push}_{iu} \, e^{z_i \cdot v_u / \tau}
               - \frac{1}{|y_i|} \sum_r w_{ir} \, z_i \cdot v_r / \tau, \qquad c_i = \frac{1}{|y_i|} \sum_r w_{ir}$$

    The term −α/|y_i| corrects for the query's own key, and is left out without keys or when ``normalized``. The loss
    may be negative. A query without labels, or without a reference that pushes it, is inactive and contributes no loss.
    A reference without labels, such as an unlabelled query's own key, has sim = 0 and pushes with full weight.

    Args:
        label_similarity: S, symmetric, within [0, 1], shape (L, L), a tensor or anything that ``torch.as_tensor``
            accepts; see `likewise.label_pair_similarity`. It is kept in its dtype as a buffer; its diagonal has no
            effect. The command `likewise train` also accepts "npmi", "jaccard" or "identity", and computes S from the
            training labels.
        alpha: α > 0, the pull of instances relative to prototypes.
        beta: β > 0, the push of instances relative to prototypes.
        aggregation: "mean" or "max" of S over the pairs of labels.
        normalized: Whether to leave out the correction for the own key, so that Σ_r w_ir = |y_i| exactly.
        positives_in_denominator: Whether every positive pushes too, with weight 1.

    Returns:
        The loss, a scalar. ``last["positives_per_anchor"]`` counts instances and prototypes.

    Memory:
        O((N + R)·(D + L) + L²); the backward visits keys and queue again only if they have a gradient. This costs
        accuracy on tight clusters if positives push, too: gradients of queries have up to 4.8 times the plain formula's
        error in float32. See `likewise.contrast`.

    Source:
        NWS is defined here for the first time: MSC (Audibert, Gauffre, Amini, 2024) with the decoupled denominator of
        DCL (Yeh et al., "Decoupled Contrastive Learning", 2022), a momentum queue, and weighted negatives.

    Example:
        >>> queries, labels = torch.eye(3), torch.tensor([[1, 0], [0, 1], [0, 0]])
        >>> similarity = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
        >>> loss = NWSLoss(similarity, temperature=1.0)
        >>> loss(queries, labels, prototypes=torch.eye(2, 3), keys=torch.eye(3), key_labels=labels)
        tensor(-1.7205)
    """

    label_kinds = frozenset({"label sets"})
    recommended_inputs = ("Momentum", "KeyQueue")

    label_similarity: Tensor

    def __init__(
        self, label_similarity: Tensor | Method, *, alpha: float = 1.0, beta: float = 0.1,
        temperature: Temperature = 0.1, aggregation: Aggregation = "mean", normalized: bool = False,
        positives_in_denominator: bool = False, **options: Unpack[LossOptions],
    ) -> None:  # fmt: skip
        super().__init__(temperature, **options)
        self.register_buffer("label_similarity", _checked(label_similarity))
        self.alpha = check_positive("alpha", alpha)
        self.beta = check_positive("beta", beta)
        self.aggregation: Aggregation = one_of("aggregation", aggregation, Aggregation)
        self.normalized = one_of("normalized", normalized, Flag)
        self.positives_in_denominator = one_of("positives_in_denominator", positives_in_denominator, Flag)

    def forward(
        self,
        queries: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, "b l"], MultiHot("queries", like="label_similarity", rows="samples")],
        prototypes: Annotated[Float[Tensor, "l d"], Prototypes("queries", of="label_similarity")],
        *,
        keys: Annotated[Float[Tensor, "b d"] | None, References("queries")] = None,
        key_labels: Annotated[Int[Tensor, "b l"] | None, MultiHot("keys", like="label_similarity")] = None,
        queue: Annotated[Float[Tensor, "q d"] | None, References("queries")] = None,
        queue_labels: Annotated[Int[Tensor, "q l"] | None, MultiHot("queue", like="label_similarity")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of queries contrasted with keys, a queue and prototypes.

        Args:
            queries: One view of each sample, (N, D), or V views, (B, V, D).
            labels: Multi-hot labels of the samples, zeros and ones, (B, L).
            prototypes: One for each label, (L, D), with gradient; the same on every process.
            keys: The samples' own keys in the same order, (B, D), already detached if they are to be constants;
                gathered across processes with ``gather_distributed``.
            key_labels: Their multi-hot labels, (B, L), equal to those of the queries.
            queue: Earlier keys, (Q, D), the same on every process (see `likewise.memory.Queue`).
            queue_labels: Their multi-hot labels, (Q, L).
        """
        replicated = (prototypes,) if queue is None else (queue, prototypes)
        here = prototypes[:0] if keys is None else keys  # no keys: an empty section
        rows = self.rows(queries, here, replicated=replicated)
        sets, instances = rows.sets(labels, labels[:0] if key_labels is None else key_labels, queue_labels)
        corrected = "none" if keys is None or self.normalized else "corrected"
        pulls, of_prototypes, totals, positives = label_weights(
            sets, instances, alpha=self.alpha, self_term=corrected, dtype=rows.dtype
        )
        push = AllPairs(*sets.rows.shape) if self.positives_in_denominator else Explicit(~sets.rows)
        return self.evaluate(
            rows,
            pull=concat([*pulls, of_prototypes]).with_row_sums(totals),
            push=concat([*(self._pushed_by(sets, section) for section in instances), push]),
            positives=positives,
        )

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise unless the keys are the queries' own, in the same order, as D's correction for them assumes."""
        key_labels, labels = inputs["key_labels"], inputs["labels"]
        if key_labels is None:
            return
        seen = labels.device.type == "cpu"
        if key_labels.shape != labels.shape or (seen and not torch.equal(key_labels.bool(), labels.bool())):
            expected = "expected keys to be the samples' own, in the same order and with the same labels"
            raise ValueError(f"{expected}, got key_labels other than labels: put older keys into the queue")

    def _pushed_by(self, label_sets: Sets, reference_sets: Sets) -> PairWeight:
        shared = SharesLabel(label_sets, reference_sets)
        similarity = SIMILARITIES[self.aggregation](label_sets, self.label_similarity, reference_sets)
        push = ~shared * (1 - similarity) * self.beta
        return push + shared if self.positives_in_denominator else push


def _checked(similarity: Tensor | str) -> Tensor:
    if isinstance(similarity, str):
        method = similarity if similarity in get_args(Method) else "npmi"
        raise ValueError(  # noqa: TRY004 - bad input is always a ValueError
            f"expected label_similarity to be a matrix (L, L), got {similarity!r}: pass likewise.label_pair_similarity("
            f'labels, "{method}") of the training labels; only `likewise train` accepts the name itself'
        )
    similarity = matrix("label_similarity", similarity, "see likewise.label_pair_similarity").clone()
    if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1] or similarity.dtype not in FLOAT_DTYPES:
        got = f"got {similarity.dtype} of shape {tuple(similarity.shape)}"
        raise ValueError(f"expected label_similarity to be a floating-point matrix (L, L), {got}")
    if not ((similarity >= 0) & (similarity <= 1)).all():
        got = f"got {similarity.min():g} … {similarity.max():g}: scale NPMI by (NPMI + 1)/2, 0 for labels never seen"
        raise ValueError(f"expected label_similarity to be within [0, 1], {got}")
    if not torch.allclose(similarity, similarity.T, rtol=0, atol=1e-6):
        raise ValueError("expected label_similarity to be symmetric, got another: average it with its transpose")
    return similarity
