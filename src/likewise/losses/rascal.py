"""RASCAL, rank-agreement supervised contrast: positives whose rank has not moved pull more."""

from typing import Literal, Unpack, final, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise import distributed
from likewise.losses.base import ContrastiveLoss, LossOptions
from likewise.losses.checks import check_classes, check_embeddings
from likewise.losses.ranks import Ranking, RankWeights, widest
from likewise.losses.rows import Rows
from likewise.memory import FeatureCache
from likewise.operator import normalized
from likewise.pairs import Equal, SameClass

RankLevel = Literal["view", "sample"]


@final
class RASCALLoss(ContrastiveLoss):
    r"""RASCAL: SupCon whose positives weigh the more, the less their rank has moved since they were last seen.

    $$
    \ell_i = \log \sum_{u \ne i} e^{z_i \cdot z_u / \tau} - \sum_{p \in P(i)} W_{ip} \, z_i \cdot z_p / \tau
    \qquad
    W_{ip} = \frac{1 - \text{drift}_{ip}}{\sum_q (1 - \text{drift}_{iq})}
    \qquad
    \text{drift}_{ip} = \frac{|\rho_{ip} - \rho'_{ip}|}{m_i - 1}
    $$

    With P(i) the $m_i$ other rows of anchor i's class, $\rho_{ip}$ is the rank of p among them by its cosine similarity
    to i now, $\rho'_{ip}$ that by the cached features of their samples; ties have their average rank. One positive
    alone has drift 0. The weights are constant under differentiation.

    They are uniform, SupCon's $1/m_i$, if the anchor or any positive has no cached feature, or if all drifts are 1.
    An anchor without positives is inactive, as in SupCon.

    What is cached of a sample is the L2-normalised mean of its normalised views in the batch, all of them where its
    index occurs several times. The cache is read before it is written, and written in training mode only, whatever the
    ranking; gathered, from the rows of all processes, so that every process holds the same. Not gathered, but within
    DistributedDataParallel, the cache of rank 0 overwrites those of the other ranks at every forward, unless the
    wrapper is made with ``broadcast_buffers=False``: take ``gather_distributed=True`` there.

    Args:
        num_samples: Samples of the training set; a sample's index is below it.
        feature_dim: Features D of an embedding.
        temperature: τ > 0, a number, or a 0-d tensor or parameter, which then receives its gradient.
        ranking: "agreement" is the loss; "current" weighs by the rank now alone, $W_{ip} \propto 1 - \rho_{ip}/(m_i -
            1)$, whatever is cached; "uniform" is SupCon, bit for bit. For the drifts in ``last`` alone, "current" makes
            the cached ranks too, and "uniform" both, in the forward; `SupConLoss` has neither that cost nor the drifts.
        rank_level: "view" ranks the positives themselves. "sample" ranks their samples, by what is about to be cached
            of each, and a sample's weight is shared equally by its views among the positives; the anchor's own sample,
            if it has another view, is first in both ranks. An encoder that stands still then has drift exactly 0, where
            views of one sample differ from each other as its cached feature does not tell.
        **options: reduction, normalize, gather_distributed, backend; see `LossOptions`. Ranks are by cosine and
            features are normalised with ``normalize=False`` too.

    Attributes:
        cache: The `FeatureCache`, in buffers: ``cache.features``, ``cache.valid``.
        last: Beside what every loss notes, of all processes if gathered: ``"cache_hit_rate"``, which part of the
            batch's samples was cached; ``"weight_entropy"``, the mean of −Σ W log W over active anchors, in nats; and
            ``"rank_drift_mean"``, ``"rank_drift_std"`` and ``"rank_drift_histogram"``, counts in 10 equal bins of
            [0, 1], of the pairs of an anchor and a ranked positive whose class is cached whole, whatever the ranking.
            Without any such pair mean and deviation are 0, and so are the counts.

    Returns:
        From a call, see `forward`: the mean over active anchors, a scalar; with ``reduction="none"`` one loss for each
        row, (N,), 0 on inactive ones; of (B, V, D) the row of sample b's view v is v·B + b.

    Raises:
        ValueError: If num_samples or feature_dim is below 1, ranking or rank_level is none of those named, τ ≤ 0, or a
            call's input does not agree; see `forward`.

    Memory:
        O(N·D + num_samples·D + tile): ranks are made for some classes at a time, of a large class for some anchors. Up
        to 2²¹ weights are kept for the backward; more are made again. Sizes of classes are looked at on the CPU, which
        a GPU waits for.

    Source:
        A proposal without a publication; with "uniform" it is equation 2 (out) of Khosla et al., "Supervised
        Contrastive Learning", 2020. The sketch that proposed it breaks ties by position, writes a sample that occurs
        twice with either of its features, and multiplies the loss by τ/0.07; here it does none of these.

    Example:
        >>> import torch
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> criterion = RASCALLoss(num_samples=100, feature_dim=2, temperature=0.1)
        >>> criterion(embeddings, labels=torch.tensor([0, 0, 1, 1]), sample_index=torch.tensor([7, 42, 3, 99]))
        tensor(0.0003)
        >>> criterion.cache.valid.sum()
        tensor(4)
    """

    label_kinds = frozenset({"classes"})

    def __init__(
        self,
        num_samples: int,
        feature_dim: int,
        *,
        temperature: float | Tensor = 0.1,
        ranking: Ranking = "agreement",
        rank_level: RankLevel = "view",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(temperature, **options)
        if ranking not in get_args(Ranking):
            raise ValueError(f'ranking is "agreement", "current" or "uniform", got {ranking!r}; "agreement" is RASCAL')
        if rank_level not in get_args(RankLevel):
            raise ValueError(f'rank_level is "view" or "sample", got {rank_level!r}; "view" ranks the positives')
        self.ranking: Ranking = ranking
        self.rank_level: RankLevel = rank_level
        self.cache = FeatureCache(num_samples, feature_dim)

    def forward(
        self, embeddings: Float[Tensor, "..."], labels: Int[Tensor, " b"], sample_index: Int[Tensor, " b"]
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            embeddings: One view of each sample, (N, D), or V views, (B, V, D). B below is N for one view.
            labels: Class of each sample, any integers, (B,).
            sample_index: Index of each sample in the training set, integers within 0 … num_samples − 1, (B,).

        Raises:
            ValueError: If shapes or lengths disagree, embeddings are not finite or have other features than the cache,
                labels are no classes, or an index lies outside the cache (values are looked at on the CPU).
        """
        with self.checks(embeddings=embeddings, labels=labels, sample_index=sample_index):
            self._check(embeddings, labels, sample_index)
        rows = self.rows(embeddings)
        classes, index = (rows.of_anchors(of.to(rows.queries.device, torch.int64)) for of in (labels, sample_index))
        all_classes, all_index = rows.of_references(classes), rows.of_references(index)
        push = rows.not_self()
        positives = SameClass(classes, all_classes) & push
        samples, sample = torch.unique(index if all_index is None else all_index, return_inverse=True)
        features = self._features(rows, sample, len(samples))
        cached, valid = self.cache.read(samples)
        by_sample = self.rank_level == "sample"
        first = rows.reference_shards.offset
        ranks = RankWeights(
            classes if all_classes is None else all_classes,
            sample,
            slice(first, first + len(rows.queries)),
            current=_wide(features) if by_sample else self._unit(rows),
            cached=(_wide(cached), valid),
            ranking=self.ranking,
            by_sample=by_sample,
            dtype=rows.dtype,
        )
        pull = positives.mean_over_row() if self.ranking == "uniform" else ranks
        loss = self.evaluate(rows, pull=pull, push=push, positives=positives)
        self._note_ranks(ranks, valid)
        if self.training:
            self.cache.write(samples, features)
        return loss

    def facts(self) -> dict[str, str]:
        """Return what of the loss all ranks have in common, its cache and whether it is written among it."""
        shape = tuple(self.cache.features.shape)
        return super().facts() | {"cache": f"of shape {shape}", "training": str(self.training)}

    def _unit(self, rows: Rows) -> Float[Tensor, "r d"]:
        """Return the normalised references, outside differentiation."""
        return normalized(rows.references.detach())

    def _features(self, rows: Rows, sample: Int[Tensor, " r"], count: int) -> Float[Tensor, "s d"]:
        """Return what is to be cached of each sample: the normalised mean of its views, in the cache's dtype."""
        everyone = torch.arange(count, device=sample.device)
        total = Equal(everyone, sample).product(self._unit(rows).to(widest(sample.device)))  # in whatever order
        return normalized(total).to(self.cache.features.dtype)

    def _note_ranks(self, ranks: RankWeights, valid: Bool[Tensor, " s"]) -> None:
        """Add to `last` what the ranks and weights of the step were."""
        sums = distributed.total(ranks.sums()) if self.gathers else ranks.sums()
        histogram = sums[3:]
        mean, square = sums[1:3] / histogram.sum().clamp(min=1)
        self.last["cache_hit_rate"] = valid.sum() / max(len(valid), 1)
        self.last["weight_entropy"] = sums[0] / self.last["active_anchors"].clamp(min=1)
        self.last["rank_drift_mean"] = mean
        self.last["rank_drift_std"] = (square - mean.square()).clamp(min=0).sqrt()
        self.last["rank_drift_histogram"] = histogram.long()

    def _check(self, embeddings: Tensor, labels: Tensor, sample_index: Tensor) -> None:
        check_embeddings("embeddings", embeddings)
        check_classes("labels", labels, "embeddings", len(embeddings))
        self.cache.check_index(sample_index)
        size, features = self.cache.features.shape
        if embeddings.shape[-1] != features:
            raise ValueError(
                f"embeddings have the {features} features that the cache was made for, got {embeddings.shape[-1]}; "
                f"make RASCALLoss({size}, {embeddings.shape[-1]})"
            )
        if len(sample_index) != len(embeddings):
            raise ValueError(
                f"sample_index has one entry for each of {len(embeddings)} embeddings, got {len(sample_index)}; "
                "views of a sample share one"
            )
        if embeddings.device != sample_index.device:
            raise ValueError(
                f"embeddings lie on the device of the cache, {sample_index.device}, got {embeddings.device}; "
                "move the loss with .to"
            )


def _wide(features: Tensor) -> Tensor:
    return features.to(torch.promote_types(features.dtype, torch.float32))
