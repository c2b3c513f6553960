"""The data of a run: its three parts, loaded again from its configuration and checked by a fingerprint."""

import hashlib
import inspect
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from likewise.data.batches import some_inputs
from likewise.data.samples import Samples, Source
from likewise.data.split import Parts, Split, joined, whole_classes
from likewise.data.subset import Subset
from likewise.files.detection import expanded
from likewise.files.formats import PARTS
from likewise.instantiate import Spec, class_of, instantiate
from likewise.runs import Run, Side

FINGERPRINT_INPUTS = 256  # inputs in the digest
MAX_KEPT_BYTES = 2**30  # of inputs kept for the next run
READING_ARGUMENTS = ("label", "fine_label", "inputs", "part", "separator", "size", "resize", "memory", "download")
"""The arguments of sources that affect how samples are read, not which samples."""
Loaded = tuple[Samples, list[tuple[Warning | str, type[Warning]]]]
_last: ContextVar[dict[str, Loaded] | None] = ContextVar("last", default=None)


def parts_of(
    specs: Mapping[str, Any], check: Callable[[Samples], None] | None = None, *, stream: bool = False
) -> tuple[Parts, bool]:
    """Load and split the data.

    Args:
        specs: A `Spec` for data and for split, and one `Spec`, several, or None for subset. Subsets with `every_part`
            are applied first.
        check: Called with all samples before they are split, to raise a clearer error than the split would.
        stream: Whether inputs are read on demand.

    Returns:
        The parts, and whether the validation part is trained on too.

    Example:
        >>> split = {"class_path": "likewise.data.Stratified"}
        >>> parts, refit = parts_of({"data": {"class_path": "likewise.data.Digits"}, "split": split})
        >>> len(parts.test), refit
        (449, False)
    """
    source: Source = instantiate(specs["data"], Source)
    source.in_part = True
    whole = source.stream() if stream else _load_source(specs["data"], source)
    samples, unlabelled = _split_unlabelled(whole)
    if check is not None:
        check(samples)
    chosen = specs.get("subset") or []
    specs_of = chosen if isinstance(chosen, list) else [chosen]
    subsets = [instantiate(spec, Subset).of_source(whole) for spec in specs_of]
    for subset in subsets if unlabelled is not None else ():
        unlabelled = subset.of_unlabelled(unlabelled)
    if unlabelled is not None and not len(unlabelled):
        unlabelled = None
    for subset in (subset for subset in subsets if subset.every_part):
        samples = whole_classes(samples, subset)
    samples = samples.numbered()
    remaining = [subset for subset in subsets if not subset.every_part]
    split = instantiate(specs["split"], Split)
    keeping = [subset for subset in remaining if not subset.hides]
    parts = split(samples, _InTurn(remaining) if remaining else None)
    named = ((1, parts.validation), (2, parts.test))
    parts = replace(parts, given=tuple(PARTS[n] for n, part in named if _is_given(part, samples, n, len(whole))))
    if len(keeping) < len(remaining):
        hidden = _hidden(parts, split(samples, _InTurn(keeping) if keeping else None))
        unlabelled = hidden if unlabelled is None else joined(unlabelled, hidden)
    return replace(parts, unlabelled=unlabelled), split.refit


@contextmanager
def loaded_once() -> Generator[None]:
    """Keep the samples loaded last within the block, for reuse, if their inputs are in memory."""
    token = _last.set({})
    try:
        yield
    finally:
        _last.reset(token)


def _load_source(spec: Spec, source: Source) -> Samples:
    last, key = _last.get(), repr(spec)
    if last is None:
        return source.load()
    if key not in last:
        last.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            last[key] = source.load(), [(warning.message, warning.category) for warning in caught]
    samples, warned = last[key]
    for message, category in warned:
        warnings.warn(message, category, stacklevel=3)
    sides = samples.inputs, None if samples.counterparts is None else samples.counterparts.inputs
    if any(side is not None and not (isinstance(side, Tensor) and side.nbytes <= MAX_KEPT_BYTES) for side in sides):
        last.clear()  # it may record unreadable inputs, or take much memory
    return samples


def _split_unlabelled(samples: Samples) -> tuple[Samples, Samples | None]:
    """Return the labelled samples, and the unlabelled training samples."""
    known = samples.labelled
    if samples.labels is None or bool(known.all()):
        return samples, None
    samples = samples.numbered()
    to_train = ~known if samples.parts is None else ~known & (samples.parts == 0)
    if lost := int((~known & ~to_train).sum()):
        message = f"left out {lost:,} of the validation and test samples, which have no class to be evaluated by"
        warnings.warn(message, stacklevel=3)
    return samples[known], replace(samples[to_train].unlabelled(), parts=None)


def _hidden(parts: Parts, whole: Parts) -> Samples:
    rows = torch.cat([part.rows for part in (parts.train, parts.validation, parts.test) if part.rows is not None])
    cut = "validation" not in parts.given and not whole.new_in_validation
    hidden = (joined(whole.train, whole.validation) if cut else whole.train).unlabelled()
    hidden = hidden if hidden.rows is None else hidden[~torch.isin(hidden.rows, rows)]
    held_out = [part.groups for part in (parts.validation, parts.test) if part.groups is not None]
    return hidden if hidden.groups is None else hidden[~torch.isin(hidden.groups, torch.cat(held_out))]


def _is_given(part: Samples, samples: Samples, number: int, count: int) -> bool:
    if samples.parts is None or samples.rows is None or part.rows is None:
        return False
    rows = part.rows[part.rows < count]  # without turned images, which are numbered after all others
    return bool(torch.isin(rows, samples.rows[samples.parts == number]).all())


def parts_of_run(run: Run, *, stream: bool = False) -> tuple[Parts, bool]:
    """Load and split the data of a run again, as `parts_of` does; raise a ValueError if it is gone or has changed."""
    facts = run.metadata
    if not facts.get("parts", {}).get("data"):
        raise ValueError(f"expected a run with data, got {run.folder}, which has features only")
    parts, refit = parts_of(facts["parts"], stream=stream)
    if fingerprint(parts) != facts["samples"]["fingerprint"]:
        raise ValueError(f"expected the data that {run.folder} was trained on, got other data: restore it")
    return parts, refit


def parted_as(run: Run, samples: Samples, side: Side = "first") -> Samples:
    """Return the samples of a run's source with the run's parts; samples left out of it count as training samples."""
    parts = parts_of_run(run, stream=True)[0]
    held_out: dict[str, int] = {}
    for number, part in enumerate((parts.validation, parts.test), 1):
        side_samples = part if side == "first" or part.counterparts is None else part.counterparts
        held_out |= dict.fromkeys(side_samples.ids, number)
    return replace(samples, parts=torch.tensor([held_out.get(name, 0) for name in samples.ids]))


def same_source(first: Spec, second: Spec) -> bool:
    """Tell whether two `Spec`s read the same samples, whatever their labels, columns and sizes.

    Example:
        >>> table = {"class_path": "likewise.data.Table", "init_args": {"path": "plants.csv", "label": "kind"}}
        >>> same_source(table, {"class_path": "likewise.data.Table", "init_args": {"path": "./plants.csv"}})
        True
    """
    return _place(first) == _place(second)


def _place(spec: Spec) -> tuple[type, dict[str, Any]]:
    source_class, arguments = class_of(spec["class_path"], Source), spec.get("init_args") or {}
    usual = {name: parameter.default for name, parameter in inspect.signature(source_class).parameters.items()}
    options = {name: value for name, value in {**usual, **arguments}.items() if name not in READING_ARGUMENTS}
    paths = {name: expanded(value) for name, value in options.items() if isinstance(value, str | Path)}
    return source_class, options | {name: path.resolve() for name, path in paths.items()}


def fingerprint(parts: Parts) -> str:
    """Return a digest of each part and of its other side: all labels and names, and some inputs."""
    digest = hashlib.blake2b(digest_size=16)
    sides = [(part, part.counterparts) for part in (parts.train, parts.validation, parts.test)]
    every = [side for pair in sides for side in pair if side is not None]
    for samples in every if parts.unlabelled is None else [*every, parts.unlabelled]:
        digest.update(f"{tuple(samples.inputs.shape)} {samples.names}".encode())
        wrong, second = None if samples.negatives is None else samples.negatives.places, samples.evaluated
        digest.update(b"" if second is None else f"{second.names}".encode())
        tensors = [samples.labels, samples.items, wrong, None if second is None else second.classes]
        for tensor in [*tensors, some_inputs(samples, FINGERPRINT_INPUTS) if len(samples) else None]:
            if tensor is not None:
                digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


@final
class _InTurn(Subset):
    def __init__(self, subsets: Sequence[Subset]) -> None:
        self.subsets = subsets

    def __call__(self, samples: Samples) -> Tensor:
        rows = torch.arange(len(samples))
        for subset in self.subsets:
            rows = rows[subset(samples[rows])]
        return rows

    def relabelled(self, samples: Samples) -> Samples:
        for subset in self.subsets:
            samples = subset.relabelled(samples)
        return samples
