"""Robustness: does a probe that was fitted on clean images stay accurate on corrupted ones?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import Tensor

from likewise.data.corruptions import CORRUPTIONS, SEVERITIES, CorruptedRows, corruption_named
from likewise.evaluation.evaluation import Evaluation, ScoreCollector, needs_seen_classes
from likewise.evaluation.features import Bar, FeatureParts, Features, silent
from likewise.evaluation.intervals import mean_within, share
from likewise.evaluation.linear import LinearProbe
from likewise.evaluation.predictions import ACCURACY
from likewise.runs.scores import Group, Metric, Result

MEAN_ACCURACY = Metric("mean accuracy under corruption")
CLEAN_ACCURACY = Metric("clean accuracy")


@final
class Robustness(Evaluation):
    """Fit a linear probe to clean training features, and predict the classes of corrupted test images.

        mean accuracy under corruption = 1/n Σ_i a_i,   a_i = share of corruptions and severities under which i is right

    Every test image is corrupted in every way and encoded again. The probe is that of `LinearProbe`, its penalty chosen
    on clean validation samples. The mean has Student's interval over samples, accuracies have Wilson's. The accuracy
    under each corruption and severity is a score of a group. Those under different choices can't be compared.

    Args:
        corruptions: Names, see `corrupted`. None: all.
        severities: From 1 to 5.
        penalty: The probe's penalty. None: chosen on validation.
        seed: Seed of what is random in the corruptions.

    Memory:
        As the probe, and one batch of corrupted images.

    Source:
        D. Hendrycks and T. Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations,
        2019; corruptions and strengths are ours.

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
