"""The processes of a training: compared with one another, and joined in a group.

Before the group is made, the processes exchange what must be the same on all of them through its store, and whether one
of them cannot train, so that mismatches and mistakes are reported before a collective can hang.
"""

import json
import os
import re
import socket
import threading
import time
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage] - documented

from likewise import distributed
from likewise.training.launch import from_slurm, local_processes, number, processes, rank

ENDED = re.compile(r"connection (was )?(closed|reset|refused)|broken pipe", re.IGNORECASE)
SILENT = re.compile(r"timed? ?out", re.IGNORECASE)
TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
OURS = re.compile(r"gloo|nccl", re.IGNORECASE)
REMEDY = "start all with the same command and the same versions"
POLLED = 0.05  # seconds
MINUTES = 5.0  # that a process which cannot train waits for the others, to tell them
SECONDS = 15.0  # of these, before it says why
REFUSED = "refused"
"""What a process has among its facts that cannot train."""
_trainings = count()  # of this process: what they tell through torchrun's store, which stays, is told apart
LINGERS = timedelta(seconds=10)  # for the first process to keep its store, so that the others can read what differs


def _check_machine() -> None:
    local, place = local_processes(), number("LOCAL_RANK", 0)
    if place >= local or processes() % local:
        raise ValueError(
            f"expected LOCAL_WORLD_SIZE processes on each machine, of {processes()} in all, got {local} and LOCAL_RANK "
            f"{place}: let torchrun or srun set these variables"
        )


@contextmanager
def joined(facts: Mapping[str, str], minutes: float) -> Generator[None]:
    """Join the processes that were launched, if there are several, until the block ends; refuse facts that differ.

    `minutes` is how long to wait for a process that does not answer, now and in every exchange of the group.
    """
    if not minutes > 0:
        raise ValueError(f"expected --timeout_minutes above 0, got {minutes}: 30 is the default")
    if processes() < 2:
        yield
        return
    if rank() >= processes():
        raise ValueError(f"expected RANK below WORLD_SIZE, {processes()}, got {rank()}: start ranks 0, 1, 2, ...")
    try:
        store = _store(minutes)
        _compare(store, {"processes": str(processes())} | dict(facts), minutes)
        _check_machine()
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore("group", store),
            rank=rank(),
            world_size=processes(),
            timeout=timedelta(minutes=minutes),
        )
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or OURS.search(str(error))):
            raise
        raise _lost(error, minutes) from error
    finally:
        leave()


def refuse(reason: Exception) -> None:
    """Tell the other processes that this one cannot train; the reason is said meanwhile if they do not answer soon."""
    told = f"{reason}; the other processes, which do not answer yet, are waited for to tell them"
    waiting = threading.Timer(SECONDS, warnings.warn, [told])
    waiting.daemon = True
    waiting.start()
    try:
        with suppress(LookupError, ValueError, RuntimeError):  # such as a launcher's variable that is missing
            from_slurm()
            _compare(_store(MINUTES), {"processes": str(processes()), REFUSED: "yes"}, MINUTES)
    finally:
        waiting.cancel()


def send_weights(*modules: nn.Module) -> None:
    """Give all processes the weights that the first has, and what it has beside them, such as running means."""
    for value in (value for module in modules for value in module.state_dict().values()):
        sent = value.detach().cpu().contiguous()
        dist.broadcast(sent, 0)
        value.copy_(sent)


def leave() -> None:
    """Leave the group, if there is one: what follows is done by this process alone."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _store(minutes: float) -> Store:
    """Connect to the store of all processes: torchrun's, or else the first process's own."""
    theirs = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), number("MASTER_PORT", 29500)
    hosts = rank() == 0 and not theirs
    until = time.monotonic() + 60 * minutes
    while not hosts and not _listens(host, port):  # PyTorch would print its stack
        _wait(until, f"the first process at {host}:{port},", "got no process that listens there", minutes)
    store = TCPStore(host, port, is_master=hosts, timeout=timedelta(minutes=minutes), wait_for_workers=False)
    attempt = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return PrefixStore(f"likewise/{attempt}/{next(_trainings)}", store)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except OSError:
        return False


def _compare(store: Store, facts: Mapping[str, str], minutes: float) -> None:
    """Raise on all processes if their facts differ, or one was refused; the first compares, and tells the others."""
    until = time.monotonic() + 60 * minutes

    def heard(name: str, other: int) -> str:
        while not store.check([name]):
            _wait(until, f"{processes()} processes, as WORLD_SIZE says,", f"got no answer from rank {other}", minutes)
        return store.get(name).decode()

    store.set(f"facts/{rank()}", json.dumps(facts))
    known = {rank(): dict(facts)}
    for other in range(processes()) if rank() == 0 else (0,):
        known[other] = json.loads(heard(f"facts/{other}", other))
        if known[other]["processes"] != facts["processes"]:
            break  # one of the two waits for others that there are not
    refused = next((other for other, theirs in sorted(known.items()) if REFUSED in theirs), None)
    verdict = distributed.difference(dict(sorted(known.items())), "options", REMEDY)
    verdict = verdict if refused is None else distributed.refusal(refused)
    if rank() > 0 and known[0]["processes"] == facts["processes"]:
        verdict = heard("verdict", 0)
    store.set("verdict" if rank() == 0 else f"told/{rank()}", verdict)
    if rank() == 0 and verdict:
        with suppress(RuntimeError):
            store.wait([f"told/{other}" for other in range(1, processes())], LINGERS)
    if verdict:
        raise ValueError(verdict)


def _wait(until: float, expected: str, got: str, minutes: float) -> None:
    if time.monotonic() > until:
        raise ValueError(f"expected {expected} {got} within {minutes:g} minutes: start it, or raise --timeout_minutes")
    time.sleep(POLLED)


def _lost(error: RuntimeError, minutes: float) -> ValueError:
    message = " ".join(str(error).split())
    if ENDED.search(message):
        return ValueError(f"expected all {processes()} processes to go on, got one that has ended: see what it said")
    if SILENT.search(message):
        return ValueError(
            f"expected all {processes()} processes to answer within {minutes:g} minutes, got no answer from one: see "
            "what it does, or raise --timeout_minutes"
        )
    if TAKEN.search(message):
        return ValueError(
            f"expected a free port for rank 0, got {os.environ.get('MASTER_PORT')}, which is taken: give each process "
            "a RANK of its own, or choose another MASTER_PORT"
        )
    return ValueError(f"expected {processes()} processes that understand each other, got: {message}")
