"""Whether kernels compute what the plain formula does in float64, and the same bits again: every form of weight."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from benchmarks import compiled
from benchmarks.losses import ENTRIES, ours
from benchmarks.measuring.case import Case, Sampler
from benchmarks.reports import Report, begun, in_words, leave_if_poisoned
from likewise import pairs
from likewise.operator import ContrastSpec, Push, evaluate
from likewise.operator.triton import weights

SIZES, FEATURES = (2000, 700), (128, 96, 256, 20, 300)  # what is used most comes first
KEYS = 333
LIMITS = {"bfloat16": 5e-2, "float16": 6e-3, "float32": 1e-5}
"""The largest error of an output, relative to its size: about three times the largest in Triton's interpreter."""

FORMS = (*compiled.WEIGHTS, "temperature learned", "not normalised", "queue", "both ways")
LOSSES = tuple(name for name, entry in ENTRIES.items() if entry.pairwise)
"""Whole losses, with their reduction; at one size."""


class Given(NamedTuple):
    """A case: what is computed, from how many rows of how many features, in which dtype."""

    form: str
    features: int
    rows: int
    dtype: str


def cases(forms: list[str], precisions: list[str], features: list[int], sizes: list[int]) -> Iterator[Given]:
    """Yield the cases, those of the most used width first."""
    for d, n, form, dtype in product(features, sizes, forms, precisions):
        if form not in LOSSES or (d, n) == (features[0], sizes[-1]):
            yield Given(form, d, n, dtype)


def clustered(n: int, given: Given, device: str, seed: int) -> Tensor:
    """Return rows around seven centres, so that pull and push nearly cancel, as a trained encoder's do."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(7, given.features, generator=generator)
    rows = centres[torch.arange(n) % 7] + 0.5 * torch.randn(n, given.features, generator=generator)
    return torch.nn.functional.normalize(rows, dim=1).to(device, getattr(torch, given.dtype))


def of_form(given: Given, device: str) -> Callable[..., list[Tensor]]:
    """Return a function that computes a form's sums and gradients, by kernels or exactly."""
    n, form = given.rows, given.form
    problem = compiled.problem(form if form in compiled.WEIGHTS else "SupCon", n, device)
    problem = problem._replace(own=(), inv_temperature=None, normalize=form != "not normalised")
    rows, apart = [clustered(n, given, device, 0)], form in {"queue", "both ways"}
    if apart:
        rows.append(clustered(n if form == "both ways" else KEYS, given, device, 1))
        weight: Any = pairs.AllPairs(n, len(rows[1]))
        weight = weight if form == "both ways" else pairs.concat([pairs.NotSelf(n), weight])
        problem = ContrastSpec((Push(weight),), normalize=True, both_ways=form == "both ways")

    def outputs(*, exact: bool) -> list[Tensor]:
        z = [v.double() if exact else v.clone() for v in rows]
        for v in z:
            v.requires_grad_()
        tau: Any = 0.1
        if form == "temperature learned":
            tau = torch.tensor(0.1, dtype=torch.float64 if exact else torch.float32, device=device, requires_grad=True)
        sections = (z[1],) if form == "both ways" else tuple(z)
        with mock.patch.object(weights, "MIN_ROWS_TO_SORT", 0 if "sorted" in form else weights.MIN_ROWS_TO_SORT):
            found = evaluate(problem, z[0], sections, temperature=tau, backend="dense" if exact else "triton")
        sums = [torch.where(x.isfinite(), x, 0) for x in (*found.logsums, *found.columns)]
        sums += [] if found.attraction is None else [-found.attraction]
        total = sum((x * (1 + (torch.arange(len(x), device=device) % 5) / 4)).sum() for x in sums)
        gradients = torch.autograd.grad(torch.as_tensor(total), [*z, *([tau] if isinstance(tau, Tensor) else [])])
        return [x.detach() for x in (*sums, *gradients)]

    return outputs


def of_loss(given: Given, device: str) -> Callable[..., list[Tensor]]:
    """Return a function that computes a public loss and its gradients, by kernels or exactly."""
    case = Case(given.rows, given.features, given.dtype, device)  # type: ignore[arg-type] # a dtype's name
    batch = ENTRIES[given.form].batch(Sampler(case))

    def outputs(*, exact: bool) -> list[Tensor]:
        torch.manual_seed(0)
        of = ours(given.form, "dense" if exact else "triton").make(case)
        loss = of.double() if exact and isinstance(of, torch.nn.Module) else of
        mine = [v.detach().clone() if isinstance(v, Tensor) else v for v in batch]
        mine = [v.double() if exact and isinstance(v, Tensor) and v.is_floating_point() else v for v in mine]
        leaves = [v.requires_grad_() for v, old in zip(mine, batch, strict=True) if old.requires_grad]
        value = loss(*mine)
        return [value.detach(), *torch.autograd.grad(value, leaves)]

    return outputs


@contextmanager
def poisoned() -> Generator[None]:
    """Fill what is allocated and not written with NaN."""
    torch.set_deterministic_debug_mode("warn")
    vars(torch.utils)["deterministic"].fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def check(given: Given, device: str) -> dict[str, Any]:
    """Return the errors of a case relative to float64, whether they are small, and whether a second run is the same."""
    outputs = (of_loss if given.form in LOSSES else of_form)(given, device)
    exact = outputs(exact=True)
    with poisoned():
        first, again = outputs(exact=False), outputs(exact=False)
    errors = [
        float((x.double() - true).norm() / true.norm().clamp(min=1e-30)) for x, true in zip(first, exact, strict=True)
    ]
    return {
        "errors": errors,
        "right": all(error <= LIMITS[given.dtype] for error in errors),  # not so of NaN
        "same_bits": all(torch.equal(x, y) for x, y in zip(first, again, strict=True)),
    }


def main(report: Report, every: list[Given]) -> None:
    """Check all cases, until the time is over."""
    report.say(limits=LIMITS, planned=len(every))
    known = {tuple(each[name] for name in Given._fields) for each in report.results}
    for given in every:
        if tuple(given) in known:
            continue
        if report.left < 0:
            break
        start = time.monotonic()
        try:
            found = check(given, report.device)
        except Exception as error:  # noqa: BLE001 - of one case, which is not right
            found = {"right": False, "same_bits": False, "failed": in_words(error)}
        report.add(**given._asdict(), **found, seconds=round(time.monotonic() - start, 2))
        leave_if_poisoned()
    wrong = [each for each in report.results if not (each["right"] and each["same_bits"])]
    complete = len(report.results) == len(every)
    report.say(complete=complete, summary=f"{len(report.results) - len(wrong)} of {len(every)} cases right")


if __name__ == "__main__":
    lists = {"features": FEATURES, "rows": SIZES, "forms": (*FORMS, *LOSSES), "precisions": tuple(LIMITS)}
    asked, its = begun(__doc__ or "", **lists)
    features, sizes = ([20], [70]) if its.dry_run else ([*map(int, asked.features)], [*map(int, asked.rows)])
    main(its, list(cases(asked.forms, asked.precisions, features, sizes)))
