"""Splits: samples divided into training, validation and test, with the test part chosen first and never reduced."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from likewise.data.lazy_inputs import JoinedRows
from likewise.data.samples import Samples, rows_of_groups, some_of_each_class
from likewise.data.subset import Subset
from likewise.data.texts import Texts
from likewise.files.formats import PARTS, Part, first_of
from likewise.instantiate import Described, describe


@final
@dataclass(frozen=True)
class Parts:
    """The parts of a data set.

    Args:
        train: The samples to train on.
        validation: The samples for model selection, such as a penalty, a threshold or an epoch.
        test: The samples held out from both.
        given: The parts among validation and test that the source gives.
        unlabelled: Unlabelled samples, in none of the three: for losses without labels. None: there are none.
    """

    train: Samples
    validation: Samples
    test: Samples
    given: tuple[Part, ...] = field(default=(), kw_only=True)
    unlabelled: Samples | None = field(default=None, kw_only=True)

    @property
    def new_in_validation(self) -> bool:
        """Whether the validation classes differ from the training classes."""
        return self.train.names[: len(self.validation.names)] != self.validation.names

    def refitted(self) -> "Parts":
        """Return parts that train on training and validation samples together; new classes come last."""
        return replace(self, train=joined(self.train, self.validation))


@dataclass(repr=False, eq=False, kw_only=True)
class Split(Described, ABC):
    """Abstract: a way to split samples.

    Args:
        refit: Whether to train on training and validation samples together, after model selection.
    """

    refit: bool = False

    __repr__ = describe

    @abstractmethod
    def __call__(self, samples: Samples, subset: Subset | None = None) -> Parts:
        """Return disjoint parts, none of them empty, of all samples of a source.

        A subset is applied to all samples except the test part, before the validation part is split off; or to all
        samples if its `every_part` is set.
        """


def whole_classes(samples: Samples, subset: Subset | None) -> Samples:
    """Number the rows, apply a subset of every part, drop empty classes, and refuse a single class."""
    samples = samples.numbered()
    if subset is not None and subset.every_part:
        samples = subset.taken(samples)
    samples = samples.compact()
    if samples.label_kind == "classes" and len(samples.names) < 2:
        name = f" ({samples.names[0]!r})" if samples.names else ""
        raise ValueError(f"expected at least 2 classes, got {len(samples.names)}{name} in {len(samples)} samples")
    return samples


def relabelled(parts: Parts, subset: Subset | None) -> Parts:
    """Return parts with a subset's labels in training and validation."""
    if subset is None:
        return parts
    return replace(parts, train=subset.relabelled(parts.train), validation=subset.relabelled(parts.validation))


def joined(first: Samples, second: Samples) -> Samples:
    """Join two sets of samples, in order; without labels unless both have some."""
    if isinstance(first.inputs, Tensor) and isinstance(second.inputs, Tensor):
        inputs = torch.cat([first.inputs, second.inputs])
    elif isinstance(first.inputs, Texts) and isinstance(second.inputs, Texts):
        inputs = Texts([*first.inputs.strings, *second.inputs.strings])
    else:
        inputs = JoinedRows(first.inputs, second.inputs)
    labels, names, added = None, (), second.labels
    if first.labels is not None and added is not None:
        names = first.names
        if first.names != second.names:
            names, added = first.names + second.names, added + len(first.names)
        labels = torch.cat([first.labels, added])
    evaluated = first.evaluated
    if evaluated is not None and second.evaluated is not None:
        evaluated = evaluated.joined(second.evaluated)
    ours, theirs = first.counterparts, second.counterparts
    negatives = first.negatives
    if negatives is not None and second.negatives is not None:
        negatives = replace(negatives, places=torch.cat([negatives.places, second.negatives.places]))
    beside: dict[str, Any] = {}
    for name in ("rows", "items", "groups"):
        both = getattr(first, name), getattr(second, name)
        beside[name] = None if any(numbers is None for numbers in both) else torch.cat(both)
    beside |= {name: getattr(first, name) for name in ("preprocessing", "columns", "said")}
    beside |= {"negatives": negatives, "evaluated": evaluated if labels is not None else None}
    counterparts = None if ours is None or theirs is None else joined(ours, theirs)
    return Samples(inputs, labels, names, ids=first.ids + second.ids, counterparts=counterparts, **beside)


@final
@dataclass(repr=False, eq=False)
class Stratified(Split):
    """Parts with the same classes: the source's own parts, and a stratified split for the others.

    Label sets are split by iterative stratification, which keeps the share of every label; samples without labels at
    random. Samples with groups, as in `Pairs`, are split by whole groups at random, whatever their classes, and lose
    hard negatives that are counterparts only in a later part, with a warning.

    Args:
        test: The fraction of all samples held out; unused if the source gives a test part.
        validation: The fraction of the other samples for model selection, split off after the subset; unused if the
            source gives a validation part. Every class keeps a training sample, so the smallest may have none here.
        seed: Seed of the split. It is not the run's seed: runs are compared on the same test part.

    Raises:
        ValueError: A fraction is outside (0, 1); there is only one class; a class is too small to split; a test class
            has no training sample; or no class can spare a sample for validation.

    Example:
        >>> samples = Samples(torch.zeros(40, 3), torch.tensor([0, 1] * 20), ("cat", "dog"))
        >>> parts = Stratified(test=0.25, validation=0.2)(samples)
        >>> parts.train.counts, parts.validation.counts, parts.test.counts
        (tensor([12, 12]), tensor([3, 3]), tensor([5, 5]))
    """

    test: float = 0.25
    validation: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.test < 1:
            raise ValueError(f"expected test between 0 and 1, got {self.test}")
        if not 0 < self.validation < 1:
            remedy = "with refit=True, training has the validation samples, too"
            raise ValueError(f"expected validation between 0 and 1, got {self.validation}: {remedy}")

    def __call__(self, samples: Samples, subset: Subset | None = None) -> Parts:
        subset = None if subset is None else subset.of_source(samples)
        samples = whole_classes(samples, subset)
        source_parts = torch.zeros(len(samples), dtype=torch.int64) if samples.parts is None else samples.parts
        test = (source_parts == 2).nonzero().flatten()
        if not len(test):
            test = self._cut_test(samples, source_parts == 0)
        rest = torch.isin(torch.arange(len(samples)), test, invert=True).nonzero().flatten()
        if subset is not None and not subset.every_part:
            rest = rest[subset(samples[rest])]
            if len(rest) < 2:
                raise ValueError(f"expected a subset that keeps samples to train and to validate on, got {len(rest)}")
        validation = rest[source_parts[rest] == 1]
        if subset is not None and samples.classes is not None:  # it may leave out all training samples of a class
            trained = samples.classes[rest[~torch.isin(rest, validation)]]
            validation = validation[torch.isin(samples.classes[validation], trained)]
        if len(validation) == 0:
            validation = self._cut_validation(samples, rest)
        train = rest[~torch.isin(rest, validation)]
        for part, rows in (("validation", validation), ("test", test)):
            _check_seen(samples, train, rows, part)
        parts = [replace(samples[rows], parts=None) for rows in (train, validation, test)]
        return relabelled(Parts(*_without_held_out(parts)), subset)

    def _cut_test(self, samples: Samples, cuttable: Tensor) -> Int[Tensor, " t"]:
        from sklearn.model_selection import train_test_split  # noqa: PLC0415 - not needed where a test part is given

        rows = cuttable.nonzero().flatten()
        if samples.groups is not None:
            return rows[_whole_groups(samples.groups[rows], self.test, self.seed, least=3)]
        held_out = round(len(rows) * self.test)
        if samples.labels is not None and samples.label_kind == "label sets" and len(rows) > 3:
            return rows[stratified(samples.labels[rows], self.test, self.seed)]
        labels = None if samples.classes is None else samples.classes[rows]
        counts = torch.tensor([len(rows)]) if labels is None else torch.bincount(labels, minlength=len(samples.names))
        smallest = int(counts.argmin())
        if counts[smallest] < 3:
            few, every, remedy = f"{int(counts[smallest])}", "", "add samples"
            if labels is not None:
                few += f" of {samples.names[smallest]!r}; {int((counts < 3).sum())} of {len(counts)} classes have fewer"
                every, remedy = " of every class", "add samples, or --min_per_class 3 leaves small classes out"
            raise ValueError(f"expected at least 3 samples{every}, one of them to test, got {few}: {remedy}")
        least, most = len(counts), len(rows) - 2 * len(counts)
        if not least <= held_out <= most:
            fits = min(max(held_out, least), most) / len(rows)
            expected = f"a test part of 1 to all but 2 samples of each of {len(counts)} classes"
            got = f"{held_out} of {len(rows)} samples, test={self.test}: --split.test {fits:.4g} fits"
            raise ValueError(f"expected {expected}, got {got}")
        stratify = None if labels is None else labels.numpy()
        _, held = train_test_split(rows.numpy(), test_size=held_out, stratify=stratify, random_state=self.seed)
        return torch.from_numpy(held).sort().values

    def _cut_validation(self, samples: Samples, rows: Tensor) -> Int[Tensor, " v"]:
        if samples.groups is not None:
            return rows[_whole_groups(samples.groups[rows], self.validation, self.seed, least=2)]
        if samples.labels is not None and samples.label_kind == "label sets":
            return rows[stratified(samples.labels[rows], self.validation, self.seed)]
        labels = torch.zeros(len(rows), dtype=torch.int64) if samples.classes is None else samples.classes[rows]
        shares = _shares(torch.bincount(labels), self.validation)
        if int(shares.sum()) == 0:
            got = f"{len(rows)} samples of {len(labels.unique())} classes after the test part"
            raise ValueError(f"expected a class with a sample for training and one for validation, got {got}")
        return rows[some_of_each_class(labels, shares.tolist(), self.seed)]


def _whole_groups(groups: Tensor, share: float, seed: int, *, least: int) -> Int[Tensor, " k"]:
    # as many as fit into a share of the samples; at least `least` - 1 groups remain
    counts = groups.unique(return_counts=True)[1]
    if len(counts) < least:
        got = f"{len(counts)} of {len(groups):,} samples: name a column of what belongs together in --data.group"
        raise ValueError(f"expected at least {least} groups that share nothing, a part each, got {got}")
    room = max(round(share * len(groups)), int(counts.min()))
    return rows_of_groups(groups, room, seed, most=len(counts) - least + 1)


def _shares(counts: Tensor, part: float) -> Tensor:
    """Return the number of samples of each class in a part: in proportion, by largest remainders, and never all."""
    exact = counts.double() * part
    shares = exact.floor().long()
    spare = counts - 1
    missing = max(1, round(int(counts.sum()) * part)) - int(shares.sum())
    remainders = torch.where(shares < spare, exact - shares, -1)
    order = remainders.argsort(descending=True, stable=True)[: min(missing, int((shares < spare).sum()))]
    shares[order] += 1
    return shares


def _check_seen(samples: Samples, train: Tensor, rows: Tensor, part: str) -> None:
    if len(train) == 0 or len(rows) == 0:
        empty = PARTS[0] if len(train) == 0 else part
        raise ValueError(f"expected samples in every part, got no {empty} sample")
    if samples.classes is None or samples.groups is not None:
        return
    unseen = sorted(set(samples.classes[rows].tolist()) - set(samples.classes[train].tolist()))
    if unseen:
        got = f"no training sample for {first_of([samples.names[label] for label in unseen])}: choose ByClass"
        raise ValueError(f"expected a {part} part with every class in training, got {got}")


def stratified(sets: Bool[Tensor, "n l"], share: float, seed: int) -> Int[Tensor, " k"]:
    """Choose a share of samples so that each label keeps that share of its own samples (Sechidis et al., 2011).

    Repeatedly, the label with the fewest remaining samples is taken. Each of its samples, in random order, goes to the
    part that lacks more samples of this label, or else more samples. Samples without a label fill up the parts. At the
    end, the samples placed last, which have frequent labels only, move to the other part until the sizes are right.
    """
    count = len(sets)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    left = torch.ones(count, dtype=torch.bool)
    chosen = torch.zeros(count, dtype=torch.bool)
    totals = sets.sum(dim=0)
    wanted = totals * share, totals * (1 - share)
    lacking = [[float(number) for number in part] for part in wanted]
    samples = [share * count, (1 - share) * count]
    remaining = totals.clone()
    placed: list[int] = []
    own_labels = [labels.nonzero().flatten().tolist() for labels in sets]
    while bool((remaining > 0).any()):
        label = int(torch.where(remaining > 0, remaining, count + 1).argmin())
        for row in order[sets[order, label] & left[order]].tolist():
            first, second = ((lacking[part][label], samples[part]) for part in (0, 1))
            part = 0 if first > second else 1
            chosen[row] = part == 0
            left[row] = False
            placed.append(row)
            samples[part] -= 1
            for row_label in own_labels[row]:
                lacking[part][row_label] -= 1
                remaining[row_label] -= 1
    blank = order[left[order]]
    chosen[blank[: max(0, round(samples[0]))]] = True
    surplus = int(chosen.sum()) - max(1, round(share * count))
    moved = [row for row in reversed(placed) if bool(chosen[row]) == (surplus > 0)][: abs(surplus)]
    chosen[moved] = surplus < 0
    return chosen.nonzero().flatten()


def never_apart(samples: Samples) -> Int[Tensor, " n"]:
    """Return numbers, (N,), equal for pairs that share a first, second, label or group, directly or through others.

    Pairs with the same number must not be pushed apart.

    Example:
        >>> items = torch.tensor([0, 0, 1, 2, 3])
        >>> captions = Samples(torch.zeros(5, 2), items=torch.tensor([5, 6, 6, 7, 8]))
        >>> never_apart(Samples(torch.zeros(5, 3), items=items, counterparts=captions))
        tensor([0, 0, 0, 1, 2])
    """
    counterparts = samples.counterparts
    shared = [samples.items, None if counterparts is None else counterparts.items, samples.groups, samples.labels]
    return components(len(samples), [numbers for numbers in shared if numbers is not None])


def components(count: int, shared: Sequence[Tensor]) -> Int[Tensor, " n"]:
    """Return numbers, (N,), equal for rows that share a number, (N,), or a set column, (N, L), even through others."""
    from scipy.sparse import coo_array  # noqa: PLC0415 - only pairs need it
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 - as above

    rows, nodes, total = [torch.arange(0)], [torch.arange(0)], count
    for numbers in shared:
        row, node = (torch.arange(count), numbers) if numbers.ndim == 1 else numbers.nonzero().unbind(1)
        rows, nodes = [*rows, row], [*nodes, node + total]
        total += int(node.max()) + 1 if len(node) else 0
    edges = torch.cat(rows).numpy(), torch.cat(nodes).numpy()
    graph: Any = coo_array((np.ones(len(edges[0]), dtype=np.int8), edges), shape=(total, total))
    return torch.from_numpy(connected_components(graph, directed=False)[1][:count].astype(np.int64))


def _without_held_out(parts: Sequence[Samples]) -> Sequence[Samples]:
    """Leave out each part's hard negatives that are counterparts only in later parts; a warning counts them."""
    sides = [None if part.counterparts is None else part.counterparts.items for part in parts]
    items, kept = [side for side in sides if side is not None], list[Samples]()
    for end, (samples, name) in enumerate(zip(parts, PARTS, strict=True), 1):
        negatives = samples.negatives
        if negatives is None or len(items) < len(parts) or end == len(parts):
            kept.append(samples)
            continue
        later, earlier = torch.cat(items[end:]), torch.cat(items[:end])
        held_out = torch.isin(negatives.items, later) & ~torch.isin(negatives.items, earlier)
        lost = torch.isin(negatives.places, held_out.nonzero().flatten())
        if bool(lost.any()):
            some = f"{int(lost.sum()):,} of {int((negatives.places >= 0).sum()):,} hard negatives of {name} pairs"
            warnings.warn(f"left out {some}, which are counterparts of later parts", stacklevel=4)
        kept.append(replace(samples, negatives=replace(negatives, places=negatives.places.masked_fill(lost, -1))))
    return kept
