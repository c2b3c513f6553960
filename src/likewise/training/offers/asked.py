"""The arguments that a loss asks for."""

import inspect
from dataclasses import dataclass, replace
from typing import Self, final

from likewise.losses import Loss

EMBEDDINGS = "embeddings"
OF_EPISODES = frozenset({
    *("query_maps", "support_maps", "cell_labels", "map_logits", "map_labels"),
    *("query_features", "class_means", "query_labels"),
})  # fmt: skip
WITHOUT_HEAD = frozenset({"labels", "sample_index", "class_logits"}) | OF_EPISODES


@final
@dataclass(frozen=True)
class Asked:
    """The argument names of a loss's forward.

    Args:
        loss: The loss's name.
        required: Names without a default; `*views` counts as embeddings.
        optional: Names with a default.
        positional: Whether the forward takes views by position, not by name.

    Example:
        >>> import likewise as lw
        >>> asked = Asked.by(lw.InfoNCELoss)
        >>> sorted(asked.required), sorted(asked.optional), Asked.by(lw.NTXentLoss).required
        (['keys', 'queries'], ['queue'], frozenset({'embeddings'}))
    """

    loss: str
    required: frozenset[str]
    optional: frozenset[str]
    positional: bool = False

    @classmethod
    def by(cls, kind: type[Loss]) -> Self:
        """Read the forward of a loss."""
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
        """Read the forward of a loss, without what it has no use for as it is set."""
        asked = cls.by(type(loss))
        return replace(asked, optional=asked.optional - loss.unused)

    @property
    def of_episodes(self) -> bool:
        """Whether the loss reads what only batches of episodes have."""
        return bool(self.required & OF_EPISODES)

    @property
    def names(self) -> frozenset[str]:
        """All names."""
        return self.required | self.optional

    @property
    def of_embeddings(self) -> bool:
        """Whether the loss reads embeddings; if not, a head has no use."""
        return not self.required <= WITHOUT_HEAD

    @property
    def keyed(self) -> bool:
        """Whether the last view is a key if there is a momentum encoder: not if the loss takes targets."""
        return "targets" not in self.names
