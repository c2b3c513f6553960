"""What tests of trainings share: a quiet trainer, and callbacks that note the learning rate or kill a training."""

import lightning


def fitted(module, data, checkpoint=None, **options):
    """Train on the CPU, without a word or a file; return the trainer."""
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(**({"accelerator": "cpu", "logger": False} | quiet | options))
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    return trainer


class Rates(lightning.Callback):
    """Keeps the learning rates of each step, one for each group of parameters."""

    def __init__(self):
        self.steps = []

    @property
    def first(self):
        """Those of the first group."""
        return [rates[0] for rates in self.steps]

    def on_train_batch_start(self, trainer, *_):
        self.steps.append([group["lr"] for group in trainer.optimizers[0].param_groups])


class Kill(lightning.Callback):
    """End a training with an error before a batch."""

    def __init__(self, batch, error=InterruptedError):
        self.batch, self.error = batch, error

    def on_train_batch_start(self, trainer, *_):
        if trainer.fit_loop.epoch_loop.total_batch_idx == self.batch:
            raise self.error
