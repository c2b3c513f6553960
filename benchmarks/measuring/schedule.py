"""What is measured when: small sizes of all contenders first, then larger ones, as long as memory and time allow."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from benchmarks.measuring import prediction
from benchmarks.measuring.case import Case, Contender, Dtype, Failed, Peak
from benchmarks.measuring.results import Timing, summary

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


@final
@dataclass(eq=False)
class _Track:
    """A contender, what was measured of it by rows, and its steps at the present size."""

    contender: Contender
    seconds: dict[int, float] = field(default_factory=dict[int, float])
    bytes: dict[int, int] = field(default_factory=dict[int, int])
    failed: str | None = None
    turn: Callable[[], float] | None = None
    times: list[float] = field(default_factory=list[float])

    def expected(self, rows: int) -> float:
        return self.contender.growth.seconds(self.seconds, rows)


@final
@dataclass(frozen=True)
class Timetable:
    """Measures contenders size by size, with ascending numbers of rows of D features, and tells what is being done.

    At every size each contender first runs one step for its peak memory; those that could are then timed in turns, for
    the repeats at least, while time is left. A size gets half of the seconds that are left of the budget, the last size
    all of them.
    """

    contenders: Sequence[Contender]
    meter: Meter
    tell: Callable[[str], object]
    sizes: Sequence[int]
    features: int
    dtype: Dtype
    budget: float
    repeats: int = 5

    def results(self) -> Iterator[Timing]:
        """Measure, and yield each result as soon as it is known."""
        end = time.monotonic() + self.budget
        tracks = [_Track(each) for each in self.contenders]
        for rows in self.sizes:
            case, now = Case(rows, self.features, self.dtype, self.meter.device), time.monotonic()
            size_end = end if rows == self.sizes[-1] else now + (end - now) / 2
            running: list[_Track] = []
            for each in self._in_order(tracks, rows, CHEAP * (size_end - now)):
                reason = self._refused(each, case, size_end - sum(other.seconds[rows] for other in running))
                if reason:
                    yield Timing(*each.contender.key, rows, self.dtype, skipped=reason)
                else:
                    running.append(each)
            for group in self._groups(running, case):
                yield from self._timed(group, case, size_end, len(running))
                running = [each for each in running if each not in group]

    @staticmethod
    def _in_order(tracks: Sequence[_Track], rows: int, cheap: float) -> list[_Track]:
        def place(each: _Track) -> tuple[bool, bool, float]:
            takes = each.expected(rows) + each.contender.growth.setup
            return takes > cheap, not each.contender.first, takes

        return sorted((each for each in tracks if rows <= (each.contender.largest or rows)), key=place)

    def _refused(self, track: _Track, case: Case, end: float) -> str | None:
        """Run one step for its peak memory, after a small one if need be, or return why not."""
        self.tell(f"{case.rows:,} rows, memory of {track.contender}")
        growth = track.contender.growth
        probed = track.seconds or case.rows <= PROBE_ROWS
        for each in [case] if probed else [case._replace(rows=PROBE_ROWS), case]:
            needed = growth.bytes(track.bytes, each.rows, each.features)
            takes = 2 * track.expected(each.rows) + growth.setup
            left, free = end - time.monotonic(), prediction.free_bytes(each.device)
            reason = track.failed or prediction.why_not(needed, free, takes, left)
            if reason:
                return reason
            try:
                peak = self.meter.peak(track.contender, each)
            except Failed as error:
                track.failed = str(error)
                return track.failed
            track.seconds[each.rows] = peak.seconds
            if peak.bytes is not None:
                track.bytes[each.rows] = peak.bytes
        return None

    def _groups(self, running: Sequence[_Track], case: Case) -> Iterator[Sequence[_Track]]:
        """Form groups that alternate and whose inputs fit in memory together; contenders that are apart run alone."""
        inputs = max(self.meter.inputs, 8 * case.features * case.rows)  # most have two float32 matrices
        most = max(1, int(TOGETHER * prediction.free_bytes(self.meter.device) / inputs))
        together = [each for each in running if not each.contender.apart]
        yield from (together[start : start + most] for start in range(0, len(together), most))
        yield from ([each] for each in running if each.contender.apart)

    def _timed(self, group: Sequence[_Track], case: Case, end: float, waiting: int) -> Iterator[Timing]:
        allowed = min(SECONDS, max(0, end - time.monotonic()) / max(1, waiting))
        active = list(group)
        for each in active:
            each.times = []
        while active:
            for each in list(active):
                failure = self._turn(each, case)
                late = time.monotonic() + min(each.times, default=0) > end
                enough = len(each.times) >= (MOST if sum(each.times) < allowed else self.repeats)
                if failure or late or enough:
                    active.remove(each)
                    each.turn = None
                    yield self._result(each, case, failure)

    def _turn(self, track: _Track, case: Case) -> str | None:
        try:
            if track.turn is None:
                self.tell(f"{case.rows:,} rows, timing {track.contender}")
                track.turn = self.meter.turns(track.contender, case, track.seconds[case.rows])
            track.times.append(track.turn())
        except Exception as error:  # noqa: BLE001 - a library's error is a line of the table, not the end of it
            return Failed.words(error)
        return None

    @staticmethod
    def _result(track: _Track, case: Case, failure: str | None) -> Timing:
        named = *track.contender.key, case.rows, case.dtype
        if not track.times:
            track.failed = failure
            return Timing(*named, skipped=failure)
        found = summary(track.times)
        track.seconds[case.rows] = found["milliseconds"] / 1e3  # the step for the peak was its process's first
        return Timing(*named, peak_bytes=track.bytes.get(case.rows), **found)
