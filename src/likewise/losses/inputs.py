"""What a loss's forward takes: each input says in its annotation how it is checked, and one function checks them all.

``labels: Annotated[Int[Tensor, " b"], Classes("embeddings")]`` declares an input once: its kind, and the inputs that it
has to agree with, by their names. What no single input can say is for `ContrastiveLoss.check`.
"""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.losses import checks

Given = Mapping[str, Any]


@dataclass(frozen=True)
class ArgSpec(ABC):
    """Abstract: how an input is checked, after those that it has to agree with."""

    naming: ClassVar[tuple[str, ...]] = ()
    """Fields holding names of other inputs; if it `reads_loss`, the last may be an attribute of the loss."""
    reads_loss: ClassVar[bool] = False
    are_vectors: ClassVar[bool] = False
    """Whether these are rows of the features of embeddings, whose first ones are embeddings as well."""

    @property
    def after(self) -> list[str]:
        """Names of the inputs that are checked first."""
        return [getattr(self, field) for field in self.naming if getattr(self, field)]

    @abstractmethod
    def check(self, name: str, value: Any, given: Given, loss: Any) -> None:
        """Raise unless a value is one of these; None is passed only to inputs that go with others."""


@final
@dataclass(frozen=True)
class Views(ArgSpec):
    """Views of samples, (B, D) each, or all in one, (B, V, D): the forward is given one tensor."""

    are_vectors = True

    def check(self, name: str, value: Any, given: Given, loss: Any) -> None: ...


@final
@dataclass(frozen=True)
class Episodic(ArgSpec):
    """Something of each episode; `ContrastiveLoss.check` has to look at all of it together."""

    def check(self, name: str, value: Any, given: Given, loss: Any) -> None:
        checks.check_tensor(name, value)


@final
@dataclass(frozen=True)
class Embeddings(ArgSpec):
    """One view of each sample, (N, D), or V views, (B, V, D), which a loss is also given as a list of (B, D) each."""

    are_vectors = True

    def check(self, name: str, value: Any, given: Given, loss: Any) -> None:
        checks.check_embeddings(name, value)


@final
@dataclass(frozen=True)
class References(ArgSpec):
    """Rows, (R, D), with the features and the device of others, and if ``aligned`` paired with these one to one."""

    naming = ("beside",)
    are_vectors = True
    beside: str
    aligned: bool = False

    def check(self, name: str, value: Any, given: Given, loss: Any) -> None:
        check = checks.check_aligned if self.aligned else checks.check_references
        check(name, value, given[self.beside], beside=self.beside)


@final
@dataclass(frozen=True)
class PerAnchor(ArgSpec):
    """One row or more for each row of others, (B, D) or (B, K, D)."""

    naming = ("of",)
    are_vectors = True
    of: str

    def check(self, name: str, value: Any, given: Given, loss: Any) -> None:
        checks.check_negatives(value, given[self.of])


@final
@dataclass(frozen=True)
class Prototypes(ArgSpec):
    """One row for each label: of these label sets, or of this attribute of the loss."""

    naming = ("beside", "of")
    reads_loss = are_vectors = True
    beside: str
    of: str

    def check(self, name: str, value: Any, given: Given, loss: Any) -> None:
        checks.check_prototypes(value, given[self.beside], _width(self.of, given, loss))


@final
@dataclass(frozen=True)
class Labels(ArgSpec):
    """Classes or label sets, one for each row of others, which have their own name in an error."""

    naming = ("of",)
    of: str
    rows: str = ""

    def check(self, name: str, value: Any, given: Given, loss: Any) -> None:
        if value is not None and given[self.of] is not None:
            checks.check_labels(name, value, self.rows or self.of, given[self.of].shape[0])


@final
@dataclass(frozen=True)
class Classes(ArgSpec):
    """A class for each row of others, with which they go together; below the number of prototypes, if named."""

    naming = ("of", "below")
    of: str
    below: str = ""

    def check(self, name: str, value: Any, given: Given, loss: Any) -> None:
        prototypes = given[self.below] if self.below else None
        if (rows := _together(self.of, name, value, given)) is not None:
            checks.check_classes(name, value, self.of, len(rows), None if prototypes is None else len(prototypes))


@final
@dataclass(frozen=True)
class MultiHot(ArgSpec):
    """A label set for each row of others, with which it goes together; over the labels of others, or of the loss."""

    naming = ("of", "like")
    reads_loss = True
    of: str
    like: str = ""
    rows: str = ""

    def check(self, name: str, value: Any, given: Given, loss: Any) -> None:
        if (rows := _together(self.of, name, value, given)) is not None:
            length = _width(self.like, given, loss) if self.like else None
            checks.check_label_sets(name, value, self.rows or self.of, len(rows), length)


def _together(of: str, name: str, value: Any, given: Given) -> Any:
    """Return the rows that labels are of, None where there are neither."""
    if (value is None) != (given[of] is None):
        raise ValueError(f"expected {of} and {name} together, got only one of them: pass both or neither")
    return given[of]


def _width(name: str, given: Given, loss: Any) -> int:
    value: Tensor = given[name] if name in given else getattr(loss, name)
    return value.shape[1]


def checked(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a forward that first checks what its annotations declare, in the context of `ContrastiveLoss.checks`."""
    every = _parameters(forward)
    kinds = {of.name: kind for of in every for kind in _declared(of.annotation)}
    parameters = [of for of in every if of.kind not in (of.VAR_POSITIONAL, of.VAR_KEYWORD)]
    if any(isinstance(kind, Views) for kind in kinds.values()):
        return _of_views(forward, {of.name for of in parameters})
    if not kinds:
        return forward  # it checks its inputs in the context of `ContrastiveLoss.checks` itself
    _check_names(forward, kinds, {of.name for of in parameters})
    order: list[str] = []
    while len(order) < len(kinds):
        ready = [of for of in kinds if of not in order and not (set(kinds[of].after) & set(kinds)) - set(order)]
        if not ready:
            waiting = ", ".join(name for name in kinds if name not in order)
            expected = f"expected inputs of {forward.__qualname__} that are checked one after another"
            raise TypeError(f"{expected}, got {waiting}, which wait for each other: let one name no other")
        order += ready
    names = {of.name: None for of in parameters}
    listed = next((name for name in [*names][:1] if isinstance(kinds.get(name), Embeddings)), "")
    optional = {of.name: of.default for of in parameters if of.default is not of.empty}
    required = [name for name in names if name not in optional]
    takes_more = len(parameters) < len(every)
    together = {name for name, kind in kinds.items() if isinstance(kind, Classes | MultiHot)}

    @functools.wraps(forward)
    def call(loss: Any, *args: Any, **kwargs: Any) -> Tensor:
        found = optional | dict(zip(names, args, strict=False)) | kwargs
        if takes_more or len(args) <= len(names):
            _check_all(found, found if takes_more else names, required, loss)
            with loss.checks(*(_listed(args) or args)[:1], **found) as given:
                args = _in_one(args, given, listed, loss)
                for name in order:
                    value, kind = given[name], kinds[name]
                    if value is None and name not in optional:
                        checks.check_tensor(name, value)
                    if value is not None or name in together:
                        kind.check(name, value, given, loss)
                loss.check(given)
        return forward(loss, *args, **kwargs)  # which says what is too much

    return call


def _check_all(found: Given, known: Given, names: Sequence[str], loss: Any) -> None:
    if others := [name for name in found if name not in known]:
        raise TypeError(f"{type(loss).__name__} takes no {', '.join(others)}; it takes {', '.join(known)}")
    if missing := [name for name in names if name not in found]:
        expected = f"expected {', '.join(names)} for {type(loss).__name__}"
        raise TypeError(f"{expected}, got no {', '.join(missing)}: pass all of them")


def _check_names(forward: Callable[..., Tensor], kinds: dict[str, ArgSpec], names: set[str]) -> None:
    for name, kind in kinds.items():
        missing = [of for of in kind.after[: len(kind.naming) - kind.reads_loss] if of not in names]
        if missing:
            expected = f"expected the annotation of {name} in {forward.__qualname__} to name inputs of it"
            known = ", ".join(sorted(names - {name}))
            raise TypeError(f"{expected}, got {missing[0]!r}: name one of {known}, or add the input")


def _of_views(forward: Callable[..., Tensor], options: set[str]) -> Callable[..., Tensor]:
    @functools.wraps(forward)
    def call(loss: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not kwargs.keys() <= options:
            return forward(loss, *args, **kwargs)  # which says what is too much
        args = _listed(args) or args
        with loss.checks(*args[:1]) as given:
            embeddings = given["embeddings"] = _stacked(args, type(loss).__name__)
            loss.check(given)
        return forward(loss, embeddings, **kwargs)

    return call


def vectors_of(forward: Callable[..., Tensor]) -> list[str]:
    """Return which of a forward's inputs are vectors, whose first features are vectors as well."""
    return [of.name for of in _parameters(forward) for kind in _declared(of.annotation) if kind.are_vectors]


def _listed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the views of a list of them, as loaders make it, if that is the first argument; numbers are no views."""
    listed = args and isinstance(args[0], list | tuple) and any(isinstance(of, Tensor) for of in args[0])
    return tuple(args[0]) if listed else ()


def _in_one(args: tuple[Any, ...], given: dict[str, Any], first: str, loss: Any) -> tuple[Any, ...]:
    """Return the arguments, with a list of views as one tensor, which replaces it among the named ones too."""
    if not first or not _listed(args):
        return args
    given[first] = _stacked(_listed(args), type(loss).__name__)
    return given[first], *args[1:]


def _parameters(forward: Callable[..., Tensor]) -> list[inspect.Parameter]:
    """Return the parameters after the loss; annotations that are strings are evaluated, unless a name is missing."""
    try:
        signature = inspect.signature(forward, eval_str=True)
    except (NameError, AttributeError, TypeError, SyntaxError):  # names that are imported for type checkers only
        signature = inspect.signature(forward)
    return list(signature.parameters.values())[1:]


def _declared(annotation: Any) -> list[ArgSpec]:
    parts = (annotation, *get_args(annotation))
    return [kind for part in parts for kind in get_args(part)[1:] if isinstance(kind, ArgSpec)]


def _stacked(views: tuple[Tensor, ...], loss: str) -> Float[Tensor, "b v d"]:
    """Check views, each (B, D), or embeddings (B, V, D), and return (B, V, D); errors name the ``loss``."""
    for k, view in enumerate(views):
        if k > 0 and isinstance(view, Tensor) and view.ndim == 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            expected = f"expected views for {loss}, not labels, got a vector of {view.dtype}"
            raise ValueError(f"{expected}: to contrast classes use SupConLoss()(embeddings, labels)")
        checks.check_embeddings(f"view_{k}" if len(views) > 1 else "embeddings", view)
    if len(views) == 1 and views[0].ndim == 3 and views[0].shape[1] > 1:
        return views[0]
    several = len(views) > 1 and all(view.ndim == 2 for view in views)
    if not several or len({view.shape for view in views}) > 1:
        shapes = ", ".join(str(tuple(view.shape)) for view in views) or "none"
        expected = f"expected two or more views for {loss}, each (B, D), or embeddings (B, V, D) with V ≥ 2"
        expected = "expected views of the same shape" if several else expected
        raise ValueError(f"{expected}, got {shapes}: augment each sample twice, as --batches Views does")
    if len({view.device for view in views}) > 1:
        devices = ", ".join(str(view.device) for view in views)
        raise ValueError(f"expected views to be on the same device, got {devices}: move them")
    dtype = functools.reduce(torch.promote_types, (view.dtype for view in views))
    return torch.stack([view.to(dtype) for view in views], dim=1)
