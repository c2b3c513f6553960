"""The hue of HSV, turned without leaving red, green and blue."""

import torch
from jaxtyping import Float
from torch import Tensor


def turned_hue(images: Float[Tensor, "n 3 h w"], turns: Float[Tensor, " n"]) -> Float[Tensor, "n 3 h w"]:
    """Turn every image's hue, in HSV, by its own part of a full turn; greatest and least channel stay what they are.

    Hue is a place on the way red, yellow, green, cyan, blue, magenta, of length 6. A channel whose colour is k from it
    has the value v − c clamp(k − 1, 0, 1), where v is a pixel's greatest channel and c its distance from the least.

    Args:
        images: Images (N, 3, height, width) from 0 to 1.
        turns: Full turns, (N,).
    """
    red, green, blue = images.split(1, dim=1)
    least, most = images.aminmax(dim=1, keepdim=True)
    chroma = most - least
    # a grey pixel has no hue, and gets any: its chroma is 0
    unit = torch.where(chroma == 0, 1.0, chroma)
    of_red = (green - blue) / unit
    of_green = (blue - red) / unit + 2
    of_blue = (red - green) / unit + 4
    hue = torch.where(most == red, of_red, torch.where(most == green, of_green, of_blue))
    hue = hue + 6 * turns.to(images.dtype)[:, None, None, None]
    colours = torch.arange(0, 6, 2, dtype=images.dtype, device=images.device)[:, None, None]
    away = torch.remainder(hue - colours + 3, 6).sub_(3).abs_()
    return torch.addcmul(most, chroma, away.sub_(1).clamp_(0, 1), value=-1)
