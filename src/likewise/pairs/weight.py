"""The base of pair weights: a value for each (anchor, reference), defined tile by tile."""

import copy
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from likewise.pairs.form import ClosedForm

STREAM = 1024
"""Rows and columns of a tile in the sums and products of a weight without a closed form."""


def blocks(length: int, size: int) -> Iterator[slice]:
    """Cut ``range(length)`` into consecutive slices of at most ``size``."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating dtype of a device: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def all_tiles(shape: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
    """Cut all pairs into tiles of at most `STREAM` rows and columns."""
    return itertools.product(blocks(shape[0], STREAM), blocks(shape[1], STREAM))


class Weight(ABC):
    r"""Abstract: a weight $w_{ir}$ for each of N anchors and R references.

    A subclass defines a tile; row sums, products and transposes then iterate over tiles in O(N + R + tile) memory. It
    overrides `product` and `transposed_product` if it has closed forms. It is constant under differentiation, unless
    an attribute is a tensor that requires a gradient, or a module with parameters: then its tiles are differentiated.

    Args:
        shape: (N, R), the numbers of anchors and references.
        is_set: Whether every weight is 0 or 1, so that ``&``, ``|`` and ``~`` are defined.
        is_nonnegative: Whether the expression is known to have no negative weight.
        symmetric_at: The index of the first anchor among the references, if the anchors are known to be consecutive
            references, and the weights their rows of a symmetric R x R matrix; else None.
    """

    is_learned: bool = False
    """Whether any of its tensors requires a gradient."""
    sums_to_one: bool = False
    """Whether every row with a nonzero weight sums to one."""
    within_tiles: bool = True
    """Whether a tile of weights is cheaper than a tile of similarities; a pull is then evaluated in tiles."""
    is_sparse: bool = False
    """Whether its product is cheaper than the evaluation of its tiles by a kernel."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """For user-defined weights, detect learnable tensors and check the shapes of tiles."""
        super().__init_subclass__(**kwargs)
        if not cls.__module__.startswith("likewise."):
            cls.is_learned = property(  # pyright: ignore[reportAttributeAccessIssue, reportAssignmentType]
                lambda weight: any(map(_is_learned, vars(weight).values()))
            )
            if "tile" in vars(cls):
                cls.tile = _whole(cls.tile)

    def __init__(self, shape: tuple[int, int], *, is_set: bool, is_nonnegative: bool, symmetric_at: int | None) -> None:
        self.shape = shape
        self.is_set = is_set
        self.is_nonnegative = is_nonnegative
        self.symmetric_at = symmetric_at
        self.is_within_one = is_set
        """Whether all weights are known to be within [0, 1]."""
        self._row_sums: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._supports: dict[torch.device, Tensor] = {}
        self.given_row_sum: Tensor | None = None
        """The row sums passed to `with_row_sums`."""

    @abstractmethod
    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "n r"]:
        """Return the weights of some rows and columns, given as slices with a start and a stop."""

    @property
    def is_symmetric(self) -> bool:
        """Whether the anchors are known to be the references, with w[i, r] = w[r, i]."""
        return self.symmetric_at == 0 and self.shape[0] == self.shape[1]

    def learned(self) -> list[Tensor]:
        """Return its tensors that require a gradient."""
        leaves: dict[Tensor, Tensor] = {}
        _detach_learned(self, leaves)
        return list(leaves)

    def constant(self, rows: slice, columns: slice) -> float | None:
        """Return the value of a constant tile if it is known without computing the tile, else None."""
        del rows, columns

    def form(self) -> ClosedForm | None:
        """Return the closed form for a kernel, or None if the weight must be evaluated as tiles."""
        return None

    def fill(self, out: Float[Tensor, "n r"], rows: slice, columns: slice) -> None:
        """Write the weights of some rows and columns to ``out``."""
        out.copy_(self.tile(rows, columns, out.dtype, out.device))

    def factors(self, dtype: torch.dtype, device: torch.device, *, of_push: bool = False) -> "Factors":
        """Separate the factors of each anchor and each reference from the weight.

        For a push the references' factors stay in the weight, since the sum is over references.
        """
        del dtype, device, of_push
        return Factors(self)

    def weigh(
        self, similarities: Float[Tensor, "n r"], rows: slice, columns: slice, *, logits: bool,
        spare: Float[Tensor, "n r"] | None = None,
    ) -> None:  # fmt: skip
        """Multiply a tile of e^{s} by the weights in place, or add their logarithms to a tile of logits s.

        ``spare`` is a buffer for a tile of weights; if None, one is allocated.
        """
        weights = torch.empty_like(similarities) if spare is None else spare
        self.fill(weights, rows, columns)
        if not logits:
            similarities.mul_(weights)
            return
        outside = weights == 0
        if not self.is_set:
            similarities.add_(weights.log_())
        similarities.masked_fill_(outside, -torch.inf)  # whatever s was, even infinity

    def product(self, references: Float[Tensor, "r d"]) -> Float[Tensor, "n d"]:
        """Return the weights times ``references``, without differentiation; in tiles unless overridden."""
        result = references.new_zeros(self.shape[0], references.shape[1])
        for rows, columns in all_tiles(self.shape):
            result[rows].addmm_(self.tile(rows, columns, references.dtype, references.device), references[columns])
        return result

    def transposed_product(self, anchors: Float[Tensor, "n d"]) -> Float[Tensor, "r d"]:
        """Return the transposed weights times ``anchors``, without differentiation; in tiles unless overridden."""
        result = anchors.new_zeros(self.shape[1], anchors.shape[1])
        for rows, columns in all_tiles(self.shape):
            result[columns].addmm_(self.tile(rows, columns, anchors.dtype, anchors.device).T, anchors[rows])
        return result

    def transposed_products(
        self, anchors: Float[Tensor, "n d"], lengths: Sequence[int], wanted: Sequence[bool]
    ) -> list[Float[Tensor, "_ d"] | None]:
        """Return `transposed_product` cut into sections of references; None for unwanted sections."""
        if not any(wanted):
            return [None for _ in wanted]
        parts = self.transposed_product(anchors).split(list(lengths))
        return [part if want else None for part, want in zip(parts, wanted, strict=True)]

    def row_sum(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Float[Tensor, " n"]:
        """Return the sum of each anchor's weights; computed once for each dtype and device."""
        return self.known_row_sum(dtype, torch.device(device)).clone()

    def known_row_sum(self, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " n"]:
        """Return the cached row sums, which must not be modified; for a learned weight, with its gradient."""
        if self.is_learned:
            if torch.compiler.is_compiling():
                return self._row_sum(dtype, device)  # differentiated by the compiler
            with torch.no_grad():
                value = self._row_sum(dtype, device)
            return with_gradient(value, self, lambda g: lambda rows, _: g[rows, None])
        if (dtype, device) not in self._row_sums:
            sums = self.given_row_sum
            self._row_sums[dtype, device] = self._row_sum(dtype, device) if sums is None else sums.to(device, dtype)
        return self._row_sums[dtype, device]

    def _row_sum(self, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " n"]:
        return self.product(torch.ones(self.shape[1], 1, dtype=dtype, device=device)).squeeze(1)

    def support(self, device: torch.device | str = "cpu") -> Bool[Tensor, " n"]:
        """Return a mask of the anchors with a nonzero weight; computed once for each device."""
        return self.known_support(torch.device(device)).clone()

    def known_support(self, device: torch.device) -> Bool[Tensor, " n"]:
        """Return the cached support, which must not be modified."""
        if self.is_learned:
            with torch.no_grad():
                return self._support(device)
        if device not in self._supports:
            sums = self.given_row_sum
            self._supports[device] = self._support(device) if sums is None else sums.to(device) > 0
        return self._supports[device]

    def _support(self, device: torch.device) -> Bool[Tensor, " n"]:
        if self.is_set:
            return self.known_row_sum(torch.float32, device) > 0
        support = torch.zeros(self.shape[0], dtype=torch.bool, device=device)
        for rows, columns in all_tiles(self.shape):
            support[rows] |= self.tile(rows, columns, widest(device), device).ne(0).any(dim=1)
        return support

    def dense(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Float[Tensor, "n r"]:
        """Return all N x R weights, for tests, pictures and small problems."""
        return self.tile(slice(0, self.shape[0]), slice(0, self.shape[1]), dtype, torch.device(device))

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.shape}"


class Factors(NamedTuple):
    """A weight as a product base[i, r] · anchors_i · references_r; None stands for ones."""

    base: Weight
    anchors: Float[Tensor, " n"] | None = None
    references: Float[Tensor, " r"] | None = None

    @property
    def is_symmetric(self) -> bool:
        """Whether the weight is symmetric apart from the factors of anchors."""
        return self.base.is_symmetric and self.references is None

    @property
    def symmetric_at(self) -> int | None:
        """The index of the first anchor among the references, if symmetric apart from the factors of anchors."""
        return self.base.symmetric_at if self.references is None else None

    def times(
        self, anchors: Tensor | None, references: Tensor | None, dtype: torch.dtype, device: torch.device
    ) -> "Factors":
        """Return these factors times further ones, all in one dtype and on one device."""

        def product(*factors: Tensor | None) -> Tensor | None:
            moved = [factor.to(device, dtype) for factor in factors if factor is not None]
            return functools.reduce(torch.mul, moved) if moved else None

        return Factors(self.base, product(self.anchors, anchors), product(self.references, references))


def check_part(anchors: Tensor, references: Tensor, offset: int | None, name: str) -> None:
    """Raise unless anchors are the references from an offset on, if given; values are compared on a CPU only."""
    if offset is None or (anchors is references and offset == 0):
        return
    part = references[max(offset, 0) : max(offset, 0) + len(anchors)]
    seen = anchors.device.type == "cpu" and not torch.compiler.is_compiling()
    if offset < 0 or len(part) < len(anchors) or (seen and not torch.equal(part, anchors)):
        got = f"got {len(references)} without them there: pass the index of the first anchor, or no offset"
        raise ValueError(f"expected {name} to have the {len(anchors)} anchors' own values from {offset} on, {got}")


def check_tensor(name: str, value: object, remedy: str = "convert with torch.as_tensor") -> None:
    """Raise unless a value is a tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every public entry
            f"expected {name} to be a tensor, got {type(value).__name__}: {remedy}"
        )


def check_operands(weight: Weight, operation: str, other: Any) -> None:
    """Raise unless the other side of an expression is a weight of the same shape."""
    if not isinstance(other, Weight):
        got = f"got {type(other).__name__}: build one with likewise.pairs"
        raise TypeError(f"expected another pair weight for {operation}, {got}")
    if weight.shape != other.shape:
        raise ValueError(f"expected pair weights of the same shape, got {weight} and {other}: build both for one batch")


@final
class Multiply(torch.autograd.Function):
    """The weights times the references; in the backward, the transposed weights times the gradient."""

    @staticmethod
    def forward(ctx: Any, references: Tensor, weight: Any) -> Tensor:
        if references.shape[0] != weight.shape[1]:
            raise ValueError(f"expected {weight.shape[1]} references for {weight}, got {references.shape[0]}")
        ctx.weight = weight
        return weight.product(references)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        with torch.autocast(gradients[0].device.type, enabled=False):  # backward may be called within autocast
            return ctx.weight.T @ gradients[0], None


Slope = Callable[[slice, slice], Tensor]
"""The derivative of a scalar with respect to the weights of some rows and columns, or a tensor to be broadcast."""


def with_gradient(value: Tensor, weight: Weight, slope: Callable[[Tensor], Slope], *tensors: Tensor) -> Tensor:
    """Return a value with the exact gradients of its weight's learned tensors; the backward recomputes the tiles.

    ``slope`` is called in the backward with the gradient of the value, and reads ``tensors``, which must be unchanged.
    Memory is O(learned tensors + tile).
    """
    if not (torch.is_grad_enabled() and weight.is_learned):
        return value
    return _Learned.apply(value, weight, slope, *weight.learned(), *(x.detach() for x in tensors))


class _Learned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Weight, slope: Callable[[Tensor], Slope], *tensors: Tensor) -> Tensor:
        ctx.weight, ctx.slope = weight, slope
        ctx.save_for_backward(*tensors)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            got = "got a request for second ones (create_graph=True): .detach() what it learns"
            raise RuntimeError(f"expected first derivatives of {ctx.weight}, {got}")
        tensors, (g,) = ctx.saved_tensors, gradients  # torch raises if they have been modified
        with torch.autocast(g.device.type, enabled=False):
            learned_gradients = _gradients(ctx.weight, ctx.slope(g), g)
        return g, None, None, *learned_gradients, *[None] * (len(tensors) - len(learned_gradients))


def _gradients(weight: Weight, slope: Slope, like: Tensor) -> list[Tensor]:
    """Return the gradients of a weight's learned tensors; tiles have the dtype and device of ``like``."""
    learned: dict[Tensor, Tensor] = {}
    apart: Weight = _detach_learned(weight, learned)
    totals, flags = [torch.zeros_like(x) for x in learned.values()], set[bool]()
    for rows, columns in all_tiles(weight.shape):
        if apart.constant(rows, columns) is not None:
            continue
        with torch.enable_grad():
            tile = apart.tile(rows, columns, like.dtype, like.device)
        flags.add(tile.requires_grad)
        if not tile.requires_grad:
            continue
        of_tile = slope(rows, columns).expand(tile.shape)
        parts = torch.autograd.grad(tile, list(learned.values()), of_tile, materialize_grads=True)
        totals = [total.add_(part) for total, part in zip(totals, parts, strict=True)]
    if flags == {False}:
        expected = f"expected tiles of {weight} that depend on what requires a gradient in it"
        raise RuntimeError(f"{expected}, got constant ones: .detach() it")
    return [total.to(x.dtype) for total, x in zip(totals, learned, strict=True)]


def _whole(tile: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap `tile` to raise unless a tile has a weight for each row and column: other shapes would be broadcast."""

    @functools.wraps(tile)
    def call(weight: Weight, rows: slice, columns: slice, *form: Any) -> Tensor:
        weights, shape = tile(weight, rows, columns, *form), (rows.stop - rows.start, columns.stop - columns.start)
        if weights.shape != shape:
            raise ValueError(f"expected a tile of {weight} of shape {shape}, got {tuple(weights.shape)}: .expand it")
        return weights

    return call


def _is_learned(item: object) -> bool:
    if isinstance(item, Tensor):
        return item.requires_grad
    if isinstance(item, tuple | list):
        return any(map(_is_learned, item))
    if isinstance(item, nn.Module):
        return any(x.requires_grad for x in item.parameters())
    return isinstance(item, Weight) and item.is_learned


def _detach_learned(item: Any, learned: dict[Tensor, Tensor]) -> Any:
    """Return an attribute with a leaf, float32 or wider, for each learned tensor, to get its direct derivative."""
    if isinstance(item, Weight):
        result = copy.copy(item)
        vars(result).update({name: _detach_learned(value, learned) for name, value in vars(item).items()})
        return result
    if type(item) in {tuple, list}:
        return type(item)(_detach_learned(x, learned) for x in item)
    if isinstance(item, Tensor) and item.requires_grad and item not in learned:
        wide = torch.promote_types(item.dtype, torch.float32)
        learned[item] = item.detach().to(wide).requires_grad_()
    if isinstance(item, nn.Module):
        learned |= {x: x for x in item.parameters() if x.requires_grad}
    return learned.get(item, item) if isinstance(item, Tensor) else item
