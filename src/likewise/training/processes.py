"""The processes of a training: a group from a launcher's variables, checks that they agree, and one precision."""

import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage] - documented
from torch.distributed.rendezvous import rendezvous

from likewise import distributed
from likewise.runs import machine
from likewise.training.launch import local_processes, number, processes, rank

CONNECTION_LOST = re.compile(r"connection (was )?(closed|reset|refused)|broken pipe", re.IGNORECASE)
TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)
PORT_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
BACKEND_ERROR = re.compile(r"gloo|nccl", re.IGNORECASE)
REMEDY = "start all with the same command and the same versions"
CPU = torch.device("cpu")
_trainings = count()  # trainings of this process, each with its own keys in torchrun's store, which outlives them


@contextmanager
def process_group(facts: Mapping[str, str], minutes: float) -> Generator[None]:
    """Join the launched processes, if there are several, until the block ends; refuse facts that differ between them.

    `minutes` is the time to wait for a process that does not answer, now and in every exchange of the group.
    """
    if not minutes > 0:
        raise ValueError(f"expected --timeout_minutes above 0, got {minutes}: 30 is the default")
    if processes() < 2:
        yield
        return
    if rank() >= processes():
        raise ValueError(f"expected RANK below WORLD_SIZE, {processes()}, got {rank()}: start ranks 0, 1, 2, ...")
    local, local_rank = local_processes(), number("LOCAL_RANK", 0)
    if local_rank >= local or processes() % local:
        raise ValueError(
            f"expected LOCAL_WORLD_SIZE processes on each machine, of {processes()} in all, got {local} and LOCAL_RANK "
            f"{local_rank}: let torchrun or srun set these variables"
        )
    waits = timedelta(minutes=minutes)
    try:
        store, group_rank, size = next(rendezvous("env://", timeout=waits))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore(f"training/{next(_trainings)}", store),
            rank=group_rank,
            world_size=size,
            timeout=waits,
        )
        with distributed.agreement(CPU, lambda: facts, subject="options", remedy=REMEDY):
            pass
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or BACKEND_ERROR.search(str(error))):
            raise
        raise _explain(error, minutes) from error
    finally:
        shutdown()


def send_weights(*modules: nn.Module) -> None:
    """Send the first process's weights and buffers, such as running means, to all processes."""
    for value in (value for module in modules for value in module.state_dict().values()):
        sent = value.detach().cpu().contiguous()
        dist.broadcast(sent, 0)
        value.copy_(sent)


def shutdown() -> None:
    """Leave the group, if there is one; this process then works alone."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _explain(error: RuntimeError, minutes: float) -> ValueError:
    message = " ".join(str(error).split())
    if CONNECTION_LOST.search(message):
        return ValueError(f"expected all {processes()} processes to go on, got one that has ended: see what it said")
    if TIMED_OUT.search(message):
        return ValueError(
            f"expected all {processes()} processes to answer within {minutes:g} minutes, got no answer from one: see "
            "what it does, or raise --timeout_minutes"
        )
    if PORT_TAKEN.search(message):
        return ValueError(
            f"expected a free port for rank 0, got {os.environ.get('MASTER_PORT')}, which is taken: give each process "
            "a RANK of its own, or choose another MASTER_PORT"
        )
    return ValueError(f"expected {processes()} processes that can communicate, got: {message}")


def precision_of(module: nn.Module, device: torch.device) -> str:
    """Return "bf16-mixed" if the network gains from it on the devices of all processes, else "32-true".

    The choice follows a fixed rule, so a machine always makes the same one.
    """
    gains = gains_by_bfloat16(module, device)
    return "bf16-mixed" if all(each for (each,) in distributed.exchange((int(gains),), CPU)) else "32-true"


def gains_by_bfloat16(module: nn.Module, device: torch.device) -> bool:
    """Return whether a device trains a network faster in bfloat16; with depthwise convolutions, processors do not."""
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    depthwise = any(1 < layer.groups == layer.in_channels for layer in convolutions)
    return machine.multiplies_bfloat16(device) and not (device.type == "cpu" and depthwise)
