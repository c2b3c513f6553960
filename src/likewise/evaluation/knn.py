"""k nearest neighbours: evaluation and prediction by the classes or labels of the nearest training samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import ClassVar, Literal, final, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.evaluation.evaluation import Evaluation, needs_seen_labels
from likewise.evaluation.features import Bar, FeatureParts, Features, joined, labelled_validation, silent
from likewise.evaluation.nearest import nearest, own_rows
from likewise.evaluation.predictions import Predicted, Predictor, score_predictions, selecting_score
from likewise.runs.scores import Result, Score

Weights = Literal["uniform", "similarity"]
Setting = tuple[int, Weights]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
KS = (1, 3, 5, 10, 20, 50, 100, 200)
TEMPERATURE = 0.07
LABELS = 2**22  # of neighbours at a time: 16 MiB in float32
DOUBLINGS = 3  # of k in one search
TIE_BREAK = 1e-6  # weight of similarity in a uniform vote: equal votes go to the class with nearer neighbours


@final
class KNN(Evaluation):
    """Predict the class for which the k nearest training samples vote, by cosine similarity.

        argmax_c Σ_{j ∈ k nearest, y_j = c} w_j,   w_j = 1, or exp(s_j/temperature) by similarity

    For label sets, a label's score is its share of the neighbours' weight; settings are chosen by mAP.

    Args:
        k: The number of voting neighbours. None: chosen on validation among 1, 3, 5, 10, 20, 50, 100, 200, and further
            by doubling while the largest is best. Ties go to the smallest.
        weights: "uniform", or "similarity", which gives closer neighbours more weight. None: chosen on validation.
        temperature: Temperature of the similarity weights.
        gallery_includes_queries: Whether the test samples are among the training samples: each sample's own row is then
            left out. Otherwise a note counts equal rows, with a warning if there are many.

    Raises:
        ValueError: k, weights or temperature is invalid.

    Memory:
        O((N + M)·D) and one tile of similarities.

    Source:
        Similarity weights with temperature 0.07: Z. Wu et al., Unsupervised Feature Learning via Non-Parametric
        Instance Discrimination, 2018.

    Example:
        >>> train = Features(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]), part="train")
        >>> test = Features(torch.tensor([[2.0, 0.1]]), torch.tensor([0]), ("0", "1"))
        >>> KNN()(train, test, test).scores[0].value
        1.0
    """

    name: ClassVar[str] = "kNN"
    accelerated: ClassVar[bool] = True

    def __init__(
        self,
        k: int | None = None,
        weights: Weights | None = None,
        temperature: float = TEMPERATURE,
        *,
        gallery_includes_queries: bool = False,
    ) -> None:
        if k is not None and (not isinstance(k, Integral) or k < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"expected k of at least 1, got {k!r}: leave it out to have it chosen on validation")
        if weights is not None and weights not in WEIGHTS:
            raise ValueError(f"expected weights to be one of {', '.join(WEIGHTS)}, got {weights!r}")
        if not temperature > 0:
            raise ValueError(f"expected a temperature above 0, got {temperature}")
        self.k = k
        self.weights: Weights | None = weights
        self.temperature = temperature
        if gallery_includes_queries:
            self.gallery_includes_queries = True

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        return needs_seen_labels(parts)

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        train, validation, test = parts
        learned = joined(train, validation) if refit else train
        validation = labelled_validation(validation)
        k, weights, tried = self._choose(train, validation, progress)
        own_index, notes = own_rows(test, learned, included=self.gallery_includes_queries)
        k = min(k, len(learned) - (own_index is not None))
        predicted = self._predict(learned, test, [k], [weights], progress, own_index=own_index)[k, weights]
        blank = Predicted(torch.zeros(0, len(train.names)), validation)
        chosen_by, _ = tried.get((k, weights), (blank, None))
        settings = self._settings(k, weights)
        result = score_predictions(self.name, Predicted(predicted, test), chosen_by, train.frequencies, settings)
        if self.k is not None and self.k > k:
            notes += (f"k={self.k} was asked for, of {k} training samples besides those for choices",)
        scores = tuple(replace(score, notes=(*score.notes, *notes)) for score in result.scores)
        return replace(result, scores=scores, candidates=tuple(score for _, score in tried.values()))

    def _choose(
        self, train: Features, validation: Features, progress: Bar
    ) -> tuple[int, Weights, Mapping[Setting, tuple[Predicted, Score]]]:
        kinds: Sequence[Weights] = WEIGHTS if self.weights is None else (self.weights,)
        ks = [min(k, len(train)) for k in (KS if self.k is None else (self.k,))]
        if len(validation) == 0:
            return ks[0], kinds[0], {}
        best: Setting = ks[0], kinds[0]
        enough = min(max(KS), len(train))
        tried: dict[Setting, tuple[Predicted, Score]] = {}
        while True:
            predictions = self._predict(train, validation, sorted(set(ks)), kinds, progress)
            for k in sorted(set(ks)):
                for weighting in kinds:
                    predicted = Predicted(predictions[k, weighting], validation)
                    tried[k, weighting] = predicted, selecting_score(self.name, predicted, self._settings(k, weighting))
                best = max(tried, key=lambda setting: (tried[setting][1].value, -setting[0]))
                if k >= enough and best[0] < k:
                    return *best, tried
            if self.k is not None or max(ks) == len(train):
                return *best, tried
            ks = [min(2**times * max(ks), len(train)) for times in range(1, DOUBLINGS + 1)]

    def _predict(
        self,
        train: Features,
        test: Features,
        ks: Sequence[int],
        kinds: Sequence[Weights],
        progress: Bar,
        *,
        own_index: Int[Tensor, " m"] | None = None,
    ) -> dict[Setting, Tensor]:
        doing = f"{self.name}, {test.part}"
        of_sets = train.label_kind == "label sets"
        blank = torch.empty(len(test), len(train.names)) if of_sets else torch.empty(len(test), dtype=torch.int64)
        predicted: dict[Setting, Tensor] = {(k, weighting): blank.clone() for k in ks for weighting in kinds}
        if of_sets:
            batches = self.votes(train, test.vectors, ks, kinds, own_index=own_index, progress=progress, doing=doing)
            for part, setting, votes in batches:
                predicted[setting][part] = votes.cpu()
            return predicted
        batches = nearest(test.vectors, train.vectors, max(ks), own_index=own_index, progress=progress, doing=doing)
        for part, similarities, indices in batches:
            cosines = similarities.double()
            weights: dict[Weights, Tensor] = {each: self._weights(cosines, each) for each in kinds}
            for setting, classes in _elected(train.classes.to(indices.device)[indices], weights, ks):
                predicted[setting][part] = classes.cpu()
        return predicted

    def votes(
        self,
        train: Features,
        vectors: Float[Tensor, "m d"],
        ks: Sequence[int],
        kinds: Sequence[Weights],
        *,
        own_index: Int[Tensor, " m"] | None = None,
        progress: Bar = silent,
        doing: str = name,
    ) -> Iterator[tuple[slice, Setting, Float[Tensor, "chunk c"]]]:
        """Yield slices of samples and, for every k and kind of weights, the votes or shares from `_votes`."""
        neighbours = nearest(vectors, train.vectors, max(ks), own_index=own_index, progress=progress, doing=doing)
        for part, similarities, indices in neighbours:
            for weighting in kinds:
                weights = self._weights(similarities.double(), weighting)
                for k, votes in _votes(train, indices, weights, ks):
                    yield part, (k, weighting), votes

    def _settings(self, k: int, weights: Weights) -> dict[str, int | float | str]:
        other = weights == "similarity" and self.temperature != TEMPERATURE
        exclusion = {"own row": "left out"} if self.gallery_includes_queries else {}
        return {"k": k, "weights": weights} | ({"temperature": self.temperature} if other else {}) | exclusion

    def _weights(self, similarities: Tensor, weighting: Weights) -> Tensor:
        if weighting == "uniform":
            return 1 + TIE_BREAK * similarities
        return torch.exp((similarities - similarities[:, :1]) / self.temperature)


@final
@dataclass(frozen=True, repr=False)
class NeighbourPredictor(Predictor):
    """A predictor by the shares of votes of the k nearest training samples, as in `KNN`.

        score_c = Σ_{j ∈ k nearest, c ∈ y_j} w_j / Σ_{j ∈ k nearest} w_j,   w_j = 1 or exp(s_j/temperature)

    Training sample j has the class, or the labels, y_j.
    """

    train: Features
    k: int
    weights: Weights
    temperature: float = TEMPERATURE

    @classmethod
    def of(
        cls, train: Features, k: int, weights: Weights, temperature: float = TEMPERATURE,
        validation: Features | None = None,
    ) -> "NeighbourPredictor":  # fmt: skip
        """Return a predictor, with thresholds of labels chosen on validation samples, which don't vote."""
        made = cls(KNN.name, train.names, train.vectors.shape[1], train, min(k, len(train)), weights, temperature)
        if train.label_kind == "classes":
            return made
        some = train[torch.arange(0)] if validation is None else validation
        return made._with_thresholds(made.scores(some.vectors), some)

    def __repr__(self) -> str:
        return f"NeighbourPredictor({self.k} of {len(self.train):,}, {self.weights})"

    def __str__(self) -> str:
        return f"the nearest {self.k} of {len(self.train):,} samples"

    def _scores(self, vectors: Tensor) -> Tensor:
        knn, scores = KNN(temperature=self.temperature), [torch.zeros(0, len(self.names))]
        for _, _, votes in knn.votes(self.train, vectors.float(), [self.k], [self.weights]):
            shares = votes / votes.sum(dim=1, keepdim=True) if self.train.label_kind == "classes" else votes
            scores.append(shares.cpu())
        return torch.cat(scores)


def _elected(
    classes: Int[Tensor, "m k"], weights: Mapping[Weights, Float[Tensor, "m k"]], ks: Sequence[int]
) -> Iterator[tuple[Setting, Int[Tensor, " m"]]]:
    """Yield for every k and kind of weights the classes elected by the nearest k, (m,), given the neighbours' classes.

    Classes are numbered within each row: votes take O(m·k) for any number of classes.
    """
    ordered, order = classes.sort(dim=1)
    rank = torch.zeros_like(ordered)
    rank[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(dim=1)
    number = torch.empty_like(rank).scatter_(1, order, rank)
    numbered = torch.zeros_like(rank).scatter_(1, rank, ordered)
    for weighting, each in weights.items():
        votes, before = torch.zeros_like(each), 0
        for k in sorted(ks):
            votes.scatter_add_(1, number[:, before:k], each[:, before:k])
            before = k
            yield (k, weighting), numbered.gather(1, votes.argmax(dim=1, keepdim=True)).squeeze(1)


def _votes(
    train: Features, indices: Int[Tensor, "m k"], weights: Float[Tensor, "m k"], ks: Sequence[int]
) -> Iterator[tuple[int, Float[Tensor, "m c"]]]:
    """Yield for every k the votes of the nearest k for each class, or the share of their weight with each label."""
    sets = train.sets.float().to(indices.device) if train.label_kind == "label sets" else None
    votes = torch.zeros(len(indices), len(train.names), dtype=torch.float64, device=indices.device)
    votes = votes if sets is None else votes.float()
    before = 0
    for k in sorted(ks):
        near, near_weights = indices[:, before:k], weights[:, before:k]
        before = k
        if sets is None:
            votes.scatter_add_(1, train.classes.to(indices.device)[near], near_weights)
            yield k, votes
            continue
        rows = max(1, LABELS // max(1, near.shape[1] * sets.shape[1]))
        for some in torch.arange(len(indices), device=indices.device).split(rows):
            votes[some] += torch.einsum("mk,mkl->ml", near_weights[some].float(), sets[near[some]])
        yield k, votes / weights[:, :k].sum(dim=1, keepdim=True).float()
