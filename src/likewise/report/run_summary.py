"""The summary of a run's training, warnings about it, and the verdict on its scores."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple, final

from torch import nn

from likewise.data import Episodes, Samples, Texts, Views
from likewise.diagnostics import descent, spread
from likewise.files.formats import PARTS
from likewise.instantiate import is_spec
from likewise.memory import Queue
from likewise.report.elements import amounts, difference_words, part_words
from likewise.report.run_view import RunView
from likewise.report.sections.scores import difference_from_baseline
from likewise.runs.score_files import Curves
from likewise.runs.scores import BEGUN, ENCODER, PREFERRED_EVALUATIONS, RAW, Score, format_count, format_score, one_line

if TYPE_CHECKING:
    from lightning import Trainer

    from likewise.training import Assembled

MIN_STEPS, ENOUGH_STEPS = (100, 25), (300, 100)  # from scratch, and with a pretrained encoder
INDENT, WIDTH = "  ", 16  # of a line, and of its first column
FEATURE_NAMES = {BEGUN: "the encoder as it began", RAW: "raw inputs"}
MIN_SPREAD = 0.02  # of the embeddings of a batch: below it, a mean cosine above 0.98
MIN_FEATURE_SPREAD = 1e-3  # of features, which may all be positive and so lie closer
PLATEAU_TOLERANCE = 0.005  # relative distance of a loss from the loss of equal embeddings
INTERVAL_FACTOR = 1.5  # times the 95 % interval: a score gets that far above chance by luck in about one run of 600
LAST_STEPS = 10  # final steps whose losses are averaged
MIN_APART_STEPS = 25  # with fewer, embeddings can hardly move apart
MIN_SCRATCH_SAMPLES = 2000  # photos or texts; a network from scratch learns little from fewer
MIN_CLASS_SAMPLES = 5  # training samples of a class
CONTRASTIVE_LOSSES = ("SupConLoss", "NTXentLoss", "RASCALLoss", "NPairsLoss")
"""Losses of views against the rest of the batch, which are log(V·B - 1) for equal embeddings."""


def summarize(ready: "Assembled", trainer: "Trainer") -> dict[str, Any]:
    """Return the facts of a training as plain values, once the trainer has its data and before its first step."""
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
    """Return the facts of the other side of pairs, with its encoder's size: None for a shared encoder."""
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
    """Return the inputs and settings of a run as names and values; empty where nothing was trained."""
    if "run_summary" not in facts:
        return []
    summary, parts, sizes = facts["run_summary"], facts["parts"], facts["samples"]
    inputs, labels, second = summary["inputs"], summary["labels"], summary["second"]
    files, steps, tower = inputs.get("files"), summary["steps"], (second or {}).get("encoder")
    batch = summary["batch"]
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
        "files": files
        and f"{format_count(files['sizes'], 'size')}, {_size(files['smallest'])} to {_size(files['largest'])}",
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
        "batch": amounts({"view" if (name, count) == ("views", 1) else name: count for name, count in batch.items()}),
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
    """Return why a training can hardly have taught its encoder anything, with remedies; empty if it may have."""
    summary: dict[str, Any] = facts.get("run_summary") or {}
    losses = [value for _, value in metrics.get("loss", [])]
    rates = [value for _, value in metrics.get("learning_rate", [])]
    if rates and not any(rates):  # such as with a time limit that ends the training in the first step of its warm-up
        return ["the learning rate was 0 in every step that was logged, so nothing was learned: train longer"]
    few = _few_steps_warnings(facts) if summary else []
    filling = summary and 2 * summary["queue"] > len(losses) * summary["batch"]["samples"]  # filling raises the loss
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
    amount = f"{ENOUGH_STEPS[True]} or so" if facts.get("begins_with") else "hundreds"
    return [f"only {format_count(summary['steps'], 'step')}, while encoders learn over {amount}: {longer(facts)}"]


def few_steps(facts: Mapping[str, Any], steps: int | None) -> bool:
    """Tell whether `steps` steps are too few to learn much, given the encoder's initial weights."""
    return steps is not None and steps < MIN_STEPS[bool(facts.get("begins_with"))]


def longer(facts: Mapping[str, Any]) -> str:
    """Return the option that makes a training long enough."""
    summary, enough = facts["run_summary"], ENOUGH_STEPS[bool(facts.get("begins_with"))]
    epochs = math.ceil(enough / summary["steps_per_epoch"])
    return f"--epochs {epochs}" if summary["max_steps"] is None else f"--steps {enough}"


@final
class Verdict(NamedTuple):
    """The verdict on a run, in a sentence; if it should be better, the likely cause, and a command to try."""

    words: str
    cause: str = ""
    command: str = ""

    @property
    def lines(self) -> list[str]:
        """The verdict, then the most likely cause and a command to try, if any."""
        said = {"verdict": self.words, "most likely cause": self.cause, "try": self.command}
        return [f"{name}: {text}" for name, text in said.items() if text]


def run_verdict(view: RunView) -> Verdict | None:
    """Judge a run by its leading score on the test part; None where there is no baseline."""
    chosen = _leading_score(view)
    if chosen is None:
        return None
    ours, baselines = chosen
    compared = {feature_kind: _compare(view, ours, feature_kind, theirs) for feature_kind, theirs in baselines.items()}
    better = all(relation == "better than" for relation, _ in compared.values())
    kept = view.metadata.get("kept") == 0
    if kept:
        compared.pop(BEGUN, None)
    text = " and ".join(f"{relation} {FEATURE_NAMES[name]}{by}" for name, (relation, by) in compared.items())
    if kept:
        text = "; ".join(filter(None, ["kept as it began, since no epoch was better on validation", text]))
    text = f"{text[:1].upper()}{text[1:]}, by the {ours.evaluation}'s {ours.metric}, {format_score(ours)}"
    trained = (view.metadata.get("run_summary") or {}).get("encoder", {}).get("trained", 0)
    if not trained or (better and not kept and not _is_at_chance(view, ours, baselines)):
        return Verdict(text)
    return Verdict(text, *next(_causes(view, ours, baselines), ()))


def _leading_score(view: RunView) -> tuple[Score, dict[str, Score]] | None:
    """Return the most telling score with baselines, and these baselines."""
    candidates: list[tuple[Score, dict[str, Score]]] = []
    for name in view.headlines:
        baselines = view.by_features(*name)
        ours = baselines.pop(ENCODER)
        if baselines and ours.metric.is_share and ours.metric.better == "higher":
            candidates.append((ours, baselines))
    preferred = [pair for pair in candidates if pair[0].evaluation in PREFERRED_EVALUATIONS]
    return next(iter(preferred or candidates), None)


def _compare(view: RunView, ours: Score, feature_kind: str, theirs: Score) -> tuple[str, str]:
    difference = difference_from_baseline(view, feature_kind, ours.evaluation, ours.metric.name)
    if difference is None:
        low, high = ours.low - theirs.high, ours.high - theirs.low
        by = f" (their {format_score(theirs)}, of other samples)"
    else:
        low, high = difference.low, difference.high
        by = f" ({difference_words(difference)} points)"
    return ("better than" if low > 0 else "worse than" if high < 0 else "not to be told apart from"), by


def _causes(view: RunView, ours: Score, baselines: Mapping[str, Score]) -> Iterator[tuple[str, str]]:
    """Yield possible causes, the surest first, each with a command to try."""
    summary: dict[str, Any] = view.metadata["run_summary"]
    run, source = view.run.folder.with_name(view.run.name), _source(view)
    again = f"likewise train --config {run / view.run.configuration.name}"
    losses = [value for _, value in view.metrics.get("loss", [])]
    steps = summary["steps"] or len(losses)
    few = f"too few steps, {steps}", f"{again} {longer(view.metadata)}"
    if steps < MIN_APART_STEPS:  # too few to move embeddings apart
        yield few
    if collapsed := _collapse_evidence(view, losses, summary["batch"]):
        rate = (view.run.options.get("optimizer") or {}).get("init_args", {}).get("lr")
        yield f"the embeddings collapsed, {collapsed}", again + (f" --lr {rate / 10:g}" if rate else "")
    if few_steps(view.metadata, steps):
        yield few
    input_kind, sizes = summary["inputs"]["kind"], [size for size in view.class_sizes.values() if size]
    if input_kind in {"images", "texts"} and not view.metadata.get("begins_with") and sum(sizes) < MIN_SCRATCH_SAMPLES:
        yield (
            f"a network from scratch learns little of {sum(sizes):,} {input_kind}",
            f"likewise train {source} --encoder auto" if source else f"{again} --encoder auto",
        )
    if _is_at_chance(view, ours, baselines):
        yield (
            "labels unrelated to the inputs: nothing here predicts them better than chance",
            f"likewise search {run} --within {source} --mistakes" if source else "",
        )
    if sizes and median(sizes) < MIN_CLASS_SAMPLES:
        yield (
            f"too few samples of a class to train on, {median(sizes):g}",
            f"likewise embed {source}" if source and view.metadata.get("begins_with") else f"{again} --freeze all",
        )


def _collapse_evidence(view: RunView, losses: list[float], batch: Mapping[str, Any]) -> str:
    """Return the evidence of a collapse; "" where there was none."""
    last = view.batches.get("last") or view.batches.get("first")
    if last is not None and last.embeddings.ndim == 3:
        width = spread(last.embeddings.flatten(0, 1))
        if width < MIN_SPREAD:
            return f"with a mean cosine of {1 - width:.4f} in the last batch"
    elif (features := view.test_vectors) is not None and (width := spread(features)) < MIN_FEATURE_SPREAD:
        return f"with a mean cosine of {1 - width:.4f} of the test features"
    loss = view.metadata["parts"]["loss"]["class_path"].rpartition(".")[2]
    rows = batch.get("views", 0) * batch["samples"]
    if loss in CONTRASTIVE_LOSSES and rows > 2 and len(losses) >= LAST_STEPS:
        plateau, end = math.log(rows - 1), fmean(losses[-LAST_STEPS:])
        if abs(end - plateau) < PLATEAU_TOLERANCE * plateau:
            return f"with a loss of {end:.3f} at the end, that of equal embeddings, log(V·B - 1)"
    return ""


def _is_at_chance(view: RunView, ours: Score, baselines: Mapping[str, Score]) -> bool:
    """Tell whether nothing predicts the classes better than always guessing the most frequent one."""
    test = view.test_part
    if ours.metric.name != "accuracy" or test is None or test.label_kind != "classes":
        return False
    chance = float(test.counts.max()) / max(1, len(test))
    every = (ours, *baselines.values())
    return all(score.value - INTERVAL_FACTOR * (score.value - score.low) <= chance for score in every)


def _source(view: RunView) -> str:
    data = view.metadata["parts"].get("data")
    return str((data.get("init_args") or {}).get("path") or "") if is_spec(data) else ""
