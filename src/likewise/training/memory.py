"""The memory that a training step takes, predicted before the first one, and how many inputs fit at a time."""

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

TRIAL_INPUTS = 2, 4  # of the two trials
TRIAL_TEXTS = 16, 32  # which are more, since texts are encoded by length, and so their lengths matter
HEAP_FACTOR = 1.1  # how much larger the heap is than what is in use
MAX_SHARE, MIN_REPORTED_SHARE = 0.9, 0.05  # of the memory at hand, that a step takes
CPU = torch.device("cpu")
ALL_INPUTS = 2**31  # inputs at a time, if all of a process fit
LIMIT_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
USAGE_FILES = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
STAT_FILES = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")


class SavedMemory(NamedTuple):
    """The bytes of what is kept for the backward: fixed, and for each of at most `inputs` inputs."""

    fixed: float
    each: float
    inputs: int

    def of(self, inputs: int) -> float:
        """Return the bytes with `inputs` inputs at a time."""
        return max(0.0, self.fixed + self.each * min(inputs, self.inputs))


class Need(NamedTuple):
    """The bytes that a step takes beside weights and inputs, by the number n of inputs that are encoded at a time.

        1.1 (weights + Σ_i k_i(n) + 2 max_i k_i(n)),   k_i the bytes of tensor i, which is kept for the backward

    The weights' part: their gradients, the optimizer's state, and twice the largest of them, for its arithmetic. Twice
    the largest of what is kept is for the gradients that flow past it; a tenth is what the heap cannot use.
    """

    weights: int
    sums: Sequence[SavedMemory]
    largest: Sequence[SavedMemory]

    @property
    def inputs(self) -> int:
        """Return how many inputs there are."""
        return max(line.inputs for line in self.sums)

    def of(self, inputs: int) -> int:
        """Return the bytes with `inputs` inputs at a time."""
        kept = sum(line.of(inputs) for line in self.sums)
        largest = max((line.of(inputs) for line in self.largest), default=0.0)
        return round(HEAP_FACTOR * (self.weights + kept + 2 * largest))

    def fitting(self, available: float) -> int:
        """Return the largest of all inputs, half of them, a quarter ... that fits into these bytes; 2 if none does."""
        inputs = self.inputs
        while inputs > TRIAL_INPUTS[0] and self.of(inputs) > available:
            inputs = -(-inputs // 2)
        return inputs


def need(towers: Iterable[tuple[nn.Module, Tensor]], optimizer: Optimizer) -> Need:
    """Predict what a step takes, from encodings of a few of its inputs, without a backward.

    Each of the networks, in training mode, has at least 4 inputs, (N, ...). Random numbers, batch statistics and
    gradients stay as they were. What the loss keeps, which is mostly small and linear in the batch, is not counted.
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
        alike = len(fewer) == len(more)  # else they are other tensors: of other groups of texts, or by another method
        largest += map(line, fewer, more) if alike else [line(max(fewer, default=0), max(more, default=0))]
    return Need(_weights(optimizer), sums, largest)


def _line(few: Sequence[int], inputs: int, fewer: float, more: float) -> SavedMemory:
    each = (more - fewer) / (few[1] - few[0])
    return SavedMemory(fewer - each * few[0], each, inputs)


def _select_inputs(inputs: Tensor, count: int) -> Tensor:
    """Return some inputs; of rows of tokens, whose padding is 0, some of every length, with the longest."""
    if inputs.ndim != 2 or inputs.is_floating_point():
        return inputs[:count]
    order = (inputs != PADDING).sum(dim=1).argsort(stable=True)
    return inputs[order[torch.linspace(0, len(order) - 1, count, device=order.device).round().long()]]


def _saved_sizes(encoder: nn.Module, inputs: Tensor) -> list[int]:
    """Return the bytes of each tensor that is kept for the backward, weights and inputs left out."""
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
        # the output holds what is kept, so that no address is used twice
        output = functional_call(encoder, buffers, (inputs,), tie_weights=False)
    del output
    return list(sizes.values())


def _weights(optimizer: Optimizer) -> int:
    trained = [weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad]
    sizes = [weight.nbytes for weight in trained]
    return round((1 + _states(optimizer)) * sum(sizes) + 2 * max(sizes, default=0))


def _states(optimizer: Optimizer) -> float:
    """Return how many numbers an optimizer keeps for each weight, by a step of one like it."""
    weight = nn.Parameter(torch.zeros(16, 16))
    weight.grad = torch.zeros_like(weight)
    group = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    try:
        alike = type(optimizer)([{"params": [weight], **group}], **optimizer.defaults)
        alike.step()
    except (TypeError, ValueError, RuntimeError, AttributeError):  # one that takes or needs something else
        return 2.0
    state = alike.state[weight]
    return sum(value.numel() for value in state.values() if isinstance(value, Tensor)) / weight.numel()


def room(device: torch.device) -> int | None:
    """Return the bytes at hand on a device, within the limits of a container; None if they are not known."""
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
    """Report before the first step what memory it takes; if there is less, encode fewer inputs at a time.

    It is reported if it is over a twentieth of what is at hand. The number is chosen once, and kept in checkpoints.
    All processes need it: the smallest of their numbers holds, and those on one machine share its memory. Nothing is
    predicted of networks that are sharded, nor of batches below 4 inputs.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self._chosen: int | None = None
        self._done = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Predict, choose and tell, before the first step."""
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
        """Return what was chosen."""
        return {"chosen": self._chosen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with what was chosen."""
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
