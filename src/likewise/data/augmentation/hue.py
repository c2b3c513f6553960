"""The hue of HSV, shifted without converting from RGB."""

import torch
from jaxtyping import Float
from torch import Tensor


def turned_hue(images: Float[Tensor, "n 3 h w"], turns: Float[Tensor, " n"]) -> Float[Tensor, "n 3 h w"]:
    """Shift every image's hue in HSV by its own fraction of a full turn; the largest and smallest values stay the same.

    Hue is a position on the circle red, yellow, green, cyan, blue, magenta, of length 6. A channel has the value
    l + c clamp(d − 1, 0, 1), where d is the distance of the hue from the channel's opposite (cyan for red), l is the
    pixel's smallest value, and c is the largest value minus the smallest.

    Args:
        images: Images (N, 3, height, width) from 0 to 1.
        turns: Shifts in full turns, (N,).
    """
    red, green, blue = images.split(1, dim=1)
    least = torch.minimum(torch.minimum(red, green), blue)
    most = torch.maximum(torch.maximum(red, green), blue)
    chroma = most - least
    unit = chroma.clamp(min=torch.finfo(images.dtype).tiny)  # the hue of a grey pixel does not matter: its chroma is 0
    of_red = (green - blue).div_(unit)
    of_green = (blue - red).div_(unit).add_(2)
    of_blue = (red - green).div_(unit).add_(4)
    hue = torch.where(most == red, of_red, torch.where(most == green, of_green, of_blue))
    hue = hue.add_(6 * turns.to(images.dtype)[:, None, None, None]).remainder_(6)
    colours = torch.arange(0, 6, 2, dtype=images.dtype, device=images.device)[:, None, None]
    from_opposite = torch.sub(hue, colours).abs_().sub_(3).abs_()
    return torch.addcmul(least, chroma, from_opposite.sub_(1).clamp_(0, 1))
