"""`ForOpenClip`: our CLIP and SigLIP losses with the call of open_clip's own."""

from typing import Any, final

import torch
from torch import Tensor, nn

from likewise.losses import ClipLoss, SigLIPLoss


@final
class ForOpenClip(nn.Module):
    """CLIP's loss, or SigLIP's, for the trainer of open_clip, exact on any number of processes.

    `open_clip_train.main.create_loss = ForOpenClip.create` replaces open_clip's own by it.

    Args:
        sigmoid: Whether to compute SigLIP's loss, for a model with ``logit_bias``, instead of CLIP's.
        gather_distributed: Whether to contrast with the texts of all processes.

    Returns:
        A call on what a model returns gives the loss, or with ``output_dict=True`` a dictionary of it.

    Raises:
        ValueError: If the model has no logit_bias for SigLIP's, or has one for CLIP's, or sigmoid is no boolean.

    Memory:
        O(B·D + tile), where B counts all processes' samples.

    Source:
        Ilharco et al., "OpenCLIP", 2021; for the losses, see `ClipLoss` and `SigLIPLoss`.

    Example:
        >>> import torch
        >>> ForOpenClip()(torch.eye(2), torch.eye(2), torch.tensor(1.0))
        tensor(0.3133)
    """

    def __init__(self, *, sigmoid: bool = False, gather_distributed: bool = True) -> None:
        super().__init__()
        if not isinstance(sigmoid, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every public entry
                f"expected sigmoid as True or False, got {sigmoid!r}: True is for a model with logit_bias"
            )
        self.sigmoid, self.gather_distributed = sigmoid, gather_distributed

    @classmethod
    def create(cls, args: Any) -> "ForOpenClip":
        """Return the loss for the trainer's options; ``--local-loss`` and ``--gather-with-grad`` have no effect."""
        if args.distill or args.horovod or "coca" in args.model.lower():
            raise ValueError(
                f"expected CLIP or SigLIP without distillation and Horovod, got the model {args.model}, distill="
                f"{args.distill}, horovod={args.horovod}: leave open_clip's create_loss as it is"
            )
        return cls(sigmoid=args.siglip)

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor,
        logit_bias: Tensor | None = None,
        *,
        output_dict: bool = False,
    ) -> Any:
        """Return the loss of normalised features, (B, D) each, with the scale and bias of the model."""
        if (logit_bias is None) == self.sigmoid:
            raise ValueError(
                f"expected a model {'with' if self.sigmoid else 'without'} logit_bias for sigmoid={self.sigmoid}, got "
                "another: take --siglip for SigLIP's models, and only for these"
            )
        if logit_bias is None:  # ClipLoss does not normalise by default
            loss = ClipLoss(gather_distributed=self.gather_distributed)(image_features, text_features, logit_scale)
        else:
            loss = SigLIPLoss(
                temperature=1 / logit_scale.to(torch.promote_types(logit_scale.dtype, torch.float32)),
                bias=logit_bias + 0,  # not the parameter itself, which is the model's
                normalize=False,
                gather_distributed=self.gather_distributed,
            )(image_features, text_features)
        return {"contrastive_loss": loss} if output_dict else loss
