"""The trainer options for a training, as a record of its own: importing Lightning takes seconds."""

from dataclasses import dataclass
from typing import Annotated, Literal

from likewise.instantiate import Spec

Callback = Annotated[Spec, "lightning.pytorch.callbacks.callback.Callback"]
Logger = Annotated[Spec, "lightning.pytorch.loggers.logger.Logger"]
Precision = Literal[
    64, 32, 16, "64", "32", "16", "bf16", "transformer-engine", "transformer-engine-float16", "16-true", "16-mixed",
    "bf16-true", "bf16-mixed", "32-true", "64-true", "auto",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """Lightning's trainer: the options that a training can use, with Lightning's defaults.

    Args:
        accelerator: Where it computes: auto, cpu, cuda, mps ...
        strategy: How several processes share the work: auto, ddp, or ddp_find_unused_parameters_true.
        devices: How many devices, or which: 2, or [0, 1], or auto for all.
        num_nodes: Number of machines.
        precision: The type of numbers: 32-true, bf16-mixed, 64-true ..., or auto: bf16-mixed where the device
            multiplies bfloat16 natively and the network gains by it, else 32-true. Default: 32-true.
        logger: Further loggers of Lightning; see --log for the usual ones.
        callbacks: Further callbacks of Lightning.
        fast_dev_run: Number of batches of a trial run; true: one.
        max_epochs: Epochs after which the training ends; -1: none.
        min_epochs: The least number of epochs.
        max_steps: Steps after which it ends; -1: none.
        min_steps: The least number of steps.
        max_time: Time after which it ends, DD:HH:MM:SS.
        limit_train_batches: Batches of an epoch, as a share (0.1) or a number (10). Default: all.
        overfit_batches: A share or number of batches to train on repeatedly.
        log_every_n_steps: Steps between rows of metrics.csv.
        enable_checkpointing: Whether Lightning may write checkpoints.
        enable_progress_bar: Whether a progress bar is drawn.
        enable_model_summary: Whether the modules are listed before training.
        accumulate_grad_batches: Batches whose gradients are accumulated for one step.
        gradient_clip_val: The norm, or value, that gradients are clipped to. Default: no clipping.
        gradient_clip_algorithm: norm or value. Default: norm.
        deterministic: Whether operations must be deterministic; warn: reports the others.
        benchmark: Whether cuDNN tries several algorithms.
        profiler: A profiler of the time: simple, advanced, or pytorch.
        detect_anomaly: Whether autograd checks for NaN.
    """

    accelerator: str = "auto"
    strategy: str = "auto"
    devices: list[int] | str | int = "auto"
    num_nodes: int = 1
    precision: Precision | None = None
    logger: Logger | list[Logger] | bool | None = None
    callbacks: list[Callback] | Callback | None = None
    fast_dev_run: int | bool = False
    max_epochs: int | None = None
    min_epochs: int | None = None
    max_steps: int = -1
    min_steps: int | None = None
    max_time: str | dict[str, int] | None = None
    limit_train_batches: int | float | None = None
    overfit_batches: int | float = 0.0
    log_every_n_steps: int | None = None
    enable_checkpointing: bool | None = None
    enable_progress_bar: bool | None = None
    enable_model_summary: bool | None = None
    accumulate_grad_batches: int = 1
    gradient_clip_val: int | float | None = None
    gradient_clip_algorithm: str | None = None
    deterministic: bool | Literal["warn"] | None = None
    benchmark: bool | None = None
    profiler: str | None = None
    detect_anomaly: bool = False
