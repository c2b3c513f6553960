"""Which cases a test is run for, where all combinations would say no more."""

from collections.abc import Iterable
from itertools import combinations, product

import pytest

from loss_table import LOSSES, Draw

BACKENDS = "dense", "tiled", "auto"
SIGNATURES = list({(LOSSES[name].make().__class__, *LOSSES[name].batch(2, Draw(0))): name for name in LOSSES}.values())
"""A row for each class of loss and each choice of its arguments."""


def with_one_backend(turn: int, names: Iterable[str] = LOSSES) -> pytest.MarkDecorator:
    """Parametrize by a name and a backend, another one for a loss in each turn: of three, each loss meets all."""
    cases = [(name, BACKENDS[(number + turn) % 3]) for number, name in enumerate(names)]
    return pytest.mark.parametrize(("name", "backend"), cases)


def in_pairs(**values: Iterable[object]) -> pytest.MarkDecorator:
    """Parametrize by so few cases that every two values of different parameters meet in one, drawn greedily."""
    cases = [*product(*values.values())]
    pairs = [set(combinations(enumerate(map(repr, case)), 2)) for case in cases]
    missing, kept = set().union(*pairs), []
    while missing:
        best = max(range(len(cases)), key=lambda number: len(pairs[number] & missing))
        kept.append(cases[best])
        missing -= pairs[best]
    return pytest.mark.parametrize(",".join(values), kept)
