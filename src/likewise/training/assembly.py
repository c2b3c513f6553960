"""Assembly: from what was chosen to a training that is ready, each part told what only the parts before it know."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from likewise.data import Batches, Parts, Samples, fingerprint, parts_of, some_inputs
from likewise.losses import Loss, label_pair_similarity
from likewise.models import Encoder, FromRun, Head
from likewise.parts import Spec, build, class_of, is_spec
from likewise.training.data import TrainingData
from likewise.training.offers import Asked, Offer, Plan
from likewise.training.offers.choice import check_labels
from likewise.training.pretraining import Pretraining
from likewise.training.schedule import Schedule

OBSERVED = 2048  # inputs that are read for their mean and standard deviation, where not all are in memory


@final
@dataclass(frozen=True)
class Assembled:
    """A training that is ready.

    Args:
        parts: The samples to train on, to choose by, and to report on.
        trained: The samples that are trained on: the training part, with the validation part after it in a refit.
        refit: Whether the validation part is trained on too.
        module: Encoder, head, loss and offers.
        data: The training part's batches.
        specs: For each part the class and the arguments that it was made with.
    """

    parts: Parts
    trained: Samples
    refit: bool
    module: Pretraining
    data: TrainingData
    specs: dict[str, Any]

    @property
    def facts(self) -> dict[str, Any]:
        """What a run keeps of it, in plain values."""
        train = self.trained
        sizes = {"train": len(train), "validation": len(self.parts.validation), "test": len(self.parts.test)}
        return {
            "parts": self.specs,
            "labels": {"kind": train.label_kind, "names": list(train.names)},
            "samples": sizes | {"fingerprint": fingerprint(self.parts)},
        }


def assemble(chosen: Mapping[str, Any], seed: int) -> Assembled:
    """Make the parts of a training, in the order in which they know of each other.

    Args:
        chosen: For data, subset, split, batches, encoder, head, loss, optimizer and schedule a `Spec`, for offers a
            list of them; None where a part is left out.
        seed: Seed of the weights, of the order, of views and dropout.

    Returns:
        What is ready to be trained.

    Raises:
        ValueError: What a part says of its arguments, of the data, or of the parts before it.
    """
    specs = {part: _normal(spec) for part, spec in chosen.items()}
    kind = class_of(specs["loss"]["class_path"], Loss)
    parts, refit = parts_of(specs)
    train = parts.refitted().train if refit else parts.train
    torch.manual_seed(seed)
    encoder, specs["encoder"] = _encoder(specs["encoder"], train)
    head = None
    if Asked.by(kind).of_embeddings:
        specs["head"] = _filled(specs["head"], Head, feature_dim=encoder.feature_dim)
        head = build(specs["head"], Head)
    else:
        specs["head"] = None
    loss, specs["loss"] = _loss(specs["loss"], train, head.embedding_dim if head else encoder.feature_dim)
    check_labels(loss, Plan(encoder, head, train.label_kind, len(train.names)))
    offers = None if specs.get("offers") is None else [build(spec, Offer) for spec in _as_list(specs["offers"])]
    optimizer = class_of(specs["optimizer"]["class_path"], Optimizer)
    module = Pretraining(
        encoder,
        head,
        loss,
        partial(optimizer, **specs["optimizer"]["init_args"]),
        offers,
        samples=train,
        schedule=build(specs["schedule"], Schedule),
    )
    return Assembled(
        parts, train, refit, module, TrainingData(train, build(specs["batches"], Batches), seed=seed), specs
    )


def _encoder(spec: Spec, train: Samples) -> tuple[Encoder, Spec]:
    """Make the encoder, and say how to make it again without data: of a run's encoder, as that run's was made."""
    spec = _filled(spec, Encoder, input_shape=list(train.input_shape))
    encoder = build(spec, Encoder)
    if isinstance(encoder, FromRun):
        return encoder.encoder, encoder.spec
    inputs = train.inputs
    encoder.observe(inputs if isinstance(inputs, Tensor) else some_inputs(train, OBSERVED))
    _check_features(encoder, some_inputs(train, 2))
    return encoder, spec


def _check_features(encoder: Encoder, inputs: Tensor) -> None:
    """Raise unless an encoder, mostly one of the user's own, makes of inputs what it says."""
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
            f"expected features ({len(inputs)}, {encoder.feature_dim}) of {name}, got {tuple(features.shape)}: "
            "let feature_dim say how long they are"
        )


def _loss(spec: Spec, train: Samples, embedding_dim: int) -> tuple[Loss, Spec]:
    spec = _filled(spec, Loss, num_samples=len(train), feature_dim=embedding_dim, num_classes=len(train.names))
    similarity = spec["init_args"].get("label_similarity")
    if not isinstance(similarity, str):
        return build(spec, Loss), spec
    if train.label_kind != "label sets":
        name, has = spec["class_path"].rpartition(".")[2], train.label_kind or "no labels"
        raise ValueError(f"expected label sets as labels for {name}, got {has}: choose a loss that takes these")
    return build(spec, Loss, label_similarity=label_pair_similarity(train.labels, similarity)), spec  # pyright: ignore[reportArgumentType]


def _filled(spec: Spec, base: type, **known: Any) -> Spec:
    """Add what the class asks for and only other parts know."""
    asked = inspect.signature(class_of(spec["class_path"], base)).parameters
    passed_on = base is Encoder and any(of.kind is of.VAR_KEYWORD for of in asked.values())
    filled = {name: value for name, value in known.items() if passed_on or name in asked}
    return Spec(class_path=spec["class_path"], init_args={**(spec.get("init_args") or {}), **filled})


def _normal(spec: Any) -> Any:
    """Give a part without arguments an empty set of them."""
    if isinstance(spec, list):
        return [_normal(one) for one in spec]
    return {"init_args": {}, **spec} if is_spec(spec) else spec


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
