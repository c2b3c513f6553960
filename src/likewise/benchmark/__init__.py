"""Time and peak memory of every loss and backend, beside the dense form and other libraries, on this machine."""

from likewise.benchmark import prediction, rivals
from likewise.benchmark.case import Case, Contender, Dtype
from likewise.benchmark.contenders import contenders
from likewise.benchmark.cpu import CpuMeter
from likewise.benchmark.cuda import CudaMeter
from likewise.benchmark.losses import ENTRIES, PRIMITIVES, backends
from likewise.benchmark.meter import Failed, Meter, Peak
from likewise.benchmark.prediction import in_units
from likewise.benchmark.results import Result, machine, write
from likewise.benchmark.rivals import missing
from likewise.benchmark.schedule import Schedule, Settings

__all__ = [
    "ENTRIES",
    "PRIMITIVES",
    "Case",
    "Contender",
    "CpuMeter",
    "CudaMeter",
    "Dtype",
    "Failed",
    "Meter",
    "Peak",
    "Result",
    "Schedule",
    "Settings",
    "backends",
    "contenders",
    "in_units",
    "machine",
    "missing",
    "prediction",
    "rivals",
    "write",
]
