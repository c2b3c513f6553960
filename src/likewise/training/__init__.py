"""Training: the Lightning module that puts encoder, head and loss together, and the folder that a run leaves."""

from likewise.training.folder import RunFolder, run_folder
from likewise.training.pretraining import OptimizerCallable, Pretraining, check_loss

__all__ = ["OptimizerCallable", "Pretraining", "RunFolder", "check_loss", "run_folder"]
