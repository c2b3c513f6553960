"""What went into a run: facts for its run.json, the same in lines, and whether it can have learned anything."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import nn

from likewise.data import Episodes, Samples, Texts, Views
from likewise.diagnostics import descent
from likewise.files.formats import PARTS
from likewise.memory import Queue
from likewise.parts import is_spec, listed
from likewise.records import Curves
from likewise.report.formatting import part_words, short_name
from likewise.report.setting import FILLED
from likewise.score_words import counted, one_line

if TYPE_CHECKING:
    from lightning import Trainer

    from likewise.training import Assembled

NAMES = ("data", "parts", "encoder", "loss", "steps")
FEW, ENOUGH = 100, 300  # steps
FEW_OF_LEARNED, ENOUGH_OF_LEARNED = 25, 100  # where the encoder begins with what others learned
COLOURS = {1: "grey", 3: "RGB"}
UNSAID = {*FILLED, "gather_distributed", "guide_margin", "encoder", "head"}  # arguments
RECORDED = {"pretrained", "digest", "config", "special", "modules", "checkpoint"}  # of published networks


def facts_of(ready: "Assembled", trainer: "Trainer") -> dict[str, Any]:
    """Return what goes into a training, as plain values, once the trainer has its data and before its first step."""
    module, parts, batches = ready.module, ready.parts, ready.data.batches
    whole = (parts.train, parts.validation, parts.test)
    counts = Counter[str]()
    for part in whole:
        counts.update(dict(zip(part.names, part.counts.tolist(), strict=True)))
    ranked = counts.most_common()
    labelled = (parts.refitted() if ready.refit else parts).train
    kind, others = parts.train.label_kind, 0 if parts.unlabelled is None else len(parts.unlabelled)
    sets = [] if kind != "label sets" else [part.labels for part in whole if part.labels is not None]
    unlabelled = others + sum(int((~own.any(dim=1)).sum()) for own in sets)
    steps = trainer.estimated_stepping_batches
    batch = {"samples": min(batches.batch_size, len(ready.trained))}
    if isinstance(batches, Views):
        batch["views"] = batches.views
    elif isinstance(batches, Episodes):
        batch |= batches.shape._asdict()
    return {
        "samples": sum(map(len, whole)) + others,
        "inputs": _input_facts(parts.train),
        "second": _second_facts(ready),
        "labels": {"count": len(ranked), "largest": ranked[0], "smallest": ranked[-1], "unlabelled": unlabelled}
        if ranked
        else None,
        "evaluated": None if parts.test.evaluated is None else len(parts.test.evaluated.names),
        "changed": [[int(of.changed.sum()), int(of.labelled.sum())] for of in (parts.train, parts.validation)],
        "given": list(parts.given),
        "trained_unlabelled": others > 0 and len(ready.trained) > len(labelled),
        "encoder": _sizes(module.encoder),
        "head": None if module.head is None else _sizes(module.head),
        "batch": batch,
        "queue": max((len(part.key_ring) for part in module.modules() if isinstance(part, Queue)), default=0),
        "steps": int(steps) if math.isfinite(steps) else None,
        "steps_of_an_epoch": math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches),
        "limited_to": trainer.max_steps if trainer.max_steps == steps else None,
    }


def _input_facts(samples: Samples) -> dict[str, Any]:
    shape = list(samples.input_shape)
    if isinstance(samples.inputs, Texts):
        return {"kind": "texts"}
    found = {} if samples.found is None else {"found": asdict(samples.found)}
    return {"kind": {1: "vectors", 3: "images"}.get(len(shape), "inputs"), "shape": shape} | found


def _second_facts(ready: "Assembled") -> dict[str, Any] | None:
    """Return what there is on the other side of pairs, and what encodes it; None where it shares the encoder."""
    train, encoder = ready.trained, ready.module.second
    if train.counterparts is None or encoder is None:
        return None
    own = None if encoder is ready.module.encoder else _sizes(encoder)
    negatives = None if train.negatives is None else int((train.negatives.places >= 0).any(dim=1).sum())
    return {"inputs": _input_facts(train.counterparts), "encoder": own, "negatives": negatives}


def _sizes(network: nn.Module) -> dict[str, int]:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in network.parameters()]
    return {"parameters": sum(size for size, _ in sizes), "trained": sum(size for size, trained in sizes if trained)}


def lines_of(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what went into a run in five lines, each with its name; none where nothing was trained."""
    if "went_in" not in facts:
        return []
    went, chosen = facts["went_in"], facts["parts"]
    head = "" if went["head"] is None else f"; {short_name(chosen['head'])}, {went['head']['parameters']:,}"
    losses = ", ".join(map(_part, [chosen["loss"], *listed(chosen["inputs"])]))
    words = (
        f"{_beside(went) if went['second'] else _inputs(facts)}; {_labels(facts['labels']['kind'], went)}",
        "; ".join(_parts(facts)),
        f"{_encoder(facts)}, {_trained(went['encoder'])}{head}{_tower(facts) if went['second'] else ''}",
        f"{losses}; {_batch(went)}{_changes(chosen['batches'])}",
        "; ".join([_steps(went), facts["device"], *_few(facts)]),
    )
    return list(zip(NAMES, words, strict=True))


def doubts(facts: Mapping[str, Any], metrics: Curves) -> list[str]:
    """Return why a training can hardly have taught its encoder anything, and what would; nothing where it can have."""
    went: dict[str, Any] = facts.get("went_in") or {}
    losses = [value for _, value in metrics.get("loss", [])]
    rates = [value for _, value in metrics.get("learning_rate", [])]
    if rates and not any(rates):  # as where a time ends the training in its warm-up's first step
        return ["the learning rate was 0 in every step that was logged, so nothing was learned: train longer"]
    few = list(_few(facts)) if went else []
    fills = went and 2 * went["queue"] > len(losses) * went["batch"]["samples"]  # a queue that fills raises the loss
    found = None if fills else descent(losses)
    if found is None or found.fell:
        return few
    rate = max(rates, default=math.nan)
    told = (
        f"the loss did not come down by more than chance, from {found.highest:.4g} to {found.last:.4g}, so hardly "
        f"anything was learned: change --lr, which was at most {rate:.2g}, train longer (--epochs), or make the task "
        "easier by milder views (--augmentation)"
    )
    return [*few, told]


def _inputs(facts: Mapping[str, Any]) -> str:
    went = facts["went_in"]
    inputs, kind = went["inputs"], went["inputs"]["kind"]
    named = counted(went["samples"], kind[:-1], kind)
    if kind != "images":
        return f"{named}{_numbers(inputs)} number{'s' * (inputs['shape'] != [1])}" if inputs.get("shape") else named
    channels, *size = inputs["shape"]
    colours = COLOURS.get(channels) or counted(channels, "channel")
    found = inputs.get("found")
    return f"{named} of {_pixels(size)}, {colours}" if found is None else _images(facts, found, colours)


def _beside(went: Mapping[str, Any]) -> str:
    second = went["second"]
    sides = [f"{side['kind']}{_numbers(side)}" for side in (went["inputs"], second["inputs"])]
    few = second["negatives"]
    more = "" if few is None else f", {few:,} of those to train on with hard negatives"
    return f"{counted(went['samples'], 'pair')} of {sides[0]} and {sides[1]}{more}"


def _numbers(inputs: Mapping[str, Any]) -> str:
    return f" of {' x '.join(map(str, inputs['shape']))}" if inputs.get("shape") else ""


def _tower(facts: Mapping[str, Any]) -> str:
    own = facts["went_in"]["second"]["encoder"]
    return ", for both sides" if own is None else f"; {_part(facts['second']['encoder'])}, {_trained(own)}"


def _images(facts: Mapping[str, Any], found: Mapping[str, Any], colours: str) -> str:
    """Say how many images of which sizes and modes there were in files, and what was made of them."""
    went = facts["went_in"]
    total, shape = sum(found["kinds"].values()), went["inputs"]["shape"]
    some = f"{went['samples']:,} of " if went["samples"] < total else ""
    small, large = map(_pixels, (found["smallest"], found["largest"]))
    sizes = small if found["sizes"] == 1 else f"{found['sizes']:,} sizes, {small} to {large}"
    others = [f"{count:,} {kind}" for kind, count in found["kinds"].items() if kind != colours]
    words = f"{some}{counted(total, 'image')} of {', '.join([sizes, *others])}"
    if found["sizes"] == 1 and small == _pixels(shape[1:]):
        return f"{words} -> {colours}" if others else f"{words}, {colours}"
    rule = {"pad": "with black beside", "squash": "stretched"}.get(facts["preprocessing"]["resize"], "their middle")
    return f"{words} -> {colours}, {rule}, {_pixels(shape[1:])}"


def _pixels(size: Sequence[int]) -> str:
    return f"{size[0]} x {size[1]}"


def _labels(kind: str | None, went: Mapping[str, Any]) -> str:
    labels = went["labels"]
    if labels is None:
        return "no labels"
    (most, many), (least, few) = labels["largest"], labels["smallest"]
    sizes = f"from {few:,} ({one_line(least)}) to {many:,} ({one_line(most)})" if few < many else f"{few:,} of each"
    named = counted(labels["count"], "class") if kind == "classes" else counted(labels["count"], "label")
    without = f", {labels['unlabelled']:,} without any" if labels["unlabelled"] else ""
    finer = f"; trained on these, evaluated on {went['evaluated']:,} classes within" if went["evaluated"] else ""
    return f"{named}, {sizes}{without}{finer}"


def _parts(facts: Mapping[str, Any]) -> Iterator[str]:
    sizes, chosen, given = facts["samples"], facts["parts"], facts["went_in"]["given"]
    yield ", ".join(f"{sizes[part]:,} {part}" for part in PARTS)
    cut = [part for part in PARTS[1:] if part not in given]
    how = [f"{' and '.join(given)} as given"] * bool(given)
    yield ", ".join(how + [f"{' and '.join(cut)} by {_part(chosen['split'])}"] * bool(cut))
    yield from map(_part, listed(chosen["subset"]))
    changed = facts["went_in"]["changed"]
    if any(count for count, _ in changed):
        wrong = (f"{count:,} of {all_:,} {part}" for (count, all_), part in zip(changed, PARTS, strict=False))
        yield f"{' and '.join(wrong)} labels are wrong on purpose, evaluated by the right ones"
    if without := sizes.get("unlabelled"):
        taken = "trained on too" if facts["went_in"]["trained_unlabelled"] else "left out, as the loss takes classes"
        yield f"{without:,} without a class, {taken}"
    if chosen["split"]["init_args"].get("refit"):
        yield "validation is trained on too"


def _batch(went: Mapping[str, Any]) -> str:
    batch = went["batch"]
    if "ways" in batch:
        each = f"{counted(batch['shots'], 'shot')} and {counted(batch['queries'], 'query', 'queries')}"
        return f"{counted(batch['episodes'], 'episode')} of {batch['ways']} classes, {each}, a step"
    views = f" in {counted(batch['views'], 'view')}" if "views" in batch else ""
    return f"{counted(batch['samples'], 'sample')}{views} a step"


def _changes(batches: Mapping[str, Any]) -> str:
    given = batches.get("init_args") or {}
    changes = filter(is_spec, map(given.get, ("augmentation", "counterpart_augmentation")))
    words = " and ".join(dict.fromkeys(map(_part, changes)))
    return words and f", by {words}"


def _steps(went: Mapping[str, Any]) -> str:
    steps = went["steps"]
    if steps is None:
        return "as many as the time allows"
    epochs = round(steps / went["steps_of_an_epoch"], 2)
    return f"{steps:,} in {epochs:,g} epoch{'s' * (epochs != 1)}"


def _few(facts: Mapping[str, Any]) -> Iterator[str]:
    went = facts["went_in"]
    if not few_steps(facts, went["steps"]) or went["encoder"]["trained"] == 0:
        return
    of_epoch = went["steps_of_an_epoch"]
    makes = "" if went["limited_to"] else f" makes {-(-_enough(facts) // of_epoch) * of_epoch:,} steps"
    hundreds = f"encoders learn over {'tens' if facts.get('begins_with') else 'hundreds'}"
    yield f"only {counted(went['steps'], 'step')}, while {hundreds}: {longer(facts)}{makes}"


def few_steps(facts: Mapping[str, Any], steps: int | None) -> bool:
    """Return whether so many steps are too few to learn much, by what the encoder begins with."""
    return steps is not None and steps < (FEW_OF_LEARNED if facts.get("begins_with") else FEW)


def longer(facts: Mapping[str, Any]) -> str:
    """Return the option that makes a training long enough."""
    went, enough = facts["went_in"], _enough(facts)
    epochs = -(-enough // went["steps_of_an_epoch"])
    return f"--epochs {epochs}" if went["limited_to"] is None else f"--steps {enough}"


def _enough(facts: Mapping[str, Any]) -> int:
    return ENOUGH_OF_LEARNED if facts.get("begins_with") else ENOUGH


def _encoder(facts: Mapping[str, Any]) -> str:
    """Write the encoder, and where its weights are from."""
    words, origin = _part(facts["parts"]["encoder"]), facts.get("begins_with", "")
    return f"{words}, begun with {origin}" if origin else words


def _trained(sizes: Mapping[str, int]) -> str:
    trained = "all" if sizes["trained"] == sizes["parameters"] else f"{sizes['trained']:,}"
    return f"{counted(sizes['parameters'], 'parameter')}, {trained} trained"


def _part(spec: Mapping[str, Any]) -> str:
    """Write a part with its arguments, without those that are off or that follow from other parts."""
    if short_name(spec) == "Projected":
        return f"{_part(spec['init_args']['encoder'])} and {_part(spec['init_args']['head'])}"
    given = spec.get("init_args") or {}
    said = {name: value for name, value in given.items() if name not in UNSAID | RECORDED and value is not False}
    return part_words({**spec, "init_args": said}).removesuffix("()")
