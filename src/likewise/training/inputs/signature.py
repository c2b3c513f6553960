"""The arguments that a loss's forward takes."""

import inspect
from dataclasses import dataclass, replace
from typing import Self, final

from likewise.losses import Loss

EMBEDDINGS = "embeddings"


@final
@dataclass(frozen=True)
class LossSignature:
    """The argument names of a loss's forward.

    Args:
        loss: The loss's name.
        required: Names without a default; `*views` counts as embeddings.
        optional: Names with a default.
        positional: Whether the forward takes views by position, not by name.

    Example:
        >>> import likewise as lw
        >>> signature = LossSignature.by(lw.InfoNCELoss)
        >>> sorted(signature.required), sorted(signature.optional), LossSignature.by(lw.NTXentLoss).required
        (['keys', 'queries'], ['queue'], frozenset({'embeddings'}))
    """

    loss: str = ""
    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    positional: bool = False

    @classmethod
    def by(cls, kind: type[Loss]) -> Self:
        """Read the forward of a loss's class."""
        parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
        named = [of for of in parameters if of.kind not in {of.VAR_POSITIONAL, of.VAR_KEYWORD}]
        positional = any(of.kind is of.VAR_POSITIONAL for of in parameters)
        required = {of.name for of in named if of.default is of.empty}
        return cls(
            kind.__name__,
            frozenset(required | ({EMBEDDINGS} if positional else set())),
            frozenset(of.name for of in named if of.default is not of.empty),
            positional,
        )

    @classmethod
    def of(cls, loss: Loss) -> Self:
        """Read the forward of a loss, without the arguments that its configuration ignores."""
        signature = cls.by(type(loss))
        return replace(signature, optional=signature.optional - loss.unused)

    @property
    def names(self) -> frozenset[str]:
        """All names."""
        return self.required | self.optional

    @property
    def keyed(self) -> bool:
        """Whether the last view is a key if there is a momentum encoder: not if the loss takes targets."""
        return "targets" not in self.names
