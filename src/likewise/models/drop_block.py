"""DropBlock: dropout of square blocks of a feature map, more of them as training goes on."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


@final
class DropBlock(nn.Module):
    r"""Set square blocks of each channel to zero in training, and scale what is left to the same sum of ones.

    Each position where a block fits becomes the corner of a dropped block with the probability

    $$
    \gamma = \frac{r_t}{b^2} \cdot \frac{h w}{(h - b + 1)(w - b + 1)}, \qquad r_t = r \min(1, t / T)
    $$

    so that about a share r_t of the map is dropped in training step t. The step is a buffer, so it is saved with the
    weights and a resumed training goes on with the share that it had reached; evaluation doesn't count.

    Args:
        rate: r, the share that is dropped in the end.
        block: b, side of a block in cells; on smaller maps, the map's smaller side.
        ramp: T, steps until the share is reached.

    Raises:
        ValueError: rate is outside [0, 1), or block or ramp is below 1.

    Source:
        G. Ghiasi, T.-Y. Lin and Q. V. Le, DropBlock: A regularization method for convolutional networks, 2018,
        algorithm 1.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> dropped = DropBlock(rate=0.3, block=2, ramp=1)(torch.ones(8, 16, 6, 6))
        >>> bool((dropped == 0).any()), round(float(dropped.mean()), 3)
        (True, 1.0)
    """

    step: Tensor

    def __init__(self, rate: float = 0.1, block: int = 5, ramp: int = 40_000) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"expected a rate from 0 to below 1, got {rate}: 0.1 is usual")
        if block < 1 or ramp < 1:
            raise ValueError(f"expected block and ramp of at least 1, got {block} and {ramp}: 5 and 40,000 are usual")
        self.rate = rate
        self.block = block
        self.ramp = ramp
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, maps: Float[Tensor, "n d h w"]) -> Float[Tensor, "n d h w"]:
        """Drop blocks in training; return maps unchanged otherwise."""
        if not self.training or self.rate == 0:
            return maps
        self.step += 1
        height, width = maps.shape[2:]
        block = min(self.block, height, width)
        places = (height - block + 1, width - block + 1)
        share = self.rate * (self.step / self.ramp).clamp(max=1)
        probability = share / block**2 * (height * width / (places[0] * places[1]))
        corners = (torch.rand(*maps.shape[:2], *places, device=maps.device) < probability).to(maps.dtype)
        dropped = functional.max_pool2d(functional.pad(corners, [block - 1] * 4), block, stride=1)
        kept = 1 - dropped
        return maps * (kept * (kept.numel() / kept.sum(dtype=torch.float32).clamp(min=1)).to(maps.dtype))
