"""The verdict on a run: whether it is better than its beginning and than raw inputs; if not, why, and what to try."""

import math
from collections.abc import Iterator, Mapping
from statistics import fmean, median
from typing import Any, NamedTuple, final

from likewise.diagnostics import spread
from likewise.instantiate import is_spec
from likewise.report.formatting import difference_words
from likewise.report.run_summary import few_steps, longer
from likewise.report.run_view import RunView
from likewise.report.sections.scores import encoder_less
from likewise.runs.score_format import format_score
from likewise.runs.scores import BEGUN, ENCODER, PREFERRED_EVALUATIONS, RAW, Score

FEATURE_NAMES = {BEGUN: "the encoder as it began", RAW: "raw inputs"}
MIN_SPREAD = 0.02  # of the embeddings of a batch: below it, a mean cosine above 0.98
MIN_FEATURE_SPREAD = 1e-3  # of features, which may all be positive and so lie closer
PLATEAU_TOLERANCE = 0.005  # relative distance of a loss from that of equal embeddings
INTERVAL_FACTOR = 1.5  # times the 95 % interval: a score that far above chance is so by luck in one run of a thousand
LAST_STEPS = 10  # final steps whose losses are averaged
MIN_STEPS = 25  # with fewer, embeddings can hardly move apart
MIN_SCRATCH_SAMPLES = 2000  # photos or texts, of which a network from scratch learns little
MIN_CLASS_SAMPLES = 5  # training samples of a class
CONTRASTIVE_LOSSES = ("SupConLoss", "NTXentLoss", "RASCALLoss", "NPairsLoss")
"""Losses of views against the rest of the batch, which are log(2B - 1) for equal embeddings."""


@final
class Verdict(NamedTuple):
    """The verdict on a run, in a sentence; if it should be better, the likely cause, and a command to try."""

    words: str
    cause: str = ""
    command: str = ""

    @property
    def lines(self) -> list[str]:
        """The verdict, then the most likely cause and what to try, where there are any."""
        said = {"verdict": self.words, "most likely cause": self.cause, "try": self.command}
        return [f"{name}: {text}" for name, text in said.items() if text]


def run_verdict(view: RunView) -> Verdict | None:
    """Judge a run by its leading score on the test part; None where there is no baseline."""
    chosen = _leading_score(view)
    if chosen is None:
        return None
    ours, baselines = chosen
    compared = {feature_kind: _compare(view, ours, feature_kind, theirs) for feature_kind, theirs in baselines.items()}
    better = all(relation == "better than" for relation, _ in compared.values())
    kept = view.metadata.get("kept") == 0
    if kept:
        compared.pop(BEGUN, None)
    text = " and ".join(f"{relation} {FEATURE_NAMES[name]}{by}" for name, (relation, by) in compared.items())
    if kept:
        text = "; ".join(filter(None, ["kept as it began, since no epoch was better on validation", text]))
    text = f"{text[:1].upper()}{text[1:]}, by the {ours.evaluation}'s {ours.metric}, {format_score(ours)}"
    trained = (view.metadata.get("run_summary") or {}).get("encoder", {}).get("trained", 0)
    if not trained or (better and not kept and not _is_at_chance(view, ours, baselines)):
        return Verdict(text)
    return Verdict(text, *next(_causes(view, ours, baselines), ()))


def _leading_score(view: RunView) -> tuple[Score, dict[str, Score]] | None:
    """Return the most telling score that has baselines, and these."""
    candidates: list[tuple[Score, dict[str, Score]]] = []
    for name in view.headlines:
        baselines = view.by_features(*name)
        ours = baselines.pop(ENCODER)
        if baselines and ours.metric.is_share and ours.metric.better == "higher":
            candidates.append((ours, baselines))
    preferred = [pair for pair in candidates if pair[0].evaluation in PREFERRED_EVALUATIONS]
    return next(iter(preferred or candidates), None)


def _compare(view: RunView, ours: Score, feature_kind: str, theirs: Score) -> tuple[str, str]:
    difference = encoder_less(view, feature_kind, ours.evaluation, ours.metric.name)
    if difference is None:
        low, high = ours.low - theirs.high, ours.high - theirs.low
        by = f" (their {format_score(theirs)}, of other samples)"
    else:
        low, high = difference.low, difference.high
        by = f" ({difference_words(difference)} points)"
    return ("better than" if low > 0 else "worse than" if high < 0 else "not to be told apart from"), by


def _causes(view: RunView, ours: Score, baselines: Mapping[str, Score]) -> Iterator[tuple[str, str]]:
    """Yield possible causes, the surest first, each with a command to try."""
    summary: dict[str, Any] = view.metadata["run_summary"]
    run, source = view.run.folder.with_name(view.run.name), _source(view)
    again = f"likewise train --config {run / view.run.configuration.name}"
    losses = [value for _, value in view.metrics.get("loss", [])]
    steps = summary["steps"] or len(losses)
    few = f"too few steps, {steps}", f"{again} {longer(view.metadata)}"
    if steps < MIN_STEPS:  # too few to move embeddings apart
        yield few
    if collapsed := _collapse_evidence(view, losses, summary["batch"]):
        rate = (view.run.options.get("optimizer") or {}).get("init_args", {}).get("lr")
        yield f"the embeddings collapsed, {collapsed}", again + (f" --lr {rate / 10:g}" if rate else "")
    if few_steps(view.metadata, steps):
        yield few
    input_kind, sizes = summary["inputs"]["kind"], [size for size in view.class_sizes.values() if size]
    if input_kind in {"images", "texts"} and not view.metadata.get("begins_with") and sum(sizes) < MIN_SCRATCH_SAMPLES:
        yield (
            f"a network from scratch learns little of {sum(sizes):,} {input_kind}",
            f"likewise train {source} --encoder auto" if source else f"{again} --encoder auto",
        )
    if _is_at_chance(view, ours, baselines):
        yield (
            "labels that do not follow from the inputs, which nothing here predicts better than chance",
            f"likewise search {run} --within {source} --mistakes" if source else "",
        )
    if sizes and median(sizes) < MIN_CLASS_SAMPLES:
        yield (
            f"too few samples of a class to train on, {median(sizes):g}",
            f"likewise embed {source}" if source and view.metadata.get("begins_with") else f"{again} --freeze all",
        )


def _collapse_evidence(view: RunView, losses: list[float], batch: Mapping[str, Any]) -> str:
    """Return the evidence of a collapse; "" where there was none."""
    last = view.batches.get("last") or view.batches.get("first")
    if last is not None and last.embeddings.ndim == 3:
        width = spread(last.embeddings.flatten(0, 1))
        if width < MIN_SPREAD:
            return f"with a mean cosine of {1 - width:.4f} in the last batch"
    elif (features := view.test_vectors) is not None and (width := spread(features)) < MIN_FEATURE_SPREAD:
        return f"with a mean cosine of {1 - width:.4f} of the test features"
    loss = view.metadata["parts"]["loss"]["class_path"].rpartition(".")[2]
    rows = batch.get("views", 0) * batch["samples"]
    if loss in CONTRASTIVE_LOSSES and rows > 2 and len(losses) >= LAST_STEPS:
        plateau, end = math.log(rows - 1), fmean(losses[-LAST_STEPS:])
        if abs(end - plateau) < PLATEAU_TOLERANCE * plateau:
            return f"with a loss of {end:.3f} at the end, which is log(2B - 1) of equal ones"
    return ""


def _is_at_chance(view: RunView, ours: Score, baselines: Mapping[str, Score]) -> bool:
    """Tell whether nothing predicts the classes better than always guessing the most frequent one."""
    test = view.test_part
    if ours.metric.name != "accuracy" or test is None or test.label_kind != "classes":
        return False
    chance = float(test.counts.max()) / max(1, len(test))
    every = (ours, *baselines.values())
    return all(score.value - INTERVAL_FACTOR * (score.value - score.low) <= chance for score in every)


def _source(view: RunView) -> str:
    data = view.metadata["parts"].get("data")
    return str((data.get("init_args") or {}).get("path") or "") if is_spec(data) else ""
