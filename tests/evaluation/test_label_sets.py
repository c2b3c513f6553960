"""Evaluation of label sets: metrics against scikit-learn, the probe of every label, kNN and retrieval by labels."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    average_precision_score,
    coverage_error,
    f1_score,
    hamming_loss,
    label_ranking_average_precision_score,
)
from torch.nn.functional import binary_cross_entropy_with_logits

from likewise.evaluation import (
    KNN,
    FeatureParts,
    Features,
    LinearProbe,
    Retrieval,
    applicable,
    logistic_regression,
    paired_difference,
)
from likewise.evaluation.features import joined, silent
from likewise.evaluation.label_metrics import LabelMetric, average_precisions, best_thresholds, ranking
from likewise.evaluation.logistic_regression import LogisticRegression as Regression
from likewise.evaluation.predictions import Predicted, label_set_scores, selecting_score

pytestmark = pytest.mark.slow


def predictions(samples=60, labels=7, *, ties=True, seed=0):
    """Return scores and label sets: rare and frequent labels, one that never occurs, samples without labels, ties."""
    generator = np.random.default_rng(seed)
    rates = np.array([0.5, 0.3, 0.1, 0.05, 0.02, 0.9, 0.0])[:labels]
    sets = generator.random((samples, labels)) < rates
    scores = generator.normal(size=(samples, labels)) + 1.5 * sets
    if ties:
        scores = scores.round(1)
    return torch.from_numpy(scores).float(), torch.from_numpy(sets)


def change_by_weight(metric, samples):
    """Return the derivative of a metric by every sample's weight, by central differences."""
    slopes = []
    for row in range(samples):
        weights = np.ones((2, samples))
        weights[:, row] += [1e-4, -1e-4]
        up, down = (metric(of) for of in weights)
        slopes.append((up - down) / 2e-4)
    return np.array(slopes)


@pytest.mark.parametrize("ties", [True, False])
def test_average_precision_and_its_pseudo_values_are_those_of_scikit_learn(ties, monkeypatch):
    scores, labels = predictions(40, ties=ties)
    whole = average_precisions(scores, labels)
    for truth, score, of in zip(labels.numpy().T, scores.numpy().T, whole.numpy().T, strict=True):
        if not truth.any():
            assert np.isnan(of).all()
            continue
        value = average_precision_score(truth, score)
        assert of.mean() == pytest.approx(value, rel=1e-12)
        slopes = change_by_weight(lambda w, t=truth, s=score: average_precision_score(t, s, sample_weight=w), 40)
        np.testing.assert_allclose(of, value + 40 * slopes, rtol=1e-5, atol=1e-6)
    thresholds = best_thresholds(scores, labels)
    monkeypatch.setattr("likewise.evaluation.label_metrics.NUMBERS", 90)  # two labels at a time
    torch.testing.assert_close(average_precisions(scores, labels), whole, equal_nan=True)
    torch.testing.assert_close(best_thresholds(scores, labels), thresholds, equal_nan=True)


@pytest.mark.parametrize("micro", [True, False])
def test_f1_and_its_pseudo_values_are_those_of_scikit_learn(micro):
    scores, labels = predictions(30)
    predicted = scores > 0.8
    values = LabelMetric.f1(predicted, labels, micro=micro).values.numpy()

    def of(weight, label=None):
        which, average = (slice(None), "micro") if label is None else (label, "binary")
        truth, decided = labels[:, which], predicted[:, which]
        return f1_score(truth, decided, average=average, sample_weight=weight, zero_division=0)

    for place, label in enumerate([None] if micro else range(7)):
        assert values[:, place].mean() == pytest.approx(of(None, label), rel=1e-12)
        slopes = change_by_weight(lambda weight, label=label: of(weight, label), 30)
        np.testing.assert_allclose(values[:, place], of(None, label) + 30 * slopes, rtol=1e-5, atol=1e-6)


def test_rankings_are_those_of_scikit_learn_one_sample_at_a_time():
    scores, labels = predictions()
    precisions, depths = ranking(scores, labels)
    for row in range(60):
        truth, score = labels[row : row + 1].numpy(), scores[row : row + 1].numpy()
        if not truth.any():
            assert bool(precisions[row].isnan() & depths[row].isnan())
            continue
        assert precisions[row].item() == pytest.approx(label_ranking_average_precision_score(truth, score), rel=1e-12)
        assert depths[row].item() == coverage_error(truth, score)


def test_thresholds_are_the_best_of_all():
    scores, labels = predictions(40)
    thresholds = best_thresholds(scores, labels)
    assert thresholds[6].isnan()
    for label in range(6):
        truth = labels[:, label]
        tried = [*scores[:, label].unique().tolist(), -100.0]
        best = max(f1_score(truth, scores[:, label] > of) for of in tried)
        assert f1_score(truth, scores[:, label] > thresholds[label]) == pytest.approx(best, rel=1e-12)


def parts_of(seed=0, samples=400, labels=5, width=8):
    """Return parts whose label sets depend on the features; the last label is rare, the one before frequent."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(samples, width, generator=generator) * torch.logspace(-2, 1, width) + 3
    truth = torch.randn(width, labels, generator=generator)
    bias = torch.tensor([0.0, -1.0, 0.5, 3.0, -5.0])[:labels]
    noise = torch.randn(samples, labels, generator=generator)
    sets = ((vectors - 3) / torch.logspace(-2, 1, width)) @ truth + 2 * noise + bias > 0
    third = samples // 3
    cuts = {"train": slice(0, third), "validation": slice(third, 2 * third), "test": slice(2 * third, samples)}
    return [Features(vectors[cut], sets[cut], part=part) for part, cut in cuts.items()]


@pytest.mark.parametrize(
    ("penalty", "one_unit", "most_rotated"), [(1.0, False, 4096), (1e-2, True, 1), (1e-4, True, 4096), (1e-4, False, 1)]
)
def test_the_probe_of_every_label_is_the_one_of_scikit_learn(penalty, one_unit, most_rotated, monkeypatch):
    monkeypatch.setattr(logistic_regression, "MAX_ROTATED_FEATURES", most_rotated)
    train, *_ = parts_of()
    probes = Regression(replace(train, one_unit=one_unit)).fit(penalty, 1e-10)
    mean, deviation = train.vectors.double().mean(0), train.vectors.double().std(0, correction=0)
    if one_unit:
        deviation = deviation.square().mean().sqrt()
    scaled = ((train.vectors.double() - mean) / deviation).numpy()
    for label in range(5):
        other = LogisticRegression(C=1 / (penalty * len(train)), tol=1e-10, max_iter=10_000)
        other.fit(scaled, train.sets[:, label].numpy())
        logits = probes.logits(train.vectors)[:, label].numpy()
        np.testing.assert_allclose(logits, other.decision_function(scaled), atol=3e-3, rtol=1e-3)


def objective(train, label, penalty, classifier):
    """Return what a label's weights minimise, in float64: the mean loss, and the penalty on standardised features."""
    vectors, weight = train.vectors.double(), classifier.weight[:, label].double()
    logits = vectors @ weight + classifier.bias[label]
    loss = binary_cross_entropy_with_logits(logits, train.sets[:, label].double())
    return float(loss + penalty / 2 * (weight * vectors.std(dim=0, correction=0)).square().sum())


def test_a_warm_start_and_a_penalty_for_each_label_end_where_fresh_fits_do():
    """By the objective: near its end the weights move by thousandths while it changes by less than float32 tells."""
    train, *_ = parts_of()
    fitting = Regression(train)
    penalties = torch.tensor([1.0, 0.1, 0.1, 0.01, 1.0], dtype=torch.float64)
    together = fitting.fit(penalties, 1e-9, fitting.fit(10.0, 1e-3))
    fresh, others = {of: Regression(train).fit(of, 1e-9) for of in (1.0, 0.1, 0.01)}, fitting.fit(penalties / 2, 1e-9)
    for label, penalty in enumerate(penalties.tolist()):
        least = objective(train, label, penalty, fresh[penalty])
        assert objective(train, label, penalty, together) == pytest.approx(least, rel=1e-6)
        assert objective(train, label, penalty, others) > least * (1 + 1e-4)  # a wrong penalty would be seen


def test_rare_labels_have_the_penalty_that_is_best_for_all_labels_together():
    """Also beyond the path, where the other labels are only fitted for their sake: most of them are pure noise."""
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(600, 60, generator=generator)
    sets = torch.rand(600, 12, generator=generator) < 0.3  # noise
    sets[:, :3] = vectors[:, :3] + 0.6 * torch.randn(600, 3, generator=generator) > 0
    sets[:, 3:5] = vectors[:, 3:5] > 2.2  # rare
    train, validation = Features(vectors[:300], sets[:300]), Features(vectors[300:450], sets[300:450])
    rare = validation.sets.sum(0) < 5
    assert rare.tolist() == [False] * 3 + [True] * 2 + [False] * 7
    fitting = Regression(train)
    path, losses = [10.0**power for power in range(1, -5, -1)], []
    for penalty in path:
        logits = fitting.fit(penalty, 1e-6).logits(validation.vectors)
        losses.append(float(binary_cross_entropy_with_logits(logits, validation.sets.float())))
    wanted = path[int(np.argmin(losses))]
    assert wanted == 0.1
    for penalties in ((1e-3, 1e-4), (100.0, 10.0, 1.0, 0.1)):
        best = LinearProbe(penalties=penalties, tolerance=1e-6).choose(train, validation)
        assert best.penalties[rare].tolist() == pytest.approx([wanted, wanted]), penalties


def test_without_labels_in_validation_nothing_is_chosen_and_thresholds_are_a_half():
    train, validation, test = parts_of()
    blank = replace(validation, labels=torch.zeros_like(validation.sets))
    for evaluation in (LinearProbe(), KNN()):
        found, none = (evaluation(train, of, test) for of in (blank, validation[torch.arange(0)]))
        assert found.scores == none.scores
        assert found.candidates == ()
        assert none["micro-F1"].value == none["micro-F1 at 0.5"].value


@pytest.mark.parametrize("share", [0, 1])
def test_a_label_of_no_sample_or_of_all_is_predicted_by_its_frequency(share):
    train, validation, test = parts_of()
    given = [
        replace(of, labels=torch.cat([of.sets[:, :2], torch.full((len(of), 1), bool(share))], 1), names=tuple("abc"))
        for of in (train, validation, test)
    ]
    probes = Regression(given[0]).fit(0.1, 1e-4)
    expected = (share * len(train) + 0.5) / (len(train) + 1)
    assert probes.logits(test.vectors)[:, 2].sigmoid().tolist() == pytest.approx([expected] * len(test), rel=1e-5)
    scores = LinearProbe()(*given).scores
    assert all(math.isfinite(score.value) for score in scores)
    macro = next(score for score in scores if score.metric.name == "mAP")
    assert ("1 of 3 labels not in this part" in macro.notes) == (share == 0)


def test_constant_and_repeated_features_change_nothing():
    train, *_ = parts_of()
    probes = Regression(train).fit(0.1, 1e-7)
    more = torch.cat([train.vectors, torch.full((len(train), 2), 1e4)], dim=1)
    with_constants = Regression(Features(more, train.sets)).fit(0.1, 1e-7)
    torch.testing.assert_close(with_constants.logits(more), probes.logits(train.vectors), rtol=1e-3, atol=1e-3)
    wide = Features(train.vectors.repeat(1, 30), train.sets)  # more features than samples
    assert torch.isfinite(Regression(wide).fit(0.1, 1e-4).weight).all()


def test_penalties_are_chosen_on_validation_and_the_path_goes_on_where_its_end_is_best():
    """Of labels whose best penalty is one by far; the path is fitted to the end, so that no rounding chooses."""
    train, validation, _ = parts_of()
    of_labels = [1, 2, 3, 4]  # of label 0, small penalties are all as good
    losses = []
    for penalty in (path := [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0]):
        logits = Regression(train).fit(penalty, 1e-8).logits(validation.vectors)
        of_all = binary_cross_entropy_with_logits(logits, validation.sets.float(), reduction="none").mean(dim=0)
        losses.append(of_all[of_labels])
    best, second = torch.stack(losses).sort(dim=0).values[:2]
    assert (second > 1.005 * best).all()
    wanted = [path[place] for place in torch.stack(losses).argmin(dim=0)]
    assert max(wanted) > 1e-4
    probe = LinearProbe(penalties=(1e-5, 1e-4), tolerance=1e-8)
    assert probe.choose(train, validation).penalties[of_labels].tolist() == pytest.approx(wanted)


def test_a_refit_learns_from_validation_too_with_the_same_choices():
    train, validation, test = parts_of()
    once, twice = (LinearProbe()(train, validation, test, refit=refit) for refit in (False, True))
    assert once.headline[0].settings == twice.headline[0].settings
    other = Regression(joined(train, validation)).fit(0.1, 1e-4).logits(test.vectors).sigmoid()
    alone = LinearProbe(penalty=0.1)(train, validation, test, refit=True)
    assert alone["mAP"].value == pytest.approx(selecting_score("mine", Predicted(other, test)).value, abs=0.005)


def test_scores_are_those_of_scikit_learn_by_thresholds_from_validation():
    train, validation, test = parts_of()
    probes = Regression(train).fit(0.1, 2e-3)
    chosen, predicted = (probes.logits(of.vectors).sigmoid() for of in (validation, test))
    found = label_set_scores("x", Predicted(predicted, test), Predicted(chosen, validation), train.counts)
    tried = sorted({*chosen.flatten().tolist(), 0.0})
    known = validation.sets
    common = max(tried, key=lambda of: 2 * int((known & (chosen > of)).sum()) / int(known.sum() + (chosen > of).sum()))
    assert found["micro-F1"].value == pytest.approx(f1_score(test.sets, predicted > common, average="micro"), abs=0.02)
    some, half = test.sets.any(1), predicted > 0.5
    expected = {
        "micro-F1 at 0.5": f1_score(test.sets, half, average="micro"),
        "macro-F1 at 0.5": f1_score(test.sets, half, average="macro", zero_division=0),
        "mAP": average_precision_score(test.sets, predicted),
        "Hamming loss": hamming_loss(test.sets, half),
        "LRAP": label_ranking_average_precision_score(test.sets[some], predicted[some]),
        "coverage error": coverage_error(test.sets[some], predicted[some]),
    }
    assert {name: found[name].value for name in expected} == pytest.approx(expected)


RARE = [(1,), (1,) * 10, (1, 1, 2, 2, 3, 5, 10, 20, 40, 60)]  # samples of each label


def draws(positives, rounds=60, samples=120):
    """Score two predictors in turn on fresh samples of the same labels, again and again."""
    found = []
    generator = np.random.default_rng(0)
    for _ in range(rounds):
        sets = np.zeros((samples, len(positives)), bool)
        for label, count in enumerate(positives):
            sets[generator.choice(samples, count, replace=False), label] = True
        first = generator.normal(size=sets.shape) + sets * np.linspace(1, 3.5, len(positives))
        second = first + generator.normal(scale=0.7, size=sets.shape) + sets * 0.5
        features = Features(torch.zeros(samples, 1), torch.from_numpy(sets))
        training = torch.tensor(positives)
        for scores in (first, second):
            predicted = Predicted(torch.from_numpy(scores).sub(2).sigmoid(), features)
            found.append(label_set_scores("x", predicted, predicted, training))
    return found


@pytest.mark.parametrize("positives", RARE, ids=str)
def test_intervals_and_differences_cover_the_mean_where_labels_have_few_samples(positives):
    results = draws(positives)
    for metric in ("mAP", "macro-F1 at 0.5"):
        found = [one[metric] for one in results[::2]]
        mean = np.mean([score.value for score in found])
        assert np.mean([score.low <= mean <= score.high for score in found]) >= 0.85
        outcomes = [of for one in results for of in one.outcomes if of.metric == metric]
        if len(positives) < 10:  # of so few samples there are none
            continue
        found = [paired_difference(*pair) for pair in zip(outcomes[::2], outcomes[1::2], strict=True)]
        mean = np.mean([difference.value for difference in found])
        assert np.mean([difference.low <= mean <= difference.high for difference in found]) >= 0.85
        values = [float(of.values.double().mean()) for of in outcomes]
        assert [of.value for of in found] == pytest.approx(np.subtract(values[::2], values[1::2]), abs=1e-6)


def test_a_perfect_score_of_few_samples_has_an_interval_and_of_fewer_than_five_no_outcomes():
    sets = torch.zeros(40, 2, dtype=torch.bool)
    sets[0, 0] = sets[1, 1] = True
    perfect = Predicted(sets.double(), Features(torch.zeros(40, 1), sets))
    found = label_set_scores("x", perfect, perfect, torch.tensor([9, 9]))
    assert all(found[metric].low < 0.5 < found[metric].value == 1 for metric in ("mAP", "micro-F1", "macro-F1", "LRAP"))
    assert found["Hamming loss"].high > 0
    assert {of.metric for of in found.outcomes} == {"Hamming loss", "LRAP", "coverage error"}


def test_labels_stand_by_themselves_and_in_thirds_by_their_training_frequency_and_outcomes_have_the_mean():
    train, validation, test = parts_of()
    found = LinearProbe()(train, validation, test)
    scores = {(score.metric.name, str(score.group)): score.value for score in found.scores}
    order = train.counts.argsort(descending=True, stable=True).tolist()
    by_label = {of: scores["average precision", f"label {of}"] for of in range(5) if test.sets[:, of].any()}
    for name, places in {"head labels": order[:2], "middle labels": order[2:4], "tail labels": order[4:]}.items():
        assert scores["mAP", name] == pytest.approx(np.mean([by_label[of] for of in places if of in by_label]))
    for outcomes in found.outcomes:
        assert outcomes.values.double().mean().item() == pytest.approx(scores[outcomes.metric, "all"], abs=1e-6)


def test_votes_of_neighbours_are_those_of_a_loop_in_any_portions(monkeypatch):
    monkeypatch.setattr("likewise.evaluation.knn.LABELS", 64)
    train, _, test = parts_of()
    for weights in ("uniform", "similarity"):
        knn = KNN(7, weights)
        predicted = knn._predict(train, test, [3, 7], [weights], silent)  # noqa: SLF001 - the votes themselves
        first, second = (torch.nn.functional.normalize(of.vectors.double()) for of in (test, train))
        for row in range(len(test)):
            similar = second @ first[row]
            near = similar.argsort(descending=True)
            for k in (3, 7):
                own = near[:k]
                weight = torch.ones(k).double() if weights == "uniform" else (similar[own] / 0.07).exp()
                expected = (weight.unsqueeze(1) * train.sets[own]).sum(0) / weight.sum()
                np.testing.assert_allclose(predicted[k, weights][row].numpy(), expected.numpy(), atol=2e-4)


def test_the_usual_evaluations_apply_to_label_sets_and_say_what_they_lack():
    train, validation, test = parts_of()
    assert [of.name for of in applicable(FeatureParts(train, validation, test))] == ["kNN", "linear probe", "retrieval"]
    nothing = replace(test, labels=torch.zeros_like(test.sets))
    with pytest.raises(ValueError, match="it needs test samples with a label"):
        LinearProbe()(train, validation, nothing)
    with pytest.raises(ValueError, match="a label that some training samples have"):
        KNN()(replace(train, labels=torch.ones_like(train.sets)), validation, test)
    with pytest.raises(ValueError, match="a label that 2 test samples have"):
        Retrieval()(train, validation, nothing)
    with pytest.raises(ValueError, match="test labels that were trained on"):
        KNN()(replace(train, names=tuple("vwxyz")), validation, test)
