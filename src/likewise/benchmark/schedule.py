"""What is measured when: small sizes of all contenders first, then growing, as far as memory and the budget reach."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from likewise.benchmark import prediction
from likewise.benchmark.case import Case, Contender, Dtype
from likewise.benchmark.meter import Failed, Meter
from likewise.benchmark.results import Result, summary

REPEATS, MOST = 5, 1000  # at least, where time is left, and at most
SECONDS = 0.6  # of steps of one contender at one size, at most
PROBE_ROWS = 1024  # where a large size comes first
CHEAP = 0.005  # of a size's time: who takes no more comes first
BESIDE = 0.1  # of the free memory, that inputs of those who take turns may fill


@final
@dataclass(frozen=True)
class Settings:
    """What to measure.

    Args:
        sizes: Numbers of rows, ascending.
        features: D.
        dtype: Of the embeddings.
        budget: Seconds for everything.
    """

    sizes: Sequence[int]
    features: int
    dtype: Dtype
    budget: float


@final
@dataclass
class _Known:
    """What was measured of a contender so far, by rows."""

    seconds: dict[int, float] = field(default_factory=dict[int, float])
    bytes: dict[int, int] = field(default_factory=dict[int, int])
    failed: str | None = None


@final
@dataclass
class _Running:
    """A contender whose memory is known at this size, and whose steps are timed now."""

    contender: Contender
    peak_bytes: int | None
    expected: float
    turn: Callable[[], float] | None = None
    times: list[float] = field(default_factory=list[float])


@final
class Schedule:
    """Measures contenders size by size.

    At each size each contender first runs one step for its peak memory; those that ran are then timed, taking turns. A
    size has half of the seconds that are left, so that larger ones have some, and the last size all of them.

    Args:
        contenders: Who is measured.
        settings: On what.
        meter: How.
        tell: Is told what goes on.
    """

    def __init__(
        self, contenders: Sequence[Contender], settings: Settings, meter: Meter, tell: Callable[[str], None]
    ) -> None:
        self._contenders, self._settings, self._meter, self._tell = contenders, settings, meter, tell
        self._known: dict[Contender, _Known] = defaultdict(_Known)

    def results(self) -> Iterator[Result]:
        """Measure, and yield each result when it is there."""
        end = time.monotonic() + self._settings.budget
        for rows in self._settings.sizes:
            now = time.monotonic()
            size_end = end if rows == self._settings.sizes[-1] else now + (end - now) / 2
            running: list[_Running] = []
            for contender in self._in_order(rows, CHEAP * (size_end - now)):
                found = self._admitted(contender, self._case(rows), size_end - sum(each.expected for each in running))
                if isinstance(found, Result):
                    yield found
                else:
                    running.append(found)
            for group in self._groups(running):
                yield from self._timed(group, self._case(rows), size_end, len(running))
                running = [each for each in running if each not in group]

    def _case(self, rows: int) -> Case:
        return Case(rows, self._settings.features, self._settings.dtype, self._meter.device)

    def _in_order(self, rows: int, cheap: float) -> list[Contender]:
        """Return who is meant for this size: the cheap ones, then those people compare first, then the quickest."""

        def place(each: Contender) -> tuple[bool, bool, float]:
            takes = prediction.seconds(self._known[each].seconds, rows, each.growth) + each.growth.setup
            return takes > cheap, not each.first, takes

        return sorted((each for each in self._contenders if each.largest is None or rows <= each.largest), key=place)

    def _admitted(self, contender: Contender, case: Case, end: float) -> Result | _Running:
        """Foretell a step and run one for its peak memory, or say why not."""
        known = self._known[contender]
        self._tell(f"{case.rows:,} rows, memory of {contender}")
        probe = case._replace(rows=PROBE_ROWS)
        cases = [case] if known.seconds or case.rows <= PROBE_ROWS else [probe, case]
        for each in cases:
            reason = self._measured(contender, each, end)
            if reason:
                return Result(contender.loss, contender.name, contender.backend, case.rows, case.dtype, skipped=reason)
        return _Running(contender, known.bytes.get(case.rows), known.seconds[case.rows])

    def _measured(self, contender: Contender, case: Case, end: float) -> str | None:
        """Run one step for its peak memory, or say why not."""
        known, growth = self._known[contender], contender.growth
        needed = prediction.memory(known.bytes, case.rows, case.features, growth)
        takes = 2 * prediction.seconds(known.seconds, case.rows, growth) + growth.setup
        reason = known.failed or prediction.why_not(
            needed, prediction.free_bytes(case.device), takes, end - time.monotonic()
        )
        if reason:
            return reason
        try:
            peak = self._meter.peak(contender, case)
        except Failed as error:
            known.failed = str(error)
            return known.failed
        known.seconds[case.rows] = peak.seconds
        if peak.bytes is not None:
            known.bytes[case.rows] = peak.bytes
        return None

    def _groups(self, running: Sequence[_Running]) -> Iterator[list[_Running]]:
        """Cut those who run into groups that take turns, whose inputs fit beside each other; who is apart, alone."""
        row = 8 * self._settings.features  # two matrices of float32, as most have
        group: list[_Running] = []
        for each in (each for each in running if not each.contender.apart):
            group.append(each)
            rows = max(self._known[each.contender].seconds)
            inputs = max(self._meter.inputs, row * rows)
            if len(group) * inputs > BESIDE * prediction.free_bytes(self._meter.device):
                yield group
                group = []
        if group:
            yield group
        yield from ([each] for each in running if each.contender.apart)

    def _timed(self, group: Sequence[_Running], case: Case, end: float, waiting: int) -> Iterator[Result]:
        """Let a group take turns, one at least, until each has enough steps or the size's time is over."""
        allowed = min(SECONDS, max(0, end - time.monotonic()) / max(1, waiting))
        active = list(group)
        while active:
            for each in list(active):
                self._tell(f"{case.rows:,} rows, timing {each.contender}, turn {len(each.times) + 1}")
                failure = self._turn(each, case)
                late = time.monotonic() + min(each.times, default=0) > end
                enough = len(each.times) >= (MOST if sum(each.times) < allowed else REPEATS)
                if failure or late or enough:
                    active.remove(each)
                    each.turn = None
                    yield self._result(each, case, failure)

    def _turn(self, each: _Running, case: Case) -> str | None:
        try:
            each.turn = each.turn or self._meter.turns(each.contender, case, each.expected)
            each.times.append(each.turn())
        except Exception as error:  # noqa: BLE001 - a library's error is a line in the table, not the end of it
            return Failed.words(error)
        return None

    def _result(self, each: _Running, case: Case, failure: str | None) -> Result:
        contender, known = each.contender, self._known[each.contender]
        named = contender.loss, contender.name, contender.backend, case.rows, case.dtype
        if not each.times:
            known.failed = failure
            return Result(*named, skipped=failure)
        told = summary(each.times)
        known.seconds[case.rows] = told["milliseconds"] / 1e3  # the step before was its process's first
        return Result(*named, peak_bytes=each.peak_bytes, **told)
