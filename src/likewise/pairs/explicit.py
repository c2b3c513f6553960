"""Pair weights from a matrix, from lists of references, and from vectors."""

from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.pairs.expressions import Filled, PairWeight
from likewise.pairs.form import EVERYTHING, ClosedForm, Term, ThinProduct
from likewise.pairs.keys import Keys
from likewise.pairs.weight import all_tiles, check_tensor


@final
class Explicit(PairWeight):
    """Any matrix of weights, w[i, r] = weights[rows[i], columns[r]].

    Args:
        weights: The matrix, boolean or numeric; constant under differentiation.
        rows: Row of the matrix for each anchor, integers, shape (N,); None: each row once. Thus a (B, B) matrix of
            samples covers V views of each without a copy.
        columns: Column of the matrix for each reference, integers, shape (R,); None: each column once.

    Memory:
        The matrix itself, and O(N + R).

    Example:
        >>> views = torch.tensor([0, 1, 0, 1])
        >>> Explicit(torch.eye(2, dtype=torch.bool), rows=views, columns=views).row_sum()
        tensor([2., 2., 2., 2.])
    """

    def __init__(
        self,
        weights: Float[Tensor, "b c"] | Int[Tensor, "b c"] | Bool[Tensor, "b c"],
        rows: Int[Tensor, " n"] | None = None,
        columns: Int[Tensor, " r"] | None = None,
    ) -> None:
        try:
            weights = torch.as_tensor(weights)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"expected weights as a matrix of numbers, got {type(weights).__name__}") from error
        if weights.requires_grad:
            raise ValueError("expected weights without gradient, got a tensor that requires a gradient: .detach() it")
        if weights.ndim != 2:
            raise ValueError(f"expected weights as a matrix (anchors, references), got shape {tuple(weights.shape)}")
        self.weights = weights
        self._version = _version(weights)
        self.rows = _index(rows, weights.shape[0], "rows")
        shared = columns is rows and rows is not None
        self.columns = self.rows if shared else _index(columns, weights.shape[1], "columns")
        is_set, is_nonnegative, is_within_one = _look(weights)
        mirrors = self.rows is self.columns and weights.device.type == "cpu"  # on a GPU the check would wait
        lists = zip((self.rows, self.columns), weights.shape, strict=True)
        n, r = (length if index is None else len(index) for index, length in lists)
        super().__init__(
            (n, r),
            is_set=is_set,
            is_nonnegative=is_nonnegative,
            symmetric_at=0 if mirrors and torch.equal(weights, weights.T) else None,
        )
        self.is_within_one = is_within_one

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        tile = self._unchanged()[rows if self.rows is None else self.rows[rows]]
        tile = tile[:, columns if self.columns is None else self.columns[columns]]
        return tile.to(device, dtype, copy=True)

    def form(self) -> ClosedForm | None:
        indexed = self.rows is not None or self.columns is not None
        return None if indexed else (Term(EVERYTHING, matrices=(self._unchanged,)),)

    def _unchanged(self) -> Tensor:
        if _version(self.weights) != self._version:
            raise RuntimeError("expected unchanged weights, got a matrix that was changed in place: pass a clone of it")
        return self.weights


class Listed(Filled):
    """The pairs of each anchor with the references in its list, O(N·K) pairs in all.

    ``index``, shape (K, N), lists K different references for each anchor; R, the number ``references``, means none.
    """

    is_sparse = True

    def __init__(self, index: Int[Tensor, "k n"], references: int) -> None:
        super().__init__((index.shape[1], references), is_set=True, is_nonnegative=True, symmetric_at=None)
        self.index = index.T.contiguous()

    def fill(self, out: Tensor, rows: slice, columns: slice) -> None:
        self.add(out.zero_(), rows, columns, out.new_ones(()))

    def add(self, out: Tensor, rows: slice, columns: slice, values: Tensor) -> None:
        """Add each anchor's value to its pairs in a tile."""
        index, inside = self._within(out, rows, columns)
        out.scatter_add_(1, index, inside * values.unsqueeze(-1))

    def sums(self, x: Tensor, rows: slice, columns: slice) -> Tensor:
        """Return the sum of a tile's values over the pairs of each anchor."""
        index, inside = self._within(x, rows, columns)
        return x.gather(1, index).mul_(inside).sum(dim=1)

    def _within(self, tile: Tensor, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """Return the listed references as columns of a tile, and 1 for columns within the tile, else 0."""
        index = self.index[rows].to(tile.device) - columns.start
        inside = (index >= 0) & (index < tile.shape[1])
        return index.clamp_(0, tile.shape[1] - 1), inside.to(tile.dtype)

    def product(self, references: Tensor) -> Tensor:
        return self._summed(references, transpose=False)

    def transposed_product(self, anchors: Tensor) -> Tensor:
        return self._summed(anchors, transpose=True)

    def _summed(self, values: Tensor, *, transpose: bool) -> Tensor:
        """Sum over equal keys, one list entry after another: always in the same order."""
        everyone = torch.arange(self.shape[1], device=self.index.device)
        result = values.new_zeros(self.shape[1] if transpose else self.shape[0], values.shape[1])
        for index in self.index.unbind(dim=1):
            keys = Keys(index, everyone)
            result += (keys.transposed if transpose else keys).sum(values)
        return result

    def _row_sum(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return (self.index < self.shape[1]).sum(dim=1).to(device, dtype)


def _version(weights: Tensor) -> int:
    """Return how often a tensor was changed in place; torch does not count this for inference tensors."""
    return 0 if weights.is_inference() else weights._version  # noqa: SLF001 - torch has no public name for it


def _look(weights: Tensor) -> tuple[bool, bool, bool]:
    """Return whether weights are a set, non-negative, within [0, 1]; on a GPU numbers are assumed to be ≥ 0."""
    if weights.dtype == torch.bool:
        return True, True, True
    if weights.device.type != "cpu":
        return False, True, False
    if not torch.isfinite(weights).all():
        raise ValueError("expected finite weights, got NaN or infinity: mask such pairs with 0")
    nonnegative = bool((weights >= 0).all())
    return bool(((weights == 0) | (weights == 1)).all()), nonnegative, nonnegative and bool((weights <= 1).all())


def _index(index: Tensor | None, length: int, name: str) -> Tensor | None:
    if index is None:
        return None
    if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise ValueError(f"expected {name} as a vector of integers, got {index.dtype} of shape {tuple(index.shape)}")
    if index.device.type == "cpu" and len(index) and not (index.min() >= 0 and index.max() < length):
        raise ValueError(f"expected {name} from 0 to {length - 1}, got {int(index.min())} to {int(index.max())}")
    return index.long()


@final
class Hardest(Listed):
    """The k most similar references of each anchor, chosen from a set of pairs.

    Args:
        queries: Rows of the anchors, (N, D), whose inner products are the similarities; detached here.
        among: The set of pairs to choose from, (N, R).
        k: Number of references for each anchor; fewer if it has fewer pairs.
        references: Rows of the references, (R, D); None: the anchors'.
        farthest: Choose the least similar instead: the hardest positives.

    Attributes:
        similarities: The pairs' similarities, the hardest first, (N, k); −∞ (or +∞, if farthest) for missing pairs.

    Memory:
        O((N + R)·D + N·k + tile): similarities are computed once, tile by tile.

    Example:
        >>> from likewise import pairs
        >>> z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> Hardest(z, pairs.NotSelf(3)).similarities.flatten()
        tensor([0.8000, 0.8000, 0.6000])
    """

    def __init__(
        self, queries: Float[Tensor, "n d"], among: PairWeight, k: int = 1, *,
        references: Float[Tensor, "r d"] | None = None, farthest: bool = False,
    ) -> None:  # fmt: skip
        z, v = (vectors.detach() for vectors in checked_vectors(queries, references, "queries"))
        if not isinstance(k, int) or k < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"expected k to be an integer of at least 1, got {k!r}")
        known = isinstance(among, PairWeight)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not known or among.shape != (len(z), len(v)) or not among.is_set:
            got = among if known else type(among).__name__
            expected = f"a set of pairs (weights 0 and 1) of {len(z)} anchors and {len(v)} references"
            raise ValueError(f"expected among to be {expected}, got {got}: build a set with likewise.pairs")
        highest, index = z.new_full((len(z), k), -torch.inf), torch.full((len(z), k), len(v), device=z.device)
        sign, everyone = -1 if farthest else 1, torch.arange(len(v), device=z.device)
        with torch.autocast(z.device.type, enabled=False):
            for rows, columns in all_tiles(among.shape):
                s = (z[rows] @ v[columns].T).mul_(sign)
                s.masked_fill_(among.tile(rows, columns, s.dtype, s.device) == 0, -torch.inf)
                highest[rows], best = torch.cat([highest[rows], s], dim=1).topk(k)
                index[rows] = torch.cat([index[rows], everyone[columns].expand(s.shape)], dim=1).gather(1, best)
        super().__init__(index.masked_fill_(highest == -torch.inf, len(v)).T, len(v))
        self.similarities = sign * highest


@final
class LowRank(PairWeight):
    r"""The product of a vector of the anchor and one of the reference, $w_{ir} = a_i \cdot b_r$.

    Two rows of class probabilities give the probability of a common class: a pull from soft labels, or from a teacher.

    Args:
        anchors: a, floating, shape (N, K); it receives a gradient if it requires one, as does b.
        references: b, floating, shape (R, K); None: the anchors are the references, with the same vectors.

    Memory:
        O((N + R)·K), with gradients too; a product with references (R, D) takes O((N + R)·K·D) time.

    Example:
        >>> LowRank(torch.tensor([[1.0, 0.0], [0.25, 0.75]])).dense()
        tensor([[1.0000, 0.2500],
                [0.2500, 0.6250]])
    """

    within_tiles = False

    def __init__(self, anchors: Float[Tensor, "n k"], references: Float[Tensor, "r k"] | None = None) -> None:
        self.anchors, self.references = checked_vectors(anchors, references)
        seen = anchors.device.type == "cpu"  # elsewhere weights are assumed to be ≥ 0, as for `Explicit`
        positive = not seen or (bool((self.anchors >= 0).all()) and bool((self.references >= 0).all()))
        symmetric = 0 if references is None else None
        shape = len(self.anchors), len(self.references)
        super().__init__(shape, is_set=False, is_nonnegative=positive, symmetric_at=symmetric)
        self.is_learned = self.anchors.requires_grad or self.references.requires_grad

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.anchors[rows].to(device, dtype) @ self.references[columns].to(device, dtype).T

    def product(self, references: Float[Tensor, "r d"]) -> Float[Tensor, "n d"]:
        return self.anchors.to(references) @ (self.references.to(references).T @ references)

    def transposed_product(self, anchors: Float[Tensor, "n d"]) -> Float[Tensor, "r d"]:
        return self.references.to(anchors) @ (self.anchors.to(anchors).T @ anchors)

    def form(self) -> ClosedForm:
        return (Term(EVERYTHING, overlaps=(ThinProduct(self.anchors, self.references, "as it is"),)),)


@final
class Below(PairWeight):
    r"""The set of pairs whose similarity according to a guide is at most the anchor's limit, $a_i \cdot b_r \le t_i$.

    A guide's vectors identify probable false negatives. GISTEmbed leaves out the references that the guide finds more
    similar to the query than the query's own key, less a margin:

    ``Below(guide_queries, guide_keys, limits=(guide_queries * guide_keys).sum(dim=1) - margin) | own``

    Args:
        anchors: a, the guide's vectors, floating, shape (N, K); normalised if similarities are to be cosines.
        references: b, floating, shape (R, K); None: the anchors are the references, with the same vectors.
        limits: t, one for each anchor, shape (N,).

    Memory:
        O((N + R)·K).

    Source:
        Solatorio, "GISTEmbed: Guided In-sample Selection of Training Negatives for Text Embedding Fine-tuning", 2024.

    Example:
        >>> guide = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> Below(guide, limits=torch.tensor([0.5, 0.7, 0.7])).dense()
        tensor([[0., 0., 1.],
                [0., 0., 1.],
                [1., 1., 0.]])
    """

    def __init__(
        self, anchors: Float[Tensor, "n k"], references: Float[Tensor, "r k"] | None = None, *,
        limits: Float[Tensor, " n"],
    ) -> None:  # fmt: skip
        self.anchors, self.references = checked_vectors(anchors, references)
        shape = limits.shape if isinstance(limits, Tensor) else type(limits).__name__  # pyright: ignore[reportUnnecessaryIsInstance]
        if shape != anchors.shape[:1]:
            raise ValueError(f"expected limits as a tensor, one for each of {len(anchors)} anchors, got {shape}")
        if limits.device.type == "cpu" and limits.isnan().any():
            raise ValueError("expected limits that are numbers or infinite, got NaN")
        if anchors.requires_grad or self.references.requires_grad or limits.requires_grad:
            message = "expected a guide without gradient, as a set of pairs has none, got one that requires it"
            raise ValueError(f"{message}: .detach() it, or weigh pairs by a sigmoid, in a pair weight of your own")
        self.limits = limits
        super().__init__((len(self.anchors), len(self.references)), is_set=True, is_nonnegative=True, symmetric_at=None)

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        similarities = self.anchors[rows].to(device) @ self.references[columns].to(device).T
        return (similarities <= self.limits[rows, None].to(similarities)).to(dtype)


def checked_vectors(anchors: Tensor, references: Tensor | None, role: str = "anchors") -> tuple[Tensor, Tensor]:
    """Return the vectors of both sides; raise unless they are finite, floating and of the same width."""
    inputs = {role: anchors} | ({} if references is None else {"references": references})
    for name, vectors in inputs.items():
        check_tensor(name, vectors)
        if not vectors.is_floating_point() or vectors.ndim != 2 or vectors.shape[1] != anchors.shape[1]:
            expected = (
                f"expected {name} to be floating vectors of the width of the {role}', shape (n, {anchors.shape[-1]})"
            )
            raise ValueError(f"{expected}, got {vectors.dtype} of shape {tuple(vectors.shape)}")
        if vectors.device.type == "cpu" and not vectors.isfinite().all():
            raise ValueError(f"expected {name} to be finite, got NaN or infinity")
    return anchors, anchors if references is None else references
