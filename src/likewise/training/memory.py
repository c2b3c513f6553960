"""The memory of a training step, predicted before the first one, and the number of inputs that fit at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, final

import psutil
import torch
from lightning import Callback, Trainer
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - the base of all of them
from torch.optim import Optimizer

from likewise import distributed
from likewise.data import Batch
from likewise.data.texts import PADDING
from likewise.models.text_encoder import reads_texts

TRIAL_INPUTS = 2, 4  # inputs in each of the two trials
TRIAL_TEXTS = 16, 32  # more, since texts are encoded by length, so their lengths matter
HEAP_FACTOR = 1.1  # ratio of the heap to the memory in use
MAX_SHARE, MIN_REPORTED_SHARE = 0.9, 0.05  # of the available memory, for a step
CPU = torch.device("cpu")
ALL_INPUTS = 2**31  # inputs at a time if all inputs of a process fit
LIMIT_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
USAGE_FILES = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
STAT_FILES = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")


class SavedMemory(NamedTuple):
    """The bytes saved for the backward: a fixed number, and a number for each of at most `inputs` inputs."""

    fixed: float
    each: float
    inputs: int

    def of(self, inputs: int) -> float:
        """Return the bytes with `inputs` inputs at a time."""
        return max(0.0, self.fixed + self.each * min(inputs, self.inputs))


class Need(NamedTuple):
    """The bytes of a step in addition to weights and inputs, by the number n of inputs encoded at a time.

        1.1 (weights + Σ_i k_i(n) + 2 max_i k_i(n)),   k_i the bytes of tensor i, which is kept for the backward

    The weights' part: their gradients, the optimizer's state, and twice the largest weight, for the optimizer's
    arithmetic. Twice the largest saved tensor is for the gradients that flow past it; a tenth is memory that the heap
    cannot use.
    """

    weights: int
    sums: Sequence[SavedMemory]
    largest: Sequence[SavedMemory]

    @property
    def inputs(self) -> int:
        """Return the number of inputs."""
        return max(line.inputs for line in self.sums)

    def of(self, inputs: int) -> int:
        """Return the bytes with `inputs` inputs at a time."""
        kept = sum(line.of(inputs) for line in self.sums)
        largest = max((line.of(inputs) for line in self.largest), default=0.0)
        return round(HEAP_FACTOR * (self.weights + kept + 2 * largest))

    def fitting(self, available: float) -> int:
        """Return the most inputs that fit into these bytes, out of all, half, a quarter ...; 2 if none do."""
        inputs = self.inputs
        while inputs > TRIAL_INPUTS[0] and self.of(inputs) > available:
            inputs = -(-inputs // 2)
        return inputs


def need(towers: Iterable[tuple[nn.Module, Tensor]], optimizer: Optimizer) -> Need:
    """Predict the memory of a step from encodings of a few of its inputs, without a backward.

    Each network, in training mode, has at least 4 inputs, (N, ...). Random numbers, batch statistics and gradients stay
    unchanged. The loss's saved tensors, mostly small and linear in the batch, are not counted.
    """
    sums, largest = list[SavedMemory](), list[SavedMemory]()
    for network, inputs in towers:
        few = TRIAL_INPUTS
        if reads_texts(network):
            few = min(TRIAL_TEXTS[0], len(inputs) // 4), min(TRIAL_TEXTS[1], len(inputs) // 2)
        with torch.random.fork_rng([] if inputs.device.type == "cpu" else [inputs.get_device()]):
            fewer, more = (_saved_sizes(network, _select_inputs(inputs, count)) for count in few)
        line = partial(_line, few, len(inputs))
        sums.append(line(sum(fewer), sum(more)))
        alike = len(fewer) == len(more)  # else the tensors differ: other groups of texts, or another method
        largest += map(line, fewer, more) if alike else [line(max(fewer, default=0), max(more, default=0))]
    return Need(_weights(optimizer), sums, largest)


def _line(few: Sequence[int], inputs: int, fewer: float, more: float) -> SavedMemory:
    each = (more - fewer) / (few[1] - few[0])
    return SavedMemory(fewer - each * few[0], each, inputs)


def _select_inputs(inputs: Tensor, count: int) -> Tensor:
    """Return some inputs; for rows of tokens, padded with 0, some of every length, including the longest."""
    if inputs.ndim != 2 or inputs.is_floating_point():
        return inputs[:count]
    order = (inputs != PADDING).sum(dim=1).argsort(stable=True)
    return inputs[order[torch.linspace(0, len(order) - 1, count, device=order.device).round().long()]]


def _saved_sizes(encoder: nn.Module, inputs: Tensor) -> list[int]:
    """Return the bytes of each tensor saved for the backward, except weights and inputs."""
    buffers = {name: buffer.clone() for name, buffer in encoder.named_buffers()}  # which a call may change
    excluded = {
        tensor.untyped_storage().data_ptr() for tensor in chain(encoder.parameters(), buffers.values(), [inputs])
    }
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in excluded:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        # the output keeps the saved tensors alive, so no address is used twice
        output = functional_call(encoder, buffers, (inputs,), tie_weights=False)
    del output
    return list(sizes.values())


def _weights(optimizer: Optimizer) -> int:
    trained = [weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad]
    sizes = [weight.nbytes for weight in trained]
    return round((1 + _states(optimizer)) * sum(sizes) + 2 * max(sizes, default=0))


def _states(optimizer: Optimizer) -> float:
    """Return how many numbers an optimizer keeps for each weight, from one step of a similar optimizer."""
    weight = nn.Parameter(torch.zeros(16, 16))
    weight.grad = torch.zeros_like(weight)
    group = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    try:
        alike = type(optimizer)([{"params": [weight], **group}], **optimizer.defaults)
        alike.step()
    except (TypeError, ValueError, RuntimeError, AttributeError):  # an optimizer that takes or needs other arguments
        return 2.0
    state = alike.state[weight]
    return sum(value.numel() for value in state.values() if isinstance(value, Tensor)) / weight.numel()


def room(device: torch.device) -> int | None:
    """Return the available bytes on a device, within the limits of a container; None if unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    at_hand = psutil.virtual_memory().available
    for limit, held, stat in zip(map(_number, LIMIT_FILES), map(_number, USAGE_FILES), STAT_FILES, strict=True):
        if limit is not None and held is not None:
            at_hand = min(at_hand, max(0, limit - held + _cached(stat)))
    return at_hand


def _cached(stat: str) -> int:
    """Return the bytes of cached files in a container, which are freed when memory is needed."""
    try:
        lines = [line.split() for line in Path(stat).read_text(encoding="utf-8").splitlines()]
    except OSError:
        return 0
    return sum(int(value) for name, value in lines if name in {"inactive_file", "active_file"})


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no such limit, or "max"
        return None


@final
class MemoryOfStep(Callback):
    """A callback that reports a step's memory before the first, and encodes fewer inputs at a time if it is too much.

    It is reported if it exceeds a twentieth of the available memory. The number of inputs is chosen once, and kept in
    checkpoints. All processes need this callback: the smallest of their numbers applies, and processes on one machine
    share its memory. Nothing is predicted for sharded networks or for batches below 4 inputs.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self._chosen: int | None = None
        self._done = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Predict, choose and report, before the first step."""
        if self._done:
            return
        self._done = True
        chosen_size = pl_module.chunk_size or self._chosen
        towers, at_hand, fitting, taken = list(_towers(pl_module, batch)), room(pl_module.device), 0, None
        covered = all(len(inputs) >= TRIAL_INPUTS[1] and not _sharded(network) for network, inputs in towers)
        with distributed.agreement(CPU):
            if covered and at_hand is not None:
                with trainer.strategy.precision_plugin.train_step_context():
                    taken = need(towers, trainer.optimizers[0])
                if pl_module.device.type == "cpu":
                    at_hand //= trainer.world_size // trainer.num_nodes  # processes that share it
                fitting = chosen_size or taken.fitting(MAX_SHARE * at_hand)
                fitting = ALL_INPUTS if fitting >= taken.inputs else fitting
        everyone = [number for (number,) in distributed.exchange((fitting,), CPU)]
        pl_module.chunk_size = chosen_size
        if taken is None or at_hand is None or not all(everyone):
            return
        inputs, size = taken.inputs, min(everyone)
        whole, part, there = (_in_words(count) for count in (taken.of(inputs), taken.of(size), at_hand))
        if chosen_size or size >= inputs:
            if taken.of(size) > MIN_REPORTED_SHARE * at_hand:
                self.tell(f"memory: a step takes about {part} of {there} at hand")
            return
        pl_module.chunk_size = self._chosen = size
        normalises = any(
            isinstance(layer, _BatchNorm) and layer.training for network, _ in towers for layer in network.modules()
        )
        by_itself = "; batch normalisation normalises each part by itself" if normalises else ""
        self.tell(
            f"memory: a step would take about {whole} of {there} at hand, so {size:,} of {inputs:,} inputs are encoded "
            f"at a time (--chunk_size {size}), which takes about {part} and a third more time; the loss is still that "
            f"of the whole batch{by_itself}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the chosen number of inputs."""
        return {"chosen": self._chosen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the chosen number of inputs."""
        self._chosen = state_dict["chosen"]


def _towers(module: Any, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
    step = module.step_of(batch)
    yield module.encoder, step.inputs[:, : step.encoded].flatten(0, 1)
    if module.second is not None and "counterparts" in batch:
        yield module.second, batch["counterparts"]


def _sharded(network: nn.Module) -> bool:
    return any(hasattr(module, "set_requires_gradient_sync") for module in network.modules())


def _in_words(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"
