"""Fine-tuning: which parameters of an encoder are trained, from which epoch on, and at what rate."""

import re
from collections.abc import Iterator
from typing import final

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - the base of all of them

from likewise.files.suggestions import suggest
from likewise.models import Encoder, Projected
from likewise.models.depth import Block, blocks_of, names_of

ALL = "all"
STATISTICS = "batch statistics"
BUT_LAST = re.compile(r"all[ -]but[ -](?:the[ -])?last(?:[ -](\d+))?(?:[ -]blocks?)?")


@final
class FineTuning:
    """The parameters of an encoder that are trained, mostly after an earlier training, and their rates.

        rate of block b of B = rate · rate_factor · layer_decay^(B − b)

    What is frozen keeps its weights bit for bit, its batch statistics too, and stays in evaluation mode, without
    dropout. Until it is unfrozen, a gradient is computed and dropped.

    Args:
        freeze: "all", "all but the last block", "all but the last 3 blocks", or names of parts, such as
            "layer1,layer2", each with all that is in it. "batch statistics", alone or beside names, are those of all
            batch normalisations, whose weights are trained. None: nothing.
        unfreeze_epoch: The epoch, from 1 on, that all is trained from. None: what is frozen stays so.
        rate_factor: Factor of the encoder's learning rate; head, loss and inputs keep theirs.
        layer_decay: Factor from each block to the one before it, nearer to the input; see `blocks_of`.

    Raises:
        ValueError: A factor is not positive, the decay is above 1, an epoch is below 2 or given without freeze; and by
            `begin`, no part of the encoder has such a name.

    Source:
        Decay by layer: J. Howard and S. Ruder, Universal Language Model Fine-tuning for Text Classification, 2018,
        section 3.2, where it is 1 / 2.6.

    Example:
        >>> from likewise.models import ResNet
        >>> encoder = ResNet((3, 32, 32), depth=8)
        >>> tuned = FineTuning("all but the last block").begin(encoder)
        >>> [name for name, parameter in encoder.named_parameters() if parameter.requires_grad][0]
        'stages.2.0.conv1.weight'
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
        self.freeze = freeze
        named = [] if freeze is None else [name.strip() for name in freeze.split(",")]
        self.keeps_statistics = STATISTICS in named
        names = [name for name in named if name != STATISTICS]
        self._names = ",".join(names) if names else None
        self.unfreeze_epoch = unfreeze_epoch
        self.rate_factor = rate_factor
        self.layer_decay = layer_decay
        self._frozen: dict[str, nn.Parameter] = {}
        self._rates: dict[nn.Parameter, float] = {}

    def begin(self, encoder: Encoder) -> "FineTuning":
        """Freeze the chosen parameters of an encoder; the head of one of two towers is trained."""
        network = _bare(encoder)
        blocks = blocks_of(network)
        chosen = set[nn.Parameter]() if self._names is None else set(self._chosen(network, blocks, self._names))
        self._frozen = {name: parameter for name, parameter in network.named_parameters() if parameter in chosen}
        if self.unfreeze_epoch is None:
            for parameter in chosen:
                parameter.requires_grad = False
        self._rates = {
            parameter: self.rate_factor * self.layer_decay ** (len(blocks) - 1 - depth)
            for depth, block in enumerate(blocks)
            for parameter in block.parameters
        }
        return self

    def rates(self) -> dict[nn.Parameter, float]:
        """Return the factor of each parameter's learning rate."""
        return self._rates

    def rests(self, epoch: int) -> bool:
        """Return whether something is frozen in an epoch, from 1 on."""
        return (bool(self._frozen) or self.keeps_statistics) and (
            self.unfreeze_epoch is None or epoch < self.unfreeze_epoch
        )

    def settle(self, epoch: int, encoder: nn.Module, *copies: nn.Module) -> None:
        """Put what is frozen of an encoder and its copies into evaluation mode, what no longer is into training mode.

        Parts are looked up anew, as batch norms are replaced where there are several processes.
        """
        frozen = set(self._frozen.values())
        for name, part in _bare(encoder).named_modules() if frozen or self.keeps_statistics else ():
            parameters = list(part.parameters())
            keeps = self.keeps_statistics and isinstance(part, _BatchNorm)
            if keeps or (parameters and frozen.issuperset(parameters)):
                for network in (encoder, *copies):  # of a momentum encoder, whose weights are no parameters
                    _bare(network).get_submodule(name).train(not self.rests(epoch))

    def drop_gradients(self, epoch: int) -> None:
        """Drop the gradients of what is still frozen, so that the optimizer skips it."""
        if self.rests(epoch):
            for parameter in self._frozen.values():
                parameter.grad = None

    def _chosen(self, encoder: nn.Module, blocks: list[Block], freeze: str) -> Iterator[nn.Parameter]:
        if freeze == ALL:
            yield from encoder.parameters()
        elif match := BUT_LAST.fullmatch(freeze.strip().lower()):
            last = int(match[1] or 1)
            if not 0 < last < len(blocks):
                raise ValueError(
                    f"expected from 1 to {len(blocks) - 1} blocks to train, got {last}: {type(encoder).__name__} has "
                    f"{names_of([block.name for block in blocks])}"
                )
            yield from (parameter for block in blocks[:-last] for parameter in block.parameters)
        else:
            for name in map(str.strip, freeze.split(",")):
                yield from _parameters_below(encoder, blocks, name)


def _parameters_below(encoder: nn.Module, blocks: list[Block], part_name: str) -> Iterator[nn.Parameter]:
    """Yield the parameters below a name, wherever it stands among the names of the parts they are in."""
    parameters = [parameter for name, parameter in encoder.named_parameters() if f".{part_name}." in f".{name}."]
    if not parameters:
        parts = dict.fromkeys(part for name, _ in encoder.named_modules() for part in (name, name.rpartition(".")[2]))
        remedy = suggest(part_name, filter(None, parts), f": {names_of([block.name for block in blocks])}", most=3)
        raise ValueError(
            f"expected --freeze all, all but the last block, or names of parts of {type(encoder).__name__}, got "
            f"{part_name}{remedy}"
        )
    yield from parameters


def _bare(network: nn.Module) -> nn.Module:
    """Return the encoder of one of two towers, whose head is trained."""
    return network.encoder if isinstance(network, Projected) else network
