"""What is measured when: small sizes of all contenders first, then larger ones, as long as memory and time allow."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, final

from likewise.benchmark import prediction
from likewise.benchmark.case import Case, Contender, Dtype, Failed, Peak
from likewise.benchmark.results import Result, summary

MOST = 1000  # steps of one contender at one size, at most
SECONDS = 0.6  # of such steps, at most, once they have been repeated often enough
PROBE_ROWS = 1024  # measured before a larger size if nothing was measured yet
CHEAP = 0.005  # of a size's time; contenders that take less go first
TOGETHER = 0.1  # of the free memory, which the inputs of contenders that alternate may fill


class Meter(Protocol):
    """Measures steps on one device; ``inputs`` is the least bytes of inputs that a contender holds while it waits."""

    device: str
    inputs: int

    def peak(self, contender: Contender, case: Case) -> Peak:
        """Run a step and return its peak memory and its seconds, or raise `Failed`."""
        ...

    def turns(self, contender: Contender, case: Case, expected: float) -> Callable[[], float]:
        """Return a function that runs a step and returns its seconds."""
        ...


class Settings(NamedTuple):
    """Which sizes to measure, in ascending order, and for how long."""

    sizes: Sequence[int]
    features: int
    dtype: Dtype
    budget: float
    """Seconds for everything."""
    repeats: int = 5
    """Steps to time at least, while time is left."""


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
    """A contender whose memory is known at this size, and whose steps are now timed."""

    contender: Contender
    expected: float
    turn: Callable[[], float] | None = None
    times: list[float] = field(default_factory=list[float])


@final
class Schedule:
    """Measures contenders size by size.

    At every size each contender first runs one step for its peak memory; those that could are then timed in turns. A
    size gets half of the seconds that are left, the last size all of them.

    Args:
        contenders: What is measured.
        settings: At which sizes, and for how long.
        meter: What measures a step.
        tell: Called with what is being done.
    """

    def __init__(
        self, contenders: Sequence[Contender], settings: Settings, meter: Meter, tell: Callable[[str], object]
    ) -> None:
        self._contenders, self._settings, self._meter, self._tell = contenders, settings, meter, tell
        self._known: dict[Contender, _Known] = defaultdict(_Known)

    def results(self) -> Iterator[Result]:
        """Measure, and yield each result as soon as it is known."""
        sizes, features, dtype, budget, _ = self._settings
        end = time.monotonic() + budget
        for rows in sizes:
            case, now = Case(rows, features, dtype, self._meter.device), time.monotonic()
            size_end = end if rows == sizes[-1] else now + (end - now) / 2
            running: list[_Running] = []
            for contender in self._in_order(rows, CHEAP * (size_end - now)):
                reason = self._refused(contender, case, size_end - sum(each.expected for each in running))
                if reason:
                    yield Result(*contender.key, rows, dtype, skipped=reason)
                else:
                    running.append(_Running(contender, self._known[contender].seconds[rows]))
            for group in self._groups(running, case):
                yield from self._timed(group, case, size_end, len(running))
                running = [each for each in running if each not in group]

    def _in_order(self, rows: int, cheap: float) -> list[Contender]:
        """Return the contenders for this size: cheap ones, then those marked as first, then the fastest."""

        def place(each: Contender) -> tuple[bool, bool, float]:
            takes = prediction.seconds(self._known[each].seconds, rows, each.growth) + each.growth.setup
            return takes > cheap, not each.first, takes

        return sorted((each for each in self._contenders if each.largest is None or rows <= each.largest), key=place)

    def _refused(self, contender: Contender, case: Case, end: float) -> str | None:
        """Run one step for its peak memory, after a small one if need be, or return why not."""
        self._tell(f"{case.rows:,} rows, memory of {contender}")
        known, growth = self._known[contender], contender.growth
        probed = known.seconds or case.rows <= PROBE_ROWS
        for each in [case] if probed else [case._replace(rows=PROBE_ROWS), case]:
            needed = prediction.memory(known.bytes, each.rows, each.features, growth)
            takes = 2 * prediction.seconds(known.seconds, each.rows, growth) + growth.setup
            left, free = end - time.monotonic(), prediction.free_bytes(each.device)
            reason = known.failed or prediction.why_not(needed, free, takes, left)
            if reason:
                return reason
            try:
                peak = self._meter.peak(contender, each)
            except Failed as error:
                known.failed = str(error)
                return known.failed
            known.seconds[each.rows] = peak.seconds
            if peak.bytes is not None:
                known.bytes[each.rows] = peak.bytes
        return None

    def _groups(self, running: Sequence[_Running], case: Case) -> Iterator[Sequence[_Running]]:
        """Form groups that alternate and whose inputs fit in memory together; contenders that are apart run alone."""
        inputs = max(self._meter.inputs, 8 * case.features * case.rows)  # most have two float32 matrices
        most = max(1, int(TOGETHER * prediction.free_bytes(self._meter.device) / inputs))
        together = [each for each in running if not each.contender.apart]
        yield from (together[start : start + most] for start in range(0, len(together), most))
        yield from ([each] for each in running if each.contender.apart)

    def _timed(self, group: Sequence[_Running], case: Case, end: float, waiting: int) -> Iterator[Result]:
        """Time the contenders of a group in turns, until each has enough steps or the time of this size is over."""
        allowed = min(SECONDS, max(0, end - time.monotonic()) / max(1, waiting))
        active = list(group)
        while active:
            for each in list(active):
                failure = self._turn(each, case)
                late = time.monotonic() + min(each.times, default=0) > end
                enough = len(each.times) >= (MOST if sum(each.times) < allowed else self._settings.repeats)
                if failure or late or enough:
                    active.remove(each)
                    each.turn = None
                    yield self._result(each, case, failure)

    def _turn(self, each: _Running, case: Case) -> str | None:
        try:
            if each.turn is None:
                self._tell(f"{case.rows:,} rows, timing {each.contender}")
                each.turn = self._meter.turns(each.contender, case, each.expected)
            each.times.append(each.turn())
        except Exception as error:  # noqa: BLE001 - a library's error is a line of the table, not the end of it
            return Failed.words(error)
        return None

    def _result(self, each: _Running, case: Case, failure: str | None) -> Result:
        known, named = self._known[each.contender], (*each.contender.key, case.rows, case.dtype)
        if not each.times:
            known.failed = failure
            return Result(*named, skipped=failure)
        found = summary(each.times)
        known.seconds[case.rows] = found["milliseconds"] / 1e3  # the step for the peak was its process's first
        return Result(*named, peak_bytes=known.bytes.get(case.rows), **found)
