"""Classes by name: likewise's catalogue, and any class's parameters from its signature, annotations and docstring.

With the catalogue, a typo imports nothing; a class is only imported for its parameters. Enter a new class in
`CATALOGUE`, and in its package's `__all__`; tests/configuration/test_configuration.py compares the two.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, Unpack, final, get_args, get_origin, get_type_hints, is_typeddict

SECTION_NAMES = (
    "ComparisonSection MapSection SubModesSection HardestPairsSection MistakesSection NearestTextsSection PairsSection "
    "ScoresSection ClassDifferencesSection SampleDifferencesSection ClassesSection ConfusionSection LabelsSection "
    "CalibrationSection RobustnessSection GeometrySection GradientsSection NegativesSection AnchorSection "
    "LabelSimilaritySection HistogramsSection ClassMeansSection CurvesSection ChoicesSection UseSection FactsSection"
)
"""The sections of a page, in order."""
CATALOGUE: dict[str, dict[str, str]] = {
    "likewise.losses.base.Loss": {
        "likewise.losses": "ArcFaceLoss AsymmetricLoss BCELoss BCLLoss BYOLLoss BatchTripletLoss ClipLoss "
        "ContrastiveMarginLoss CosFaceLoss CrossEntropyLoss DCLLoss HardNegativeLoss InfoNCELoss InfoPatchLoss KCLLoss "
        "LiftedStructureLoss MSCLoss MulSupConLoss MultiSimilarityLoss NPairsLoss NTXentLoss NWSLoss PaCoLoss "
        "PatchLoss PrototypicalLoss ProxyAnchorLoss ProxyNCALoss RASCALLoss SigLIPLoss SupConLoss TripletLoss"
    },
    "likewise.models.encoder.Encoder": {
        "likewise.models": "BagOfTokens Conv4 ConvNet FromRun MLP PretrainedTransformer Projected ResNet ResNet12 Timm "
        "Transformer Wrapped"
    },
    "likewise.models.heads.Head": {"likewise.models": "NoHead PredictionHead ProjectionHead"},
    "likewise.data.samples.Source": {"likewise.data": "Arrays Digits Folder Hub Pairs Shards Table Text Torchvision"},
    "likewise.data.subset.Subset": {
        "likewise.data": "Classes FewLabels Fraction FromList LabelNoise Labelled LongTail MinPerClass"
    },
    "likewise.data.split.Split": {"likewise.data": "ByClass Stratified"},
    "likewise.data.batches.Batches": {"likewise.data": "Episodes Views"},
    "likewise.training.inputs.loss_input.LossInput": {
        "likewise.training": "Guide KeyQueue LabelPrototypes Momentum Predictor SecondTower",
        "likewise.training.inputs": "Classifier EpisodeMaps EpisodeMeans",
    },
    "likewise.training.schedule.Schedule": {"likewise.training": "Constant Cosine Steps"},
    "torch.optim.optimizer.Optimizer": {
        "torch.optim": "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD "
        "SparseAdam"
    },
    "likewise.evaluation.evaluation.Evaluation": {
        "likewise.evaluation": "Calibration Clustering CrossModalRetrieval FewShot KNN LinearProbe OutOfDistribution "
        "OwnClassifier Retrieval Robustness Widths WithinClass ZeroShot"
    },
    "likewise.report.run_view.Section": {"likewise.report.sections": SECTION_NAMES},
}
"""By base class: the modules that export its subclasses, and their names."""
LIST_TYPES = {list, tuple, set, Sequence, Iterable}
PLAIN_TYPES = {Any, type(None), object, list, dict, tuple, set, int, float, bool, str, Path, timedelta}
MISSING = object()
"""The default of a parameter without one, or without one that a file can hold."""


@final
@dataclass(frozen=True)
class Parameter:
    """A parameter of a constructor: annotation, plain default, whether it must be given, and description."""

    hint: Any = Any
    default: Any = MISSING
    required: bool = False
    description: str = ""


@final
@dataclass(frozen=True)
class Class:
    """A class by its import path."""

    path: str

    @property
    def name(self) -> str:
        """Its name."""
        return self.path.rpartition(".")[2]

    @cached_property
    def type(self) -> type:
        """The class itself, imported."""
        module, _, name = self.path.rpartition(".")
        try:
            return getattr(import_module(module), name)
        except AttributeError as error:
            raise ValueError(f"expected a class that {module} has, got {name}: install a version with it") from error

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring."""
        return " ".join(_doc(self.type).partition("\n\n")[0].split())

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters of its constructor, including those passed on to other constructors."""
        return _parameters(self.type)

    def part(self, name: str) -> "Class | None":
        """Return the class whose subclasses a parameter takes; None: it takes plain values, or doesn't exist."""
        return part_of(self.parameters[name].hint) if name in self.parameters else None

    def concrete(self, module: str) -> dict[str, str]:
        """Return the concrete subclasses in a module: import paths by name."""
        return {
            name: f"{module}.{name}"
            for name, cls in sorted(vars(import_module(module)).items())
            if inspect.isclass(cls) and name[0] != "_" and issubclass(cls, self.type) and cls is not self.type
            if not inspect.isabstract(cls)
        }


def kinds(base: Class) -> Mapping[str, str]:
    """Return the known subclasses of a class by name, each with its import path in the outermost package."""
    if base.path not in CATALOGUE:
        return _around(base)
    listed = {name: module for module, names in CATALOGUE[base.path].items() for name in names.split()}
    return {name: f"{module}.{name}" for name, module in sorted(listed.items())}


@cache
def _around(base: Class) -> Mapping[str, str]:
    parents = base.type.__module__.split(".")[:-1]
    above = [".".join(parents[:size]) for size in range(2, len(parents) + 1)] or [base.type.__module__]
    several = {name: path for module in reversed(above) for name, path in base.concrete(module).items()}
    return dict(sorted(several.items()))


@cache
def _parameters(cls: type) -> Mapping[str, Parameter]:
    several: dict[str, Parameter] = {}
    docs: dict[str, str] = {}
    for doc in (doc for owner in reversed(cls.__mro__[:-1]) for doc in _docs(owner)):
        docs |= _argument_docs(doc)
    for owner in cls.__mro__[:-1]:
        if "__init__" not in vars(owner):
            continue
        hints, passes_on = _hints(owner.__init__), False
        for name, parameter in list(inspect.signature(owner.__init__).parameters.items())[1:]:
            hint = hints.get(name, Any)
            if parameter.kind is parameter.VAR_KEYWORD and get_origin(hint) is Unpack:
                (keys,) = get_args(hint)
                texts = _argument_docs(_doc(keys))
                for key, annotation in get_type_hints(keys, include_extras=True).items():
                    several.setdefault(key, Parameter(annotation, description=texts.get(key, "")))
            elif parameter.kind is parameter.VAR_KEYWORD:
                passes_on = True
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                required = parameter.default is parameter.empty
                default = MISSING if required else _plain_default(parameter.default)
                several.setdefault(name, Parameter(hint, default, required, docs.get(name, "")))
        if not passes_on:
            break
    return several


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError):  # some are imported for type checkers only
        return {name: hint for name, hint in function.__annotations__.items() if not isinstance(hint, str)}


def _plain_default(value: Any) -> Any:
    """Return a default in its form in a file: tuples as lists, paths as strings; or MISSING."""
    if isinstance(value, list | tuple | set | frozenset):
        items = list(map(_plain_default, value))
        return MISSING if MISSING in items else items
    if isinstance(value, Path):
        return str(value)
    return value if value is None or type(value) in {bool, int, float, str} else MISSING


def _doc(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "")


def _docs(cls: type) -> list[str]:
    """Return the docstrings that describe a class's arguments, the nearest last."""
    workflow = vars(cls).get("workflow")  # its arguments are the fields; importing it would import torch
    if isinstance(workflow, str):
        _, *folders, module, name = workflow.split(".")
        tree = ast.parse(Path(__file__).parents[1].joinpath(*folders, f"{module}.py").read_text(encoding="utf-8"))
        functions = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
        return [ast.get_docstring(node) or "" for node in functions]
    return [inspect.cleandoc(getattr(vars(cls).get("__init__"), "__doc__", None) or ""), _doc(cls)]


def _argument_docs(doc: str) -> dict[str, str]:
    texts, current, inside, depth = dict[str, str](), "", False, 0
    for line in doc.splitlines():
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if re.fullmatch(r"[A-Z]\w+:", text):
            inside, current = text == "Args:", ""
        elif inside and (named := re.match(r"(\**\w+)(?: \(.*?\))?: ?(.*)", text)) and (not current or indent <= depth):
            current, depth = named[1], indent
            texts.setdefault(current, named[2])
        elif inside and current and text and indent > depth:
            texts[current] += f" {text}"
        elif inside and not text and texts.get(current):
            current = ""
    return texts


def members(hint: Any) -> tuple[Any, ...]:
    """Return the members of an annotation's union, without tensors."""
    several = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    return tuple(member for member in several if not _is_tensor(member))


def _is_tensor(hint: Any) -> bool:
    return "Tensor" in str(hint) and get_origin(hint) is not Annotated


def part_in(hint: Any) -> Class | None:
    """Return the class whose subclasses a member of an annotation takes; None: it takes plain values."""
    if get_origin(hint) is Annotated:
        return next((Class(path) for path in hint.__metadata__ if isinstance(path, str)), None)
    if not inspect.isclass(hint) or get_origin(hint) or hint in PLAIN_TYPES or is_typeddict(hint) or _is_tensor(hint):
        return None
    plain = issubclass(hint, Enum | str | tuple) or hint.__module__ == "builtins"
    return None if plain else Class(f"{hint.__module__}.{hint.__qualname__}")


def part_of(hint: Any) -> Class | None:
    """Return the class whose subclasses an annotation takes as parts, or in a list; None: it takes plain values."""
    for member in members(hint):
        inner = get_args(member) if get_origin(member) in LIST_TYPES else ()
        named = part_in(member) or next(filter(None, map(part_of, inner)), None)
        if named:
            return named
    return None


def takes(hint: Any, *types: Any) -> bool:
    """Tell whether a type is among those that an annotation allows."""
    return any((get_origin(member) or member) in types for member in members(hint))


def type_words(hint: Any) -> str:
    """Return the types that an annotation takes, in short."""
    return "|".join(dict.fromkeys(word for member in members(hint) for word in _describe_member(member)))


def _describe_member(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from (str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in get_args(hint))
    elif part_in(hint) or hint is Any:
        yield "VALUE" if hint is Any else "CLASS"
    else:
        name = "null" if hint is type(None) else getattr(hint, "__name__", str(hint))
        inside = ", ".join("..." if argument is ... else type_words(argument) for argument in get_args(hint))
        yield f"{name}[{inside}]" if inside else name
