"""Declared inputs of a loss's forward: an annotation says how each is checked, and one function checks them all.

``labels: Annotated[Int[Tensor, " b"], Classes("embeddings")]`` declares an input once: its kind, and the names of the
inputs that it has to match. Checks beyond single inputs are left to `ContrastiveLoss.check`.
"""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.operator.inputs import check_dense, check_finite, check_floating, is_plain
from likewise.pairs import weight
from likewise.pairs.label_sets import is_zeros_and_ones

Given = Mapping[str, Any]
UNSIGNED_DTYPES = torch.uint16, torch.uint32, torch.uint64  # torch supports few operations on these


def check_tensor(name: str, value: Any) -> None:
    """Raise unless the value is a dense, strided tensor that holds data."""
    _check_type(name, value)
    check_dense(name, value)


def _check_type(name: str, value: Any) -> None:
    remedy = "call it, or pass its keys" if isinstance(value, nn.Module) else "convert with torch.as_tensor"
    if isinstance(value, tuple) and name == "references":
        remedy = "a miner's pairs become masks, pull and push of lw.contrast, by pairs.Explicit"
    weight.check_tensor(name, value, remedy)


def check_embeddings(name: str, embeddings: Tensor) -> None:
    """Raise unless embeddings are finite and floating, one view of each sample, (N, D), or V views, (B, V, D)."""
    _check_type(name, embeddings)
    check_floating(name, embeddings)
    if embeddings.ndim not in (2, 3) or 0 in embeddings.shape[1:]:
        expected = f"expected {name} to be rows of at least one feature, (N, D), or with views (B, V, D)"
        raise ValueError(f"{expected}, got shape {tuple(embeddings.shape)}: flatten feature maps first")
    check_finite(name, embeddings)


def check_references(name: str, references: Tensor, embeddings: Tensor, beside: str) -> None:
    """Raise unless references are finite rows, (R, D), with the feature count and device of the checked embeddings."""
    check_embeddings(name, references)
    if references.ndim != 2 or references.shape[-1] != embeddings.shape[-1]:
        expected = f"expected {name} to be rows, (R, D), with the {embeddings.shape[-1]} features of the {beside}"
        raise ValueError(f"{expected}, got shape {tuple(references.shape)}: pass one row each, of as many features")
    if references.device != embeddings.device:
        raise ValueError(
            f"expected {name} on the device of the {beside}, {embeddings.device}, got {references.device}: move them"
        )


def check_labels(name: str, labels: Tensor, rows: str, count: int) -> None:
    """Raise unless labels are integer classes, (n,), or multi-hot label sets, (n, L), one for each of the rows."""
    check_tensor(name, labels)
    unknown = labels.dtype in UNSIGNED_DTYPES or not is_plain(labels.dtype)
    if unknown or labels.ndim not in (1, 2) or (labels.ndim == 1 and labels.is_floating_point()):
        expected = f"expected {name} to be integer classes, (n,), or multi-hot label sets, (n, L)"
        raise ValueError(f"{expected}, got {labels.dtype} of shape {tuple(labels.shape)}: convert them with .long()")
    if labels.shape[0] != count:
        message = f"expected {name} to have one entry for each of {count} {rows}, got {len(labels)}"
        raise ValueError(f"{message}: pass one each, and stack views of a sample by torch.stack(views, dim=1)")
    if labels.ndim == 2 and not is_zeros_and_ones(labels):
        message = f"expected {name} given as label sets to be zeros and ones, got other values"
        raise ValueError(f"{message}: pass class labels as a vector (n,)")


def check_classes(name: str, labels: Tensor, rows: str, count: int, classes: int | None = None) -> None:
    """Raise unless labels are integer classes, (n,), one for each row, and below ``classes`` if given."""
    check_tensor(name, labels)
    if labels.ndim != 1:
        expected = f"expected {name} to be classes, one integer for each row, (n,), got shape {tuple(labels.shape)}"
        raise ValueError(f"{expected}: for label sets use SupConLoss, MulSupConLoss, MSCLoss or NWSLoss")
    check_labels(name, labels, rows, count)
    if classes == 0:
        raise ValueError(f"expected {name} to belong to at least one class, got no prototypes: pass one for each class")
    if classes is None or labels.device.type != "cpu" or not len(labels):
        return
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= classes:
        expected = f"expected {name} to be within the {classes} classes, 0 … {classes - 1}, got {low} … {high}"
        raise ValueError(f"{expected}: number them from 0, and pass a prototype or a logit for each class")


def check_label_sets(name: str, labels: Tensor, rows: str, count: int, length: int | None = None) -> None:
    """Raise unless labels are multi-hot label sets, (n, L), one for each row, and L is ``length`` if given."""
    check_tensor(name, labels)
    if labels.ndim != 2:
        expected = f"expected {name} to be multi-hot label sets, (n, L), got shape {tuple(labels.shape)}"
        raise ValueError(f"{expected}: convert classes with torch.nn.functional.one_hot")
    check_labels(name, labels, rows, count)
    if length is not None and labels.shape[1] != length:
        raise ValueError(f"expected {name} to be sets over the same {length} labels, got {labels.shape[1]}")


def describe_missing(names: Iterable[str], inputs: Mapping[str, Any]) -> str:
    """Describe which inputs of a group are given, and which ones are missing."""
    names = list(dict.fromkeys(names))
    present = [name for name in names if inputs[name] is not None]
    missing = [name for name in names if inputs[name] is None]
    return f"{' and '.join(present)} without {' and '.join(missing)}"


@dataclass(frozen=True)
class ArgSpec(ABC):
    """Abstract declaration of an input: its check, which follows the checks of the inputs that it has to match."""

    naming: ClassVar[tuple[str, ...]] = ()
    """Fields that hold names of other inputs; if it `reads_loss`, the last may name an attribute of the loss."""
    reads_loss: ClassVar[bool] = False
    are_vectors: ClassVar[bool] = False
    """Whether the input holds rows with the features of embeddings, whose first features are embeddings as well."""

    @property
    def after(self) -> list[str]:
        """Names of the inputs that are checked first."""
        return [getattr(self, field) for field in self.naming if getattr(self, field)]

    @abstractmethod
    def check(self, name: str, value: Any, inputs: Given, loss: Any) -> None:
        """Raise unless a value fits the declaration; None is passed only for inputs that go with others."""


@final
@dataclass(frozen=True)
class Views(ArgSpec):
    """Views of samples, (B, D) each, or all in one, (B, V, D): the forward receives one tensor."""

    are_vectors = True

    def check(self, name: str, value: Any, inputs: Given, loss: Any) -> None: ...


@final
@dataclass(frozen=True)
class Episodic(ArgSpec):
    """An input with a part for each episode; `ContrastiveLoss.check` checks all of these inputs together."""

    def check(self, name: str, value: Any, inputs: Given, loss: Any) -> None:
        check_tensor(name, value)


@final
@dataclass(frozen=True)
class Embeddings(ArgSpec):
    """One view of each sample, (N, D), or V views, (B, V, D), which a loss also accepts as a list of (B, D)."""

    are_vectors = True

    def check(self, name: str, value: Any, inputs: Given, loss: Any) -> None:
        check_embeddings(name, value)


@final
@dataclass(frozen=True)
class References(ArgSpec):
    """Rows, (R, D), with the features and the device of another input; if ``aligned``, paired with it one to one."""

    naming = ("beside",)
    are_vectors = True
    beside: str
    aligned: bool = False

    def check(self, name: str, value: Any, inputs: Given, loss: Any) -> None:
        shape = tuple(inputs[self.beside].shape)
        check_references(name, value, inputs[self.beside], self.beside)
        if self.aligned and value.shape != shape:
            expected = f"expected {name} to be paired one to one with the {self.beside}, shape {shape}"
            raise ValueError(f"{expected}, got shape {tuple(value.shape)}: build the batch in pairs")


@final
@dataclass(frozen=True)
class PerAnchor(ArgSpec):
    """One row or more for each row of another input, (B, D) or (B, K, D)."""

    naming = ("of",)
    are_vectors = True
    of: str

    def check(self, name: str, value: Any, inputs: Given, loss: Any) -> None:
        check_tensor(name, value)
        count, features = inputs[self.of].shape
        shape = tuple(value.shape)
        if len(shape) not in (2, 3) or 0 in shape[1:] or (shape[0], shape[-1]) != (count, features):
            expected = f"one or more of each of the {self.of}, ({count}, {features}) or ({count}, K, {features})"
            got = f"got shape {shape}: give each its own, or leave them out"
            raise ValueError(f"expected {name} to be {expected}, {got}")
        check_references(name, value.reshape(-1, features), inputs[self.of], self.of)


@final
@dataclass(frozen=True)
class Prototypes(ArgSpec):
    """One row for each label of an input's label sets, or of an attribute of the loss."""

    naming = ("beside", "of")
    reads_loss = are_vectors = True
    beside: str
    of: str

    def check(self, name: str, value: Any, inputs: Given, loss: Any) -> None:
        count, rows = _width(self.of, inputs, loss), inputs[self.beside]
        check_references(name, value, rows, self.beside)
        if len(value) != count:
            expected = f"expected {name} to be one for each label, ({count}, D), got {len(value)}"
            raise ValueError(f"{expected}: use likewise.memory.Prototypes({count}, {rows.shape[-1]})")


@final
@dataclass(frozen=True)
class Labels(ArgSpec):
    """Classes or label sets, one for each row of another input; errors may use another name for these rows."""

    naming = ("of",)
    of: str
    rows: str = ""

    def check(self, name: str, value: Any, inputs: Given, loss: Any) -> None:
        if value is not None and inputs[self.of] is not None:
            check_labels(name, value, self.rows or self.of, inputs[self.of].shape[0])


@final
@dataclass(frozen=True)
class Classes(ArgSpec):
    """A class for each row of another input, passed with it; below the number of prototypes, if they are named."""

    naming = ("of", "below")
    of: str
    below: str = ""

    def check(self, name: str, value: Any, inputs: Given, loss: Any) -> None:
        prototypes = inputs[self.below] if self.below else None
        if (rows := _together(self.of, name, value, inputs)) is not None:
            check_classes(name, value, self.of, len(rows), None if prototypes is None else len(prototypes))


@final
@dataclass(frozen=True)
class MultiHot(ArgSpec):
    """A label set for each row of another input, passed with it; as wide as an input or an attribute of the loss."""

    naming = ("of", "like")
    reads_loss = True
    of: str
    like: str = ""
    rows: str = ""

    def check(self, name: str, value: Any, inputs: Given, loss: Any) -> None:
        if (rows := _together(self.of, name, value, inputs)) is not None:
            length = _width(self.like, inputs, loss) if self.like else None
            check_label_sets(name, value, self.rows or self.of, len(rows), length)


def _together(rows_name: str, name: str, value: Any, inputs: Given) -> Any:
    """Return the rows that the labels belong to; None if there are neither rows nor labels."""
    if (value is None) != (inputs[rows_name] is None):
        got = describe_missing((rows_name, name), {**inputs, name: value})
        raise ValueError(f"expected {rows_name} and {name} together, got {got}: pass both or neither")
    return inputs[rows_name]


def _width(name: str, inputs: Given, loss: Any) -> int:
    value: Tensor = inputs[name] if name in inputs else getattr(loss, name)
    return value.shape[1]


def checked(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a forward that first checks its annotated inputs, in the context of `ContrastiveLoss.checks`."""
    every = _parameters(forward)
    kinds = {param.name: spec for param in every for spec in _declared(param.annotation)}
    parameters = [param for param in every if param.kind not in (param.VAR_POSITIONAL, param.VAR_KEYWORD)]
    if any(isinstance(spec, Views) for spec in kinds.values()):
        return _of_views(forward, {param.name for param in parameters})
    if not kinds:
        return forward  # it checks its inputs in the context of `ContrastiveLoss.checks` itself
    _check_names(forward, kinds, {param.name for param in parameters})
    after = {name: [first for first in spec.after if first in kinds] for name, spec in kinds.items()}
    try:
        order = [*TopologicalSorter(after).static_order()]
    except CycleError as error:
        expected = f"expected inputs of {forward.__qualname__} that are checked one after another"
        raise TypeError(f"{expected}, got {', '.join(error.args[1])}, which wait for each other") from error
    names = {param.name: None for param in parameters}
    listed = next((name for name in [*names][:1] if isinstance(kinds.get(name), Embeddings)), "")
    optional = {param.name: param.default for param in parameters if param.default is not param.empty}
    required = [name for name in names if name not in optional]
    takes_more = len(parameters) < len(every)
    together = {name for name, spec in kinds.items() if isinstance(spec, Classes | MultiHot)}

    @functools.wraps(forward)
    def call(loss: Any, *args: Any, **kwargs: Any) -> Tensor:
        arguments = optional | dict(zip(names, args, strict=False)) | kwargs
        if takes_more or len(args) <= len(names):
            _check_all(arguments, arguments if takes_more else names, required, loss)
            views = _unpack_views(args)
            with loss.checks(*(views or args)[:1], **arguments) as inputs:
                if listed and views:
                    inputs[listed] = _stacked(views, type(loss).__name__)
                    args = inputs[listed], *args[1:]
                for name in order:
                    value, spec = inputs[name], kinds[name]
                    if value is None and name not in optional:
                        check_tensor(name, value)
                    if value is not None or name in together:
                        spec.check(name, value, inputs, loss)
                loss.check(inputs)
        return forward(loss, *args, **kwargs)  # which reports the surplus arguments

    return call


def _check_all(arguments: Given, known: Given, names: Sequence[str], loss: Any) -> None:
    if unknown := [name for name in arguments if name not in known]:
        raise TypeError(f"{type(loss).__name__} takes no {', '.join(unknown)}; it takes {', '.join(known)}")
    if missing := [name for name in names if name not in arguments]:
        expected = f"expected {', '.join(names)} for {type(loss).__name__}"
        raise TypeError(f"{expected}, got no {', '.join(missing)}: pass all of them")


def _check_names(forward: Callable[..., Tensor], kinds: dict[str, ArgSpec], names: set[str]) -> None:
    for name, spec in kinds.items():
        missing = [needed for needed in spec.after[: len(spec.naming) - spec.reads_loss] if needed not in names]
        if missing:
            expected = f"expected the annotation of {name} in {forward.__qualname__} to name inputs of it"
            known = ", ".join(sorted(names - {name}))
            raise TypeError(f"{expected}, got {missing[0]!r}: name one of {known}, or add the input")


def _of_views(forward: Callable[..., Tensor], options: set[str]) -> Callable[..., Tensor]:
    @functools.wraps(forward)
    def call(loss: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not kwargs.keys() <= options:
            return forward(loss, *args, **kwargs)  # which reports the surplus arguments
        args = _unpack_views(args) or args
        with loss.checks(*args[:1]) as inputs:
            embeddings = inputs["embeddings"] = _stacked(args, type(loss).__name__)
            loss.check(inputs)
        return forward(loss, embeddings, **kwargs)

    return call


def vectors_of(forward: Callable[..., Tensor]) -> list[str]:
    """Return the names of a forward's inputs that are vectors, whose first features are vectors as well."""
    return [param.name for param in _parameters(forward) for spec in _declared(param.annotation) if spec.are_vectors]


def _unpack_views(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the views if the first argument is a list of them, as from a loader; a list of numbers has none."""
    listed = args and isinstance(args[0], list | tuple) and any(isinstance(view, Tensor) for view in args[0])
    return tuple(args[0]) if listed else ()


def _parameters(forward: Callable[..., Tensor]) -> list[inspect.Parameter]:
    """Return the parameters after the loss; string annotations are evaluated, unless a name is missing."""
    try:
        signature = inspect.signature(forward, eval_str=True)
    except (NameError, AttributeError, TypeError, SyntaxError):  # names imported for type checkers only
        signature = inspect.signature(forward)
    return list(signature.parameters.values())[1:]


def _declared(annotation: Any) -> list[ArgSpec]:
    parts = (annotation, *get_args(annotation))
    return [spec for part in parts for spec in get_args(part)[1:] if isinstance(spec, ArgSpec)]


def _stacked(views: tuple[Tensor, ...], loss: str) -> Float[Tensor, "b v d"]:
    """Check views, each (B, D), or embeddings (B, V, D), and return (B, V, D); errors name the ``loss``."""
    for k, view in enumerate(views):
        if k > 0 and isinstance(view, Tensor) and view.ndim == 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            expected = f"expected views for {loss}, not labels, got a vector of {view.dtype}"
            raise ValueError(f"{expected}: to contrast classes use SupConLoss()(embeddings, labels)")
        check_embeddings(f"view_{k}" if len(views) > 1 else "embeddings", view)
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
