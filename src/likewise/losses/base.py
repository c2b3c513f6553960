"""The base classes of all losses: their options and checks, the gathering of rows, and the reduction of row losses.

A loss is defined by its pair weights: its ``forward`` calls `ContrastiveLoss.rows`, builds pull and push for those
rows, and passes both to `ContrastiveLoss.evaluate`.
"""

import functools
import inspect
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from likewise import distributed
from likewise.instantiate import Described
from likewise.losses.contrast_batch import REMEDY, ContrastBatch, describe_input, values_of
from likewise.losses.inputs import checked
from likewise.operator import Backend, ContrastSpec, Outcome, Push, Reduction, evaluate, normalized
from likewise.operator.inputs import TRACES_WEIGHTS, check_temperature, graph_break, number, one_of
from likewise.pairs import PairWeight

Flag = Literal[True, False]
LabelKind = Literal["classes", "label sets"]
Temperature = float | Tensor | Literal["learned"]

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
"""The range of a learned temperature; CLIP limits 1/τ to 100, too."""


class LossOptions(TypedDict, total=False):
    """Options of every contrastive loss, in addition to its own parameters.

    Args:
        reduction: "mean" over the active anchors, "sum", or "none" for one loss per row, (N,), 0 on inactive ones.
            With V views, or (B, V, D), view v of sample b is row v·B + b. Default: "mean".
        normalize: Whether the loss L2-normalises the embeddings. Default: True.
        gather_distributed: Whether to contrast with the references of all processes. The loss then covers the whole
            batch; its gradient, averaged over processes, is the same as on one process with all rows. Default: False.
        backend: How the equation is evaluated: "tiled", "dense", "triton" (NVIDIA GPUs), or "auto": "tiled", with a
            single matrix for up to 65,536 pairs. On a GPU, three lines capture a step in a CUDA graph: see
            docs/backends.md. Default: "auto".
    """

    reduction: Reduction
    normalize: bool
    gather_distributed: bool
    backend: Backend


def check_number(name: str, value: object, low: float, high: float, usual: str, *, domain: str = "number") -> float:
    """Return a hyper-parameter as a number; raise unless it is a number from low to high."""
    if not low <= number(value) <= high:
        expected = f"expected {name} to be a {domain} within {low:g} … {high:g}, got {value!r}"
        raise ValueError(f"{expected}: typical values are {usual}")
    return number(value)


def check_positive(name: str, value: object, usual: str = "0.1 to 1") -> float:
    """Return a hyper-parameter as a number; raise unless it is positive and well within float32's range."""
    return check_number(name, value, 1e-6, 1e6, usual, domain="positive number")


def scalar(value: float | Tensor, rows: Tensor) -> Tensor:
    """Return a number as a 0-d tensor of rows' dtype, made on their device: copying it to a GPU would synchronise."""
    return value.to(rows).reshape(()) if isinstance(value, Tensor) else rows.new_full((), value)


def wide(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tensors in float32 or wider: the sum of several gradients is then rounded only once."""
    dtype = torch.promote_types(torch.promote_types(first.dtype, second.dtype), torch.float32)
    return first.to(dtype), second.to(dtype)


def naming_options(constructor: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that lists its options on an unknown one, before Python asks for missing ones."""
    every = list(inspect.signature(constructor).parameters.values())
    passed_on = [param for param in every if param.kind is param.VAR_KEYWORD]
    if any(LossOptions.__name__ not in str(param.annotation) for param in passed_on):
        return constructor
    positional = sum(param.kind is not param.KEYWORD_ONLY for param in every[1:] if param not in passed_on)
    known = [param.name for param in every[1:] if param not in passed_on]
    known += LossOptions.__annotations__ if passed_on else []

    @functools.wraps(constructor)
    def call(self: object, *args: Any, **kwargs: Any) -> None:
        if unknown := [name for name in kwargs if name not in known]:
            has = ", ".join(known) or "none"
            raise TypeError(f"{type(self).__name__} has no option {', '.join(unknown)}; it has {has}")
        if len(args) > positional and all(param.kind is not param.VAR_POSITIONAL for param in every):
            takes = f"{positional} arguments without a name" if positional else "its options by name"
            message = f"{type(self).__name__} takes {takes}, got {', '.join(map(repr, args))}: its options are "
            raise TypeError(f"{message}{', '.join(known) or 'none'}; prototypes and queues are given to its call")
        constructor(self, *args, **kwargs)

    return call


class Loss(Described, nn.Module, ABC):
    """Abstract base class of all losses, of embeddings or of quantities computed from them.

    A loss raises a ValueError when it is made, if a parameter is unknown or out of range, and in a call, if shapes,
    lengths or devices do not match, labels are of another kind or outside its classes, or a value is not finite. Values
    are checked on the CPU only, since checking them on a GPU would synchronise.

    Attributes:
        label_kinds: The kinds of labels that its forward takes: "classes", "label sets", both or neither.
        recommended_inputs: Names of the further inputs, such as "KeyQueue", that `likewise train` uses with this loss
            unless others are given.
        last: Statistics of the last step by name, detached.
    """

    label_kinds: ClassVar[frozenset[LabelKind]] = frozenset()
    recommended_inputs: ClassVar[tuple[str, ...]] = ()
    last: dict[str, Tensor]

    supports_fullgraph: bool = False
    """Whether `torch.compile` can take it as one graph; a loss of pair weights only with the backend "dense", from
    torch 2.13 on. Otherwise it runs outside graphs."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):
            cls.forward = graph_break(cls.forward, unless=_supports_fullgraph)
        if "__init__" in vars(cls):
            cls.__init__ = naming_options(cls.__init__)

    def __init__(self) -> None:
        super().__init__()
        self.last = {}

    @property
    def unused(self) -> frozenset[str]:
        """Optional forward arguments that this configuration ignores."""
        return frozenset()

    def extra_repr(self) -> str:
        """Return the settings that ``repr`` shows: all parameters except tensors, and which of them are learned."""
        shown = ((name, "learned" if isinstance(value, nn.Parameter) else value) for name, value in self._settings())
        return ", ".join(f"{name}={value!r}" for name, value in shown if not isinstance(value, Tensor))

    def _settings(self) -> Iterator[tuple[str, object]]:
        for name in inspect.signature(type(self)).parameters:
            if hasattr(self, name):
                yield name, getattr(self, name)

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss of a batch."""


def _limit(log_temperature: Tensor) -> None:
    # in place: a clamped copy would have no gradient
    log_temperature.data.clamp_(math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE))


def _supports_fullgraph(loss: Any, *_: Any, ids: Any = None, guide_queries: Any = None, **_given: Any) -> bool:
    if not isinstance(loss, ContrastiveLoss):
        return loss.supports_fullgraph
    plain = ids is None and guide_queries is None and loss.backend == "dense" and not loss.gather_distributed
    return TRACES_WEIGHTS and loss.supports_fullgraph and plain


class ContrastiveLoss(Loss):
    """Abstract base class of the losses defined by pair weights.

    Args:
        temperature: τ, a positive number, or a 0-d or (1,) tensor or parameter, which then receives a gradient.
            "learned": the loss learns its logarithm, starting from the default of its class, and keeps τ within 0.01 …
            100. Pass the parameters of the loss to the optimizer, too.
        **options: The options of all contrastive losses; see `LossOptions`.

    Attributes:
        last: Statistics of the last step, detached: ``"active_anchors"``, their number (over all processes, if
            gathered), ``"positives_per_anchor"``, (N,), for this process's rows, and ``"temperature"``, if a tensor.
        log_temperature: The logarithm of a learned temperature, a parameter of shape (1,), which FSDP2 can shard.

    Memory:
        "tile", in the memory of a loss, stands for the similarities held at a time: a few blocks, each of 1 MiB in
        float32 for every thread of a CPU, or of 64 MiB on a GPU; see `likewise.operator.tiles`.
    """

    temperature: float | Tensor
    _told = False  # whether it has warned that no anchor was active
    weight_by_pull: ClassVar[bool] = False
    """Whether a row is weighted by the sum of its pull, instead of by 1."""
    selects: ClassVar[bool] = False
    """Whether it selects only an anchor's pairs that are not yet far enough apart; there may then be none."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if "forward" in vars(cls):
            cls.forward = checked(cls.forward)
        super().__init_subclass__(**kwargs)

    def __init__(self, temperature: Temperature, **options: Unpack[LossOptions]) -> None:
        super().__init__()
        if temperature == "learned":
            start = getattr(inspect.signature(type(self)).parameters.get("temperature"), "default", None)
            of_class = f"the default temperature of {type(self).__name__}, from which a learned one starts,"
            self.log_temperature = nn.Parameter(torch.tensor([math.log(check_positive(of_class, start, "0.05 to 1"))]))
        else:
            check_temperature(temperature, usual='0.05 to 1, or "learned"')
            self.temperature = temperature
        self.reduction = one_of("reduction", options.pop("reduction", "mean"), Reduction)
        self.normalize = one_of("normalize", options.pop("normalize", True), Flag)
        self.gather_distributed = one_of("gather_distributed", options.pop("gather_distributed", False), Flag)
        self.backend: Backend = one_of("backend", options.pop("backend", "auto"), Backend)

    def __getattr__(self, name: str) -> Any:
        """Return a temperature from its learned logarithm; not a property, as a given one is a plain attribute."""
        if name == "temperature" and "log_temperature" in self._parameters:
            return self.log_temperature.exp()
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; limit a log-temperature to its range before FSDP2 replaces it, a shard by a whole one."""
        if name == "log_temperature" and name in self._parameters:
            _limit(self.log_temperature)
        super().__setattr__(name, value)

    def _settings(self) -> Iterator[tuple[str, object]]:
        learned = {"temperature": "learned"} if "log_temperature" in self._parameters else {}
        yield from (dict(super()._settings()) | learned).items()
        yield from ((name, getattr(self, name)) for name in LossOptions.__annotations__)

    def facts(self) -> dict[str, str]:
        """Return, in words, the settings that must be the same on all ranks when rows are gathered."""
        shown = {name: "a tensor" if isinstance(value, Tensor) else repr(value) for name, value in self._settings()}
        if isinstance(self.temperature, Tensor):
            shown["temperature"] = f"a tensor of {float(self.temperature.detach())!r}"  # one for all ranks' rows
        return {"loss": type(self).__name__} | {name: value for name, value in shown.items() if name != "backend"}

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise if inputs match their own annotations but not each other; see `likewise.losses.inputs`."""

    @property
    def gathers(self) -> bool:
        """Whether the references are gathered from several processes."""
        return self.gather_distributed and distributed.world_size() > 1

    def checks(
        self, first: object = None, /, **inputs: Tensor | None
    ) -> AbstractContextManager[dict[str, Tensor | None]]:
        """Check the temperature, then the inputs inside the block; if rows are gathered, compare ranks at its end.

        An error on one rank is then raised on all ranks, and so is any difference between their losses or inputs. This
        is the first collective of every call. ``first`` is an input whose device is used if no other is a tensor.
        """
        if "log_temperature" in self._parameters:
            _limit(self.log_temperature)
        if self.gathers:
            return self._agreement(first, inputs)
        check_temperature(self.temperature)
        return nullcontext(inputs)

    @contextmanager
    def _agreement(self, first: object, inputs: dict[str, Tensor | None]) -> Generator[dict[str, Tensor | None]]:
        tensors = (value for value in (*inputs.values(), first) if isinstance(value, Tensor))
        device = next((tensor.device for tensor in tensors), torch.device("cpu"))

        def facts() -> dict[str, str]:
            shapes = {name: describe_input(name, value) for name, value in inputs.items()}
            return self.facts() | shapes | values_of(self, inputs)

        with distributed.agreement(device, facts, remedy=REMEDY):
            check_temperature(self.temperature)
            yield inputs

    def rows(
        self, embeddings: Tensor, references: Tensor | None = None, *, replicated: tuple[Tensor, ...] = (),
        local: bool = False,
    ) -> ContrastBatch:  # fmt: skip
        """Turn checked embeddings, (N, D) or (B, V, D), into rows: flattened view-major, and gathered.

        References are gathered too, except those in ``replicated`` (a queue, prototypes), which every process holds.
        With ``local``, nothing is gathered: anchors meet no references of other processes.
        """
        rows = ContrastBatch.of(embeddings, references, replicated)
        return rows.gather(self.backend) if self.gathers and not local else rows

    def outcome(self, rows: ContrastBatch, problem: ContrastSpec, temperature: float | Tensor | None = None) -> Outcome:
        """Return the terms of the equation for rows over ``rows.sections``; see `likewise.operator.evaluate`."""
        problem = problem._replace(normalize=self.normalize, part=rows.part)
        temperature = self.temperature if temperature is None else temperature
        return evaluate(problem, rows.queries, rows.sections, temperature=temperature, backend=self.backend)

    def scaled(self, vectors: Tensor, dtype: torch.dtype) -> Tensor:
        """Return vectors as the operator uses them: in a wide dtype, and normalised if the loss normalises."""
        return normalized(vectors) if self.normalize else vectors.to(dtype)

    def vectors(self, rows: ContrastBatch) -> tuple[Float[Tensor, "n d"], Float[Tensor, "r d"]]:
        """Return the anchors and all references as the operator uses them."""
        z = self.scaled(rows.queries, rows.dtype)
        first = z if rows.references is rows.queries else self.scaled(rows.references, rows.dtype)
        replicated = [self.scaled(v, rows.dtype) for v in rows.replicated]
        return z, torch.cat([first, *replicated]) if replicated else first

    def evaluate(
        self,
        rows: ContrastBatch,
        *,
        pull: PairWeight | None,
        push: PairWeight | tuple[PairWeight, ...],
        positives: PairWeight | Tensor,
        coefficients: tuple[Tensor | None, ...] = (None,),
        temperature: float | Tensor | None = None,
    ) -> Tensor:
        """Return the reduced loss of rows under their pair weights, over ``rows.sections``.

        Args:
            rows: Queries and references.
            pull: Weights of the references that attract a query, (N, R).
            push: Weights of the references that repel it, (N, R), or a tuple of several.
            positives: The set of pairs with pull, or the number of positives of each query, (N,).
            coefficients: c of each push's log-sum-exp, (N,); None: pull's row sums.
            temperature: τ; None: the loss's own.
        """
        together = not self.gathers and not self.weight_by_pull
        pushes = tuple([Push(weight) for weight in push]) if isinstance(push, tuple) else (Push(push),)
        problem = ContrastSpec(pushes, pull, coefficients, self.reduction if together else "none")
        outcome = self.outcome(rows, problem, temperature)
        losses, (active, count, *counted) = outcome.losses, outcome.counts
        positives = counted[0] if counted else positives
        if together:
            self._record_statistics(count, positives, active.device)
            return losses
        anchors = None if pull is None or not self.weight_by_pull else pull.known_row_sum(losses.dtype, active.device)
        return self.reduce(losses, active, positives, anchors)

    def reduce(
        self, losses: Float[Tensor, " n"], active: Bool[Tensor, " n"] | None = None,
        positives: PairWeight | Tensor | None = None, anchors: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Apply the reduction, record the step's statistics, and scale for an exact gradient if gathered.

        Args:
            losses: (N,), 0 on inactive rows.
            active: Which rows are active; None: all.
            positives: The set of pairs with pull, or the number of positives of each query, (N,); None: one.
            anchors: How many anchors each row counts as, (N,); None: one.
        """
        active = torch.ones_like(losses, dtype=torch.bool) if active is None else active
        positives = active.to(losses.dtype) if positives is None else positives
        count = active.sum() if anchors is None else anchors.where(active, 0).sum()
        if self.gathers:
            count = distributed.summed(count) if count.requires_grad else distributed.total(count)
        self._record_statistics(count, positives, losses.device)
        if self.reduction == "none":
            return losses
        loss = losses.sum()
        if self.reduction == "mean":
            loss = loss / count.clamp(min=1).to(losses.dtype)
        if not self.gathers:
            return loss
        return distributed.with_value(loss * distributed.world_size(), distributed.total(loss))

    def _record_statistics(self, count: Tensor, positives: PairWeight | Tensor, device: torch.device) -> None:
        per_anchor = positives.row_sum(device=device).detach() if isinstance(positives, PairWeight) else positives
        if not self._told and warn_if_inactive(type(self).__name__, count, per_anchor, met=self.selects):
            self._told = True
        self.last = {"active_anchors": count.detach().clone(), "positives_per_anchor": per_anchor}
        if isinstance(self.temperature, Tensor):
            self.last["temperature"] = self.temperature.detach().clone()


def warn_if_inactive(loss: str, anchors: Tensor, positives: Tensor, *, met: bool) -> bool:
    """Warn about a batch without active anchors, and return whether it warned; on a GPU or in a graph, read nothing.

    With `met`, warn only if no anchor has a positive: an anchor with positives may already satisfy the loss.
    """
    if anchors.device.type != "cpu" or torch.compiler.is_compiling() or not len(positives) or anchors != 0:
        return False
    if met and positives.any():
        return False
    message = f"{loss}: no anchor among {len(positives)} rows is active, so the loss is 0 and nothing is learned: "
    message += "give batches with positives and negatives, as two views of a sample or several samples of a class"
    warnings.warn(message, stacklevel=2)
    return True
