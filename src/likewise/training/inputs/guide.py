"""A guide: an earlier run of pairs, frozen, that tells what may be a right answer as well and must not be pushed."""

import warnings
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from likewise.data import Samples
from likewise.inference import Model, load
from likewise.training.inputs.loss_input import InputContext, LossInput
from likewise.training.step import Step


@final
class Guide(LossInput):
    """Embeddings of both sides by an earlier run of pairs, which encodes each training input once, before training.

        guide_queries   of each sample, (B, G)
        guide_keys      of each sample's counterpart, (B, G)

    What it finds more similar to a query than the query's own key, less the loss's `guide_margin`, is not pushed. Hard
    negatives are pushed all.

    Args:
        run: The folder of a run of pairs, on inputs like these.

    Raises:
        ValueError: It is no run of pairs, it can't encode these inputs, or samples have no counterparts.

    Memory:
        Two embeddings of each training sample, on the device of the training, on every process.

    Source:
        Solatorio, "GISTEmbed: Guided In-sample Selection of Training Negatives for Text Embedding Fine-tuning", 2024.
    """

    without_head = frozenset({"guide_queries", "guide_keys"})
    _queries: Tensor
    _keys: Tensor

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run

    def build(self, context: InputContext) -> None:
        samples = context.samples
        if samples is None or samples.counterparts is None:
            raise ValueError("expected pairs for Guide, got samples without a counterpart: read them by Pairs")
        first = load(self.run)
        second = first.of("second")
        for name, model, side in (("_queries", first, samples), ("_keys", second, samples.counterparts)):
            self.register_buffer(name, self._encoded(model, side), persistent=False)  # a resumed run encodes anew

    def _encoded(self, model: Model, samples: Samples) -> Float[Tensor, "n g"]:
        """Encode different inputs once; images that cannot be decoded get any embedding: training leaves them out."""
        items = torch.arange(len(samples)) if samples.items is None else samples.items
        _, first, of_row = np.unique(items.numpy(), return_index=True, return_inverse=True)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "an image that cannot be read")  # training reports these
                return model.encoder.encode(model.rows(samples[torch.from_numpy(first)]))[torch.from_numpy(of_row)]
        except (RuntimeError, TypeError, AttributeError) as error:
            raise ValueError(
                f"expected a guide that encodes these inputs, got {self.run}, whose {model.side} side is {model!r}: "
                "take a run on data like these"
            ) from error

    def guide_queries(self, step: Step) -> Float[Tensor, "b g"]:
        return self._queries[step.batch["sample_index"].to(self._queries.device)]

    def guide_keys(self, step: Step) -> Float[Tensor, "b g"]:
        return self._keys[step.batch["sample_index"].to(self._keys.device)]
