"""What measures steps on a device, and what it finds."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from likewise.benchmark.case import Case, Contender


class Peak(NamedTuple):
    """What one step told: its peak memory over its inputs, where the system tells it, and its seconds."""

    bytes: int | None
    seconds: float


class Failed(Exception):  # noqa: N818 - the name is what the table says
    """A contender's step could not be run."""

    @staticmethod
    def words(error: BaseException) -> str:
        r"""Say in one line what happened.

        Example:
            >>> Failed.words(RuntimeError("no such kernel\nat line 3"))
            'failed: RuntimeError: no such kernel'
        """
        lines = str(error).strip().splitlines() or [""]
        return f"failed: {type(error).__name__}: {lines[0][:160]}"


class Meter(Protocol):
    """Measures steps on one device."""

    device: str
    inputs: int
    """Bytes of inputs that each who takes turns holds at least."""

    def peak(self, contender: Contender, case: Case) -> Peak:
        """Run a step and return its peak memory and its seconds, or raise `Failed`."""
        ...

    def turns(self, contender: Contender, case: Case, expected: float) -> Callable[[], float]:
        """Return what runs a step and returns its seconds."""
        ...
