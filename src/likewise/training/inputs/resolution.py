"""The choice of a loss's inputs, and of the input that supplies each argument."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, final

from torch import Tensor, nn

from likewise.data import Batches, LabelKind, Samples
from likewise.instantiate import spec_of
from likewise.losses import Loss
from likewise.training.inputs.batch import BatchInputs, EpisodeMaps, EpisodeMeans, ViewPairs
from likewise.training.inputs.learned import Classifier, ClassParameters, LabelPrototypes, Momentum, Predictor
from likewise.training.inputs.loss_input import (
    EMBEDDINGS,
    InputContext,
    LossInput,
    LossSignature,
    Step,
    concrete_subclasses,
)
from likewise.training.inputs.pairs import SecondTower

SEPARATORS = (";", "|", ",")
MADE_IF_REQUIRED = (LabelPrototypes, Classifier, Predictor, Momentum, EpisodeMaps, EpisodeMeans)


def resolve(
    signature: LossSignature, chosen: Sequence[LossInput], label_kind: LabelKind | None
) -> tuple[tuple[LossInput, ...], dict[str, LossInput]]:
    """Return the inputs of a loss, and the one that supplies each argument; raise a ValueError if they do not fit.

    Given inputs take precedence. Inputs for other required arguments are made with defaults. The inputs of every batch
    come last. The kind of the data's labels decides which inputs have labels, and which other losses an error suggests.
    """

    def supplied(inputs: Sequence[LossInput]) -> dict[str, LossInput]:
        return {
            name: supplier
            for supplier in reversed(inputs)
            for name in sorted(supplier.given_to(signature))
            if label_kind or name not in supplier.of_labels
        }

    _check_given(signature, chosen, label_kind)
    every_batch = (BatchInputs(), ViewPairs())
    made: list[LossInput] = []
    for input_class in MADE_IF_REQUIRED:
        missing = signature.required - supplied([*chosen, *made, *every_batch]).keys()
        if input_class.names() & missing and not any(isinstance(loss_input, input_class) for loss_input in chosen):
            made.append(input_class())
    inputs = (*chosen, *made, *every_batch)
    suppliers = supplied(inputs)
    if missing := signature.required - suppliers.keys():
        raise ValueError(_nothing_supplies(missing, signature))
    return inputs, suppliers


@final
class LossInputs(nn.Module):
    """The inputs of a training, and the one that supplies each argument of the loss's forward.

    Args:
        loss: The loss.
        context: The facts that inputs may need.
        chosen: The inputs; an empty list: none. None: the loss's `recommended_inputs`.

    Raises:
        ValueError: The data has no labels of the loss's kind, or an argument has no input, or two.
    """

    def __init__(self, loss: Loss, context: InputContext, chosen: Sequence[LossInput] | None = None) -> None:
        super().__init__()
        self.signature = LossSignature.of(loss)
        check_labels(type(loss), context.label_kind)
        self._context = replace(context, signature=self.signature)
        chosen = _recommended(loss) if chosen is None else chosen
        inputs, self._suppliers = resolve(self.signature, chosen, context.label_kind)
        if context.num_labels < 1 and any(isinstance(loss_input, ClassParameters) for loss_input in inputs):
            raise ValueError(
                f"expected labels for {self.signature.loss}, which learns parameters for each of them, got none: "
                "pass samples= with labels"
            )
        for loss_input in inputs:
            loss_input.build(self._context)
        self.by_class = nn.ModuleDict({type(loss_input).__name__: loss_input for loss_input in inputs})

    @property
    def all(self) -> Iterator[LossInput]:
        """All inputs, the given ones first."""
        return (loss_input for loss_input in self.by_class.children() if isinstance(loss_input, LossInput))

    @property
    def momentum(self) -> Momentum | None:
        """The momentum encoder, or None."""
        return next((loss_input for loss_input in self.all if isinstance(loss_input, Momentum)), None)

    def arguments(self, step: Step) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return the loss's arguments, by position and by name."""
        values = {name: getattr(loss_input, name)(step) for name, loss_input in self._suppliers.items()}
        return ((values.pop(EMBEDDINGS),) if self.signature.positional else ()), values

    def after_update(self) -> None:
        """Update all inputs after a step of the optimizer."""
        network = self._context.network
        for loss_input in self.all:
            loss_input.after_update(network)

    def check_batches(self, batches: Batches) -> None:
        """Raise a ValueError unless batches are of the kind that the inputs read."""
        for loss_input in dict.fromkeys(self._suppliers.values()):
            loss_input.check_batches(batches, self._context)


def describe_inputs(inputs: LossInputs, chosen: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a `Spec` of each input except those of every batch, as requested or as made in addition."""
    specs = {spec["class_path"].rpartition(".")[2]: spec for spec in chosen}
    made = (loss_input for loss_input in inputs.all if not isinstance(loss_input, BatchInputs | ViewPairs))
    return [specs.get(type(loss_input).__name__) or spec_of(loss_input) for loss_input in made]


def reads_embeddings(loss: type[Loss]) -> bool:
    """Tell whether a loss reads embeddings; if not, a head has no use."""
    without = frozenset[str]().union(*(input_class.without_head for input_class in concrete_subclasses(LossInput)))
    return not LossSignature.by(loss).required <= without


def check_samples(loss: type[Loss], samples: Samples) -> None:
    """Raise a ValueError unless a loss takes the samples: pairs, if they are pairs, and labels of their kind."""
    label_kind = label_kind_of(samples)
    if samples.counterparts is None:
        check_labels(loss, label_kind, samples.names)
    elif not _takes_pairs(loss, label_kind):
        able = ", ".join(sorted(loss_class.__name__ for loss_class in _ours() if _takes_pairs(loss_class, label_kind)))
        raise ValueError(f"expected a loss that takes these pairs, got {loss.__name__}: choose one of {able}")


def _takes_pairs(loss: type[Loss], label_kind: LabelKind | None) -> bool:
    return bool(SecondTower.names() & LossSignature.by(loss).names) and _takes(loss, label_kind)


def _takes(loss: type[Loss], label_kind: LabelKind | None) -> bool:
    return not loss.label_kinds or label_kind in loss.label_kinds


def _ours() -> Iterator[type[Loss]]:
    return (loss_class for loss_class in concrete_subclasses(Loss) if loss_class.__module__.startswith("likewise."))


def label_kind_of(samples: Samples) -> LabelKind | None:
    """Return the kind of the loss's labels; for unlabelled pairs, "classes", which mark pairs not to push apart."""
    return samples.label_kind or (None if samples.counterparts is None else "classes")


def check_labels(loss: type[Loss], label_kind: LabelKind | None, names: Sequence[str] = ()) -> None:
    """Raise a ValueError unless the data's labels are of a kind that the loss takes.

    Names of labels may show that label sets were read as classes.
    """
    if _takes(loss, label_kind):
        return
    takes = " or ".join(sorted(loss.label_kinds))
    fitting = ", ".join(
        sorted(
            loss_class.__name__
            for loss_class in _ours()
            if bool(loss_class.label_kinds) == bool(label_kind) and _takes(loss_class, label_kind)
        )
    )
    has, remedy = label_kind or "no labels", f"choose one of {fitting}"
    if label_kind is None:
        remedy = f"--loss simclr trains without any; or choose another of {fitting}"
    several = [(separator, name) for separator in SEPARATORS for name in names if separator in name]
    if label_kind == "classes" and several:
        separator, name = several[0]
        has += f" such as {name!r}"
        remedy = f"set --data.separator {separator!r} if a cell holds several labels, or {remedy}"
    raise ValueError(f"expected {takes} as labels for {loss.__name__}, got {has}: {remedy}")


def _recommended(loss: Loss) -> list[LossInput]:
    kinds = {input_class.__name__: input_class for input_class in concrete_subclasses(LossInput)}
    unknown = [name for name in loss.recommended_inputs if name not in kinds]
    if unknown:
        raise ValueError(
            f"expected recommended_inputs of {type(loss).__name__} among {', '.join(sorted(kinds))}, "
            f"got {', '.join(unknown)}: import their module"
        )
    return [kinds[name]() for name in loss.recommended_inputs]


def _check_given(signature: LossSignature, inputs: Sequence[LossInput], label_kind: LabelKind | None) -> None:
    for first, second in combinations(inputs, 2):
        both = first.names() & second.names() & signature.names
        if both or type(first) is type(second):
            raise ValueError(
                f"expected one input for {' and '.join(sorted(both)) or 'each kind'}, got {type(first).__name__} and "
                f"{type(second).__name__}: leave one out"
            )
    supplied = frozenset[str]().union(*(loss_input.names() for loss_input in inputs))
    none = "SecondTower" if any(isinstance(loss_input, SecondTower) for loss_input in inputs) else "[]"
    for loss_input in inputs:
        if not loss_input.serves(signature, supplied):
            losses = sorted(_ours(), key=lambda loss_class: (-len(loss_class.label_kinds), loss_class.__name__))
            able = [
                loss_class.__name__
                for loss_class in losses
                if _takes(loss_class, label_kind) and loss_input.serves(LossSignature.by(loss_class), supplied)
            ]
            raise ValueError(
                f"expected inputs that {signature.loss} takes, got {type(loss_input).__name__}, which supplies "
                f"{' and '.join(sorted(loss_input.names()))}, not {', '.join(sorted(signature.names))}: leave it out "
                f"(--inputs {none}), or choose {' or '.join(able[:3]) or 'another loss'}"
            )


def _nothing_supplies(missing: frozenset[str], signature: LossSignature) -> str:
    names = " and ".join(sorted(missing))
    able = [input_class.__name__ for input_class in concrete_subclasses(LossInput) if input_class.names() & missing]
    if able:
        return f"expected inputs for all that {signature.loss} needs, got none for {names}: add {' or '.join(able)}"
    return (
        f"expected a loss whose arguments are supplied, got {signature.loss}, which needs {names}: take InfoNCELoss "
        f"or NTXentLoss for views, write a LossInput with a method for it, or call {signature.loss} in your own loop"
    )
