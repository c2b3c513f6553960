"""Fitting: Lightning's trainer for an assembled training, in one or several processes, and batch norm across them."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from lightning import Callback, Trainer
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - the base of all three
from torch.nn.parallel import DistributedDataParallel

from likewise import distributed
from likewise.instantiate import as_list
from likewise.runs import Run
from likewise.training.assembly import Assembled
from likewise.training.callbacks import VALIDATION
from likewise.training.checkpoints import Checkpoints, Terminated, readable
from likewise.training.launch import local_processes, processes
from likewise.training.pretraining import Pretraining
from likewise.training.validation import ValidationScores

CPU = torch.device("cpu")
OUR_PACKAGES = {"lightning", "likewise"}


@final
class Monitored(Callback):
    """A callback that refuses others monitoring unlogged values, after the first step; Lightning does after an epoch.

    With a user's own callbacks or losses, which may log values later, the check is left to Lightning.
    """

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Compare the monitored values with those logged in the first step, and with scores if there are any."""
        callbacks: list[Any] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        theirs = any(type(part).__module__.split(".")[0] not in OUR_PACKAGES for part in (*callbacks, pl_module.loss))
        every = next((callback.every for callback in callbacks if isinstance(callback, ValidationScores)), 0)
        logged = list(trainer.callback_metrics)
        scores = [name for name in logged if name.startswith(VALIDATION)]
        for callback in callbacks:
            monitor = getattr(callback, "monitor", None)
            if monitor is None or not getattr(callback, "strict", True):
                continue
            name = type(callback).__name__
            of_validation = monitor.startswith(VALIDATION) and every
            if of_validation and every > 1 and isinstance(callback, EarlyStopping):
                raise ValueError(
                    f"expected validation scores after every epoch, which {name} looks at, got them after every "
                    f"{every}: give --validation_epochs 1, or --patience instead"
                )
            if of_validation and scores and monitor not in scores:
                raise ValueError(f"expected {name} to monitor one of {', '.join(scores)}, got {monitor}: name one")
            if not of_validation and not batch_idx and not theirs and monitor not in logged:
                raise ValueError(
                    f"expected {name} to monitor one of {', '.join(logged)}, which are logged, got {monitor}: name one "
                    "of them; --keep best, --patience and --validation_epochs go by validation scores"
                )


def trainer_of(options: Mapping[str, Any], callbacks: Sequence[Callback], checkpoints: Checkpoints | None) -> Trainer:
    """Make the trainer from the user's options; raise a ValueError unless they fit the launched processes."""
    arguments = dict(options)
    theirs = as_list(arguments.pop("callbacks", None))
    arguments["logger"] = arguments.get("logger") or False  # otherwise Lightning makes one
    if arguments.pop("enable_checkpointing", None) is False and checkpoints is not None:
        checkpoints.saves = False
    launched = processes()
    if launched > 1:
        launched_as = {"devices": local_processes(), "num_nodes": launched // local_processes()}
        for name, value in launched_as.items():
            if str(arguments.get(name) or "auto") not in {"auto", "1", str(value)}:
                raise ValueError(
                    f"expected trainer.{name} of {value}, as {launched} processes were launched, got "
                    f"{arguments[name]}: leave it out"
                )
        arguments |= launched_as
        arguments["plugins"] = [*as_list(arguments.get("plugins")), TorchElasticEnvironment()]  # for any launcher
        if arguments.get("strategy") in {None, "auto", "ddp"}:
            # buffers are not broadcast at every forward: queue and cache are the same on all processes anyway
            known = inspect.signature(DistributedDataParallel).parameters
            option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
            options_of_ddp: dict[str, Any] = {option: False}
            arguments["strategy"] = DDPStrategy(**options_of_ddp)
    trainer = Trainer(
        **arguments,
        callbacks=[*theirs, *callbacks, Monitored(), *(() if checkpoints is None else (checkpoints,))],
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in theirs),
    )
    if trainer.world_size > launched:
        raise ValueError(
            f"expected trainer.devices of {launched} in all, as launched, got {trainer.world_size}: start several with "
            "torchrun --nproc-per-node N -m likewise.cli train"
        )
    return trainer


def fit(ready: Assembled, trainer: Trainer, run: Run | None, *, compiled: bool = False) -> None:
    """Train, starting from the last readable checkpoint of the run, or anew without a run.

    `compiled` applies to encoder, head and momentum encoder, not to the loss. Terminated is raised after SIGTERM.
    """
    if trainer.world_size > 1:
        synchronize(ready.module, trainer.strategy.root_device)
    checkpoint = _agreed(run)
    if trainer.precision == "64-true":
        ready.module.double()  # Lightning does so only after it has loaded the checkpoint, rounded to float32
    if compiled:
        _compile(ready.module)
    try:
        trainer.fit(ready.module, datamodule=ready.data, ckpt_path=checkpoint, weights_only=True)
    except SIGTERMException as error:  # before the first step there is nothing to save
        raise Terminated from error
    except RuntimeError as error:
        if "conditioned on metric" in str(error):  # a user's own callbacks might have logged it: not known earlier
            raise ValueError(" ".join(str(error).split())) from error
        raise
    except SystemExit as error:  # Lightning's answer to Ctrl-C
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    finally:
        vars(ready.module.encoder).pop("maps", None)


def _compile(module: Pretraining) -> None:
    torch.compiler.reset()  # earlier runs in this process count towards the limit of recompilations
    momentum = module.inputs.momentum
    for part in (module.encoder, module.second, module.head, None if momentum is None else momentum.slow):
        if part is not None:
            part.compile()
    with_maps: Any = module.encoder
    with_maps.maps = torch.compile(with_maps.maps)  # losses of maps don't call the encoder itself


def last_whole(run: Run) -> str | None:
    """Return the newest readable checkpoint of a run, None if it has none; raise a ValueError if none can be read."""
    there = [path for path in (run.checkpoint, run.checkpoint_before) if path.exists()]
    for path in there:
        if readable(path):
            return str(path)
        path.rename(path.with_suffix(".damaged"))  # so it never replaces a readable one
    if there:
        raise ValueError(
            f"expected a checkpoint that can be read, got {len(there)} truncated in {run.folder}: train again with "
            f"likewise train --config {run.configuration}"
        )
    return None


def _agreed(run: Run | None) -> str | None:
    """Return the checkpoint chosen by the first process, which alone looks for one and puts a damaged one aside."""
    there = () if run is None else (run.checkpoint, run.checkpoint_before)
    chosen = -1
    with distributed.agreement(CPU):
        if run is not None and distributed.rank() == 0:
            newest = last_whole(run)
            chosen = -1 if newest is None else there.index(Path(newest))
    ((chosen,), *_) = distributed.exchange((chosen,), CPU)
    return None if chosen < 0 else str(there[chosen])


class GatheredBatchNorm(_BatchNorm):
    """Batch normalisation over the batch of all processes, with the exact gradient, on CPUs; on GPUs PyTorch has it.

    mean = Σ x / n      variance = Σ (x − mean)² / n      both sums over the samples of all processes
    """

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 - PyTorch's name
        if input.ndim < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.ndim}: samples by channels")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        """Normalise inputs (N, C, ...)."""
        if distributed.world_size() == 1 or not (self.training or self.running_mean is None):
            return super().forward(input)
        self._check_input_dim(input)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        rest, by_channel = [0, *range(2, x.ndim)], (1, -1, *[1] * (x.ndim - 2))
        count = distributed.total(x.new_full((), x.numel() / x.shape[1], dtype=torch.float64)).to(x.dtype)
        mean = distributed.summed(x.sum(dim=rest)) / count
        centred = x - mean.view(by_channel)
        variance = distributed.summed(centred.square().sum(dim=rest)) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        normal = centred * (variance + self.eps).rsqrt().view(by_channel)
        if self.affine:
            normal = normal * self.weight.view(by_channel) + self.bias.view(by_channel)
        return normal.to(input.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        if not self.training or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None  # noqa: S101 - it exists whenever the statistics do
        self.num_batches_tracked.add_(1)
        by = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), by)
        self.running_var.lerp_(variance.to(self.running_var.dtype), by)


@final
class GatheredBatchNormAct(GatheredBatchNorm):
    """timm's `BatchNormAct2d`, with its dropout and activation, over the batch of all processes, on CPUs."""

    drop: nn.Module
    act: nn.Module

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        """Normalise inputs (N, C, H, W), then apply dropout and activation."""
        return self.act(self.drop(super().forward(input)))


def synchronize(module: nn.Module, device: torch.device) -> None:
    """Make all batch normalisations in a module normalise over the batch of all processes.

    Raises:
        ValueError: A batch normalisation has a forward of its own, which would be lost, and is not timm's.
    """
    layers = sys.modules.get("timm.layers")  # loaded if a network is timm's
    gathered = dict[nn.Module, type[GatheredBatchNorm]]()
    for name, part in module.named_modules():
        if not isinstance(part, _BatchNorm) or isinstance(part, nn.SyncBatchNorm):
            continue
        acts = layers is not None and isinstance(part, layers.BatchNormAct2d)
        if not acts and type(part).forward is not _BatchNorm.forward:
            raise ValueError(
                f"expected batch normalisations of PyTorch or timm where several processes train, got "
                f"{type(part).__qualname__} with a forward of its own at {name}: take one of these, or one process"
            )
        gathered[part] = GatheredBatchNormAct if acts else GatheredBatchNorm
    if device.type != "cuda":
        for part, synchronized in gathered.items():
            part.__class__ = synchronized  # in place, with its tensors, which an optimizer may hold
    elif layers is not None and GatheredBatchNormAct in gathered.values():
        layers.convert_sync_batchnorm(module)
    else:
        nn.SyncBatchNorm.convert_sync_batchnorm(module)
