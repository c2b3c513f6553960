"""The summary of a run: what goes into its training, as plain values and as a table, and warnings of too little."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import nn

from likewise.data import Episodes, Samples, Texts, Views
from likewise.diagnostics import descent
from likewise.files.formats import PARTS
from likewise.memory import Queue
from likewise.report.formatting import amounts, part_words
from likewise.runs.score_files import Curves
from likewise.runs.score_format import format_count, one_line

if TYPE_CHECKING:
    from lightning import Trainer

    from likewise.training import Assembled

MIN_STEPS, ENOUGH_STEPS = (100, 25), (300, 100)  # from scratch, and of an encoder with pretrained weights
INDENT, WIDTH = "  ", 16  # of a line, and of its first column


def summarize(ready: "Assembled", trainer: "Trainer") -> dict[str, Any]:
    """Return what goes into a training, as plain values, once the trainer has its data and before its first step."""
    module, parts, batches = ready.module, ready.parts, ready.data.batches
    every = (parts.train, parts.validation, parts.test)
    counts = Counter[str]()
    for part in every:
        counts.update(dict(zip(part.names, part.counts.tolist(), strict=True)))
    ranked = counts.most_common()
    labelled = (parts.refitted() if ready.refit else parts).train
    unlabelled = 0 if parts.unlabelled is None else len(parts.unlabelled)
    label_sets = [part.labels for part in every if part.label_kind == "label sets" and part.labels is not None]
    without = unlabelled + sum(int((~labels.any(dim=1)).sum()) for labels in label_sets)
    steps = trainer.estimated_stepping_batches
    batch = {"samples": min(batches.batch_size, len(ready.trained))}
    if isinstance(batches, Views):
        batch["views"] = batches.views
    elif isinstance(batches, Episodes):
        batch |= batches.shape._asdict()
    return {
        "samples": sum(map(len, every)) + unlabelled,
        "inputs": _input_facts(parts.train),
        "second": _second_facts(ready),
        "labels": {"count": len(ranked), "largest": ranked[0], "smallest": ranked[-1], "unlabelled": without}
        if ranked
        else None,
        "evaluated": None if parts.test.evaluated is None else len(parts.test.evaluated.names),
        "changed": [[int(part.changed.sum()), int(part.labelled.sum())] for part in (parts.train, parts.validation)],
        "given": list(parts.given),
        "trained_unlabelled": unlabelled > 0 and len(ready.trained) > len(labelled),
        "encoder": _sizes(module.encoder),
        "head": None if module.head is None else _sizes(module.head),
        "batch": batch,
        "queue": max((len(part.key_ring) for part in module.modules() if isinstance(part, Queue)), default=0),
        "steps": int(steps) if math.isfinite(steps) else None,
        "steps_per_epoch": math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches),
        "precision": None if trainer.precision == "32-true" else str(trainer.precision),
        "max_steps": trainer.max_steps if trainer.max_steps == steps else None,
    }


def _input_facts(samples: Samples) -> dict[str, Any]:
    if isinstance(samples.inputs, Texts):
        return {"kind": "texts"}
    shape = list(samples.input_shape)
    files = {} if samples.found is None else {"files": asdict(samples.found)}
    return {"kind": {1: "vectors", 3: "images"}.get(len(shape), "inputs"), "shape": shape} | files


def _second_facts(ready: "Assembled") -> dict[str, Any] | None:
    """Return what the other side of pairs is, and its encoder's size: None where the encoder is shared."""
    train, encoder = ready.trained, ready.module.second
    if train.counterparts is None or encoder is None:
        return None
    sizes = None if encoder is ready.module.encoder else _sizes(encoder)
    negatives = None if train.negatives is None else int((train.negatives.places >= 0).any(dim=1).sum())
    return {"inputs": _input_facts(train.counterparts), "encoder": sizes, "negatives": negatives}


def _sizes(network: nn.Module) -> dict[str, int]:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in network.parameters()]
    return {"parameters": sum(size for size, _ in sizes), "trained": sum(size for size, trained in sizes if trained)}


def summary_table(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what goes into a run as names and values; empty where nothing was trained."""
    if "run_summary" not in facts:
        return []
    summary, parts, sizes = facts["run_summary"], facts["parts"], facts["samples"]
    inputs, labels, second = summary["inputs"], summary["labels"], summary["second"]
    files, steps, tower = inputs.get("files"), summary["steps"], (second or {}).get("encoder")
    split = parts["split"]["init_args"].get("refit") or not {"validation", "test"} <= set(summary["given"])
    changed = zip(PARTS, summary["changed"], strict=False)
    wrong = [f"{count:,} of {total:,} {part}" for part, (count, total) in changed if count]
    without = f"{labels['unlabelled']:,}" if labels and labels["unlabelled"] else ""
    if sizes.get("unlabelled"):
        without += ", trained on" if summary["trained_unlabelled"] else ", left out"
    batches = parts["batches"].get("init_args") or {}
    specs = filter(None, map(batches.get, ("augmentation", "counterpart_augmentation")))
    augmentations = dict.fromkeys(part_words(spec, brief=True) for spec in specs)
    table = {
        "samples": f"{summary['samples']:,} {'pairs' if second else inputs['kind']}",
        "inputs": _input_words(inputs),
        "other side": second and _input_words(second["inputs"]),
        "with negatives": second and second["negatives"],
        "files": files and f"{files['sizes']:,} sizes, {_size(files['smallest'])} to {_size(files['largest'])}",
        "colours": files and amounts(files["kinds"]),
        "resized": files and f"{facts['preprocessing']['resize']}, {_size(inputs['shape'][1:])}",
        facts["labels"]["kind"] or "labels": f"{labels['count']:,}" if labels else "none",
        "most frequent": labels and _class_words(*labels["largest"]),
        "least frequent": labels and _class_words(*labels["smallest"]),
        "without labels": without,
        "evaluated": summary["evaluated"] and f"{summary['evaluated']:,} classes within these",
        "parts": amounts({part: sizes[part] for part in PARTS}),
        "given": ", ".join(summary["given"]),
        "split": split and part_words(parts["split"], brief=True),
        "subset": parts["subset"] and part_words(parts["subset"], brief=True),
        "wrong labels": wrong and f"{', '.join(wrong)}; evaluated by the right ones",
        "encoder": _network_words(parts["encoder"], summary["encoder"]),
        "weights": facts.get("begins_with"),
        "second encoder": tower and _network_words(facts["second"]["encoder"], tower),
        "head": summary["head"] and _network_words(parts["head"], summary["head"]),
        "loss": part_words(parts["loss"], brief=True),
        "loss inputs": parts["inputs"] and part_words(parts["inputs"], brief=True),
        "batch": amounts(summary["batch"]),
        "augmentation": ", ".join(augmentations),
        "steps": f"{steps:,}" if steps else "as time allows",
        "epochs": steps and f"{steps / summary['steps_per_epoch']:,.4g}",
        "device": facts["device"],
        "precision": summary.get("precision"),
    }
    return [(name, str(value)) for name, value in table.items() if value]


def summary_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return the table as lines for a terminal, and the warning of few steps, which the page shows below its table."""
    few = [("few steps", warning) for warning in _few_steps_warnings(facts)] if "run_summary" in facts else []
    return [f"{INDENT}{name:<{WIDTH}}{value}" for name, value in [*summary_table(facts), *few]]


def _input_words(inputs: Mapping[str, Any]) -> str:
    return f"{inputs['kind']} {_size(inputs.get('shape', []))}".strip()


def _network_words(spec: Any, sizes: Mapping[str, int]) -> str:
    trained = "" if sizes["trained"] == sizes["parameters"] else f", {sizes['trained']:,} trained"
    return f"{part_words(spec, brief=True)}, {sizes['parameters']:,} parameters{trained}"


def _class_words(name: str, count: int) -> str:
    return f"{count:,} ({one_line(name)})"


def _size(pixels: Sequence[int]) -> str:
    return " x ".join(map(str, pixels))


def training_warnings(facts: Mapping[str, Any], metrics: Curves) -> list[str]:
    """Return why a training can hardly have taught its encoder anything, and what would; empty if it may have."""
    summary: dict[str, Any] = facts.get("run_summary") or {}
    losses = [value for _, value in metrics.get("loss", [])]
    rates = [value for _, value in metrics.get("learning_rate", [])]
    if rates and not any(rates):  # as where a time limit ends the training in the first step of its warm-up
        return ["the learning rate was 0 in every step that was logged, so nothing was learned: train longer"]
    few = _few_steps_warnings(facts) if summary else []
    filling = summary and 2 * summary["queue"] > len(losses) * summary["batch"]["samples"]  # which raises the loss
    fall = None if filling else descent(losses)
    if fall is None or fall.fell:
        return few
    rate = max(rates, default=math.nan)
    got = f"the loss did not come down by more than chance, from {fall.highest:.4g} to {fall.last:.4g}"
    remedy = "train longer (--epochs), or make the task easier by milder views (--augmentation)"
    return [*few, f"{got}, so hardly anything was learned: change --lr, which was at most {rate:.2g}, {remedy}"]


def _few_steps_warnings(facts: Mapping[str, Any]) -> list[str]:
    summary = facts["run_summary"]
    if not few_steps(facts, summary["steps"]) or summary["encoder"]["trained"] == 0:
        return []
    amount = "tens" if facts.get("begins_with") else "hundreds"
    return [f"only {format_count(summary['steps'], 'step')}, while encoders learn over {amount}: {longer(facts)}"]


def few_steps(facts: Mapping[str, Any], steps: int | None) -> bool:
    """Tell whether so many steps are too few to learn much, given what the encoder begins with."""
    return steps is not None and steps < MIN_STEPS[bool(facts.get("begins_with"))]


def longer(facts: Mapping[str, Any]) -> str:
    """Return the option that makes a training long enough."""
    summary, enough = facts["run_summary"], ENOUGH_STEPS[bool(facts.get("begins_with"))]
    epochs = math.ceil(enough / summary["steps_per_epoch"])
    return f"--epochs {epochs}" if summary["max_steps"] is None else f"--steps {enough}"
