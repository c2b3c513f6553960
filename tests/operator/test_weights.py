"""Plans of pair weights: what is kept of weights that are the same tests of keys."""

import pytest
import torch

from likewise import pairs
from likewise.operator import ContrastSpec, Push

pytest.importorskip("triton", reason="Triton is not installed: it has no wheel for this platform")

from likewise.operator.triton import weights

CPU = torch.device("cpu")


def problems(n=6, r=9):
    """Return problems whose keys and tests are like each other's, and are not."""
    draw = lambda count: torch.randint(3, (count,))  # noqa: E731 - new keys each time
    not_self, of_queue = pairs.NotSelf(n), pairs.SameClass(draw(n), draw(r))
    one, other = pairs.SameClass(draw(n)), pairs.SameClass(draw(n))
    everything, shifted = pairs.AllPairs(n, r), pairs.NotSelf(n, r, offset=2)
    return {
        "SupCon": ((not_self,), (one & not_self).mean_over_row(), (n,)),
        "SupCon in": ((not_self, one & not_self), None, (n,)),
        "one key twice": ((one,), one, (n,)),
        "two keys": ((one,), other, (n,)),
        "a key and its complement": ((~one & not_self,), one & not_self, (n,)),
        "of other rows": ((everything,), of_queue, (r,)),
        "shifted": ((shifted,), of_queue & shifted, (r,)),
        "a queue": (
            (pairs.concat([not_self, everything]),),
            pairs.concat([one & not_self, of_queue]).mean_over_row(),
            (n, r),
        ),
    }


def planned(pushes, pull, lengths):
    problem = ContrastSpec(
        tuple(Push(push, 1.0 + k) for k, push in enumerate(pushes)), pull, normalize=True, own=(True,)
    )
    return weights.plans(problem, lengths, CPU)


@pytest.mark.parametrize("sorts", [False, True])
@pytest.mark.parametrize("name", problems())
def test_what_is_kept_is_what_would_be_made(name, sorts, monkeypatch):
    """The same functions, the values of the keys that are given, whatever else was planned before."""
    if sorts:
        monkeypatch.setattr(weights, "MIN_ROWS_TO_SORT", 1)
    for other in problems().values():
        planned(*other)
    given = problems()[name]
    kept = planned(*given)
    weights._known.clear()  # noqa: SLF001 - so that it is made anew
    made = planned(*given)
    for mine, theirs in zip(kept.sections, made.sections, strict=True):
        for swapped in (False, True):
            assert mine.function(swapped) is theirs.function(swapped)
        assert [torch.as_tensor(value).tolist() for value in mine.values] == [
            torch.as_tensor(value).tolist() for value in theirs.values
        ]
        assert (mine.ordered is None) == (theirs.ordered is None)
        rest = [plan._replace(function=None, values=(), ordered=None) for plan in (mine, theirs)]
        assert rest[0] == rest[1]


def test_what_is_kept_holds_no_tensor_and_is_bounded(monkeypatch):
    """Labels of an earlier batch are not kept, nor more than so many combinations."""
    monkeypatch.setattr(weights, "MAX_CACHED_TESTS", 3)
    for _ in range(2):
        for given in problems().values():
            planned(*given)
            assert len(weights._known) <= 3  # noqa: SLF001 - what is kept
    for known in weights._known.values():  # noqa: SLF001 - likewise
        assert known.plan.values == ()
        assert known.plan.ordered is None
