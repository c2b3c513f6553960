"""Fine-tuning: which parameters of an encoder are trained, from which epoch on, and at what rate."""

import re
from typing import final

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - the base of all of them

from likewise.files.suggestions import suggest
from likewise.models import Encoder, Projected
from likewise.models.weights import Block, blocks_of, names_of

ALL = "all"
STATISTICS = "batch statistics"
BUT_LAST = re.compile(r"all[ -]but[ -](?:the[ -])?last(?:[ -](\d+))?(?:[ -]blocks?)?")


@final
class FineTuning:
    """The parameters of an encoder that are trained, mostly after an earlier training, and their rates.

        rate of block b of B = rate · rate_factor · layer_decay^(B − b)

    What is frozen keeps its weights bit for bit, its batch statistics too, and stays in evaluation mode, without
    dropout. Until `unfreeze_epoch`, counted from 1, a gradient is computed and dropped. `freeze` may be "all", "all but
    the last 3 blocks", names of parts, such as "layer1,layer2", and "batch statistics", alone or beside names: those of
    all batch normalisations, whose weights are trained.

    Source:
        Decay by layer: J. Howard and S. Ruder, Universal Language Model Fine-tuning for Text Classification, 2018,
        section 3.2, where it is 1 / 2.6.
    """

    def __init__(
        self,
        freeze: str | None = None,
        *,
        unfreeze_epoch: int | None = None,
        rate_factor: float = 1.0,
        layer_decay: float = 1.0,
    ) -> None:
        if not rate_factor > 0:
            raise ValueError(f"expected encoder_rate_factor above 0, got {rate_factor}: --freeze all trains nothing")
        if not 0 < layer_decay <= 1:
            raise ValueError(f"expected layer_decay above 0, up to 1, got {layer_decay}: 0.75 is usual")
        if unfreeze_epoch is not None and (freeze is None or unfreeze_epoch < 2):
            got = f"{unfreeze_epoch} without --freeze" if freeze is None else str(unfreeze_epoch)
            raise ValueError(f"expected unfreeze_epoch of 2 or more, and what is frozen until then, got {got}")
        named = [] if freeze is None else [name.strip() for name in freeze.split(",")]
        self.keeps_statistics = STATISTICS in named
        self._names = [name for name in named if name != STATISTICS]
        self.unfreeze_epoch = unfreeze_epoch
        self.rate_factor = rate_factor
        self.layer_decay = layer_decay
        self._frozen: list[nn.Parameter] = []
        self.rates: dict[nn.Parameter, float] = {}  # the factor of each parameter's learning rate

    def begin(self, encoder: Encoder) -> "FineTuning":
        """Freeze the chosen parameters of an encoder; the head of one of two towers is trained."""
        network = _bare(encoder)
        blocks = blocks_of(network)
        self._frozen = [parameter for name in self._names for parameter in _chosen(network, blocks, name)]
        if self.unfreeze_epoch is None:
            for parameter in self._frozen:
                parameter.requires_grad = False
        self.rates = {
            parameter: self.rate_factor * self.layer_decay ** (len(blocks) - 1 - depth)
            for depth, block in enumerate(blocks)
            for parameter in block.parameters
        }
        return self

    def rests(self, epoch: int) -> bool:
        """Return whether something is frozen in an epoch, from 1 on."""
        return (bool(self._frozen) or self.keeps_statistics) and (
            self.unfreeze_epoch is None or epoch < self.unfreeze_epoch
        )

    def settle(self, epoch: int, encoder: nn.Module, *copies: nn.Module) -> None:
        """Put what is frozen of an encoder and its copies into evaluation mode, what no longer is into training mode.

        Parts are looked up anew, as batch norms are replaced where there are several processes.
        """
        frozen = set(self._frozen)
        for name, part in _bare(encoder).named_modules() if frozen or self.keeps_statistics else ():
            parameters = list(part.parameters())
            keeps = self.keeps_statistics and isinstance(part, _BatchNorm)
            if keeps or (parameters and frozen.issuperset(parameters)):
                for network in (encoder, *copies):  # of a momentum encoder, whose weights are no parameters
                    _bare(network).get_submodule(name).train(not self.rests(epoch))

    def drop_gradients(self, epoch: int) -> None:
        """Drop the gradients of what is still frozen, so that the optimizer skips it."""
        if self.rests(epoch):
            for parameter in self._frozen:
                parameter.grad = None


def _chosen(encoder: nn.Module, blocks: list[Block], part_name: str) -> list[nn.Parameter]:
    """Return the parameters below a name, wherever it stands among the names of the parts they are in."""
    if part_name == ALL:
        return list(encoder.parameters())
    names = names_of([block.name for block in blocks])
    if match := BUT_LAST.fullmatch(part_name.lower()):
        last = int(match[1] or 1)
        if not 0 < last < len(blocks):
            encoder_name = type(encoder).__name__
            raise ValueError(
                f"expected from 1 to {len(blocks) - 1} blocks to train, got {last}: {encoder_name} has {names}"
            )
        return [parameter for block in blocks[:-last] for parameter in block.parameters]
    parameters = [parameter for name, parameter in encoder.named_parameters() if f".{part_name}." in f".{name}."]
    if not parameters:
        parts = dict.fromkeys(part for name, _ in encoder.named_modules() for part in (name, name.rpartition(".")[2]))
        remedy = suggest(part_name, filter(None, parts), f": {names}", most=3)
        raise ValueError(
            f"expected --freeze all, all but the last block, or names of parts of {type(encoder).__name__}, got "
            f"{part_name}{remedy}"
        )
    return parameters


def _bare(network: nn.Module) -> nn.Module:
    """Return the encoder of one of two towers, whose head is trained."""
    return network.encoder if isinstance(network, Projected) else network
