"""Input checks of the losses: every error says what was expected, what was given and how to fix it."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from likewise.operator.inputs import check_dense, check_finite, check_floating, is_plain, number
from likewise.pairs import weight
from likewise.pairs.sets import is_zeros_and_ones

Flag = Literal[True, False]
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


def check_ids(name: str, rows_name: str, also: str, inputs: dict[str, Any]) -> None:
    """Raise unless ids, if given, are integers, one per row of (…, D), and those rows and ``also`` are given too."""
    if (ids := inputs[name]) is None:
        return
    check_tensor(name, ids)
    for needed in (rows_name, also):
        if inputs[needed] is None:
            raise ValueError(f"expected {needed} with {name}, got none: pass both or neither")
    shape = inputs[rows_name].shape[:-1]
    if ids.is_floating_point() or ids.is_complex() or ids.dtype in UNSIGNED_DTYPES or ids.shape != shape:
        expected = f"expected {name} to be integers, one for each of the {rows_name}, shape {tuple(shape)}"
        raise ValueError(f"{expected}, got {ids.dtype} of shape {tuple(ids.shape)}: number them, equal ones alike")


def check_candidates(inputs: dict[str, Any]) -> None:
    """Raise unless ids of negatives, and a guide's finite vectors of one width, match the rows they describe."""
    check_ids("negative_ids", "negatives", "ids", inputs)
    for side in ("queries", "keys", "negatives"):
        name, first = f"guide_{side}", inputs["guide_queries"]
        vectors, rows = inputs[name], inputs[side]
        if vectors is None and (side == "negatives" or first is None):
            continue
        if vectors is None or first is None or rows is None:
            expected = f"expected guide_queries and guide_keys together, and {side} with {name}"
            got = describe_missing(("guide_queries", name, side), inputs)
            raise ValueError(f"{expected}, got {got}: pass the guide's vectors of both sides, or none")
        check_tensor(name, vectors)
        check_floating(name, vectors)
        if vectors.shape[:-1] != rows.shape[:-1] or vectors.shape[-1:] != first.shape[-1:]:
            shape = (*rows.shape[:-1], *first.shape[-1:])
            expected = f"expected {name} to be vectors of the guide's width, one for each of the {side}, shape {shape}"
            raise ValueError(f"{expected}, got shape {tuple(vectors.shape)}: encode the batch's own")
        check_finite(name, vectors)


def describe_missing(names: Iterable[str], inputs: Mapping[str, Any]) -> str:
    """Say which of the inputs that go together are there, without which others."""
    names = list(dict.fromkeys(names))
    present = [name for name in names if inputs[name] is not None]
    missing = [name for name in names if inputs[name] is None]
    return f"{' and '.join(present)} without {' and '.join(missing)}"


def check_labels(name: str, labels: Tensor, rows: str, count: int) -> None:
    """Raise unless labels are integer classes, (n,), or multi-hot label sets, (n, L), one for each of the rows."""
    check_tensor(name, labels)
    unknown = labels.dtype in UNSIGNED_DTYPES or not is_plain(labels.dtype)
    if unknown or labels.ndim not in (1, 2) or (labels.ndim == 1 and labels.is_floating_point()):
        expected = f"expected {name} to be integer classes, (n,), or multi-hot label sets, (n, L)"
        raise ValueError(f"{expected}, got {labels.dtype} of shape {tuple(labels.shape)}: convert them with .long()")
    if labels.shape[0] != count:
        message = f"expected {name} to have one entry for each of {count} {rows}, got {len(labels)}"
        raise ValueError(f"{message}: pass both in the same order")
    if labels.ndim == 2 and not is_zeros_and_ones(labels):
        message = f"expected {name} given as label sets to be zeros and ones, got other values"
        raise ValueError(f"{message}: pass class labels as a vector (n,)")


def check_classes(name: str, labels: Tensor, rows: str, count: int, classes: int | None = None) -> None:
    """Raise unless labels are integer classes, (n,), one for each row, and below ``classes`` if that is given."""
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
    """Raise unless labels are multi-hot label sets, (n, L), one for each row, and L is ``length`` if that is given."""
    check_tensor(name, labels)
    if labels.ndim != 2:
        expected = f"expected {name} to be multi-hot label sets, (n, L), got shape {tuple(labels.shape)}"
        raise ValueError(f"{expected}: convert classes with torch.nn.functional.one_hot")
    check_labels(name, labels, rows, count)
    if length is not None and labels.shape[1] != length:
        raise ValueError(f"expected {name} to be sets over the same {length} labels, got {labels.shape[1]}")


def check_episodes(inputs: dict[str, Any], names: tuple[str, str, str], remedy: str) -> None:
    """Raise unless features or maps of queries, those of classes, and the queries' labels are of the same episodes.

    Each rank has its own episodes: only dtype and features remain, for ranks to compare. On a GPU, where values are not
    checked, a label that is none of the classes leaves its query or cell out.
    """
    queries, means, labels = (inputs[name] for name in names)
    maps = names[0].endswith("maps")
    for name, features in zip(names, (queries, means), strict=False):
        if features.ndim != (5 if maps else 3):
            layout = (
                "feature maps of episodes, (E, Q or K, D, H, W)" if maps else "features of episodes, (E, Q or K, D)"
            )
            got = f"got shape {tuple(features.shape)}: pass one episode as a batch of one, {name}[None]"
            raise ValueError(f"expected {name} to be {layout}, {got}")
        check_embeddings(name, features.flatten(2).flatten(0, 1))
    episodes, features = queries.shape[0], queries.shape[2]
    if (episodes, features, queries.device) != (means.shape[0], means.shape[2], means.device):
        raise ValueError(
            f"expected {names[1]} to have the {names[0]}' {episodes} episodes, {features} features and device "
            f"{queries.device}, got shape {tuple(means.shape)} on {means.device}: encode both with the same encoder"
        )
    each, shape = "cell of each query" if maps else "query", (*queries.shape[:2], *queries.shape[3:])
    if labels.shape != shape:
        expected = f"expected {names[2]} to have one class for each {each}, shape {tuple(shape)}"
        raise ValueError(f"{expected}, got shape {tuple(labels.shape)}: {remedy}")
    check_classes(names[2], labels.flatten(), "cells" if maps else "queries", labels.numel(), means.shape[1])
    inputs.update({name: inputs[name][:, :0].movedim(2, -1).flatten(0, -2) for name in names[:2]})
    del inputs[names[2]]


def check_number(name: str, value: object, low: float, high: float, usual: str, *, domain: str = "number") -> float:
    """Return a hyper-parameter as a number; raise unless it is a number from low to high."""
    if not low <= number(value) <= high:
        expected = f"expected {name} to be a {domain} within {low:g} … {high:g}, got {value!r}"
        raise ValueError(f"{expected}: typical values are {usual}")
    return number(value)


def check_positive(name: str, value: object, usual: str = "0.1 to 1") -> float:
    """Return a hyper-parameter as a number; raise unless it is positive and well within float32's range."""
    return check_number(name, value, 1e-6, 1e6, usual, domain="positive number")


def matrix(name: str, value: Any, remedy: str) -> Tensor:
    """Return numbers of any kind, such as an array, as a detached tensor; raise if they are not numbers."""
    if isinstance(value, Tensor):
        check_dense(name, value)
    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        expected = f"expected {name} to be a tensor or an array of numbers, got {type(value).__name__}"
        raise ValueError(f"{expected}: {remedy}") from error


def warn_if_inactive(loss: str, anchors: Tensor, positives: Tensor, *, met: bool) -> bool:
    """Warn of a batch without active anchors, and return whether it warned; on a GPU or in a graph nothing is read.

    With `met`, only if no anchor has a positive: one that has may already meet the loss's demand.
    """
    if anchors.device.type != "cpu" or torch.compiler.is_compiling() or not len(positives) or anchors != 0:
        return False
    if met and positives.any():
        return False
    message = f"{loss}: no anchor among {len(positives)} rows is active, so the loss is 0 and nothing is learned: "
    message += "give batches with positives and negatives, as two views of a sample or several samples of a class"
    warnings.warn(message, stacklevel=2)
    return True


def naming_options(constructor: Callable[..., None], options: type) -> Callable[..., None]:
    """Return a constructor that names its options if it gets an unknown one, before Python asks for missing ones."""
    every = list(inspect.signature(constructor).parameters.values())
    passed_on = [param for param in every if param.kind is param.VAR_KEYWORD]
    if any(options.__name__ not in str(param.annotation) for param in passed_on):
        return constructor
    positional = sum(param.kind is not param.KEYWORD_ONLY for param in every[1:] if param not in passed_on)
    known = [param.name for param in every[1:] if param not in passed_on] + [*options.__annotations__] * bool(passed_on)

    @functools.wraps(constructor)
    def call(self: object, *args: Any, **kwargs: Any) -> None:
        if unknown := [name for name in kwargs if name not in known]:
            has = ", ".join(known) or "none"
            raise TypeError(f"{type(self).__name__} has no option {', '.join(unknown)}; it has {has}")
        if len(args) > positional and all(param.kind is not param.VAR_POSITIONAL for param in every):
            takes = f"{positional} arguments without a name" if positional else "its options by name"
            message = f"{type(self).__name__} takes {takes}, got {', '.join(map(repr, args))}: its options are "
            raise TypeError(f"{message}{', '.join(known) or 'none'}; prototypes and queues are given to its call")
        constructor(self, *args, **kwargs)

    return call
