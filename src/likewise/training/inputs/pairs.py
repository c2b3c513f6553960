"""Inputs of pairs: embeddings of the other side, and a guide to the pairs that must not be pushed apart."""

import warnings
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.data import Samples
from likewise.inference import Model, load
from likewise.models import Encoder, Head, Projected, in_chunks
from likewise.training.inputs.batch import NEGATIVES
from likewise.training.inputs.learned import WithRate
from likewise.training.inputs.loss_input import InputContext, LossInput, Step


@final
class SecondTower(WithRate, LossInput):
    """Embeddings of each sample's counterpart, such as an image's caption, by a second network or by the first.

        keys, positives, references     z' of each sample's counterpart, (B, E)
        ids                             numbers, equal for pairs that must not be pushed apart, (B,)
        reference_labels                the labels; if pairs have none, these numbers
        negatives                       z' of hard negatives of each sample, (B, K, E), if the data has some; for a loss
                                        that requires one, (B, E): the first of these, or, if that is a true match
                                        or missing, another sample's counterpart
        negative_ids                    these numbers of the negatives, (B, K)

    The two are a dual encoder: the second observes the other side's training inputs, and the run keeps both.

    Args:
        encoder: Its encoder. None: one like the first side's if both are of one kind; otherwise Transformer for texts,
            ConvNet for images, MLP for vectors.
        head: Its head, to embeddings as long as the first side's. None: one like the first side's.
        shared: Whether both sides share one network, as for sentences of one language.
        rate_factor: Factor of its learning rate.

    Raises:
        ValueError: The factor is not positive, the networks give embeddings of two widths, or a shared one is given
            another encoder, head or rate.

    Memory:
        A second network, if it isn't shared, and its activations for a batch.

    Source:
        A. Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021.
    """

    only_if_required = frozenset({"positives"})
    of_labels = frozenset({"reference_labels"})
    tower: Encoder

    def __init__(
        self,
        encoder: Encoder | None = None,
        head: Head | None = None,
        *,
        shared: bool = False,
        rate_factor: float = 1.0,
    ) -> None:
        super().__init__(rate_factor)
        if shared and (encoder is not None or head is not None or rate_factor != 1):
            raise ValueError("expected one network for both sides, shared=True, got an encoder, head or rate of one")
        self.shared = shared
        if encoder is not None:
            self.tower = encoder if head is None else Projected(encoder, head)

    def build(self, context: InputContext) -> None:
        self._requires_one = "negatives" in context.signature.required
        if self.shared:
            self._network = (context.network,)  # a tuple: no submodule, whose parameters would count twice
        elif not hasattr(self, "tower"):
            raise ValueError(
                "expected pairs for SecondTower, got samples without a counterpart, or no encoder for these: read "
                "them by --data Pairs, or give the encoder, or shared=True"
            )
        elif self.tower.feature_dim != context.embedding_dim:
            raise ValueError(
                f"expected embeddings of one width from both sides, got {context.embedding_dim} and "
                f"{self.tower.feature_dim}: give both heads one out_dim, --head and --inputs.head ProjectionHead"
            )

    @property
    def network(self) -> nn.Module:
        """The network that encodes the other side."""
        return self._network[0] if self.shared else self.tower

    def keys(self, step: Step) -> Float[Tensor, "b e"]:
        counterparts = step.batch.get("counterparts")
        if counterparts is None:
            raise ValueError("expected pairs for SecondTower, got samples without a counterpart: read them by Pairs")
        made = vars(step)  # holds values computed once
        if "keys_beside" not in made:
            made["keys_beside"] = in_chunks(self.network, counterparts, step.chunk_size)
        return made["keys_beside"]

    positives = references = keys

    def ids(self, step: Step) -> Int[Tensor, " b"] | None:
        return step.batch.get("alike")

    def reference_labels(self, step: Step) -> Tensor:
        return step.labels

    def negatives(self, step: Step) -> Float[Tensor, "b ..."] | None:
        inputs = step.batch.get("negatives")
        if inputs is None:
            return self.keys(step)[step.others(NEGATIVES)] if self._requires_one else None
        if self._requires_one:
            hard = in_chunks(self.network, inputs[:, 0], step.chunk_size)
            ids, theirs = self.ids(step), self.negative_ids(step)
            if ids is None or theirs is None:
                return hard
            return hard.where((theirs[:, 0] != ids)[:, None], self.keys(step)[step.others(NEGATIVES)])
        return in_chunks(self.network, inputs.flatten(0, 1), step.chunk_size).unflatten(0, inputs.shape[:2])

    def negative_ids(self, step: Step) -> Int[Tensor, "b k"] | None:
        return step.batch.get("negative_alike")


@final
class Guide(LossInput):
    """Embeddings of both sides by an earlier run of pairs, which encodes each training input once, before training.

        guide_queries   of each sample, (B, G)
        guide_keys      of each sample's counterpart, (B, G)

    Keys that the guide finds more similar to a query than its own key, less the loss's `guide_margin`, are not pushed
    away. Hard negatives all are.

    Args:
        run: The folder of a run of pairs, on inputs like these.

    Raises:
        ValueError: The folder is no run of pairs, the run can't encode these inputs, or samples have no counterparts.

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
        """Encode distinct inputs once; undecodable images get an arbitrary embedding, as training omits them."""
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
