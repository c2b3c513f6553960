"""Short names of options within parts."""

ALIASES = {
    "epochs": "trainer.max_epochs",
    "steps": "trainer.max_steps",
    "device": "trainer.accelerator",
    "devices": "trainer.devices",
    "precision": "trainer.precision",
    "batch_size": "batches.batch_size",
    "views": "batches.views",
    "augmentation": "batches.augmentation",
    "sampler": "batches.sampler",
    "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "temperature": "loss.temperature",
}
