"""The launch of a training: its number of processes, the rank of this one, and the handling of SIGTERM.

torchrun gives each process its rank in environment variables; SLURM's are translated into them. Nothing heavy is
imported here, so a mistake in an option is reported at once.
"""

import os
import re
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module

TERMINATED = 143  # the exit status that a shell reports after SIGTERM
FIRST_PORT, PORTS = 15_000, 10_000  # a wide range, so two jobs on a node seldom collide


def processes() -> int:
    """Return the number of processes that torchrun, or `srun`, has started for this training."""
    return number("WORLD_SIZE", number("SLURM_STEP_NUM_TASKS", 1))


def rank() -> int:
    """Return the rank of this process; 0 is the first, which alone writes files and evaluates."""
    return number("RANK", number("SLURM_PROCID", 0)) if processes() > 1 else 0


def local_processes() -> int:
    """Return the number of launched processes on this machine."""
    return number("LOCAL_WORLD_SIZE", processes())


def from_slurm() -> None:
    """Set torchrun's variables from SLURM's, if `srun` started this process as one of several."""
    if processes() < 2 or "WORLD_SIZE" in os.environ:
        return
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST", "127.0.0.1")
    a_node = re.match(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))  # such as 8(x4): 8 on each of 4 nodes
    slurm = import_module("lightning.fabric.plugins.environments.slurm").SLURMEnvironment
    os.environ |= {
        "WORLD_SIZE": os.environ["SLURM_STEP_NUM_TASKS"],
        "RANK": os.environ["SLURM_PROCID"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": a_node[0] if a_node else os.environ["SLURM_STEP_NUM_TASKS"],
        "GROUP_RANK": os.environ.get("SLURM_NODEID", "0"),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR") or slurm.resolve_root_node_address(nodes),
        "MASTER_PORT": os.environ.get("MASTER_PORT") or str(FIRST_PORT + number("SLURM_JOB_ID", 0) % PORTS),
    }


def check_alone(verb: str) -> None:
    """Raise a ValueError if a launcher has started several processes for a verb that runs in one."""
    if (launched := processes()) > 1:
        raise ValueError(f"expected one process for likewise {verb}, got {launched}: start it without torchrun or srun")


@contextmanager
def terminable(end: Callable[[], None]) -> Generator[None]:
    """Call a function on SIGTERM, which ends the block at once by raising, or later; only in the main thread."""
    try:
        before = signal.signal(signal.SIGTERM, lambda *_: end())
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def number(variable: str, otherwise: int) -> int:
    """Return an environment variable as a whole number."""
    value = os.environ.get(variable) or str(otherwise)
    if not value.isdecimal():
        raise ValueError(f"expected the environment variable {variable} to be a whole number, got {value!r}: unset it")
    return int(value)
