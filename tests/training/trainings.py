"""What tests of trainings share: a quiet trainer, callbacks that note the rate or kill a training, a file of pairs."""

import json

import lightning
import numpy as np

WORDS = ["red", "green", "blue", "small", "large", "round", "flat", "cat", "dog", "tree", "house", "runs", "sleeps"]


def save_pairs(folder, count=120):
    """Write texts with vectors of their words' counts, in which every fifth text occurs again, other texts, negatives.

    Return the options that read the texts as the first side.
    """
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=4)) for _ in range(count)]
    texts[4::5] = texts[::5]
    vectors = [[float(text.split().count(word)) for word in WORDS] for text in texts]
    rows = (
        {
            "one": text,
            "counts": vector,
            "other": f"{text[::-1]} {row % 7}",
            "wrong": [vectors[(row + step) % count] for step in range(1, 1 + row % 3)],
        }
        for row, (text, vector) in enumerate(zip(texts, vectors, strict=True))
    )
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"data": "Pairs", "data.path": str(folder / "pairs.jsonl"), "data.first": "one"}


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
