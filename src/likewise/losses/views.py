"""Views of samples, given as several tensors or as one, stacked to embeddings (B, V, D)."""

import functools

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.losses.checks import check_embeddings


def stacked(views: tuple[Tensor, ...], loss: str) -> Float[Tensor, "b v d"]:
    """Check views, each (B, D), or embeddings (B, V, D), and return (B, V, D); errors name the ``loss``."""
    for k, view in enumerate(views):
        if k > 0 and isinstance(view, Tensor) and view.ndim == 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"expected views for {loss}, not labels, got a vector of {view.dtype}: to contrast classes use "
                "SupConLoss()(embeddings, labels)"
            )
        check_embeddings(f"view_{k}" if len(views) > 1 else "embeddings", view)
    if len(views) == 1 and views[0].ndim == 3 and views[0].shape[1] > 1:
        return views[0]
    if len(views) < 2 or any(view.ndim != 2 for view in views):
        raise ValueError(
            f"expected two or more views for {loss}, each (B, D), or embeddings (B, V, D) with V ≥ 2, got "
            f"{', '.join(str(tuple(view.shape)) for view in views) or 'none'}: augment each sample "
            "twice, as --batches Views does"
        )
    if len({view.shape for view in views}) > 1:
        shapes = ", ".join(str(tuple(view.shape)) for view in views)
        raise ValueError(f"expected views of the same shape, got {shapes}: give every sample the same number of views")
    if len({view.device for view in views}) > 1:
        devices = ", ".join(str(view.device) for view in views)
        raise ValueError(f"expected views to be on the same device, got {devices}: move them")
    dtype = functools.reduce(torch.promote_types, (view.dtype for view in views))
    return torch.stack([view.to(dtype) for view in views], dim=1)
