"""Pair weights from the ranks of an anchor's positives, by current similarity and by that of cached features."""

from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.operator.inputs import without_autocast
from likewise.pairs import Block, PairWeight, WithinClass
from likewise.pairs.weight import widest

Ranking = Literal["agreement", "current", "uniform"]

BINS = 10
"""Number of equal bins in the histogram of drifts, from 0 to 1."""


def doubled_ranks(similarities: Float[Tensor, "*b m"], counts: Int[Tensor, "*b m"]) -> Int[Tensor, "*b m"]:
    r"""Return twice the average rank of each entry within its row, the most similar first, counting from 0.

    $$
    2 \rho_j = 2 \sum_{k : s_k > s_j} n_k + \sum_{k : s_k = s_j} n_k - 1
    $$

    Doubling makes the average ranks of ties integers; n, the multiplicities, are 0 for entries that are not ranked.
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

    Ranks are of samples with ``by_sample``, whose weights are shared equally by their views; an anchor's own sample is
    then first in both, if it has another view. Memory: O(R + the features), one block, and up to `MAX_KEPT` weights;
    see `WithinClass`.
    """

    def __init__(
        self,
        classes: Int[Tensor, " r"],
        samples: Int[Tensor, " r"],
        anchors: slice,
        *,
        current: Float[Tensor, "_ d"],
        cached: tuple[Float[Tensor, "s d"], Bool[Tensor, " s"]],
        ranking: Ranking,
        by_sample: bool,
        uniform: PairWeight,
        dtype: torch.dtype,
    ) -> None:
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

    def statistics(self) -> "Statistics":
        """Return the statistics of all anchors, from a pass over the blocks; their weights are kept if they are few."""
        wide, device = widest(self.current.device), self.current.device
        sums = torch.zeros(3 + BINS, dtype=wide, device=device)
        drifts = sums.new_zeros(2, len(self.active))
        with without_autocast(device):
            for k, block in enumerate(self._blocks()):
                ranked = self._ranked(block)
                self._keep(k, ranked.weights)
                of_block, drifts[:, block.members[0]] = ranked.counted()
                sums += of_block
        return Statistics(sums, drifts)

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
        """Return which references are not the anchor itself."""
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
        """Return twice the current ranks, twice how far they moved, and whether the class is completely cached."""
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
        """Return twice the ranks of the class's samples for each anchor, computed per sample if those are fewer."""
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


class Statistics(NamedTuple):
    """Statistics of the ranks of a step."""

    sums: Float[Tensor, " t"]
    """The sums of the weights' entropy, of the drifts and of their squares, and the drifts in each bin."""
    drifts: Float[Tensor, "2 n"]
    """Each anchor's sum of drifts, and how many there are: 0 where its class is not completely cached."""


class _Ranked(NamedTuple):
    weights: Float[Tensor, "g n m"]
    moved: Int[Tensor, "g n _"]
    """Twice how far each rank has moved."""
    span: Int[Tensor, "g n 1"]
    """Twice the largest rank."""
    known: Bool[Tensor, "g n _"]
    """Whether a rank is that of a positive, of a completely cached class."""

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
    """Index, in `samples`, of the sample that each anchor is a view of."""
    place: Int[Tensor, "g m"]
    """Index, in `samples`, of the sample that each reference is a view of."""
    views: Int[Tensor, "g n s"]
    """Number of an anchor's positives that are views of each sample."""

    def by_view(self, values: Tensor) -> Tensor:
        return values.gather(2, self.place[:, None].expand(self.inside.shape))
