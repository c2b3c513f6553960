"""What may come into a loss: each check says what was expected, what came, and the remedy."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from likewise.operator.contrast import check_finite, number
from likewise.operator.inputs import check_dense, check_floating, is_plain

Flag = Literal[True, False]
UNSIGNED = torch.uint16, torch.uint32, torch.uint64  # which torch can hardly compute with


def check_tensor(name: str, value: Any) -> None:
    """Raise unless the value is a tensor, dense and strided, with values."""
    if not isinstance(value, Tensor):
        remedy = "call it, or take its keys" if isinstance(value, nn.Module) else "convert with torch.as_tensor"
        raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every door
            f"{name} come as a tensor, got {type(value).__name__}; {remedy}"
        )
    check_dense(name, value)


def check_embeddings(name: str, embeddings: Tensor) -> None:
    """Raise unless embeddings are finite and floating, one view of each sample, (N, D), or V views, (B, V, D)."""
    check_tensor(name, embeddings)
    check_floating(name, embeddings)
    if embeddings.ndim not in (2, 3) or 0 in embeddings.shape[1:]:
        raise ValueError(
            f"{name} are rows of one feature or more, (N, D), or with views (B, V, D), got shape "
            f"{tuple(embeddings.shape)}; flatten feature maps first"
        )
    check_finite(name, embeddings)


def check_references(name: str, references: Tensor, embeddings: Tensor, *, beside: str = "embeddings") -> None:
    """Raise unless references are finite rows, (R, D), of the features and on the device of checked embeddings."""
    check_embeddings(name, references)
    if references.ndim != 2 or references.shape[-1] != embeddings.shape[-1]:
        raise ValueError(
            f"{name} are rows of the {beside}' {embeddings.shape[-1]} features, (R, D), "
            f"got shape {tuple(references.shape)}; give one row each, made for the same number of features"
        )
    if references.device != embeddings.device:
        raise ValueError(
            f"{name} lie on the device of the {beside}, {embeddings.device}, got {references.device}; move them"
        )


def check_aligned(name: str, rows: Tensor, embeddings: Tensor, *, beside: str) -> None:
    """Raise unless rows, (N, D), stand one beside each of the checked embeddings, (N, D)."""
    check_references(name, rows, embeddings, beside=beside)
    if rows.shape != embeddings.shape:
        raise ValueError(
            f"{name} stand one beside each of the {beside}, shape {tuple(embeddings.shape)}, "
            f"got shape {tuple(rows.shape)}; build the batch in pairs"
        )


def check_labels(name: str, labels: Tensor, rows: str, count: int) -> None:
    """Raise unless labels are integer classes, (n,), or multi-hot label sets, (n, L), one for each of the rows."""
    check_tensor(name, labels)
    unknown = labels.dtype in UNSIGNED or not is_plain(labels.dtype)
    if unknown or labels.ndim not in (1, 2) or (labels.ndim == 1 and labels.is_floating_point()):
        raise ValueError(
            f"{name} are integer classes, (n,), or multi-hot label sets, (n, L), "
            f"got {labels.dtype} of shape {tuple(labels.shape)}; convert them with .long()"
        )
    if len(labels) != count:
        raise ValueError(f"{name} has one entry for each of {count} {rows}, got {len(labels)}; pass them in one order")
    if labels.ndim == 2 and labels.device.type == "cpu" and not ((labels == 0) | (labels == 1)).all():
        raise ValueError(
            f"{name} as label sets are zeros and ones, got other values; class labels come as a vector (n,)"
        )


def check_classes(name: str, labels: Tensor, rows: str, count: int, classes: int | None = None) -> None:
    """Raise unless labels are integer classes, (n,), one for each of the rows, within 0 … classes − 1 if so many."""
    check_tensor(name, labels)
    if labels.ndim != 1:
        raise ValueError(
            f"{name} are classes, one integer for each row, (n,), got shape {tuple(labels.shape)}; "
            "label sets go to SupConLoss, MulSupConLoss, MSCLoss and NWSLoss"
        )
    check_labels(name, labels, rows, count)
    if classes == 0:
        raise ValueError(
            f"{name} are of one class or more, got none to tell them from; give a prototype for each class"
        )
    if classes is None or labels.device.type != "cpu" or not len(labels):
        return
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= classes:
        raise ValueError(
            f"{name} lie within the {classes} classes, 0 … {classes - 1}, got {low} … {high}; number them from 0, and "
            "give a prototype, or a logit, for each class"
        )


def check_label_sets(name: str, labels: Tensor, rows: str, count: int, length: int | None = None) -> None:
    """Raise unless labels are multi-hot label sets, (n, L), one for each of the rows, over ``length`` labels if so."""
    check_tensor(name, labels)
    if labels.ndim != 2:
        raise ValueError(
            f"{name} are multi-hot label sets, (n, L), got shape {tuple(labels.shape)}; "
            "turn classes into sets with torch.nn.functional.one_hot"
        )
    check_labels(name, labels, rows, count)
    if length is not None and labels.shape[1] != length:
        raise ValueError(f"{name} are sets over the same {length} labels, got {labels.shape[1]}; give all over one L")


def check_labelled(
    name: str, rows: Tensor | None, label_sets: Tensor | None, queries: Tensor, length: int, *, beside: str = "queries"
) -> None:
    """Raise unless a section of references, (R, D), and its label sets, (R, L), fit and come together, or neither."""
    labels = {"keys": "key_labels", "references": "reference_labels"}.get(name, f"{name}_labels")
    if (rows is None) != (label_sets is None):
        raise ValueError(f"{name} and {labels} go together, got one of them; give both or none")
    if rows is not None and label_sets is not None:
        check_references(name, rows, queries, beside=beside)
        check_label_sets(labels, label_sets, name, len(rows), length)


def check_prototypes(prototypes: Tensor, queries: Tensor, count: int, of: str = "label") -> None:
    """Raise unless prototypes are one row of the queries' features for each label (or class), (count, D)."""
    check_references("prototypes", prototypes, queries, beside="queries")
    if len(prototypes) != count:
        raise ValueError(
            f"prototypes are one for each {of}, ({count}, D), got {len(prototypes)}; "
            f"make likewise.memory.Prototypes({count}, {queries.shape[-1]})"
        )


def check_number(name: str, value: object, low: float, high: float, usual: str) -> float:
    """Return a hyper-parameter as a number; raise unless it is one, within low … high."""
    if not low <= number(value) <= high:
        raise ValueError(f"{name} is a number within {low:g} … {high:g}, got {value!r}; usual values are {usual}")
    return number(value)


def check_positive(name: str, value: object, usual: str = "0.1 to 1") -> float:
    """Return a hyper-parameter as a number; raise unless it is positive, and such that float32 has room beside it."""
    if not 1e-6 <= number(value) <= 1e6:
        raise ValueError(
            f"{name} is a positive number, got {value!r}, and within 1e-06 … 1e+06; usual values are {usual}"
        )
    return number(value)


def matrix(name: str, value: Any, remedy: str) -> Tensor:
    """Return numbers of any kind, such as an array, as a detached tensor; raise unless they are numbers."""
    if isinstance(value, Tensor):
        check_dense(name, value)
    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} are numbers in a tensor or an array, got {type(value).__name__}; {remedy}") from error


def one_of(name: str, value: Any, choices: Any) -> Any:
    """Return a hyper-parameter; raise unless it is one of the choices of a Literal."""
    if not any(value == choice and type(value) is type(choice) for choice in get_args(choices)):
        raise ValueError(
            f"{name} is one of {', '.join(map(str, get_args(choices)))}, got {value!r}; choose one of them"
        )
    return value
