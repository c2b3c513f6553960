"""Where features come from: the samples of a part and the encoder, for evaluations that encode other inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.rows import Rows
from likewise.data.samples import Samples


@final
@dataclass(frozen=True)
class Origin:
    """The samples that features come from, and the encoder.

    Args:
        samples: The samples of the part.
        encode: Encodes inputs (N, ...), a tensor or `Rows`, as these samples were: features (N, D), float32 on the CPU.

    Example:
        >>> samples = Samples(torch.rand(3, 1, 4, 4), rows=torch.tensor([7, 2, 5]))
        >>> origin = Origin(samples, lambda images: images[:].flatten(1))
        >>> torch.equal(origin.inputs(torch.tensor([5, 7])), samples.inputs[[2, 0]])
        True
    """

    samples: Samples
    encode: Callable[[Tensor | Rows], Tensor]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.samples.input_shape

    def inputs(self, rows: Int[Tensor, " n"]) -> Tensor | Rows:
        """Return the inputs of samples, by their rows in the source.

        Args:
            rows: The rows, (N,).

        Raises:
            ValueError: There is no such sample.
        """
        numbered = self.samples.numbered()
        known, order = torch.as_tensor(numbered.rows).sort()
        place = torch.searchsorted(known, rows).clamp(max=max(0, len(known) - 1))
        missing = int((known[place] != rows).sum()) if len(known) else len(rows)
        if missing:
            raise ValueError(
                f"expected the samples that the features come from, got data without {missing} of {len(rows)}: "
                "encode the data again"
            )
        return numbered[order[place]].inputs
