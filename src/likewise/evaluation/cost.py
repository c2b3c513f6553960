"""How long evaluations take: predicted from how many samples there are, and from what this machine does in a moment."""

import time
from collections.abc import Callable, Sequence

import torch

from likewise.evaluation.evaluation import Evaluation, Sizes
from likewise.evaluation.nearest import nearest

TRIED = (512, 2**14)  # queries and references that are timed
FEWEST = 500  # samples of a part, below which a budget says nothing
STEP = 0.95  # by which a part shrinks until the evaluations fit


def seconds_of(evaluations: Sequence[Evaluation], sizes: Sizes, product: float | None = None) -> dict[str, float]:
    """Return about how many seconds each evaluation takes, by its name; those that tell no cost are left out.

    Args:
        evaluations: The evaluations.
        sizes: Of the parts.
        product: Seconds of an inner product of two feature vectors, with what comes with it. None: it is measured,
            unless so few are needed that it doesn't matter.
    """
    products = {evaluation.name: evaluation.products(sizes) for evaluation in evaluations}
    if product is None:
        product = 0.0 if sum(products.values()) < TRIED[0] * TRIED[1] else seconds_of_product(sizes.width)
    return {name: count * product for name, count in products.items() if count}


def seconds_of_product(width: int) -> float:
    """Measure the seconds that a similarity of vectors takes in a search for the nearest 100: the best of three."""
    generator = torch.Generator().manual_seed(0)
    queries, references = (torch.randn(count, width, generator=generator) for count in TRIED)
    found: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in nearest(queries, references, 100):
            pass
        found.append(time.perf_counter() - start)
    return min(found) / (TRIED[0] * TRIED[1])


def most_within(seconds: Callable[[Sizes], float], sizes: Sizes, budget: float) -> int | None:
    """Return how many samples of each part at most take no longer than a budget; None: all of them do.

    Example:
        >>> most_within(lambda sizes: sizes.train * sizes.test / 1e6, Sizes(10_000, 1_000, 2_000, 10, 64), 20)
        >>> most_within(lambda sizes: sizes.train * sizes.test / 1e6, Sizes(10_000, 1_000, 2_000, 10, 64), 4)
        1900
    """
    if seconds(sizes) <= budget:
        return None
    most = max(sizes.train, sizes.validation, sizes.test)
    while most > FEWEST and seconds(sizes.fewer(most)) > budget:
        most = int(most * STEP)
    digits = max(1, 10 ** (len(str(most)) - 2))
    return max(FEWEST, most // digits * digits)


def words_of(seconds: float) -> str:
    """Return a length of time in words.

    Example:
        >>> words_of(45), words_of(200), words_of(9000)
        ('45 seconds', '3 minutes', '2.5 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
