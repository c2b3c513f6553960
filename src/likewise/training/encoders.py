"""The encoder of a training, or one for each side of pairs, with initial weights."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from likewise.data import LazyInputs, Samples, Texts, inputs_for_encoder
from likewise.instantiate import Spec, as_list, class_of, defaults, instantiate, is_spec, recorded_spec, spec_of
from likewise.models import Encoder, FromRun, Head, NoHead, Projected, Wrapped
from likewise.models.weights import load_weights
from likewise.runs import Run
from likewise.training.inputs import LossInput, SecondTower

KINDS = {0: "texts", 1: "vectors", 3: "images"}


def make_encoder(
    specs: dict[str, Any], train: Samples, resumed: Run | None, weights: str | None, network: nn.Module | None
) -> tuple[Encoder, str, list[str]]:
    """Make the encoder with its initial weights; also return their origin, "" if random, and notes on them."""
    known = None if resumed is None else resumed.initial_encoder()
    if resumed is not None and isinstance(known, Encoder):
        specs["encoder"] = resumed.metadata["parts"]["encoder"]
        return known, resumed.metadata["begins_with"], []
    encoder = _encoder(specs, train, network)
    if weights is not None:
        return encoder, str(weights), [f"weights: {load_weights(encoder, weights)}"]
    return encoder, specs.get("from_run") or encoder.origin, []


def _encoder(specs: dict[str, Any], train: Samples, network: nn.Module | None = None) -> Encoder:
    """Make the encoder, and record the Spec that rebuilds it; for FromRun, the Spec of the run's encoder."""
    shape = list(train.input_shape)
    spec = specs["encoder"] = fill_spec(specs["encoder"], Encoder, input_shape=shape)
    if network is None:
        encoder = instantiate(spec, Encoder)
    else:
        encoder = network if isinstance(network, Encoder) else Wrapped(train.input_shape, network)
        if spec["init_args"].get("module") is not None:  # the module of Given
            spec = specs["encoder"] = recorded_spec(encoder)[0]
            spec["init_args"]["input_shape"] = shape
        if isinstance(encoder, Wrapped):
            spec["init_args"]["module"] = recorded_spec(encoder.module)[0]
    if isinstance(encoder, FromRun):
        spec = specs["encoder"] = encoder.spec
        if encoder.trained:
            return encoder.encoder
        encoder = encoder.encoder
    inputs = inputs_for_encoder(train, observed=encoder.observes)
    encoder.observe(inputs)
    ends = torch.tensor([0, len(inputs) - 1])
    _check_features(encoder, inputs.take(ends) if isinstance(inputs, Texts) else inputs[ends])
    spec["init_args"] |= encoder.recorded
    return encoder


def make_towers(
    specs: dict[str, Any],
    user_specs: Mapping[str, Any],
    encoder: Encoder,
    train: Samples,
    counterparts: Samples,
    *,
    resumed: Run | None,
) -> tuple[Encoder, list[LossInput]]:
    """Make the encoders of both sides of pairs, each followed by its head, which the run keeps; record their Specs."""
    input_specs = as_list(specs.get("inputs"))
    if specs.get("inputs") == []:
        raise ValueError("expected SecondTower among the inputs for pairs, got none: leave out --inputs []")
    ours = next((spec for spec in input_specs if class_of(spec["class_path"], LossInput) is SecondTower), None)
    chosen, specs["second"] = {} if ours is None else ours["init_args"], None
    usual, first_head = _usual(specs, user_specs["encoder"], encoder, counterparts), specs["head"]
    first, specs["encoder"] = _with_head(specs, encoder)
    specs["head"] = None
    if not chosen.get("shared"):
        tower_specs = {
            "encoder": normalize_spec(chosen.get("encoder") or usual),
            "head": normalize_spec(chosen.get("head") or first_head),
        }
        known = None if resumed is None else resumed.initial_encoder("second")
        if resumed is not None and isinstance(known, Encoder):
            second, specs["second"] = known, resumed.metadata["second"]["encoder"]
        else:
            second, specs["second"] = _with_head(tower_specs, _encoder(tower_specs, counterparts))
        tower = SecondTower(
            second, **{name: value for name, value in chosen.items() if name not in {"encoder", "head"}}
        )
        if "from_run" not in specs:
            chosen = {"encoder": usual, "head": user_specs["head"]} | chosen
    elif counterparts.input_shape == encoder.input_shape:
        tower = instantiate(ours or {}, SecondTower)
        sides = train.inputs, counterparts.inputs
        # a vocabulary comes with the weights
        has_tokens = "from_run" in specs or (resumed is not None and resumed.initial_weights.is_file())
        if not has_tokens and isinstance(sides[0], Texts) and isinstance(sides[1], Texts):
            encoder.observe(Texts([*sides[0].strings, *sides[1].strings]))
    else:
        got = " and ".join(KINDS.get(len(side.input_shape), "inputs") for side in (train, counterparts))
        raise ValueError(
            f"expected both sides of pairs of one kind and shape for a shared tower, got {got}: leave out "
            "--inputs.shared"
        )
    other_specs, tower_spec = [spec for spec in input_specs if spec is not ours], spec_of(tower)
    specs["inputs"] = [tower_spec | {"init_args": tower_spec["init_args"] | chosen}, *other_specs]
    return first, [tower, *(instantiate(spec, LossInput) for spec in other_specs)]


def _with_head(specs: dict[str, Any], encoder: Encoder) -> tuple[Encoder, Spec]:
    """Add a head to an encoder, unless it has one from an earlier run of pairs; also return the Spec of the result."""
    if specs["head"] is not None and not isinstance(encoder, Projected):
        specs["head"] = fill_spec(specs["head"], Head, feature_dim=encoder.feature_dim)
        head = instantiate(specs["head"], Head)
        if not isinstance(head, NoHead):
            arguments = {name: specs[name] for name in ("encoder", "head")}
            return Projected(encoder, head), Spec(class_path="likewise.models.Projected", init_args=arguments)
    return encoder, specs["encoder"]


def _usual(specs: Mapping[str, Any], first_spec: Spec, encoder: Encoder, counterparts: Samples) -> Spec:
    """Return the default Spec of the other side's encoder: the first side's as requested, with the same weights."""
    if "from_run" in specs and "second" in Run.open(specs["from_run"]).metadata:
        return Spec(class_path="likewise.models.FromRun", init_args={"run": specs["from_run"], "side": "second"})
    if counterparts.input_shape == encoder.input_shape:
        return first_spec
    name = {0: "Transformer", 1: "MLP"}.get(len(counterparts.input_shape), "ConvNet")
    path = f"likewise.models.{name}"
    return Spec(class_path=path, init_args=defaults(class_of(path, Encoder)))


def _check_features(encoder: Encoder, inputs: Tensor | LazyInputs) -> None:
    name = type(encoder).__name__
    try:
        features = encoder.encode(inputs)
    except (RuntimeError, TypeError, AttributeError) as error:
        message = " ".join(str(error).split())[:160]
        raise ValueError(
            f"expected {name} to encode inputs {tuple(inputs.shape)} of {inputs.dtype}, got {message}: "
            "call super().__init__(input_shape), and self.standardized(inputs) first"
        ) from error
    if features.shape != (len(inputs), encoder.feature_dim):
        raise ValueError(
            f"expected features ({len(inputs)}, {encoder.feature_dim}) from {name}, got {tuple(features.shape)}: "
            "return their length as feature_dim"
        )


def fill_spec(spec: Spec, base: type, **known: Any) -> Spec:
    """Return a Spec completed with the known arguments that its class takes."""
    parameters = inspect.signature(class_of(spec["class_path"], base)).parameters
    passed_on = base is Encoder and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    filled = {name: value for name, value in known.items() if passed_on or name in parameters}
    return Spec(class_path=spec["class_path"], init_args={**(spec.get("init_args") or {}), **filled})


def normalize_spec(spec: Any) -> Any:
    """Return a Spec, or a list of them, with arguments; return anything else unchanged."""
    if isinstance(spec, list):
        return [normalize_spec(item) for item in spec]
    return {"init_args": {}, **spec} if is_spec(spec) else spec
