"""Matryoshka: a loss of the first features alone, for several widths."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from likewise.losses.base import ContrastiveLoss, check_number
from likewise.losses.info_nce import ClipLoss
from likewise.losses.inputs import vectors_of
from likewise.losses.long_tail import PaCoLoss
from likewise.losses.rascal import RASCALLoss
from likewise.operator.inputs import FLOAT_DTYPES

FIXED_WIDTH_LOSSES = ClipLoss, PaCoLoss, RASCALLoss  # normalised features, logits, a cache


@final
class Matryoshka(nn.Module):
    r"""Sum of a loss over several widths w, each on the first w features, renormalised: for truncatable embeddings.

    $$
    \sum_w \lambda_w \, \ell(z_{1 \dots w})
    $$

    It is called like the loss. Every argument with the features of embeddings is cut: keys, negatives, a queue,
    prototypes; ids, labels and a guide's vectors stay as they are.

    Args:
        loss: A loss of embeddings. All widths share its options and learned parameters, such as a temperature.
        widths: Numbers of first features, including the full number if it is to count.
        weights: λ of each width. None: the mean.

    Returns:
        The weighted sum, reduced as by the loss. ``last`` holds the statistics of the largest width.

    Raises:
        ValueError: If the loss has no vectors to cut, or state or inputs of a fixed width; if widths are not distinct
            integers from 1 to the number of features; or if there is not one weight for each.

    Memory:
        The loss's memory for all widths together, which are computed one after another.

    Source:
        Kusupati et al., "Matryoshka Representation Learning", 2022.

    Example:
        >>> from likewise import InfoNCELoss
        >>> Matryoshka(InfoNCELoss(temperature=1.0), (2, 1))(torch.eye(2), torch.eye(2))
        tensor(0.4082)
    """

    def __init__(self, loss: ContrastiveLoss, widths: Sequence[int], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self._vectors = vectors_of(type(loss).forward) if isinstance(loss, ContrastiveLoss) else []  # pyright: ignore[reportUnnecessaryIsInstance]
        if not self._vectors or isinstance(loss, FIXED_WIDTH_LOSSES):
            expected = "expected a loss whose inputs can be cut to their first features, such as InfoNCELoss()"
            got = f"got {type(loss).__name__}: it has state or inputs of one width, or declares no vectors"
            raise ValueError(f"{expected}, {got}")
        known = tuple(widths) if isinstance(widths, list | tuple) else ()
        if not known or any(type(width) is not int or width < 1 for width in known) or len({*known}) < len(known):
            raise ValueError(
                f"expected widths as different whole numbers of at least 1, got {widths!r}: say (256, 128)"
            )
        shares = [1 / len(known)] * len(known) if weights is None else [*weights]
        if len(shares) != len(known):
            raise ValueError(f"expected a weight for each of {len(known)} widths, got {len(shares)}: None is the mean")
        self.loss, self.widths = loss, known
        self.weights = tuple(check_number("weights", weight, 0, 1e6, "0.1 to 1") for weight in shares)

    @property
    def last(self) -> dict[str, Tensor]:
        """Statistics of the last step, for the largest width."""
        return self.loss.last

    def extra_repr(self) -> str:
        """Return the settings that ``repr`` shows besides the loss."""
        return f"widths={self.widths}, weights={self.weights}"

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss of a batch, given the arguments of the loss."""
        takes = [*signature_of(self).parameters]
        names = [takes[min(index, len(takes) - 1)] for index in range(len(args))] + [*kwargs]
        inputs = [*zip(names, (*args, *kwargs.values()), strict=True)]
        features: list[tuple[str, Tensor]] = []

        def widened(name: str, rows: Tensor) -> Tensor:
            if rows.dtype not in FLOAT_DTYPES:  # the loss refuses these
                return rows
            features.append((name, rows))
            return rows.to(torch.promote_types(rows.dtype, torch.float32))  # the sum of gradients is rounded once

        inputs = [(name, self._of_rows(partial(widened, name), name, value)) for name, value in inputs]
        if features:
            self._check(features)

        def of_first(width: int) -> Tensor:
            cut = [self._of_rows(lambda rows: rows[..., :width], name, value) for name, value in inputs]
            return self.loss(*cut[: len(args)], **dict(zip(kwargs, cut[len(args) :], strict=True)))

        of_each = sorted(zip(self.widths, self.weights, strict=True))  # the loss's statistics are of the widest
        return torch.stack([weight * of_first(width) for width, weight in of_each]).sum(dim=0)

    def _of_rows(self, function: Callable[[Tensor], Tensor], name: str, value: Any) -> Any:
        """Apply a function to an input's rows, or to each of a list of views; the loss refuses anything else."""
        if isinstance(value, list | tuple):
            return [self._of_rows(function, name, part) for part in value]
        if name not in self._vectors or not isinstance(value, Tensor):
            return value
        return function(value) if value.ndim > 1 and value.layout is torch.strided and not value.is_nested else value

    def _check(self, features: list[tuple[str, Tensor]]) -> None:
        counts = sorted({rows.shape[-1] for _, rows in features})
        if len(counts) > 1 or counts[0] < max(self.widths):
            with self.loss.checks(features[0][1]):  # an error on one process is raised on all
                raise ValueError(
                    f"expected as many features of {', '.join(dict(features))}, at least the {max(self.widths)} of the "
                    f"widest, got {' and '.join(map(str, counts))}: encode all to one width, and leave out wider ones"
                )


def signature_of(loss: nn.Module) -> inspect.Signature:
    """Return the signature of a loss's forward; a Matryoshka has the signature of its loss."""
    return inspect.signature(loss.loss.forward if isinstance(loss, Matryoshka) else loss.forward)
