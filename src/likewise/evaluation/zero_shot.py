"""Zero-shot classification of samples by the nearest class name, encoded as the other side of pairs."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from likewise.data.texts import Texts
from likewise.evaluation.evaluation import Evaluation, ScoreCollector, needs_classes
from likewise.evaluation.features import Bar, FeatureParts, Features, silent
from likewise.evaluation.intervals import mean_share, share
from likewise.evaluation.label_metrics import MAX_ENLARGEMENT
from likewise.evaluation.nearest import nearest
from likewise.evaluation.predictions import Predicted, accuracy, selecting_score
from likewise.runs.scores import ALL, Group, Metric, Result, format_count, format_score

TOP = 5
TOP_FIVE, MACRO = Metric(f"top-{TOP} accuracy"), Metric("macro accuracy")
WORD = re.compile(r"[^\W_]+")


@final
class ZeroShot(Evaluation):
    """Predict the class whose name, as a text of the other side, is nearest, without learning from labels.

    A class is the mean of the normalised embeddings of its name in each template. The scores are accuracy, also of each
    class, top-5 accuracy, and the mean of the classes' accuracies. Accuracy is also given separately for classes whose
    names are in no training text, as whole words, and for the others. Predictions are among all classes, but chance is
    within the group: the level of an encoder that can only rule out the other group.

    Ties are broken in a fixed random order. Intervals are over samples: Wilson's, and Student's for the mean over
    classes, with the classes held fixed.

    Args:
        classes: The name of each class, (C,), in the order of the labels. None: the labels' names, with spaces for
            underscores.
        templates: Texts in which "{}" stands for the name.

    Raises:
        ValueError: There is no template, or one without "{}".

    Memory:
        O(C·D) and one tile of similarities.

    Source:
        A. Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021, section 3.1.

    Example:
        >>> ZeroShot(templates=["{}", "a photo of a {}"]).texts_of("cat")
        ['cat', 'a photo of a cat']
    """

    name: ClassVar[str] = "zero-shot"

    def __init__(self, classes: list[str] | None = None, templates: list[str] | None = None) -> None:
        self.classes = None if classes is None else list(classes)
        self.templates = ["{}"] if templates is None else list(templates)
        wrong = next((template for template in self.templates if "{}" not in template), None)
        if wrong is not None or not self.templates:
            raise ValueError(f"expected templates with {{}} for the name, got {wrong or 'none'}: 'a photo of a {{}}'")

    def texts_of(self, name: str) -> list[str]:
        """Return a name in each template."""
        return [template.replace("{}", name) for template in self.templates]

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        test, counterparts = parts.test, parts.test.counterparts
        if why := needs_classes(test):
            return why
        if len(test) == 0 or len(test.names) < 2:
            return f"it needs test samples of 2 classes or more, and there are {len(test)} of {len(test.names)}"
        if self.classes is not None and len(self.classes) != len(test.names):
            return f"it needs a name for each of {len(test.names)} classes, and there are {len(self.classes)}"
        origin = None if counterparts is None else counterparts.origin
        if origin is None or not isinstance(origin.samples.inputs, Texts):
            return "it needs pairs whose second side is texts, and their encoder at hand, and there are none"
        return None

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        train, validation, test = parts
        names = self.classes or [name.replace("_", " ") for name in test.names]
        vectors = self._encode_names(names, test)
        near = _nearest(test, vectors, progress)
        counts = train.frequencies if train.label_kind == "classes" and parts.closed else torch.zeros(len(names))
        settings = {"templates": len(self.templates)}
        result = accuracy(self.name, near[:, 0], test, counts, settings)
        right, chance = near == test.classes.unsqueeze(1), f"chance {100 / len(names):.3g} %"
        more = ScoreCollector(self.name, test, settings)
        if len(names) > TOP:
            more.add(TOP_FIVE, *share(right.any(dim=1)), notes=(f"chance {100 * TOP / len(names):.3g} %",))
            more.add_outcomes(TOP_FIVE.name, right.any(dim=1))
        values = _over_classes(right[:, 0], test)
        more.add(MACRO, *mean_share(values), notes=(chance,))
        more.add_outcomes(MACRO.name, values)
        unseen = _unseen(names, [train, validation] if refit else [train])
        notes = (chance, *_by_names(more, result, right[:, 0], test, unseen))
        scores = (replace(score, notes=notes) if score.group == ALL else score for score in result.scores)
        tried = ()
        if len(validation) and validation.names == test.names and validation.part != test.part:
            predicted = Predicted(_nearest(validation, vectors, progress)[:, 0], validation)
            tried = (selecting_score(self.name, predicted, settings),)
        return Result((*scores, *more.scores), tried, (*result.outcomes, *more.outcomes))

    def _encode_names(self, names: Sequence[str], test: Features) -> Float[Tensor, "c d"]:
        origin = None if test.counterparts is None else test.counterparts.origin
        if origin is None:
            raise ValueError("expected pairs that know their texts and encoder, got none: see Features.origin")
        texts = Texts(text for name in names for text in self.texts_of(name))
        encoded = Features(origin.encode(texts), None, part="names of")  # checks that they are finite
        return functional.normalize(encoded.vectors).unflatten(0, (len(names), -1)).mean(dim=1)


def _by_names(
    more: ScoreCollector, result: Result, right: Bool[Tensor, " m"], test: Features, unseen: Bool[Tensor, " c"]
) -> list[str]:
    notes: list[str] = []
    for name, classes in (("seen", ~unseen), ("unseen", unseen)):
        among = classes[test.classes]
        if not bool(unseen.any()) or not bool(among.any()):
            continue
        chance = 1 / int(classes.sum())
        told, group = (f"chance among them {100 * chance:.3g} %",), Group("names", name)
        score = more.add(result.scores[0].metric, *share(right[among]), group=group, notes=told)
        near = f", no better than chance among them, {100 * chance:.3g} %" if score.low <= chance else ""
        notes.append(f"classes with {name} names {format_score(score)} of {format_count(score.count, 'sample')}{near}")
    return notes


def _nearest(part: Features, classes: Float[Tensor, "c d"], progress: Bar) -> Tensor:
    neighbours = nearest(part.vectors, classes, TOP, progress=progress, doing=ZeroShot.name)
    return torch.cat([torch.zeros(0, min(TOP, len(classes)), dtype=torch.int64), *(near for *_, near in neighbours)])


def _over_classes(right: Bool[Tensor, " m"], test: Features) -> Float[Tensor, " m"]:
    """Return pseudo-values of the mean of the classes' accuracies, which is their mean, (M,); see `label_metrics`."""
    occurring, places, counts = test.classes.unique(return_inverse=True, return_counts=True)
    accuracies = torch.zeros(len(occurring), dtype=torch.float64).index_add(0, places, right.double()) / counts
    widened = (counts / (counts - 1)).clamp(max=MAX_ENLARGEMENT).sqrt() * len(test) / (len(occurring) * counts)
    return accuracies.mean() + widened[places] * (right.double() - accuracies[places])


def _unseen(names: Sequence[str], learned: Sequence[Features]) -> Bool[Tensor, " c"]:
    """Return a mask of the names that are in no training text, as whole words, ignoring case."""
    origins = [part.counterparts.origin for part in learned if part.counterparts is not None]
    inputs = [origin.samples.inputs for origin in origins if origin is not None]
    texts = [some.strings for some in inputs if isinstance(some, Texts)]
    if not texts:
        return torch.zeros(len(names), dtype=torch.bool)
    seen = "".join(map(_normalize_text, dict.fromkeys(chain(*texts))))
    return torch.tensor([_normalize_text(name) not in seen for name in names])


def _normalize_text(text: str) -> str:
    return f" {' '.join(WORD.findall(text.casefold()))} "
