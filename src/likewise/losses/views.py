"""Views of samples: several tensors, or one, become embeddings (B, V, D)."""

import functools

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.losses.checks import check_embeddings


def stacked(views: tuple[Tensor, ...], loss: str) -> Float[Tensor, "b v d"]:
    """Return checked views, each (B, D), or embeddings (B, V, D), as one tensor (B, V, D); ``loss`` is who asks."""
    for k, view in enumerate(views):
        if k > 0 and isinstance(view, Tensor) and view.ndim == 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"{loss} takes views, not labels, got a vector of {view.dtype}; SupConLoss()(embeddings, labels) "
                "contrasts classes"
            )
        check_embeddings(f"view_{k}" if len(views) > 1 else "embeddings", view)
    if len(views) == 1 and views[0].ndim == 3 and views[0].shape[1] > 1:
        return views[0]
    if len(views) < 2 or any(view.ndim != 2 for view in views):
        raise ValueError(
            f"{loss} takes two views or more, each (B, D), or embeddings (B, V, D) with V ≥ 2, got "
            f"{', '.join(str(tuple(view.shape)) for view in views) or 'none'}; augment each sample twice"
        )
    if len({view.shape for view in views}) > 1:
        shapes = ", ".join(str(tuple(view.shape)) for view in views)
        raise ValueError(f"views have one shape, got {shapes}; give every sample the same number of views")
    if len({view.device for view in views}) > 1:
        raise ValueError(f"views lie on one device, got {', '.join(str(view.device) for view in views)}; move them")
    dtype = functools.reduce(torch.promote_types, (view.dtype for view in views))
    return torch.stack([view.to(dtype) for view in views], dim=1)
