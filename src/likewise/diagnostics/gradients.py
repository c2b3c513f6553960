"""The gradient of SupCon and NT-Xent, anchor by anchor: its pull, its push, and the shares of the hardest pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.diagnostics.unit_rows import Array, on_cpu
from likewise.losses.inputs import check_embeddings, check_labels
from likewise.operator import normalized
from likewise.operator.inputs import check_temperature, one_of

SoftmaxForm = Literal["out", "in"]
"""SupCon's forms with one softmax per anchor; not "pairs", which has one per pair."""


@final
@dataclass(frozen=True)
class AnchorGradients:
    """The gradient of each anchor's loss, split into positives and negatives: float64, on the CPU.

    N rows are the references of A anchors. For an inactive anchor, without positives, every weight and every gradient
    is 0, and no reference is a positive or a negative.

    Args:
        anchors: The anchors' rows, (A,).
        similarities: Cosines of the anchors with all rows, (A, N).
        positives: A mask of each anchor's positives, (A, N).
        negatives: A mask of its negatives, (A, N). The anchor itself is neither.
        probabilities: P, the softmax of cosine/τ over every row except the anchor, (A, N).
        targets: X, the values of P on the positives that would make the pull vanish, (A, N); 0 elsewhere.
        strengths: The length of each reference's part of the gradient with respect to an unnormalised embedding of
            length 1: |coefficient|/τ · sqrt(1 - cosine²), (A, N).
        pull: The positives' part of the gradient with respect to z, (A, D).
        push: The negatives' part, (A, D).
    """

    anchors: Int[Tensor, " a"]
    similarities: Float[Tensor, "a n"]
    positives: Bool[Tensor, "a n"]
    negatives: Bool[Tensor, "a n"]
    probabilities: Float[Tensor, "a n"]
    targets: Float[Tensor, "a n"]
    strengths: Float[Tensor, "a n"]
    pull: Float[Tensor, "a d"]
    push: Float[Tensor, "a d"]

    @property
    def coefficients(self) -> Float[Tensor, "a n"]:
        """The factor of each reference, in braces in `anchor_gradients`: P - X on positives, P on negatives."""
        return self.probabilities - self.targets

    @property
    def active(self) -> Bool[Tensor, " a"]:
        """A mask of the anchors with a positive."""
        return self.positives.any(dim=1)

    @property
    def gradient(self) -> Float[Tensor, "a d"]:
        """The gradient of each anchor's loss with respect to its normalised embedding z."""
        return self.pull + self.push


def anchor_gradients(
    embeddings: Float[Array, "..."],
    labels: Int[Array, "..."] | None = None,
    *,
    temperature: float | Tensor = 0.1,
    form: SoftmaxForm = "out",
    anchors: Int[Tensor, " a"] | Sequence[int] | None = None,
) -> AnchorGradients:
    """Split the gradient of each anchor's own loss into the pull of positives and the push of negatives.

        ∂ℓ_i/∂z_i = (1/τ)·{ Σ_{p∈P(i)} z_p (P_ip - X_ip) + Σ_{n∈N(i)} z_n P_in }
        P_ix = e^(z_i·z_x/τ) / Σ_{a≠i} e^(z_i·z_a/τ)
        X_ip = 1/|P(i)| for "out",   e^(z_i·z_p/τ) / Σ_{p'∈P(i)} e^(z_i·z_p'/τ) for "in"

    The encoder's output w is normalised to z = w/‖w‖, and only the part of the gradient orthogonal to z reaches w. For
    w of length 1, a reference's part has the length |P - X|/τ · sqrt(1 - (z_i·z_p)²) or P/τ · sqrt(1 - (z_i·z_n)²). It
    vanishes for a close positive, and is large for a far positive and for a close negative: implicit hard mining.

    This is the gradient of ℓ_i only. In the loss of a batch, z_i is also a reference of all other anchors; these terms,
    and the division by the number of active anchors, are not included.

    Args:
        embeddings: One view of each sample, (N, D), or V views, (B, V, D), flattened view-major to N = V·B rows as in
            the losses; L2-normalised here.
        labels: Classes of the samples, (B,), or label sets, multi-hot (B, L), where positives share a label. None:
            the positives are the other views of the sample, as in NT-Xent.
        temperature: τ > 0.
        form: "out", with the mean over positives outside the logarithm, or "in", inside it. Both are the same for one
            positive.
        anchors: Rows of the anchors, (A,), from 0 to N-1. None: all rows.

    Returns:
        An `AnchorGradients`, computed in float64 on the CPU.

    Memory:
        O(N·D + A·N): four float64 matrices (A, N) are kept. For a large N, choose some anchors.

    Source:
        Khosla et al., "Supervised Contrastive Learning", 2020, equations 4 and 5; hard positives and negatives in the
        supplement.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])  # anchor, hard positive, easy negative
        >>> gradients = anchor_gradients(embeddings, torch.tensor([0, 0, 1]), temperature=1.0, anchors=[0])
        >>> [round(value, 3) for value in gradients.strengths[0].tolist()]
        [0.0, 0.269, 0.0]
    """
    check_temperature(temperature)
    tau = float(temperature.detach() if isinstance(temperature, Tensor) else temperature)
    one_of("form", form, SoftmaxForm)
    rows, keys = _rows_and_keys(embeddings, labels)
    chosen = _anchor_rows(anchors, len(rows))
    references = torch.arange(len(rows)) != chosen.unsqueeze(1)
    positives = _same(keys[chosen], keys) & references
    references &= positives.any(dim=1, keepdim=True)
    similarities = rows[chosen] @ rows.T
    logits = similarities / tau
    probabilities = _softmax(logits, references)
    targets = _softmax(torch.zeros_like(logits) if form == "out" else logits, positives)
    weights = (probabilities - targets) / tau
    return AnchorGradients(
        anchors=chosen,
        similarities=similarities,
        positives=positives,
        negatives=references & ~positives,
        probabilities=probabilities,
        targets=targets,
        strengths=weights.abs() * _orthogonal_lengths(similarities, rows, chosen),
        pull=weights.where(positives, 0) @ rows,
        push=weights.where(~positives, 0) @ rows,
    )


def _softmax(logits: Tensor, among: Tensor) -> Tensor:
    return logits.masked_fill(~among, -torch.inf).softmax(dim=1).where(among, 0)


def _orthogonal_lengths(similarities: Tensor, rows: Tensor, chosen: Tensor) -> Tensor:
    """Return the length of references' parts orthogonal to anchors, (A, N): sqrt(1 - cosine²), 0 for zero rows."""
    squared_norms = rows.square().sum(dim=1)
    return (squared_norms - similarities.square()).clamp(min=0).sqrt() * (squared_norms[chosen] > 0).unsqueeze(1)


def _rows_and_keys(embeddings: Array, labels: Array | None) -> tuple[Tensor, Tensor]:
    """Check the batch; return its rows in float64, and the keys that positives share: ids or label sets."""
    embeddings = on_cpu("embeddings", embeddings)
    check_embeddings("embeddings", embeddings)
    views = embeddings.shape[1] if embeddings.ndim == 3 else 1
    rows = torch.cat(embeddings.unbind(dim=1)) if embeddings.ndim == 3 else embeddings
    if labels is None and views == 1:
        got = f"only embeddings of shape {tuple(embeddings.shape)}: without labels, its other views are positives"
        raise ValueError(f"expected labels or several views, (B, V, D), got {got}")
    if labels is None:
        return normalized(rows.double()), torch.arange(len(embeddings)).repeat(views)
    labels = on_cpu("labels", labels)
    check_labels("labels", labels, "samples", len(embeddings))
    if labels.shape[1:] == (1,):
        expected, got = "classes, (B,), or label sets over several labels, (B, L)", f"shape {tuple(labels.shape)}"
        raise ValueError(f"expected labels to be {expected}, got {got}: pass a column of classes as labels[:, 0]")
    return normalized(rows.double()), torch.cat([labels] * views)


def _anchor_rows(anchors: Tensor | Sequence[int] | None, count: int) -> Tensor:
    if anchors is None:
        return torch.arange(count)
    rows = torch.as_tensor(anchors).detach().cpu()
    whole = rows.ndim == 1 and (not rows.numel() or not (rows.is_floating_point() or rows.dtype == torch.bool))
    if not whole or (rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < count):
        expected, got = f"rows, integers (A,) from 0 to {count - 1}", f"{rows.dtype} of shape {tuple(rows.shape)}"
        raise ValueError(f"expected anchors to be {expected}, got {got}: of a mask give mask.nonzero().flatten()")
    return rows.long()


def _same(keys: Tensor, references: Tensor) -> Tensor:
    """Return a mask of pairs with equal ids, (A,) and (N,), or a common label, (A, L) and (N, L)."""
    return keys.unsqueeze(1) == references if keys.ndim == 1 else keys.double() @ references.double().T > 0


class HardestShares(NamedTuple):
    """The hardest references' shares of pull and push, from 0 to 1; NaN where the total is 0."""

    pull: float
    """The least similar positives' share of the pull."""
    push: float
    """The most similar negatives' share of the push."""


class StrengthByNegatives(NamedTuple):
    """The pull and push on an anchor by its number of negatives: strengths summed by anchor, averaged over anchors."""

    counts: tuple[int, ...]
    """The K numbers of negatives."""
    hard_positives: Float[Tensor, " k"]
    """The pull of the least similar positives; below 0 where they repel."""
    easy_positives: Float[Tensor, " k"]
    """The pull of the most similar positives; below 0 where they repel."""
    hard_negatives: Float[Tensor, " k"]
    """The push of the most similar negatives."""
    easy_negatives: Float[Tensor, " k"]
    """The push of the least similar negatives."""


def strength_by_negatives(
    embeddings: Float[Array, "..."],
    labels: Int[Array, "..."] | None = None,
    *,
    counts: Sequence[int] | None = None,
    fraction: float = 0.1,
    temperature: float | Tensor = 0.1,
    form: SoftmaxForm = "out",
    anchors: Int[Tensor, " a"] | Sequence[int] | None = None,
    seed: int = 0,
) -> StrengthByNegatives:
    """Measure how pull and push grow with the number of negatives, while the positives stay the same.

    For each count K, an anchor is compared with all its positives, and with the first K of its negatives in its own
    random order, drawn once. With "out", a positive pulls with 1/|P(i)| - P_ip, and more negatives lower P_ip: a close
    positive stops repelling; a far one approaches the limit sqrt(1 - cosine²)/(|P(i)|·τ) soonest.

    Memory and shared arguments are as in `anchor_gradients`. `counts` are numbers of negatives, from 1 to the fewest of
    any active anchor; None: 2, 4, 8, ..., and the fewest. `fraction` is the share of all anchors' pairs, at least one
    pair, counted as the hardest, and as the easiest. `seed` sets the random order.

    Returns:
        Strengths as in `AnchorGradients`, with a sign: float64, (K,) each.

    Source:
        Khosla et al., "Supervised Contrastive Learning", 2020, section 3.2 and the supplement.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.0, -1.0], [0.0, -1.0], [-0.6, -0.8]])
        >>> classes = torch.tensor([0, 0, 0, 1, 1, 1])
        >>> strengths = strength_by_negatives(embeddings, classes, temperature=1.0, anchors=[0], counts=[1, 3])
        >>> strengths.counts, [round(value, 3) for value in strengths.hard_positives.tolist()]
        ((1, 3), [0.263, 0.327])
    """
    _check_fraction(fraction)
    gradients = anchor_gradients(embeddings, labels, temperature=temperature, form=form, anchors=anchors)
    every = gradients.negatives.sum(dim=1)[gradients.active]
    fewest_negatives = int(every.min()) if len(every) else 0
    doubled = (2**power for power in range(1, max(fewest_negatives, 1).bit_length()))
    negative_counts = tuple(sorted({*doubled, fewest_negatives} - {0})) if counts is None else tuple(counts)
    if not all(1 <= count <= fewest_negatives for count in negative_counts):
        expected = f"counts of negatives from 1 to {fewest_negatives}, as all anchors have"
        raise ValueError(f"expected {expected}, got {negative_counts}: ask for fewer")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(gradients.negatives.shape, generator=generator).where(gradients.negatives, torch.inf)
    ranks = drawn.argsort(dim=1).argsort(dim=1)
    rows, _ = _rows_and_keys(embeddings, labels)
    lengths, tau = _orthogonal_lengths(gradients.similarities, rows, gradients.anchors), float(temperature)
    active = max(1, int(gradients.active.sum()))
    sums: list[list[float]] = []
    for count in negative_counts:
        negatives = gradients.negatives & (ranks < count)
        probabilities = _softmax(gradients.similarities / tau, gradients.positives | negatives)
        strengths = (probabilities - gradients.targets) / tau * lengths
        ends: list[float] = []  # hard and easy positives, which pull, then hard and easy negatives
        for among, sign in ((gradients.positives, -1), (negatives, 1)):
            signed, hardness = sign * strengths[among], sign * gradients.similarities[among]
            ends += [float(signed[_hardest(order, fraction)].sum()) / active for order in (hardness, -hardness)]
        sums.append(ends)
    return StrengthByNegatives(negative_counts, *torch.tensor(sums, dtype=torch.float64).reshape(-1, 4).unbind(dim=1))


def strength_by_similarity(
    gradients: AnchorGradients, bins: int = 50
) -> tuple[Float[Tensor, "edges"], Float[Tensor, "bins"], Float[Tensor, "bins"]]:
    """Average the strengths of positives and of negatives in bins of their cosine with the anchor.

    Returns:
        The edges of bins from -1 to 1, (bins + 1,), and the mean strength of the positives and of the negatives in each
        bin, (bins,) each; NaN in an empty bin.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> gradients = anchor_gradients(embeddings, torch.tensor([0, 0, 1]), temperature=1.0, anchors=[0])
        >>> [means.tolist() for means in strength_by_similarity(gradients, bins=2)[1:]]
        [[nan, 0.2689414213699951], [0.0, nan]]
    """
    places = ((gradients.similarities.clamp(-1, 1) + 1) / 2 * bins).long().clamp(max=bins - 1)
    means: list[Tensor] = []
    for pairs in (gradients.positives, gradients.negatives):
        sums = torch.bincount(places[pairs], weights=gradients.strengths[pairs], minlength=bins)
        means.append(sums / torch.bincount(places[pairs], minlength=bins))
    return torch.linspace(-1, 1, bins + 1, dtype=torch.float64), means[0], means[1]


def hardest_shares(gradients: AnchorGradients, fraction: float = 0.1) -> HardestShares:
    """Measure the hardest pairs' shares of all pull and push; with equal strengths they would be `fraction`.

    This fraction of the pairs, above 0 and at most 1, and at least one pair, counts as the hardest. The pairs of all
    anchors are taken together. Hard positives are the least similar ones, hard negatives the most similar. The pull is
    the sum of the strengths of attracting positives: with "out", a positive much closer than the others can have P > X,
    and then it repels.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, -0.8], [-1.0, 0.0]])
        >>> gradients = anchor_gradients(embeddings, torch.tensor([0, 0, 0, 1, 1]), temperature=0.1, anchors=[0])
        >>> [round(share, 3) for share in hardest_shares(gradients, fraction=0.5)]
        [1.0, 1.0]
    """
    _check_fraction(fraction)
    attracting = gradients.strengths.where(gradients.coefficients < 0, 0)
    positives, negatives = gradients.positives, gradients.negatives
    return HardestShares(
        _share(-gradients.similarities[positives], attracting[positives], fraction),
        _share(gradients.similarities[negatives], gradients.strengths[negatives], fraction),
    )


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise ValueError(f"expected fraction above 0 and at most 1, got {fraction}: 0.1 is the hardest tenth")


def _hardest(hardness: Tensor, fraction: float) -> Tensor:
    return hardness.argsort(descending=True, stable=True)[: max(1, round(fraction * len(hardness)))]


def _share(hardness: Tensor, strengths: Tensor, fraction: float) -> float:
    total = float(strengths.sum())
    return math.nan if total == 0 else float(strengths[_hardest(hardness, fraction)].sum()) / total
