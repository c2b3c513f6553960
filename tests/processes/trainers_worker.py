"""One process of several: the gradient of a step in Hugging Face's and sentence-transformers' trainers.

python trainers_worker.py RANK WORLD PORT FOLDER
"""

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import likewise as lw
from likewise.integrations import ForSentences

ROWS = 16


class Pairs(nn.Module):
    """An encoder and a loss with a learned temperature."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(6, 5)
        self.loss = lw.InfoNCELoss(temperature="learned", gather_distributed=True)

    def forward(self, queries, keys, *, return_loss=True):
        return {"loss": self.loss(self.encoder(queries), self.encoder(keys))} if return_loss else {}


class Step(TrainerCallback):
    """What an optimizer would meet."""

    def __init__(self, parameters):
        self.parameters = parameters

    def on_pre_optimizer_step(self, *_, **__):
        self.found = [of.grad.clone() for of in self.parameters if of.grad is not None]


def options(steps=1):
    return {
        "output_dir": str(FOLDER / f"run{RANK}"), "per_device_train_batch_size": ROWS // WORLD // steps, "max_steps": 1,
        "gradient_accumulation_steps": steps, "learning_rate": 0.0, "max_grad_norm": 1e9, "report_to": "none",
        "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1,
    }  # fmt: skip


def logged(trainer):
    return next(each["loss"] for each in trainer.state.log_history if "loss" in each)


def in_trainer(steps):
    """Return loss and gradients in the Trainer; two batches of an accumulation are the same rows twice."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randn(2, 6, generator=generator) for _ in range(ROWS // steps)] * steps
    data = [{"queries": one, "keys": other} for one, other in rows]

    class InOrder(Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(data)

    model = Pairs()
    step = Step(list(model.parameters()))
    trainer = InOrder(model, TrainingArguments(**options(steps)), train_dataset=data, callbacks=[step])
    trainer.train()
    return logged(trainer), step.found


def directly():
    """Return loss and gradients of the rows of the accumulation without any trainer."""
    generator, model = torch.Generator().manual_seed(1), Pairs()
    queries, keys = torch.stack([torch.randn(2, 6, generator=generator) for _ in range(ROWS // 2)], dim=1)
    loss = model(queries, keys)["loss"]
    loss.backward()
    return float(loss), [of.grad for of in model.parameters()]


def of_sentences(chunk_size):
    """Return loss and gradients with hard negatives."""
    torch.manual_seed(0)
    model = SentenceTransformer(str(FOLDER.parent / "model"), device="cpu")
    loss_of = lw.InfoNCELoss(temperature="learned", gather_distributed=True)
    loss = ForSentences(model, loss_of, chunk_size=chunk_size)
    columns = {name: [f"{1 + n} {2 + n + k}" for n in range(ROWS)] for k, name in enumerate(("anchor", "one", "two"))}
    step = Step([*loss_of.parameters(), *(of for name, of in model.named_parameters() if "pooler" not in name)])
    arguments = SentenceTransformerTrainingArguments(**options())
    data = Dataset.from_dict(columns)
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss, callbacks=[step])
    trainer.train()
    return logged(trainer), step.found


def main():
    """Save the loss and the gradients of every case."""
    if WORLD > 1:
        os.environ |= {"RANK": str(RANK), "LOCAL_RANK": str(RANK), "WORLD_SIZE": str(WORLD)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}
    warnings.simplefilter("ignore")  # of libraries
    torch.set_num_threads(1)
    found = {
        "Trainer": in_trainer(1), "Trainer, accumulation": in_trainer(2),
        "sentences": of_sentences(None), "sentences, in chunks": of_sentences(3),
    }  # fmt: skip
    if WORLD == 1:
        found["directly"] = directly()
    torch.save(found, FOLDER / f"{WORLD}-{RANK}.pt")
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    RANK, WORLD, PORT = map(int, sys.argv[1:4])
    FOLDER = Path(sys.argv[4])
    main()
