"""Assembly: from a configuration to a training that is ready; each part is given what earlier parts determine."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - the base of all of them
from torch.optim import Optimizer

from likewise.data import (
    Batches,
    Parts,
    Rows,
    Samples,
    Texts,
    fingerprint,
    parts_of,
    parts_of_run,
    some_inputs,
)
from likewise.losses import Loss, label_pair_similarity
from likewise.models import Encoder, FromRun, Head, TextEncoder
from likewise.parts import Spec, build, class_of, is_spec
from likewise.runs import Run
from likewise.training.data import TrainingData
from likewise.training.inputs import LossInput
from likewise.training.inputs.resolution import check_labels, reads_embeddings
from likewise.training.notes import notes
from likewise.training.pretraining import Pretraining
from likewise.training.schedule import Schedule

OBSERVED = 2048  # inputs read for their mean and standard deviation, if not all are in memory


@final
@dataclass(frozen=True)
class Assembled:
    """A training that is ready.

    Args:
        parts: The samples for training, validation and test.
        trained: The samples to train on: the training part, followed by the validation part in a refit.
        refit: Whether to train on the validation part too.
        module: Encoder, head, loss and its inputs.
        data: Batches of the training part.
        specs: The class and the arguments of each part.
        notes: What a user should know about the data, a sentence each.
    """

    parts: Parts
    trained: Samples
    refit: bool
    module: Pretraining
    data: TrainingData
    specs: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """What a run records about it, as plain values."""
        train = self.trained
        sizes = {"train": len(train), "validation": len(self.parts.validation), "test": len(self.parts.test)}
        return {
            "parts": self.specs,
            "labels": {"kind": train.label_kind, "names": list(train.names)},
            "samples": sizes | {"fingerprint": fingerprint(self.parts)},
        }


def assemble(
    chosen: Mapping[str, Any], seed: int, chunk_size: int | None = None, workers: int | None = None
) -> Assembled:
    """Make the parts of a training, in the order in which they depend on each other.

    Args:
        chosen: A `Spec` for each of data, subset, split, batches, encoder, head, loss, optimizer and schedule, and a
            list of them for inputs of the loss; None if a part is left out.
        seed: Seed of weights, order, views and dropout.
        chunk_size: Inputs that the encoder is given at a time; None: all of a batch.
        workers: Processes that read inputs which are not in memory; None: one per core, up to 8.

    Returns:
        The training.

    Raises:
        ValueError: A part refuses its arguments, the data, or the parts before it.
    """
    specs = {"inputs" if part == "offers" else part: _normal(spec) for part, spec in chosen.items()}  # its old name
    kind = class_of(specs["loss"]["class_path"], Loss)
    parts, refit = parts_of(specs, lambda samples: check_labels(kind, samples.label_kind, samples.names))
    train = parts.refitted().train if refit else parts.train
    if kind.label_kinds and train.label_kind == "label sets" and not train.counts.any():
        raise ValueError(f"expected training samples with a label, got none of {len(train):,}: check the labels")
    torch.manual_seed(seed)
    known: list[str] = []
    if issubclass(class_of(specs["encoder"]["class_path"], Encoder), FromRun):
        specs["from_run"] = str(specs["encoder"]["init_args"].get("run"))
        known = _of_earlier_run(Run.open(specs["from_run"]), specs["data"], parts)
    encoder, specs["encoder"] = _encoder(specs["encoder"], train)
    head = None
    if reads_embeddings(kind):
        specs["head"] = _filled(specs["head"], Head, feature_dim=encoder.feature_dim)
        head = build(specs["head"], Head)
    else:
        specs["head"] = None
    loss, specs["loss"] = _loss(specs["loss"], train, head.embedding_dim if head else encoder.feature_dim)
    inputs = None if specs.get("inputs") is None else [build(spec, LossInput) for spec in _as_list(specs["inputs"])]
    optimizer = class_of(specs["optimizer"]["class_path"], Optimizer)
    module = Pretraining(
        encoder,
        head,
        loss,
        partial(optimizer, **specs["optimizer"]["init_args"]),
        inputs,
        samples=train,
        schedule=build(specs["schedule"], Schedule),
        chunk_size=chunk_size,
    )
    if chunk_size is not None and any(isinstance(layer, _BatchNorm) for layer in encoder.modules()):
        known.append(f"batch normalisation in the encoder normalises each chunk of {chunk_size:,} by itself")
    ready = prepared(encoder, train)
    batches = build(specs["batches"], Batches)
    batches.suit(module.inputs.signature.loss, module.inputs.signature.names)
    specs["batches"]["init_args"] |= batches.recorded
    module.inputs.check_batches(batches)
    data = TrainingData(ready, batches, seed=seed, workers=workers)
    data.train_dataloader()  # it refuses batches that the samples can't fill, before anything is said or written
    return Assembled(parts, train, refit, module, data, specs, (*known, *notes(ready, module.inputs.all, parts.test)))


def prepared(encoder: Encoder, samples: Samples) -> Samples:
    """Return samples as an encoder takes them: of texts their tokens, once for the whole training."""
    if isinstance(encoder, TextEncoder) and isinstance(samples.inputs, Texts):
        return replace(samples, inputs=encoder.tokenized(samples.inputs))
    return samples


def _of_earlier_run(run: Run, data: Spec, parts: Parts) -> list[str]:
    """Say how many validation samples an earlier run on the same data has learned from; of other data nothing is known.

    Raises:
        ValueError: It has learned from test samples.
    """
    facts = run.facts
    if facts.get("parts", {}).get("data") != data or facts["samples"]["fingerprint"] == fingerprint(parts):
        return []
    before, refit = parts_of_run(run)
    learned = before.refitted().train if refit else before.train
    seen, chosen_by = (_shared(part, learned) for part in (parts.test, parts.validation))
    if seen:
        raise ValueError(
            f"expected test samples that {run.folder} was not trained on, got {seen:,} of {len(parts.test):,} that it "
            "was: give --split and --split.seed as that run has them, in its config.yaml"
        )
    told = f"{run.folder} was trained on {chosen_by:,} of {len(parts.validation):,} validation samples"
    return [f"{told}: choices made on them may be too favourable to it"] if chosen_by else []


def _shared(first: Samples, second: Samples) -> int:
    """Count the first samples that are rows of the second, too."""
    ours, theirs = first.numbered().rows, second.numbered().rows
    return 0 if ours is None or theirs is None else int(torch.isin(ours, theirs).sum())


def _encoder(spec: Spec, train: Samples) -> tuple[Encoder, Spec]:
    """Make the encoder and the Spec that rebuilds it; for FromRun, the Spec is that of the run's encoder."""
    spec = _filled(spec, Encoder, input_shape=list(train.input_shape))
    encoder = build(spec, Encoder)
    if isinstance(encoder, FromRun):
        return encoder.encoder, encoder.spec
    inputs = train.inputs if isinstance(train.inputs, Tensor | Texts) else some_inputs(train, OBSERVED)
    encoder.observe(inputs)
    _check_features(encoder, inputs.take(torch.arange(2)) if isinstance(inputs, Texts) else inputs[[0, -1]])
    spec["init_args"] |= encoder.recorded
    return encoder, spec


def _check_features(encoder: Encoder, inputs: Tensor | Rows) -> None:
    """Raise unless an encoder, perhaps a user's own, encodes inputs to features of length feature_dim."""
    name = type(encoder).__name__
    try:
        features = encoder.encode(inputs)
    except (RuntimeError, TypeError, AttributeError) as error:
        words = " ".join(str(error).split())[:160]
        raise ValueError(
            f"expected {name} to encode inputs {tuple(inputs.shape)} of {inputs.dtype}, got {words}: "
            "call super().__init__(input_shape), and self.standardized(inputs) first"
        ) from error
    if features.shape != (len(inputs), encoder.feature_dim):
        raise ValueError(
            f"expected features ({len(inputs)}, {encoder.feature_dim}) from {name}, got {tuple(features.shape)}: "
            "return their length as feature_dim"
        )


def _loss(spec: Spec, train: Samples, embedding_dim: int) -> tuple[Loss, Spec]:
    spec = _filled(spec, Loss, num_samples=len(train), feature_dim=embedding_dim, num_classes=len(train.names))
    similarity = spec["init_args"].get("label_similarity")
    if not isinstance(similarity, str):
        return build(spec, Loss), spec
    if train.label_kind != "label sets":
        name, has = spec["class_path"].rpartition(".")[2], train.label_kind or "no labels"
        raise ValueError(f"expected label sets as labels for {name}, got {has}: choose a loss that takes {has}")
    return build(spec, Loss, label_similarity=label_pair_similarity(train.labels, similarity)), spec  # pyright: ignore[reportArgumentType]


def _filled(spec: Spec, base: type, **known: Any) -> Spec:
    """Add the arguments that other parts determine, if the class takes them."""
    asked = inspect.signature(class_of(spec["class_path"], base)).parameters
    passed_on = base is Encoder and any(of.kind is of.VAR_KEYWORD for of in asked.values())
    filled = {name: value for name, value in known.items() if passed_on or name in asked}
    return Spec(class_path=spec["class_path"], init_args={**(spec.get("init_args") or {}), **filled})


def _normal(spec: Any) -> Any:
    """Add empty arguments to a part without any."""
    if isinstance(spec, list):
        return [_normal(one) for one in spec]
    return {"init_args": {}, **spec} if is_spec(spec) else spec


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
