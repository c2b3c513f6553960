"""The quality of a linear probe beyond its accuracy: its calibration, and its robustness to corrupted images."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.data.corruptions import CORRUPTIONS, SEVERITIES, CorruptedRows, corruption_named
from likewise.evaluation.evaluation import Evaluation, ScoreCollector, needs_seen_classes
from likewise.evaluation.features import Bar, FeatureParts, Features, silent
from likewise.evaluation.intervals import bootstrap_indices, mean_within, share
from likewise.evaluation.linear import LinearProbe, temperature_of
from likewise.evaluation.logistic_regression import LinearClassifier
from likewise.evaluation.predictions import ACCURACY
from likewise.runs.scores import Group, Metric, Result

ECE = Metric("expected calibration error", better="lower")
LOG_LIKELIHOOD = Metric("negative log-likelihood", "nats", "lower")
BRIER = Metric("Brier score", "plain", "lower")
CONFIDENCE = Metric("confidence", better="neither")
MAX_BINS = 100
MEAN_ACCURACY = Metric("mean accuracy under corruption")
CLEAN_ACCURACY = Metric("clean accuracy")


@final
class Calibration(Evaluation):
    """Compare the probabilities of a linear probe with the accuracy of its predictions.

    With p_i the softmax of sample i's logits, y_i its class, conf_i = max_c p_ic, and bins B_1 ... B_M of equal width:

        expected calibration error = Σ_m |B_m|/n · |acc(B_m) - conf(B_m)|,   B_m = {i: conf_i in ((m - 1)/M, m/M]}
        negative log-likelihood    = 1/n Σ_i -log p_{i, y_i}
        Brier score                = 1/n Σ_i Σ_c (p_ic - [c = y_i])²

    acc and conf of a bin are the share of right predictions and the mean of conf_i. The probe is fitted as in
    `LinearProbe`. The accuracy and mean confidence of non-empty bins are group scores, for a reliability diagram.

    The negative log-likelihood and the Brier score, from 0 to 2, have Student's intervals and outcomes per sample. The
    calibration error is biased upwards, and its bootstrap samples are biased again. Its interval is therefore the basic
    bootstrap's, [2v - q_97.5, 2v - q_2.5] for the value v and quantiles q of 1,000 resamples, widened to contain v. Its
    lower end is 0 if at least 2.5 % of 1,000 random outcomes with the stated probabilities have an error of v or more.

    Args:
        bins: M, at most 100.
        temperature_scaling: Whether to divide the logits by a temperature chosen on the validation part.
        penalty: The probe's penalty. None: chosen on validation.
        seed: Seed of the bootstrap.

    Memory:
        The probe's memory, and 2²² resampled indices.

    Source:
        C. Guo et al., On Calibration of Modern Neural Networks, 2017, equation 3 and section 4.2; G. W. Brier,
        Verification of Forecasts Expressed in Terms of Probability, 1950.

    Example:
        >>> train = Features(torch.tensor([[1.0], [2.0], [5.0], [6.0]]), torch.tensor([0, 0, 1, 1]), part="train")
        >>> test = Features(torch.tensor([[0.0], [7.0]]), torch.tensor([0, 1]))
        >>> [score.metric.name for score in Calibration()(train, test, test).headline]
        ['expected calibration error', 'negative log-likelihood', 'Brier score']
    """

    name: ClassVar[str] = "calibration"

    def __init__(
        self, bins: int = 15, *, temperature_scaling: bool = False, penalty: float | None = None, seed: int = 0
    ) -> None:
        if not 1 <= bins <= MAX_BINS:
            raise ValueError(f"expected bins from 1 to {MAX_BINS}, got {bins}")
        self.bins = bins
        self.temperature_scaling = temperature_scaling
        self.seed = seed
        self.probe = LinearProbe(penalty)

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        if self.temperature_scaling and len(parts.validation) == 0:
            return "temperature_scaling needs a validation part, and there is none"
        return needs_seen_classes(parts)

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        train, validation, test = parts
        chosen = self.probe.choose(train, validation, refit=refit, progress=progress)
        heat = 1.0
        if self.temperature_scaling:
            heat = temperature_of(partial(chosen.held_out.chunks, validation.vectors), validation.classes)
        settings = chosen.settings | ({"temperature": heat} if self.temperature_scaling else {})
        confidence, right, surprise, brier = _stated(chosen.probe, test, heat)
        collector = ScoreCollector(self.name, test, settings)
        error = calibration_error(confidence, right, self.bins)
        collector.add(ECE, error, *_bounds(error, confidence, right, self.bins, seed=self.seed), len(test))
        for metric, values, most in ((LOG_LIKELIHOOD, surprise, math.inf), (BRIER, brier, 2.0)):
            collector.add(metric, *mean_within(values, most))
            collector.add_outcomes(metric.name, values)
        bin_index = bin_indices(confidence, self.bins)
        for number in bin_index.unique().tolist():
            inside = bin_index == number
            group = Group(CONFIDENCE.name, f"{number / self.bins:.2f} to {(number + 1) / self.bins:.2f}")
            collector.add(ACCURACY, *share(right[inside]), group=group)
            collector.add(CONFIDENCE, *mean_within(confidence[inside]), group=group)
        return collector.result()


def calibration_error(confidence: Float[Tensor, " n"], right: Bool[Tensor, " n"], bins: int = 15) -> float:
    """Return the expected calibration error of each sample's largest probability, given a mask of right predictions."""
    gaps = torch.zeros(bins, dtype=torch.float64)
    gaps.index_add_(0, bin_indices(confidence, bins), confidence.double() - right.double())
    return float(gaps.abs().sum()) / len(confidence)


def bin_indices(confidence: Float[Tensor, " n"], bins: int) -> Int[Tensor, " n"]:
    """Return the bin of each probability, from 0: bin m covers (m/M, (m + 1)/M]."""
    return ((confidence.double() * bins).ceil().long() - 1).clamp(0, bins - 1)


def _stated(probe: LinearClassifier, features: Features, heat: float) -> tuple[Tensor, ...]:
    """Return each sample's largest probability, (N,), float64, whether it is right, -log p_y, and Brier's sum."""
    chunks: list[tuple[Tensor, ...]] = []
    for rows, logits in probe.chunks(features.vectors):
        labels = features.classes[rows]
        logs = (logits.double() / heat).log_softmax(dim=1)
        log_likelihood = logs.gather(1, labels.unsqueeze(1)).squeeze(1)
        probabilities = logs.exp()
        top, predicted = probabilities.max(dim=1)
        brier = probabilities.square().sum(dim=1) - 2 * log_likelihood.exp() + 1
        chunks.append((top.clamp(max=1), predicted == labels, -log_likelihood, brier))
    return tuple(torch.cat(column) for column in zip(*chunks, strict=True))


def _bounds(error: float, confidence: Tensor, right: Tensor, bins: int, *, seed: int) -> tuple[float, float]:
    count, bin_index = len(confidence), bin_indices(confidence, bins)
    gaps = confidence - right.double()
    generator = torch.Generator().manual_seed(seed)
    again: list[Tensor] = []
    calibrated: list[Tensor] = []
    for (index,) in bootstrap_indices(count, seed=seed):
        again.append(_errors(bin_index[index], gaps[index], bins))
        uniform = torch.rand(index.shape, generator=generator, dtype=torch.float64)
        random = confidence - (uniform < confidence).double()
        calibrated.append(_errors(bin_index.expand_as(index), random, bins))
    low, high = (2 * error - float(torch.cat(again).quantile(quantile)) for quantile in (0.975, 0.025))
    explained = float((torch.cat(calibrated) >= error).double().mean()) >= 0.025
    return 0.0 if explained else min(error, max(0.0, low)), min(1.0, max(error, high))


def _errors(bin_index: Tensor, gaps: Tensor, bins: int) -> Tensor:
    sums = torch.zeros(len(bin_index), bins, dtype=torch.float64).scatter_add_(1, bin_index, gaps)
    return sums.abs().sum(dim=1) / bin_index.shape[1]


@final
class Robustness(Evaluation):
    """Fit a linear probe to clean training features, and predict the classes of corrupted test images.

        mean accuracy under corruption = 1/n Σ_i a_i,   a_i = share of corruptions and severities under which i is right

    Every test image is corrupted in every way and encoded again. The probe is as in `LinearProbe`, its penalty chosen
    on clean validation samples. The mean has Student's interval over samples, accuracies have Wilson's. The accuracy
    under each corruption and severity is a group score. Scores for other corruptions or severities aren't comparable.

    Args:
        corruptions: Names, see `corrupted`. None: all.
        severities: From 1 to 5.
        penalty: The probe's penalty. None: chosen on validation.
        seed: Seed of the random parts of the corruptions.

    Memory:
        The probe's memory, and one batch of corrupted images.

    Source:
        D. Hendrycks and T. Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations,
        2019; the corruptions and strengths here differ.

    Example:
        >>> Robustness(["rotation", "shot_noise"], severities=[2]).settings
        [('rotation', 2), ('shot noise', 2)]
    """

    name: ClassVar[str] = "robustness"

    def __init__(
        self,
        corruptions: Sequence[str] | None = None,
        severities: Sequence[int] = (1, 3, 5),
        *,
        penalty: float | None = None,
        seed: int = 0,
    ) -> None:
        self.corruptions = [corruption_named(name) for name in (CORRUPTIONS if corruptions is None else corruptions)]
        self.severities = list(severities)
        for name, values in (("corruptions", self.corruptions), ("severities", self.severities)):
            if not values or len(set(values)) < len(values):
                got = ", ".join(map(str, values)) or "none"
                raise ValueError(f"expected at least one of {name}, each once, got {got}")
        wrong = next((severity for severity in self.severities if severity not in SEVERITIES), None)
        if wrong is not None:
            raise ValueError(f"expected severities from 1 to {len(SEVERITIES)}, got {wrong}: 1 is the mildest")
        self.seed = seed
        self.probe = LinearProbe(penalty)

    @property
    def settings(self) -> list[tuple[str, int]]:
        """Each corruption with each severity."""
        return [(corruption, severity) for corruption in self.corruptions for severity in self.severities]

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        origin = parts.test.origin
        if origin is None:
            return "it needs images and their encoder, and there are only vectors: evaluate a run that has its data"
        if len(origin.input_shape) != 3:
            return f"it needs images, and the inputs are vectors of shape {origin.input_shape}"
        return needs_seen_classes(parts)

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        train, validation, test = parts
        chosen = self.probe.choose(train, validation, refit=refit, progress=progress)
        clean = chosen.probe.predict(test.vectors) == test.classes
        hits = {
            setting: chosen.probe.predict(self._encode_corrupted(test, *setting)) == test.classes
            for setting in progress(self.settings, self.name)
        }
        right = torch.stack(list(hits.values())).sum(dim=0).double() / len(hits)
        every = set(self.corruptions) == set(CORRUPTIONS)
        named = f"all {len(CORRUPTIONS)}" if every else sorted(self.corruptions)
        protocol = {"corruptions": named, "severities": sorted(self.severities)}
        collector = ScoreCollector(self.name, test, chosen.settings)
        collector.add(MEAN_ACCURACY, *mean_within(right), protocol=protocol)
        collector.add(CLEAN_ACCURACY, *share(clean))
        for (corruption, severity), hit in hits.items():
            group = Group("corruption", f"{corruption} severity {severity}")
            under = {"corruption": corruption, "severity": severity}
            collector.add(ACCURACY, *share(hit), group=group, protocol=under)
        collector.add_outcomes(MEAN_ACCURACY.name, right)
        collector.add_outcomes(CLEAN_ACCURACY.name, clean)
        return collector.result()

    def _encode_corrupted(self, test: Features, corruption: str, severity: int) -> Tensor:
        if test.origin is None:
            raise ValueError("expected features that know their images and encoder, got none: see Features.origin")
        images = CorruptedRows(test.origin.inputs(test.numbers), test.numbers, corruption, severity, self.seed)
        return replace(test, vectors=test.origin.encode(images)).vectors  # checks that they are finite
