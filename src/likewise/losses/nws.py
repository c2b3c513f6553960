"""NWS, a multi-label contrastive loss with prototypes: the more similar a negative's labels, the less it pushes."""

from typing import Annotated, Any, Literal, Unpack, final, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.checks import Flag, check_positive, matrix
from likewise.losses.inputs import Embeddings, MultiHot, Prototypes, References
from likewise.losses.label_pair_similarity import Method
from likewise.losses.label_weights import label_weights
from likewise.operator.inputs import FLOAT_DTYPES, one_of
from likewise.pairs import AllPairs, Explicit, MaxSimilarity, MeanSimilarity, PairWeight, SharesLabel, concat
from likewise.pairs.sets import Sets

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
    may be negative. A query without labels is inactive and contributes no loss, and so is one that nothing pushes. A
    reference without labels, such as that query's own key, has sim = 0 and pushes with full weight.

    Args:
        label_similarity: S, symmetric, within [0, 1], shape (L, L), a tensor or anything that ``torch.as_tensor``
            accepts; see `likewise.label_pair_similarity`. It is kept in its dtype as a buffer; its diagonal has no
            effect. The command `likewise train` also accepts "npmi", "jaccard" or "identity", and computes S from the
            training labels.
        alpha: α > 0, the pull of instances relative to that of prototypes.
        beta: β > 0, the push of instances relative to that of prototypes.
        aggregation: "mean" or "max" of S over the pairs of labels.
        normalized: Whether to leave out the correction for the own key, so that Σ_r w_ir = |y_i| exactly.
        positives_in_denominator: Whether every positive pushes too, with weight 1.

    Returns:
        The loss, a scalar. ``last["positives_per_anchor"]`` counts instances and prototypes.

    Memory:
        O((N + R)·(D + L) + L²); the backward visits keys and queue again only if they have a gradient. This has a price
        on tight clusters if positives push, too: gradients of queries are up to 4.8 times as far off as the plain
        formula's in float32. See `likewise.contrast`.

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
        self,
        label_similarity: Tensor | Method,
        *,
        alpha: float = 1.0,
        beta: float = 0.1,
        temperature: Temperature = 0.1,
        aggregation: Aggregation = "mean",
        normalized: bool = False,
        positives_in_denominator: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
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
        sets, of_keys = rows.sets(labels, labels[:0] if key_labels is None else key_labels)
        instances = [of_keys, *rows.sets_of(queue_labels)]
        corrected = "none" if keys is None or self.normalized else "corrected"
        weights = label_weights(sets, instances, alpha=self.alpha, self_term=corrected, dtype=rows.dtype)
        of_prototypes = AllPairs(*sets.rows.shape) if self.positives_in_denominator else Explicit(~sets.rows)
        return self.evaluate(
            rows,
            pull=concat([*weights.instances, weights.prototypes]).with_row_sums(weights.totals),
            push=concat([*(self._pushed_by(sets, section) for section in instances), of_prototypes]),
            positives=weights.positives,
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
