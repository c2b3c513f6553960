"""Other names of options and losses: short ones, and those in other libraries."""

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

OPTIONS_ELSEWHERE = {
    **dict.fromkeys(("learning_rate", "learningrate"), "lr"),
    **dict.fromkeys(("model", "network", "backbone", "arch", "trunk"), "encoder"),
    **dict.fromkeys(("dataset", "data_dir"), "data"),
    **dict.fromkeys(("output", "output_dir", "out"), "runs"),
    **dict.fromkeys(("gpu", "gpus"), "device"),
    **dict.fromkeys(("batch", "bs"), "batch_size"),
    **dict.fromkeys(("num_epochs", "max_epochs"), "epochs"),
    **dict.fromkeys(("checkpoint", "resume_from"), "resume"),
    **dict.fromkeys(("aug", "transform"), "augmentation"),
    **dict.fromkeys(("eval", "evaluation"), "evaluations"),
    "wd": "weight_decay",
    "tau": "temperature",
    "amp": "precision",
    "criterion": "loss",
    "projector": "head",
    "num_workers": "workers",
    "encoder_lr": "encoder_rate_factor",
}
"""Options by their names in other libraries: an error says the name here."""

LOSSES_ELSEWHERE = {"ce": "CrossEntropyLoss", "protonet": "PrototypicalLoss", "asl": "AsymmetricLoss"}
