"""Which offers a loss is trained with, and which of them supplies which argument."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, TypeVar, final

from torch import Tensor, nn

from likewise.data.samples import LabelKind
from likewise.losses import Loss
from likewise.training.offers.asked import EMBEDDINGS, Asked
from likewise.training.offers.batch import Batch
from likewise.training.offers.classifier import Classifier
from likewise.training.offers.episode_maps import EpisodeMaps
from likewise.training.offers.episode_means import EpisodeMeans
from likewise.training.offers.label_prototypes import LabelPrototypes
from likewise.training.offers.momentum import Momentum
from likewise.training.offers.offer import Offer, Plan
from likewise.training.offers.pairs import Pairs
from likewise.training.offers.predictor import Predictor
from likewise.training.step import Step

T = TypeVar("T")
SEPARATORS = (";", "|", ",")
MADE_IF_REQUIRED = (LabelPrototypes, Classifier, Predictor, Momentum, EpisodeMaps, EpisodeMeans)


@final
class Offers(nn.Module):
    """The offers of a training, and which of them supplies each argument of the loss's forward.

    The given offers take precedence. Offers for other required arguments are made with defaults. What every batch
    offers comes last.

    Args:
        loss: The loss.
        plan: What offers may need to know.
        given: The offers chosen; an empty list: no offers. None: the loss's `recommended_offers`.

    Raises:
        ValueError: The data has no labels of the loss's kind, two offers supply the same argument, the loss does not
            take what an offer supplies, or no offer supplies a required argument.
    """

    def __init__(self, loss: Loss, plan: Plan, given: Sequence[Offer] | None = None) -> None:
        super().__init__()
        self.asked = Asked.of(loss)
        self._plan = plan
        check_labels(type(loss), plan.label_kind)
        plan = replace(plan, asked=self.asked.names)
        chosen = _recommended(loss) if given is None else list(given)
        self._check_chosen(chosen)
        made = self._made(chosen)
        if plan.num_labels < 1 and any(
            isinstance(offer, LabelPrototypes | Classifier | EpisodeMaps) for offer in (*chosen, *made)
        ):
            raise ValueError(
                f"expected labels for {self.asked.loss}, which learns parameters for each of them, got none: "
                "pass samples= with labels"
            )
        everyone = [*chosen, *made, Batch(), Pairs()]
        for offer in everyone:
            offer.build(plan)
        self.by_class = nn.ModuleDict({type(offer).__name__: offer for offer in everyone})
        self._who = {name: offer for offer in reversed(everyone) for name in offer.given_to(self.asked)}
        lacking = self.asked.required - self._who.keys()
        if lacking:
            raise ValueError(self._nobody_has(lacking, loss))

    @property
    def all(self) -> Iterator[Offer]:
        """All offers, those given first."""
        return (offer for offer in self.by_class.children() if isinstance(offer, Offer))

    @property
    def momentum(self) -> Momentum | None:
        """The momentum encoder, or None."""
        return next((offer for offer in self.all if isinstance(offer, Momentum)), None)

    def arguments(self, step: Step) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return the loss's arguments, by position and by name."""
        values = {name: getattr(offer, name)(step) for name, offer in self._who.items()}
        return ((values.pop(EMBEDDINGS),) if self.asked.positional else ()), values

    def after_update(self) -> None:
        """Update all offers after a step of the optimizer."""
        network = self._plan.network
        for offer in self.all:
            offer.after_update(network)

    def _check_chosen(self, chosen: Sequence[Offer]) -> None:
        for one, other in combinations(chosen, 2):
            both = one.names() & other.names() & self.asked.names
            if both or type(one) is type(other):
                raise ValueError(
                    f"expected one offer for {' and '.join(sorted(both)) or 'each kind'}, got {type(one).__name__} and "
                    f"{type(other).__name__}: leave one out"
                )
        offered = frozenset[str]().union(*(offer.names() for offer in chosen))
        for offer in chosen:
            if not offer.serves(self.asked, offered):
                names = ", ".join(sorted(self.asked.names))
                raise ValueError(
                    f"expected offers that {self.asked.loss} asks for, got {type(offer).__name__}, which offers "
                    f"{' and '.join(sorted(offer.names()))}, not {names}: leave it out (--offers [] for no offers), or "
                    f"choose another loss"
                )

    def _made(self, chosen: Sequence[Offer]) -> list[Offer]:
        """Make offers for required arguments that the chosen ones do not supply."""
        had = frozenset[str]().union(*(offer.given_to(self.asked) for offer in (*chosen, Batch(), Pairs())))
        made: list[Offer] = []
        for kind in MADE_IF_REQUIRED:
            if kind.names() & (self.asked.required - had) and not any(isinstance(one, kind) for one in chosen):
                made.append(kind())
                had |= kind.names()
        return made

    def _nobody_has(self, lacking: frozenset[str], loss: Loss) -> str:
        words = " and ".join(name for name in _in_order(type(loss)) if name in lacking)
        able = [kind.__name__ for kind in _known(Offer) if kind.names() & lacking]
        if able:
            return (
                f"expected offers for all that {self.asked.loss} needs, got none for {words}: add {' or '.join(able)}"
            )
        return (
            f"expected a loss whose arguments are offered, got {self.asked.loss}, which needs {words}: "
            f"write an offer with {'these methods' if len(lacking) > 1 else 'that method'}, or call the loss in your "
            f"own loop{_page(type(loss))}"
        )


def check_labels(loss: type[Loss], given: LabelKind | None, names: Sequence[str] = ()) -> None:
    """Raise unless the data's labels are of a kind that the loss takes.

    Args:
        loss: The loss's class.
        given: The kind of the data's labels.
        names: Their names, which may show that label sets were read as classes.

    Raises:
        ValueError: There are no labels, or they are of another kind.
    """
    kinds = loss.label_kinds
    if not kinds or given in kinds:
        return
    takes = " or ".join(sorted(kinds))
    fitting = ", ".join(sorted(kind.__name__ for kind in _known(Loss) if _fits(kind, given)))
    has, remedy = given or "no labels", f"choose one of {fitting}"
    several = [(separator, name) for separator in SEPARATORS for name in names if separator in name]
    if given == "classes" and several:
        separator, name = several[0]
        has += f" such as {name!r}"
        remedy = f"set --data.separator {separator!r} if a cell holds several labels, or {remedy}"
    raise ValueError(f"expected {takes} as labels for {loss.__name__}, got {has}: {remedy}")


def _recommended(loss: Loss) -> list[Offer]:
    kinds = {kind.__name__: kind for kind in _known(Offer)}
    unknown = [name for name in loss.recommended_offers if name not in kinds]
    if unknown:
        raise ValueError(
            f"expected recommended_offers of {type(loss).__name__} among {', '.join(sorted(kinds))}, "
            f"got {', '.join(unknown)}: import their module"
        )
    return [kinds[name]() for name in loss.recommended_offers]


def _fits(kind: type[Loss], given: LabelKind | None) -> bool:
    if not kind.__module__.startswith("likewise."):
        return False
    return given in kind.label_kinds if given else not kind.label_kinds


def _known(base: type[T]) -> Iterator[type[T]]:
    """Yield the subclasses of a class that have no subclasses themselves."""
    for kind in base.__subclasses__():
        yield from _known(kind)
        if not kind.__subclasses__():
            yield kind


def _in_order(kind: type[Loss]) -> list[str]:
    return list(inspect.signature(kind.forward).parameters)


def _page(kind: type[Loss]) -> str:
    """Point to the loss's page, named like its module; a user's own loss has none."""
    room, _, name = kind.__module__.rpartition(".")
    return f"; docs/losses/{name.replace('_', '-')}.md shows its arguments" if room == "likewise.losses" else ""
