"""Novelty scores: how unlike the training data new features are, compared with held-out samples."""

from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.data.samples import some_rows
from likewise.evaluation.features import FeatureParts, joined
from likewise.evaluation.nearest import nearest
from likewise.evaluation.out_of_distribution import KEPT_PERCENT, neighbour_distances, neighbour_of

MAX_HELD_OUT = 1000  # held-out samples whose distances are measured: a share is then known to 1.4 points
UNLIKE_SHARE = KEPT_PERCENT / 100
ROUNDING = 1e-3  # of a feature that is computed again, of its length: in other batches, or on another device


@final
class NoveltyScore:
    """Score new samples by the share of held-out samples that is nearer to the training samples than they are.

        share = |{i held out: d_i < d}| / (H + 1),   d the distance to the k-th nearest training sample, or to the last

    Shares of samples like the training data are spread evenly, so that no more than 5 % of them are above 0.95. With
    fewer than 20 held-out samples none is. The distance is that of `OutOfDistribution`.

    Args:
        parts: Features of a run. Held out are those of the validation part, or, where it is empty or was learned from,
            of the test part; at most 1,000 of them, chosen at random.
        refit: Whether the validation part was learned from.
        seed: Seed of that choice.

    Raises:
        ValueError: There are no training or no held-out samples.

    Memory:
        The training features, and one tile of similarities.

    Source:
        Y. Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022; shares: V. Vovk, A. Gammerman
        and G. Shafer, Algorithmic Learning in a Random World, 2005.

    Example:
        >>> from likewise.evaluation import Features
        >>> near = Features(torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2]]), None)
        >>> NoveltyScore(FeatureParts(near, near, near))(torch.tensor([[-1.0, 0.0], [1.0, 0.1]])).tolist()
        [0.75, 0.0]
    """

    def __init__(self, parts: FeatureParts, *, refit: bool = False, seed: int = 0) -> None:
        train, validation, test = parts
        learned = joined(train, validation) if refit else train
        held_out = validation if len(validation) and not refit else test
        if not len(learned) or not len(held_out):
            got = f"got {len(learned)} and {len(held_out)}: evaluate embeddings with parts"
            raise ValueError(f"expected training and held-out samples, {got}")
        some = held_out.vectors[some_rows(len(held_out), MAX_HELD_OUT, seed)]
        self._train = learned.vectors.float()
        self._k = neighbour_of(learned)
        self._inside = neighbour_distances(some.float(), self._train, self._k).sort().values

    def __call__(self, vectors: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """Return the shares, (M,), float64."""
        return self.compared(vectors)[0]

    def compared(self, vectors: Float[Tensor, "m d"]) -> tuple[Float[Tensor, " m"], Bool[Tensor, " m"]]:
        """Return the shares, (M,), and which samples equal a training sample up to rounding, (M,)."""
        neighbours = [(values[:, -1], places[:, 0]) for _, values, places in nearest(vectors, self._train, self._k)]
        last, first = map(torch.cat, zip(*neighbours, strict=True)) if neighbours else (vectors[:, 0], torch.arange(0))
        apart = (vectors - self._train[first]).norm(dim=1)
        shares = torch.searchsorted(self._inside, 1 - last).double() / (len(self._inside) + 1)
        return shares, apart <= ROUNDING * vectors.norm(dim=1)
