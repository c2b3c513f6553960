"""RASCAL, rank-agreement supervised contrastive learning: positives whose rank has not moved pull more."""

from typing import Annotated, Any, Literal, Unpack, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise import distributed
from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.contrast_batch import ContrastBatch
from likewise.losses.inputs import Classes, Embeddings
from likewise.losses.ranks import Ranking, RankWeights, Statistics
from likewise.memory import FeatureCache
from likewise.operator import normalized
from likewise.operator.inputs import one_of
from likewise.pairs import Equal, SameClass
from likewise.pairs.weight import widest

RankLevel = Literal["view", "sample"]


@final
class RASCALLoss(ContrastiveLoss):
    r"""RASCAL: SupCon that gives a positive more weight the less its rank has moved since it was last seen.

    $$
    \ell_i = \log \sum_{u \ne i} e^{z_i \cdot z_u / \tau} - \sum_{p \in P(i)} W_{ip} \, z_i \cdot z_p / \tau
    \qquad
    W_{ip} = \frac{1 - \text{drift}_{ip}}{\sum_q (1 - \text{drift}_{iq})}
    \qquad
    \text{drift}_{ip} = \frac{|\rho_{ip} - \rho'_{ip}|}{m_i - 1}
    $$

    With P(i) the $m_i$ other rows of anchor i's class, $\rho_{ip}$ is the rank of p among them by its current cosine
    similarity to i, and $\rho'_{ip}$ its rank by the cached features of their samples; ties get their average rank. A
    single positive has drift 0. The weights are treated as constants in the gradient.

    They are uniform, SupCon's $1/m_i$, if the anchor or any positive has no cached feature, or if all drifts are 1.
    An anchor without positives is inactive, as in SupCon.

    The cached feature of a sample is the L2-normalised mean of its normalised views in the batch, including all
    occurrences of its index. The cache is read before it is written, and written only in training mode, with any
    ranking. If gathered, it is written from the rows of all processes, so that every process holds the same cache. If
    not gathered but inside DistributedDataParallel, rank 0's cache overwrites those of the other ranks at every
    forward, unless the wrapper is created with ``broadcast_buffers=False``: use ``gather_distributed=True`` instead.

    Args:
        num_samples: Size of the training set; sample indices are below it.
        feature_dim: Number of features D of an embedding.
        ranking: "agreement" is the loss; "current" weights by the current rank only, $W_{ip} \propto 1 - \rho_{ip}/(m_i
            - 1)$, independent of the cache; "uniform" is SupCon, bit for bit. Only to report the drifts in ``last``,
            "current" also computes the cached ranks, and "uniform" both; `SupConLoss` avoids that cost.
        rank_level: "view" ranks the positives themselves. "sample" ranks their samples, by the features about to be
            cached, and the positives that are views of one sample share its weight equally; the anchor's own sample, if
            it has another view, is first in both rankings. An encoder that does not change then has drift exactly 0;
            with "view" it need not, since the views of a sample differ but share one cached feature.
        persistent_cache: Whether a checkpoint has the cache, so that a resumed training ends bit for bit as an
            uninterrupted one. Without it the cache is empty after a resumption, and weights uniform for an epoch.
        **options: See `LossOptions`. Ranks always use the cosine, and cached features are always normalised.

    Attributes:
        cache: The `FeatureCache`, in buffers: ``cache.features``, ``cache.valid``.
        last: In addition to the statistics of every loss, over all processes if gathered: ``"cache_hit_rate"``, the
            share of the batch's samples that were cached; ``"weight_entropy"``, the mean of −Σ W log W over active
            anchors, in nats; and ``"rank_drift_mean"``, ``"rank_drift_std"`` and ``"rank_drift_histogram"``, counts in
            10 equal bins of [0, 1]. The drifts are those of all pairs of an anchor and a ranked positive whose class is
            completely cached, with any ranking; without such pairs, all three are 0. ``"rank_drift_by_anchor"``, (2,
            N), has the sum of the drifts of each of this process's anchors, and how many there are.

    Memory:
        O(N·D + num_samples·D + tile): ranks are computed for a few classes at a time, and in a large class for a few
        anchors. Up to 2²¹ weights are kept for the backward, twice; if there are more, they are recomputed. Class sizes
        are read on the CPU, which synchronises with a GPU.

    Source:
        An unpublished proposal; with "uniform" it is equation 2 (out) of Khosla et al., "Supervised Contrastive
        Learning", 2020.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> criterion = RASCALLoss(num_samples=100, feature_dim=2, temperature=0.1)
        >>> criterion(embeddings, labels=torch.tensor([0, 0, 1, 1]), sample_index=torch.tensor([7, 42, 3, 99]))
        tensor(0.0003)
    """

    label_kinds = frozenset({"classes"})

    def __init__(
        self,
        num_samples: int,
        feature_dim: int,
        *,
        temperature: Temperature = 0.1,
        ranking: Ranking = "agreement",
        rank_level: RankLevel = "view",
        persistent_cache: bool = True,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(temperature, **options)
        self.ranking: Ranking = one_of("ranking", ranking, Ranking)
        self.rank_level: RankLevel = one_of("rank_level", rank_level, RankLevel)
        self.cache = FeatureCache(num_samples, feature_dim, persistent=persistent_cache)

    def forward(
        self,
        embeddings: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, " b"], Classes("embeddings")],
        sample_index: Int[Tensor, " b"],
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            embeddings: One view of each sample, (N, D), or V views, (B, V, D). B below is N for one view.
            labels: Class of each sample, any integers, (B,).
            sample_index: Index of each sample in the training set, integers from 0 to num_samples − 1, (B,).
        """
        rows = self.rows(embeddings)
        classes, index = (rows.of_anchors(ids.to(rows.queries.device, torch.int64)) for ids in (labels, sample_index))
        all_classes, all_index = rows.of_references(classes), rows.of_references(index)
        push = rows.not_self()
        positives = SameClass(classes, all_classes, offset=rows.place) & push
        samples, sample = torch.unique(index if all_index is None else all_index, return_inverse=True)
        features = self._features(rows, sample, len(samples))
        cached, valid = self.cache.read(samples)
        by_sample = self.rank_level == "sample"
        first = rows.reference_shards.offset
        uniform = positives.mean_over_row()
        ranks = RankWeights(
            classes if all_classes is None else all_classes,
            sample,
            slice(first, first + len(rows.queries)),
            current=_wide(features) if by_sample else self._unit(rows),
            cached=(_wide(cached), valid),
            ranking=self.ranking,
            by_sample=by_sample,
            uniform=uniform,
            dtype=rows.dtype,
        )
        pull = uniform if self.ranking == "uniform" else ranks
        statistics = ranks.statistics()
        loss = self.evaluate(rows, pull=pull, push=push, positives=positives)
        self._note_ranks(statistics, valid)
        if self.training:
            self.cache.write(samples, features)
        return loss

    def facts(self) -> dict[str, str]:
        """Return the settings that must be the same on all ranks, including the cache and whether it is written."""
        shape = tuple(self.cache.features.shape)
        return super().facts() | {"cache": f"of shape {shape}", "training": str(self.training)}

    def _unit(self, rows: ContrastBatch) -> Float[Tensor, "r d"]:
        return normalized(rows.references.detach())

    def _features(self, rows: ContrastBatch, sample: Int[Tensor, " r"], count: int) -> Float[Tensor, "s d"]:
        """Return the feature to cache for each sample: the normalised mean of its views, in the cache's dtype."""
        everyone = torch.arange(count, device=sample.device)
        total = Equal(everyone, sample).product(self._unit(rows).to(widest(sample.device)))  # independent of order
        return normalized(total).to(self.cache.features.dtype)

    def _note_ranks(self, statistics: Statistics, valid: Bool[Tensor, " s"]) -> None:
        sums = distributed.total(statistics.sums) if self.gathers else statistics.sums
        histogram = sums[3:]
        mean, square = sums[1:3] / histogram.sum().clamp(min=1)
        self.last["cache_hit_rate"] = valid.sum() / max(len(valid), 1)
        self.last["weight_entropy"] = sums[0] / self.last["active_anchors"].clamp(min=1)
        self.last["rank_drift_mean"] = mean
        self.last["rank_drift_std"] = (square - mean.square()).clamp(min=0).sqrt()
        self.last["rank_drift_histogram"] = histogram.long()
        self.last["rank_drift_by_anchor"] = statistics.drifts

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise unless indices and features are those of the cache."""
        embeddings, sample_index = inputs["embeddings"], inputs["sample_index"]
        self.cache.check_index(sample_index)
        size, features = self.cache.features.shape
        if embeddings.shape[-1] != features:
            expected = f"expected embeddings to have the cache's {features} features, got {embeddings.shape[-1]}"
            raise ValueError(f"{expected}: use RASCALLoss({size}, {embeddings.shape[-1]})")
        if len(sample_index) != len(embeddings):
            expected = f"expected sample_index to have one entry for each of {len(embeddings)} embeddings"
            raise ValueError(f"{expected}, got {len(sample_index)}: the views of a sample share one index")
        if embeddings.device != sample_index.device:
            expected = f"expected embeddings on the device of the cache, {sample_index.device}"
            raise ValueError(f"{expected}, got {embeddings.device}: move the loss with .to")


def _wide(features: Tensor) -> Tensor:
    return features.to(torch.promote_types(features.dtype, torch.float32))
