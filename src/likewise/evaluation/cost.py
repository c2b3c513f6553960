"""How long evaluations take: predicted from how many samples there are, and from what this machine does in a moment."""

import time
from collections.abc import Sequence
from typing import final

import torch

from likewise.evaluation.evaluation import Evaluation, Sizes
from likewise.evaluation.nearest import nearest
from likewise.evaluation.placing import CPU

TRIED = (512, 2**14)  # queries and references that are timed
FEWEST = 500  # samples of a part, below which a budget says nothing
STEP = 0.95  # by which a part shrinks until the evaluations fit


@final
class Cost:
    """About how many seconds evaluations take: the inner products of features that they need, times what one takes.

    Args:
        evaluations: The evaluations; those that tell no cost take none.
        product: Seconds of an inner product of two feature vectors, with what comes with it. None: it is measured, if
            so many are needed that it matters.
        device: Where evaluations take place that may be accelerated.

    Example:
        >>> from likewise.evaluation import KNN, Retrieval
        >>> cost, sizes = Cost([KNN(), Retrieval()], 1e-6), Sizes(10_000, 1_000, 2_000, 10, 64)
        >>> {name: round(seconds) for name, seconds in cost.of_each(sizes).items()}
        {'kNN': 30, 'retrieval': 5}
        >>> cost.most_within(sizes, 60), cost.most_within(sizes, 20)
        (None, 4800)
    """

    def __init__(
        self, evaluations: Sequence[Evaluation], product: float | None = None, device: torch.device = CPU
    ) -> None:
        self.evaluations, self._device = evaluations, device
        self._seconds = {} if product is None else dict.fromkeys((True, False), product)  # by whether accelerated

    def of_each(self, sizes: Sizes) -> dict[str, float]:
        """Return the seconds of each evaluation by its name."""
        products = [(one, count) for one in self.evaluations if (count := one.products(sizes))]
        if sum(count for _, count in products) >= TRIED[0] * TRIED[1]:
            for accelerated in {one.accelerated for one, _ in products} - set(self._seconds):
                where = self._device if accelerated else CPU
                self._seconds[accelerated] = seconds_of_product(sizes.width, where)
        return {one.name: count * self._seconds.get(one.accelerated, 0.0) for one, count in products}

    def of_all(self, sizes: Sizes) -> float:
        """Return the seconds of all of them."""
        return sum(self.of_each(sizes).values())

    def most_within(self, sizes: Sizes, budget: float) -> int | None:
        """Return how many samples of each part at most take no longer than a budget; None: all of them do."""
        if self.of_all(sizes) <= budget:
            return None
        most = max(sizes.train, sizes.validation, sizes.test)
        while most > FEWEST and self.of_all(sizes.fewer(most)) > budget:
            most = int(most * STEP)
        digits = max(1, 10 ** (len(str(most)) - 2))
        return max(FEWEST, most // digits * digits)


def seconds_of_product(width: int, device: torch.device = CPU) -> float:
    """Measure the seconds that a similarity of vectors takes in a search for the nearest 100: the best of three."""
    generator = torch.Generator().manual_seed(0)
    queries, references = (torch.randn(count, width, generator=generator).to(device) for count in TRIED)
    found: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        for _, similarities, _ in nearest(queries, references, 100):
            similarities.cpu()  # which waits for the device
        found.append(time.perf_counter() - start)
    return min(found) / (TRIED[0] * TRIED[1])


def words_of(seconds: float) -> str:
    """Return a length of time in words.

    Example:
        >>> words_of(45), words_of(200), words_of(9000)
        ('45 seconds', '3 minutes', '2.5 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
