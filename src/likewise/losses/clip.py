"""CLIP's loss with the call of open_clip's: the scale of similarities comes with the features."""

from typing import Annotated, Any, Unpack, final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions
from likewise.losses.candidates import Candidates
from likewise.losses.checks import check_tensor
from likewise.losses.info_nce import both_ways
from likewise.losses.inputs import Embeddings, References
from likewise.operator.inputs import check_floating, check_temperature


@final
class ClipLoss(ContrastiveLoss):
    r"""CLIP: each image finds its text, and each text its image, with a scale that the model learns.

    $$
    \ell_i = \tfrac{1}{2} \left( \log \sum_u e^{\alpha x_i \cdot t_u} + \log \sum_u e^{\alpha x_u \cdot t_i} \right)
    - \alpha x_i \cdot t_i
    $$

    It is `InfoNCELoss` with ``symmetric=True`` and τ = 1/α, called as open_clip calls its loss: α comes with each call.

    Args:
        **options: See `LossOptions`. Here normalize is False unless given, as open_clip normalises features itself.

    Returns:
        The loss, a scalar; with ``output_dict=True``, a dictionary with it as ``"contrastive_loss"``.

    Memory:
        O(B·D + tile); both directions share one product of similarities.

    Source:
        Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021, figure 3.

    Example:
        >>> ClipLoss()(torch.eye(2), torch.eye(2), torch.tensor(1.0))
        tensor(0.3133)
    """

    supports_fullgraph = True

    def __init__(self, **options: Unpack[LossOptions]) -> None:
        super().__init__(1.0, **{"normalize": False, **options})

    def forward(
        self,
        image_features: Annotated[Float[Tensor, "b d"], Embeddings()],
        text_features: Annotated[Float[Tensor, "b d"], References("image_features", aligned=True)],
        logit_scale: Float[Tensor, "..."],
        *,
        output_dict: bool = False,
    ) -> Any:
        """Return the loss of a batch.

        Args:
            image_features: One row for each image, (B, D).
            text_features: Each image's text, in the same order, (B, D).
            logit_scale: α = 1/τ, already the exponential of what is learned: a 0-d or (1,) tensor.
            output_dict: Whether to return a dictionary, as open_clip's trainer asks for.
        """
        scale = logit_scale.to(torch.promote_types(logit_scale.dtype, torch.float32))  # for a more exact 1/α
        loss = both_ways(self, image_features, text_features, Candidates(), 1 / scale)
        return {"contrastive_loss": loss} if output_dict else loss

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise unless the scale is positive."""
        check_tensor("logit_scale", inputs["logit_scale"])
        check_floating("logit_scale", inputs["logit_scale"])
        check_temperature(inputs["logit_scale"], "logit_scale", "1 to 100; it is 1/τ")
