"""What predicts new features, against scikit-learn, plain loops and the evaluations themselves."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.preprocessing import StandardScaler
from torch import nn

import likewise as lw
from likewise.data import Samples
from likewise.evaluation import KNN, FeatureParts, Features, LinearProbe, OwnClassifier, save_features
from likewise.evaluation.label_metrics import best_thresholds
from likewise.evaluation.linear import temperature_of
from likewise.evaluation.logistic_regression import _principal
from likewise.evaluation.out_of_distribution import NoveltyScore
from likewise.evaluation.run_predictors import RunPredictors
from likewise.models import MLP, ProjectionHead
from likewise.runs import Run
from likewise.training import Pretraining, pretraining

pytestmark = pytest.mark.slow

NAMES = tuple(f"digit {digit}" for digit in range(10))
OF_SETS = ("even", "prime", "above 4", "square", "nine")  # the last one rare
ORDER = torch.randperm(1797, generator=torch.Generator().manual_seed(0))


def parted(labels, names):
    pixels = torch.from_numpy(load_digits().data).float()
    cuts = {"train": ORDER[:600], "validation": ORDER[600:750], "test": ORDER[750:1200]}
    return FeatureParts(*(Features(pixels[rows], labels[rows], names, part=part) for part, rows in cuts.items()))


@pytest.fixture(scope="module")
def digits():
    return parted(torch.from_numpy(load_digits().target), NAMES)


@pytest.fixture(scope="module")
def sets():
    digit = torch.from_numpy(load_digits().target)
    columns = [digit % 2 == 0, torch.isin(digit, torch.tensor([2, 3, 5, 7])), digit > 4]
    columns += [torch.isin(digit, torch.tensor([0, 1, 4, 9])), (digit == 9) & (torch.arange(1797) % 3 == 0)]
    return parted(torch.stack(columns, dim=1), OF_SETS)


@pytest.fixture
def run(tmp_path):
    run = Run.create(tmp_path, "mine")
    run.describe({})
    return run


def kept(run, parts, *results):
    with run.writing(run.embeddings.name) as path:
        save_features(path, parts)
    for result in results:
        run.add(result)
    return RunPredictors(run)


def macro_f1(predictor, test):
    decided = (predictor.scores(test.vectors) > predictor.thresholds).numpy()
    return f1_score(test.sets.numpy(), decided, average="macro", zero_division=0)


@pytest.mark.parametrize("refit", [False, True])
def test_the_probe_that_a_run_keeps_predicts_as_it_was_evaluated(digits, run, refit):
    found = LinearProbe()(*digits, refit=refit)
    probe = kept(run, digits, found).predictor("probe")
    scores = probe.scores(digits.test.vectors)
    predictions = next(one.values for one in found.outcomes if one.metric == "prediction")
    assert scores.argmax(dim=1).tolist() == predictions.long().tolist()
    assert torch.allclose(scores.sum(dim=1), torch.ones(450, dtype=torch.float64))
    assert (probe.names, probe.settings) == (NAMES, found["accuracy"].settings)
    assert repr(probe) == repr(found.predictor) == "LinearPredictor(linear probe: 10 classes)"
    assert torch.equal(scores, found.predictor.scores(digits.test.vectors))
    before = run.probe.read_bytes()
    run.add(LinearProbe(1e-2)(*(replace(part, kind="raw inputs", vectors=-part.vectors) for part in digits)))
    assert run.probe.read_bytes() == before  # raw inputs leave the probe of the encoder
    for content in (b"", b"nothing", before[:-100]):
        run.probe.write_bytes(content)
        with pytest.raises(ValueError, match=r"expected a classifier in .*probe\.safetensors, got .*evaluate"):
            RunPredictors(run).predictor()


def test_the_probe_that_a_run_keeps_is_scikit_learns(digits, run):
    """With features as they come: standardisation is in the weights."""
    probe = kept(run, digits, LinearProbe(1e-2, tolerance=1e-9)(*digits)).predictor()
    scaler = StandardScaler().fit(digits.train.vectors.double().numpy())
    train, test = (scaler.transform(part.vectors.double().numpy()) for part in (digits.train, digits.test))
    theirs = LogisticRegression(C=1 / (1e-2 * 600), tol=1e-9, max_iter=5000).fit(train, digits.train.labels.numpy())
    logits = theirs.decision_function(test) / probe.temperature
    expected = torch.from_numpy(logits).softmax(dim=1)
    assert torch.allclose(probe.scores(digits.test.vectors), expected, atol=1e-3)


def test_thresholds_of_labels_are_those_of_validation(sets, run):
    found = LinearProbe()(*sets)
    probe = kept(run, sets, found).predictor()
    assert found["macro-F1"].value == pytest.approx(macro_f1(probe, sets.test), abs=1e-9)
    validated = probe.scores(sets.validation.vectors)
    assert torch.equal(probe.thresholds, best_thresholds(validated, sets.validation.sets))


def test_a_temperature_is_the_best_of_a_fine_grid():
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(0, 4, (300,), generator=generator)
    logits = 3 * torch.randn(300, 4, generator=generator, dtype=torch.float64)
    logits[torch.arange(300), classes] += 2.0

    def loss(heat):
        total = 0.0
        for row, own in zip(logits.tolist(), classes.tolist(), strict=True):
            weights = [math.exp(value / heat) for value in row]
            shares = [weight / sum(weights) for weight in weights]
            other = max(share for number, share in enumerate(shares) if number != own)
            total -= 601 / 602 * math.log(shares[own]) + 1 / 602 * math.log(other)
        return total

    grid = np.geomspace(0.5, 20, 200)
    chunks = [(slice(0, 200), logits[:200]), (slice(200, 300), logits[200:])]
    assert temperature_of(lambda: chunks, classes) == pytest.approx(min(grid, key=loss), rel=0.02)


@pytest.mark.parametrize(("weights", "temperature"), [("uniform", 0.07), ("similarity", 0.07), ("similarity", 0.5)])
def test_neighbours_of_a_run_predict_as_a_plain_loop(digits, run, weights, temperature):
    """With the temperature that it was evaluated with, which is told where it is not the usual one."""
    found = KNN(30, weights, temperature)(*digits)
    scores = kept(run, digits, found).predictor("knn").scores(digits.test.vectors[:40])
    units = nn.functional.normalize(digits.train.vectors.double())
    for row, vector in zip(scores, digits.test.vectors[:40].double(), strict=True):
        similarities = (units @ (vector / vector.norm())).tolist()
        votes = np.zeros(10)
        for number in sorted(range(600), key=lambda number: -similarities[number])[:30]:
            vote = 1 if weights == "uniform" else math.exp((similarities[number] - 1) / temperature)
            votes[digits.train.classes[number]] += vote
        assert row.tolist() == pytest.approx(votes / votes.sum(), abs=1e-5)
    told = {score.settings.get("temperature") for score in found.scores}
    assert told == {None if temperature == 0.07 else temperature}


def test_neighbours_of_a_run_predict_as_it_was_evaluated(digits, sets, run):
    """Of pairs by each input once."""
    again = torch.arange(len(digits.train)).repeat_interleave(1 + 8 * (digits.train.classes == 3))
    pairs = digits._replace(train=replace(digits.train, items=torch.arange(len(digits.train)))[again])
    for parts, knn in ((digits, KNN()), (pairs, KNN(5, "uniform"))):
        found = knn(*parts)
        learned = kept(run, parts, found)
        expected = next(one.values for one in found.outcomes if one.metric == "prediction")
        assert torch.equal(learned.predictor("knn").scores(digits.test.vectors).argmax(dim=1), expected.long())
        assert len(learned.features.train) == len(digits.train)
    found = KNN()(*sets)
    predictor = kept(run, sets, found).predictor()
    assert found["macro-F1"].value == pytest.approx(macro_f1(predictor, sets.test), abs=1e-9)


def trained(loss, parts):
    """Return features with predictions, and what was trained a few steps with an encoder, of digits or label sets."""
    torch.manual_seed(0)
    encoder = MLP((64,), width=16)
    samples = Samples(parts.train.vectors, parts.train.labels, parts.train.names)
    head = ProjectionHead(16, out_dim=8, batch_norm=True)
    module = Pretraining(encoder, head, loss, torch.optim.AdamW, samples=samples)
    for parameter in module.parameters():  # as if trained
        parameter.data += 0.1 * torch.randn_like(parameter)
    with torch.no_grad():
        encoded = [replace(part, vectors=encoder.eval()(part.vectors)) for part in parts]
    return FeatureParts(*map(module.with_predictions, encoded)), module


def keep_own(run, parts, module):
    """Keep the classifier in a run, as the training does."""
    options = {"feature_dim": 16, "out_dim": 8, "batch_norm": True}
    run.describe({"parts": {"head": {"class_path": "likewise.models.ProjectionHead", "init_args": options}}})
    run.write(run.classifier.name, module.predictor(parts).to_bytes())
    return kept(run, parts)


@pytest.mark.parametrize("loss", [lw.CrossEntropyLoss(), lw.BCLLoss(), lw.BCELoss(), lw.MSCLoss()])
def test_the_own_classifier_predicts_without_its_run(digits, sets, run, loss):
    of_sets = isinstance(loss, lw.BCELoss | lw.MSCLoss)
    parts, module = trained(loss, sets if of_sets else digits)
    predictor = keep_own(run, parts, module).predictor()
    assert (predictor.by, predictor.probabilities) == ("own classifier", not isinstance(loss, lw.MSCLoss))
    scores, predicted = predictor.scores(parts.test.vectors), parts.test.predicted
    if of_sets:
        expected = predicted.sigmoid() if predictor.probabilities else predicted
        assert OwnClassifier()(*parts)["macro-F1"].value == pytest.approx(macro_f1(predictor, parts.test), abs=0.01)
    else:
        expected = (predicted.double() / predictor.temperature).softmax(dim=1)
        right = (scores.argmax(dim=1) == parts.test.classes).double()
        assert float(right.mean()) == OwnClassifier()(*parts)["accuracy"].value
    assert torch.allclose(scores, expected, atol=1e-5)


def test_a_loss_without_a_classifier_leaves_none(digits):
    parts, module = trained(lw.SupConLoss(), digits)
    assert module.predictor(parts) is None


@pytest.mark.parametrize("refit", [False, True])
def test_how_unlike_a_sample_is_is_counted_among_held_out_samples(digits, refit):
    shares = NoveltyScore(digits, refit=refit)(digits.test.vectors[:20])
    learned = torch.cat([digits.train.vectors, digits.validation.vectors]) if refit else digits.train.vectors
    units = nn.functional.normalize(learned)

    def distance(vector):
        half_a_class = len(learned) // 20
        return sorted((1 - units @ nn.functional.normalize(vector, dim=0)).tolist())[half_a_class - 1]

    inside = list(map(distance, (digits.test if refit else digits.validation).vectors))
    for share, vector in zip(shares.tolist(), digits.test.vectors[:20], strict=True):
        far = distance(vector)
        within = [sum(other < far + way for other in inside) / (len(inside) + 1) for way in (-1e-6, 1e-6)]
        assert within[0] <= share <= within[1]


def test_five_percent_of_digits_are_unlike_digits_and_nearly_all_of_something_else(digits):
    unlike = NoveltyScore(digits)
    assert float((unlike(digits.test.vectors) > 0.95).double().mean()) < 0.1
    assert float((unlike(16 * torch.rand(200, 64)) > 0.95).double().mean()) > 0.9
    few = digits._replace(validation=digits.validation[torch.arange(18)])
    assert float(NoveltyScore(few)(-digits.test.vectors).max()) == 18 / 19  # which calls nothing unlike


def test_what_a_run_cannot_predict_by_is_told(digits, run):
    with pytest.raises(ValueError, match=r"run that has learned classes or labels, got .*keeps no features; give"):
        RunPredictors(run).predictor()
    learned = kept(run, digits)
    assert repr(learned.predictor()) == "NeighbourPredictor(20 of 600, similarity)"
    with pytest.raises(ValueError, match=r"no probe\.safetensors: likewise evaluate .* makes it"):
        learned.predictor("probe")
    with pytest.raises(ValueError, match=r"no classifier\.safetensors: predict by probe or knn"):
        learned.predictor("own")
    with pytest.raises(ValueError, match="by as one of probe, own, knn, got 'svm'"):
        learned.predictor("svm")
    with pytest.raises(ValueError, match=r"features \(M, 64\), as the kNN learned from, got \(2, 3\)"):
        learned.predictor().scores(torch.zeros(2, 3))
    unlabelled = kept(run, FeatureParts(*(replace(part, labels=None, names=()) for part in digits)))
    with pytest.raises(ValueError, match="has no labels; give labelled samples to predict by with among"):
        unlabelled.predictor()
    with pytest.raises(ValueError, match="expected labelled samples as among"):
        unlabelled.predictor(among=unlabelled.features.test)
    assert unlabelled.predictor(among=digits.train).by == "kNN"


def test_new_classes_are_predicted_among_given_samples_alone(digits, run):
    """By a run of which the test classes are new, neither its probe nor its neighbours know them."""
    new = replace(digits.test, names=tuple(map(str, range(20, 30))))
    learned = kept(run, digits._replace(test=new))
    with pytest.raises(ValueError, match="test classes that were trained on, and these are others; give labelled"):
        learned.predictor()
    support, query = new[torch.arange(100)], new[torch.arange(100, 450)]
    scores = learned.predictor(among=support).scores(query.vectors)
    assert float((scores.argmax(dim=1) == query.classes).double().mean()) > 0.85
    assert learned.predictor("knn").names == NAMES  # asked for, what was trained on


def test_scores_in_pieces_are_those_of_all_and_those_of_a_large_training_part_are_left_out(digits, monkeypatch):
    whole, module = trained(lw.CrossEntropyLoss(), digits)
    encoded = [replace(part, predictions=None) for part in whole]
    kept_by = module.predictor(whole)
    monkeypatch.setattr(pretraining, "SCORING_BATCH", 7)
    monkeypatch.setattr(pretraining, "SCORES_AT_ONCE", 30)
    pieces = FeatureParts(*map(module.with_predictions, encoded))
    for part, like in zip(pieces, whole, strict=True):
        torch.testing.assert_close(part.predicted, like.predicted, rtol=0, atol=1e-5)
    assert module.predictor(pieces).temperature == pytest.approx(kept_by.temperature, rel=1e-3)
    monkeypatch.setattr(pretraining, "MAX_TRAINING_SCORES", len(digits.train) * 10 - 1)
    fewer = FeatureParts(*map(module.with_predictions, encoded))
    assert [part.predictions is None for part in fewer] == [True, False, False]
    assert module.predictor(fewer).temperature == pytest.approx(kept_by.temperature, rel=1e-3)
    assert OwnClassifier()(*fewer)["accuracy"].value == OwnClassifier()(*whole)["accuracy"].value


def test_a_decomposition_that_fails_in_single_precision_is_made_in_double(monkeypatch):
    """As LAPACK's does for some matrices with a thousand eigenvalues near 0."""
    eigh = torch.linalg.eigh

    def failing(matrix):
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("the algorithm failed to converge")
        return eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", failing)
    rows = torch.randn(4, 12)
    covariance = rows.T @ rows
    found = _principal(covariance)
    assert found.dtype == torch.float32
    variances = (found.T @ covariance @ found).diagonal()
    torch.testing.assert_close(found @ torch.diag(variances) @ found.T, covariance, rtol=1e-4, atol=1e-4)
