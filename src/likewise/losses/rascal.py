"""RASCAL, rank-agreement supervised contrastive learning, and its pair weights from ranks."""

from typing import Annotated, Any, Literal, NamedTuple, Unpack, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise import distributed
from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.contrast_batch import ContrastBatch
from likewise.losses.inputs import Classes, Embeddings
from likewise.memory import FeatureCache
from likewise.operator import normalized
from likewise.operator.inputs import one_of, without_autocast
from likewise.pairs import Block, Equal, PairWeight, SameClass, WithinClass
from likewise.pairs.weight import widest

Ranking = Literal["agreement", "current", "uniform"]

BINS = 10
"""Number of equal bins in the histogram of drifts, from 0 to 1."""


def doubled_ranks(similarities: Float[Tensor, "*b m"], counts: Int[Tensor, "*b m"]) -> Int[Tensor, "*b m"]:
    r"""Return twice the average rank of each entry within its row, the most similar first, counting from 0.

    $$
    2 \rho_j = 2 \sum_{k : s_k > s_j} n_k + \sum_{k : s_k = s_j} n_k - 1
    $$

    Doubling makes the average ranks of ties integers; the multiplicities n are 0 for unranked entries.
    """
    ordered, order = _falling(similarities).sort(dim=-1)
    counts = counts.to(torch.int32).gather(-1, order)
    through = counts.cumsum(dim=-1, dtype=torch.int32)
    before = through - counts
    ties = ordered[..., 1:] == ordered[..., :-1]
    before[..., 1:].masked_fill_(ties, 0)
    before = before.cummax(dim=-1).values  # of the first in a tie
    through[..., :-1].masked_fill_(ties, torch.iinfo(torch.int32).max)
    through = through.flip(-1).cummin(dim=-1).values.flip(-1)  # of the last
    return torch.empty_like(counts).scatter_(-1, order, before.add_(through).sub_(1))


def _falling(values: Float[Tensor, "*b m"]) -> Int[Tensor, "*b m"]:
    """Return integers in the reverse order of the values: sorting them takes two thirds of the time."""
    integer, sign = (torch.int64, 63) if values.dtype == torch.float64 else (torch.int32, 31)
    bits = (values + 0.0).view(integer)  # −0.0 becomes 0.0
    return (bits ^ ((bits >> sign) & torch.iinfo(integer).max)).bitwise_not_()


@final
class RankWeights(WithinClass):
    r"""Weights of positives, larger the less their rank has moved since it was cached; every row sums to one.

    $$
    \text{drift}_{ir} = \frac{|\rho_{ir} - \rho'_{ir}|}{m_i - 1} \qquad
    w_{ir} = \frac{1 - \text{drift}_{ir}}{\sum_p (1 - \text{drift}_{ip})}
    $$

    where $\rho_{ir}$ is the average rank of r among the $m_i$ positives of anchor i by current cosine similarity, and
    $\rho'_{ir}$ its rank by the cached features of their samples. The weights are uniform if a sample of the class is
    not cached or the sum is zero. With "current", $w_{ir} \propto 1 - \rho_{ir} / (m_i - 1)$, independent of the cache;
    with "uniform", $1 / m_i$.

    With ``by_sample``, samples are ranked, and their views share their weights equally; an anchor's own sample is then
    first in both rankings, if it has another view. Memory: O(R + the features), one block, and up to `MAX_KEPT`
    weights; see `WithinClass`.
    """

    def __init__(
        self, classes: Int[Tensor, " r"], samples: Int[Tensor, " r"], anchors: slice, *, current: Float[Tensor, "_ d"],
        cached: tuple[Float[Tensor, "s d"], Bool[Tensor, " s"]], ranking: Ranking, by_sample: bool,
        uniform: PairWeight, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        # An entry is one sample within one class; the entries of a class have consecutive numbers.
        count = int(samples.max()) + 1 if len(samples) else 1
        classes = torch.unique(classes, return_inverse=True)[1]
        entries, self.entries, self.counts = torch.unique(
            classes * count + samples, return_inverse=True, return_counts=True
        )
        self.samples = entries % count
        super().__init__(classes[anchors], classes, entries // count, uniform=uniform)
        self.first, self.active = anchors.start, (torch.bincount(classes)[classes] > 1)[anchors]
        self.current, self.cached, self.dtype = current, cached, dtype
        self.ranking: Ranking = ranking
        self.by_sample = by_sample

    def statistics(self) -> tuple[Float[Tensor, " t"], Float[Tensor, "2 n"]]:
        """Return statistics of all anchors, from a pass over the blocks, whose weights are kept if they are few.

        The first tensor holds the sums of the weights' entropy, of the drifts and of their squares, and the histogram
        of drifts; the second, each anchor's sum and number of drifts: 0 if its class is not completely cached.
        """
        wide, device = widest(self.current.device), self.current.device
        sums = torch.zeros(3 + BINS, dtype=wide, device=device)
        drifts = sums.new_zeros(2, self.shape[0])
        with without_autocast(device):
            for k, block in enumerate(self._blocks()):
                ranked = self._ranked(block)
                self._keep(k, ranked.weights)
                of_block, drifts[:, block.members[0]] = ranked.counted()
                sums += of_block
        return sums, drifts

    def weights(self, block: Block) -> Float[Tensor, "g n m"]:
        """Return each anchor's weights from the ranks within its class; recomputing a block gives the same weights."""
        return self._ranked(block).weights

    def _ranked(self, block: Block) -> "_Ranked":
        positives = self._positives(block)
        ranked = (positives.views > 0 if self.by_sample else positives.inside).int()
        now, moved, warm = self._ranks(positives, ranked)
        span = ranked.sum(dim=2, keepdim=True, dtype=torch.int32).sub_(1).clamp_(min=0).mul_(2)
        taken = {"agreement": moved, "current": now, "uniform": span}[self.ranking]
        shares = (span - taken) * ranked
        uniform = shares.sum(dim=2, keepdim=True) == 0
        if self.ranking == "agreement":
            uniform |= ~warm
        shares = torch.where(uniform, positives.views if self.by_sample else ranked, shares)
        weights = shares.to(self.dtype).div_(shares.sum(dim=2, keepdim=True).clamp_(min=1))
        if self.by_sample:
            weights = positives.by_view(weights.div_(positives.views.clamp(min=1))).mul_(positives.inside)
        return _Ranked(weights, moved, span, (ranked > 0) & warm)

    def positives(self, block: Block) -> Bool[Tensor, "g n m"]:
        """Return the mask of references other than the anchor itself."""
        anchors, references, _ = block.members
        return references[:, None] != anchors[:, :, None] + self.first

    def _positives(self, block: Block) -> "_Positives":
        anchors, references, entries = block.members
        anchors = anchors + self.first
        home, reference_home = (self.entries[members] - entries[:, :1] for members in (anchors, references))
        counts = self.counts[entries]
        one_hot = home[:, :, None] == torch.arange(entries.shape[1], device=entries.device)
        return _Positives(
            anchors=anchors,
            references=references,
            inside=self.positives(block),
            samples=self.samples[entries],
            counts=counts,
            home=home,
            place=reference_home,
            views=counts[:, None] - one_hot.int(),
        )

    def _ranks(
        self, positives: "_Positives", ranked: Int[Tensor, "g n _"]
    ) -> tuple[Int[Tensor, "g n _"], Int[Tensor, "g n _"], Bool[Tensor, "g _ _"]]:
        """Return twice the current ranks, twice their moves, and whether the class is completely cached."""
        if self.by_sample:
            now = self._ranks_of_samples(self.current, positives)
        else:
            now = doubled_ranks(self.current[positives.anchors] @ self.current[positives.references].mT, ranked)
        features, valid = self.cached
        before = self._ranks_of_samples(features, positives)
        warm = valid[positives.samples].all(dim=1)[:, None, None]
        before = before if self.by_sample else positives.by_view(before)
        return now, before.sub_(now).abs_(), warm

    def _ranks_of_samples(self, features: Float[Tensor, "s d"], positives: "_Positives") -> Int[Tensor, "g n s"]:
        """Return twice the ranks of the class's samples for each anchor, computed per sample if samples are fewer."""
        everyone = torch.arange(positives.samples.shape[1], device=positives.samples.device)
        fewer = len(everyone) < positives.home.shape[1]
        home = everyone.expand_as(positives.samples) if fewer else positives.home
        one_hot = home[:, :, None] == everyone
        views = positives.counts[:, None] - one_hot.int()
        similarities = features[positives.samples.gather(1, home)] @ features[positives.samples].mT
        if self.by_sample:
            views = views > 0
            similarities.masked_fill_(one_hot, torch.inf)
        ranks = doubled_ranks(similarities, views)
        return ranks.gather(1, positives.home[:, :, None].expand_as(positives.views)) if fewer else ranks

    def _support(self, device: torch.device) -> Tensor:
        return self.active.to(device)

    def _row_sum(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.active.to(device, dtype)


class _Ranked(NamedTuple):
    weights: Float[Tensor, "g n m"]
    moved: Int[Tensor, "g n _"]
    """Twice the distance that each rank has moved."""
    span: Int[Tensor, "g n 1"]
    """Twice the largest rank."""
    known: Bool[Tensor, "g n _"]
    """Whether a rank belongs to a positive of a completely cached class."""

    def counted(self) -> tuple[Float[Tensor, " t"], Float[Tensor, "2 g n"]]:
        wide, span, known = widest(self.weights.device), self.span.clamp(min=1), self.known
        entropy = torch.special.entr(self.weights).sum(dtype=wide)
        drift = (self.moved / span).mul_(known)
        bins = (self.moved * BINS).div_(span, rounding_mode="floor").clamp_(max=BINS - 1).masked_fill_(~known, BINS)
        of_anchor = drift.sum(dim=2, dtype=wide)
        sums = torch.stack([entropy, of_anchor.sum(), drift.square_().sum(dtype=wide)])
        histogram = torch.bincount(bins.flatten(), minlength=BINS + 1)[:BINS].to(wide)
        return torch.cat([sums, histogram]), torch.stack([of_anchor, known.sum(dim=2).to(wide)])


class _Positives(NamedTuple):
    """The positives of a block of G classes with N anchors, M references and S samples each, and their samples."""

    anchors: Int[Tensor, "g n"]
    """Index of each anchor among the references."""
    references: Int[Tensor, "g m"]
    inside: Bool[Tensor, "g n m"]
    """Whether a reference is a positive, that is, not the anchor itself."""
    samples: Int[Tensor, "g s"]
    """Samples of the class."""
    counts: Int[Tensor, "g s"]
    """Number of references that are views of each sample."""
    home: Int[Tensor, "g n"]
    """Index, in `samples`, of each anchor's sample."""
    place: Int[Tensor, "g m"]
    """Index, in `samples`, of each reference's sample."""
    views: Int[Tensor, "g n s"]
    """Number of an anchor's positives that are views of each sample."""

    def by_view(self, values: Tensor) -> Tensor:
        return values.gather(2, self.place[:, None].expand(self.inside.shape))


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
            it has another view, is first in both rankings. An unchanged encoder then has drift exactly 0; with "view"
            it need not, since the views of a sample differ but share one cached feature.
        persistent_cache: Whether checkpoints include the cache: a resumed training then matches an uninterrupted one
            bit for bit. Without it, the cache is empty after resuming, and weights are uniform for an epoch.
        **options: See `LossOptions`. Ranks always use the cosine, and cached features are always normalised.

    Attributes:
        cache: The `FeatureCache`, in buffers: ``cache.features``, ``cache.valid``.
        last: In addition to the statistics of every loss, over all processes if gathered: ``"cache_hit_rate"``, the
            share of the batch's samples found in the cache; ``"weight_entropy"``, the mean of −Σ W log W over active
            anchors, in nats; and ``"rank_drift_mean"``, ``"rank_drift_std"`` and ``"rank_drift_histogram"``, counts in
            10 equal bins of [0, 1]. The drifts cover all pairs of an anchor and a ranked positive whose class is
            completely cached, with any ranking; without such pairs, all three are 0. ``"rank_drift_by_anchor"``, (2,
            N), holds the sum and the number of drifts of each of this process's anchors.

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
        self, num_samples: int, feature_dim: int, *, temperature: Temperature = 0.1, ranking: Ranking = "agreement",
        rank_level: RankLevel = "view", persistent_cache: bool = True, **options: Unpack[LossOptions],
    ) -> None:  # fmt: skip
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
        wide = torch.promote_types(cached.dtype, torch.float32)
        by_sample = self.rank_level == "sample"
        first = rows.reference_shards.offset
        uniform = positives.mean_over_row()
        ranks = RankWeights(
            classes if all_classes is None else all_classes,
            sample,
            slice(first, first + len(rows.queries)),
            current=features.to(wide) if by_sample else self._unit(rows),
            cached=(cached.to(wide), valid),
            ranking=self.ranking,
            by_sample=by_sample,
            uniform=uniform,
            dtype=rows.dtype,
        )
        pull = uniform if self.ranking == "uniform" else ranks
        sums, drifts = ranks.statistics()
        loss = self.evaluate(rows, pull=pull, push=push, positives=positives)
        self._note_ranks(distributed.total(sums) if self.gathers else sums, valid)
        self.last["rank_drift_by_anchor"] = drifts
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

    def _note_ranks(self, sums: Float[Tensor, " t"], valid: Bool[Tensor, " s"]) -> None:
        histogram = sums[3:]
        mean, square = sums[1:3] / histogram.sum().clamp(min=1)
        self.last["cache_hit_rate"] = valid.sum() / max(len(valid), 1)
        self.last["weight_entropy"] = sums[0] / self.last["active_anchors"].clamp(min=1)
        self.last["rank_drift_mean"] = mean
        self.last["rank_drift_std"] = (square - mean.square()).clamp(min=0).sqrt()
        self.last["rank_drift_histogram"] = histogram.long()

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise unless the sample indices and the number of features fit the cache."""
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
