"""Losses of triplets: given ones with a soft margin, N-pairs, and all or selected triplets of a batch by class.

The triplets of a batch are evaluated exactly, row by row: sorting a row's similarities once takes O(R log R) instead of
O(R²) for all its triplets. The gradient with respect to a similarity is an integer, the number of triplets with it as
the negative minus the number with it as the positive.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Unpack, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature, check_number, scalar
from likewise.losses.class_pairs import ClassLoss
from likewise.losses.contrast_batch import ContrastBatch
from likewise.losses.inputs import Embeddings, References
from likewise.operator.inputs import first_derivative, one_of, without_autocast
from likewise.pairs import AllPairs
from likewise.pairs.weight import blocks, widest

Mining = Literal["all", "all semi-hard", "semi-hard", "hard"]
Distance = Literal["cosine", "euclidean"]

CELLS = 1 << 20
"""Number of similarities held at a time, unless a row has more."""


@final
class TripletLoss(ContrastiveLoss):
    r"""Triplet: tell the positive from the negative.

    With s the cosine, $s_p = a \cdot p$ and $s_n = a \cdot n$,

    $$
    \ell = \log \bigl( 1 + e^{(s_n - s_p + m) / \tau} \bigr)
         = \log \bigl( e^{s_p / \tau} + e^{m / \tau} e^{s_n / \tau} \bigr) - s_p / \tau
    $$

    which is the equation of all contrastive losses, with push 1 on the positive and $e^{m/\tau}$ on the negative. No
    anchor is compared with another's references, so it is evaluated row by row, and ``backend`` has no effect.

    With one negative and m = 0 it is exactly SupCon. As τ → 0, τℓ becomes $\max(0, s_n - s_p + m)$, the triplet loss
    with a hinge.

    Args:
        margin: m, the amount by which the positive's similarity should exceed the negative's, in units of the cosine or
            the distance.
        distance: "cosine", or "euclidean": s is then −‖a − p‖ and −‖a − n‖, and the gradient of two equal rows is 0.
        **options: See `LossOptions`. Gathered, an anchor still meets only its own triplet; the mean is over all.

    Memory:
        O(N·D).

    Source:
        Schroff, Kalenichenko, Philbin, "FaceNet", 2015, with the hinge; Hermans, Beyer, Leibe, "In Defense of the
        Triplet Loss for Person Re-Identification", 2017, with the soft margin; as a contrastive loss, Khosla et al.,
        "Supervised Contrastive Learning", 2020, supplement. These compare distances; this loss compares similarities.

    Example:
        >>> TripletLoss(temperature=1.0, margin=1.0)(torch.eye(2), torch.eye(2), -torch.eye(2))
        tensor(0.3133)
    """

    supports_fullgraph = True

    def __init__(
        self, *, temperature: Temperature = 0.1, margin: float = 0.0, distance: Distance = "cosine",
        **options: Unpack[LossOptions],
    ) -> None:  # fmt: skip
        super().__init__(temperature, **options)
        self.margin = check_number("margin", margin, -1e6, 1e6, "0 to 0.5")
        self.distance: Distance = one_of("distance", distance, Distance)

    def forward(
        self,
        anchors: Annotated[Float[Tensor, "n d"], Embeddings()],
        positives: Annotated[Float[Tensor, "n d"], References("anchors", aligned=True)],
        negatives: Annotated[Float[Tensor, "n d"], References("anchors", aligned=True)],
    ) -> Float[Tensor, "..."]:
        """Return the loss of anchors, (N, D), with their positives and negatives in the same order, (N, D) each."""
        rows = self.rows(anchors, positives, replicated=(negatives,), local=True)
        a, p, n = (self.scaled(v, rows.dtype) for v in (rows.queries, *rows.sections))
        temperature = scalar(self.temperature, a)
        if self.distance == "cosine":
            nearer = (a * (n - p)).sum(dim=1)
        else:
            nearer = torch.linalg.vector_norm(a - p, dim=1) - torch.linalg.vector_norm(a - n, dim=1)
        logits = (nearer + self.margin) / temperature
        losses = torch.logaddexp(logits, torch.zeros_like(logits))
        return self.reduce(losses)


@final
class NPairsLoss(ContrastiveLoss):
    r"""N-pairs: identify the anchor's own positive among the positives of all anchors.

    $$
    \ell_i = \log \Bigl( 1 + \sum_{j \ne i} e^{a_i \cdot p_j - a_i \cdot p_i} \Bigr)
           = \log \sum_j e^{a_i \cdot p_j} - a_i \cdot p_i
    $$

    Embeddings are used as they are, and there is no temperature: their lengths are learned and play its role. Every
    pair should come from a different class: a second pair of the same class would be a negative.

    Args:
        **options: See `LossOptions`. Here normalize is False by default.

    Memory:
        O(N·D + tile).

    Source:
        Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", 2016, the loss N-pair-mc. The
        paper also penalises the squared lengths of the embeddings; add that to the loss if you want it.

    Example:
        >>> NPairsLoss()(torch.eye(2), 2 * torch.eye(2))
        tensor(0.1269)
    """

    supports_fullgraph = True

    def __init__(self, **options: Unpack[LossOptions]) -> None:
        options.setdefault("normalize", False)
        super().__init__(1.0, **options)

    def forward(
        self,
        anchors: Annotated[Float[Tensor, "n d"], Embeddings()],
        positives: Annotated[Float[Tensor, "n d"], References("anchors", aligned=True)],
    ) -> Float[Tensor, "..."]:
        """Return the loss of anchors, (N, D), and their positives in the same order, (N, D)."""
        rows = self.rows(anchors, positives)
        aligned = rows.aligned()
        return self.evaluate(rows, pull=aligned, push=AllPairs(*aligned.shape), positives=aligned)


@final
class BatchTripletLoss(ClassLoss):
    r"""Triplets of a batch: make rows of other classes less similar to an anchor than rows of its own class.

    With s the cosine, the loss of a triplet of an anchor a, a positive p of its class and a negative n of another is

    $$
    \max(0, s_{an} - s_{ap} + m)
    $$

    and the loss of the batch is the mean over every p and n with a loss ("all"), or only with n less similar than p
    ("all semi-hard"); over every p and its semi-hard negative, the most similar n among those less similar than p, or
    else the least similar n ("semi-hard"); or over anchors, with the least similar p and the most similar n ("hard").
    For rows of length 1, ‖a − b‖² = 2 − 2s: a margin of squared distances is 2m. With the Euclidean distance d, s is
    −d, and the gradient of two equal rows is 0.

    Args:
        margin: m, the amount by which a positive's similarity should exceed a negative's, in units of the cosine or d.
        mining: "all", "all semi-hard", "semi-hard" or "hard".
        distance: "cosine" or "euclidean".
        **options: See `LossOptions`; backend has no effect.

    Returns:
        A call returns the mean, a scalar; with ``reduction="none"`` the sum over each anchor's triplets, (N,).

    Memory:
        O((N + R)·D), and a few blocks of `CELLS` similarities at a time, or of one row.

    Source:
        Schroff, Kalenichenko, Philbin, "FaceNet", 2015, section 3.2, "semi-hard"; Hermans, Beyer, Leibe, "In Defense of
        the Triplet Loss for Person Re-Identification", 2017, "all" and "hard"; "all semi-hard" is the selection of
        pytorch-metric-learning's TripletMarginMiner.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> BatchTripletLoss(margin=0.1, mining="all")(z, torch.tensor([0, 0, 1]))
        tensor(0.3000)
    """

    selects = True

    def __init__(
        self, *, margin: float = 0.1, mining: Mining = "semi-hard", distance: Distance = "cosine",
        **options: Unpack[LossOptions],
    ) -> None:  # fmt: skip
        super().__init__(1.0, **options)
        self.margin = check_number("margin", margin, -1e6, 1e6, "0.05 to 0.5")
        self.mining: Mining = one_of("mining", mining, Mining)
        self.distance: Distance = one_of("distance", distance, Distance)

    def of_classes(
        self, rows: ContrastBatch, classes: Int[Tensor, " n"], sections: Sequence[Int[Tensor, " r"]]
    ) -> Float[Tensor, "..."]:
        """Return the loss of rows by their classes."""
        spec = TripletSpec(classes, torch.cat([*sections]), rows.place, self.margin, self.mining, self.distance)
        losses, counts = _Triplets.apply(*self.vectors(rows), spec)
        positives = rows.same_class(classes, sections) & rows.all_others()
        return self.reduce(losses, counts > 0, positives, anchors=counts)


class Triplets(NamedTuple):
    """The losses, counts and gradients of the triplets of some anchors."""

    losses: Float[Tensor, " n"]
    counts: Int[Tensor, " n"]
    """Number of triplets: those with a loss if mining is "all" or "all semi-hard", else the selected ones."""
    weights: Float[Tensor, "n r"]
    """The gradient of a row's loss with respect to its similarities."""


class TripletSpec(NamedTuple):
    """The labels and options for choosing the triplets of N anchors among R references."""

    labels: Int[Tensor, " n"]
    others: Int[Tensor, " r"]
    place: int | None
    """The index of the first anchor among the references; None: no anchor is among them."""
    margin: float
    mining: Mining
    distance: Distance


@final
class _Triplets(torch.autograd.Function):
    """The sum of the losses of each anchor's triplets, and their number."""

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, references: Tensor, spec: TripletSpec) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(anchors, references)
        ctx.spec = spec
        losses = anchors.new_empty(len(anchors))
        counts = losses.to(torch.int64)
        with without_autocast(anchors.device):
            for rows in _blocks(anchors, references):
                losses[rows], counts[rows], _ = _mine_triplets(anchors[rows], references, spec, rows)
        ctx.mark_non_differentiable(counts)
        return losses, counts

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        anchors, references = ctx.saved_tensors
        of_anchors, of_references = torch.empty_like(anchors), torch.zeros_like(references)
        for rows in _blocks(anchors, references):
            z = anchors[rows]
            weights = _mine_triplets(z, references, ctx.spec, rows).weights * gradients[0][rows, None]
            if ctx.spec.distance == "cosine":
                torch.mm(weights, references, out=of_anchors[rows])
                of_references.addmm_(weights.T, z)
                continue
            with torch.enable_grad():  # by differences: products lose digits for nearby rows
                wide = widest(z.device)
                leaves = [tensor.detach().to(wide).requires_grad_() for tensor in (z, references)]
                of_anchors[rows], more = torch.autograd.grad(_distances(*leaves), leaves, -weights.to(wide))
            of_references += more
        return of_anchors, of_references, None


def _blocks(anchors: Tensor, references: Tensor) -> Iterator[slice]:
    return blocks(len(anchors), max(1, CELLS // max(1, len(references))))


def _mine_triplets(z: Tensor, references: Tensor, spec: TripletSpec, rows: slice) -> Triplets:
    s = z @ references.T if spec.distance == "cosine" else -_distances(z, references)
    positive = spec.labels[rows, None] == spec.others
    negative = ~positive
    if spec.place is not None:
        positive[:, rows.start + spec.place :].fill_diagonal_(fill_value=False)  # an anchor with itself
    miners = {"all": _all, "all semi-hard": partial(_all, below=True), "semi-hard": _semi_hard, "hard": _hard}
    result = miners[spec.mining](s, positive, negative, spec.margin)
    return result._replace(losses=result.losses + 0 * s.sum(dim=1))  # NaN where similarities overflow


def _distances(z: Float[Tensor, "n d"], references: Float[Tensor, "r d"]) -> Float[Tensor, "n r"]:
    return torch.cdist(z, references, compute_mode="donot_use_mm_for_euclid_dist")  # products lose digits of near rows


def _all(s: Tensor, positive: Tensor, negative: Tensor, margin: float, *, below: bool = False) -> Triplets:
    """Return the sum over all triplets, from thresholds s_ap − m and the sorted negatives above each.

    With `below`, the sum is over negatives that are also below s_ap.
    """
    nearest = s.masked_fill(~positive, torch.inf).topk(_most(positive), dim=1, largest=False)
    limits = nearest.values - margin
    ordered = s.masked_fill(~negative, -torch.inf).sort(dim=1).values
    first = torch.searchsorted(ordered, limits, right=True)
    last = torch.searchsorted(ordered, nearest.values) if below else torch.full_like(first, s.shape[1])
    above = torch.nn.functional.pad(ordered.nan_to_num(neginf=0).double().flip(1).cumsum(1).flip(1), (0, 1))
    count = (last - first).clamp(min=0).where(limits != torch.inf, 0)
    sums = above.gather(1, first) - above.gather(1, last) - count * limits.nan_to_num(posinf=0)
    met = torch.searchsorted(limits, s)
    if below:
        met = (met - torch.searchsorted(nearest.values, s, right=True)).clamp(min=0)
    weights = met.to(s).where(negative, 0).scatter_add_(1, nearest.indices, -count.to(s))
    return Triplets(sums.where(count > 0, 0).sum(dim=1).to(s), count.sum(dim=1), weights)


def _most(positive: Bool[Tensor, "n r"]) -> int:
    """Return the largest number of positives of a row; on a GPU, to avoid synchronising, the number of references."""
    return max(1, int(positive.sum(dim=1).amax())) if positive.device.type == "cpu" else positive.shape[1]


def _semi_hard(s: Tensor, positive: Tensor, negative: Tensor, margin: float) -> Triplets:
    of_positives, places = s.masked_fill(~positive, torch.inf).topk(_most(positive), dim=1, largest=False)
    ordered, order = s.masked_fill(~negative, -torch.inf).sort(dim=1)
    count = negative.sum(dim=1, keepdim=True)
    start = s.shape[1] - count
    chosen = (torch.searchsorted(ordered, of_positives) - 1).clamp(min=start.clamp(max=s.shape[1] - 1))
    exists = (of_positives != torch.inf) & (count > 0)
    return _of_selected(s, (places, order.gather(1, chosen)), exists, margin)


def _hard(s: Tensor, positive: Tensor, negative: Tensor, margin: float) -> Triplets:
    places = s.masked_fill(~positive, torch.inf).argmin(dim=1, keepdim=True)
    chosen = s.masked_fill(~negative, -torch.inf).argmax(dim=1, keepdim=True)
    exists = positive.any(dim=1, keepdim=True) & negative.any(dim=1, keepdim=True)
    return _of_selected(s, (places, chosen), exists, margin)


def _of_selected(s: Tensor, places: tuple[Tensor, Tensor], exists: Bool[Tensor, "n p"], margin: float) -> Triplets:
    of_positives, of_negatives = places
    losses = (s.gather(1, of_negatives) - s.gather(1, of_positives) + margin).clamp(min=0).where(exists, 0)
    slope = (losses > 0).to(s)
    weights = torch.zeros_like(s).scatter_add_(1, of_negatives, slope).scatter_add_(1, of_positives, -slope)
    return Triplets(losses.sum(dim=1), exists.sum(dim=1), weights)
