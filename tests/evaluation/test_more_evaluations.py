"""Calibration, out-of-distribution detection and robustness, against loops and scikit-learn, and their refusals."""

import math
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.covariance import ledoit_wolf
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss, roc_auc_score
from torch.nn import functional

from likewise.cli import main
from likewise.data import CORRUPTIONS, Samples, Source, corrupted
from likewise.data.corruptions import CorruptedRows
from likewise.evaluation import (
    Calibration,
    FeatureParts,
    Features,
    LinearProbe,
    Origin,
    OutOfDistribution,
    Robustness,
    applicable,
)
from likewise.evaluation.intervals import bootstrap_indices
from likewise.evaluation.linear import temperature_of
from likewise.evaluation.out_of_distribution import Mahalanobis, auroc, false_positives, neighbour_of
from likewise.evaluation.probe_quality import _bounds, bin_indices, calibration_error
from likewise.runs import Run
from likewise.runs.scores import remarks
from made_runs import blobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*", "ignore:.*does not have many workers.*"),
]


@pytest.fixture
def parts():
    return FeatureParts(blobs(90, "train", 1), blobs(45, "validation", 2), blobs(60, "test", 3))


class Given(Source):
    """Inputs that are at hand."""

    def __init__(self, inputs):
        self.inputs = inputs

    def load(self):
        return Samples(self.inputs)


def values(found):
    return {score.metric.name: score.value for score in found.headline}


def test_calibration_scores_are_those_of_loops(parts):
    found = Calibration(bins=7)(*parts)
    probe = LinearProbe().choose(parts.train, parts.validation).probe
    logits = parts.test.vectors.double() @ probe.weight + probe.bias
    probabilities, labels = logits.softmax(dim=1).numpy(), parts.test.labels.numpy()
    error, brier = 0.0, 0.0
    for m in range(7):
        inside = [i for i, p in enumerate(probabilities) if m / 7 < p.max() <= (m + 1) / 7]
        if inside:
            right = np.mean([probabilities[i].argmax() == labels[i] for i in inside])
            error += len(inside) / 60 * abs(right - np.mean([probabilities[i].max() for i in inside]))
    for p, label in zip(probabilities, labels, strict=True):
        brier += sum((p[c] - (c == label)) ** 2 for c in range(3)) / 60
    expected = [error, log_loss(labels, probabilities), brier]
    assert [score.value for score in found.headline] == pytest.approx(expected, rel=1e-4)
    for score, outcomes in zip(found.headline[1:], found.outcomes, strict=True):
        interval = stats.ttest_1samp(outcomes.values.numpy(), 0).confidence_interval(0.95)
        assert (score.low, score.high) == pytest.approx((interval.low, interval.high), rel=1e-5)
        assert (outcomes.metric, float(outcomes.values.mean())) == (score.metric.name, pytest.approx(score.value))
    bins = [score for score in found.scores if str(score.group) != "all"]
    pairs = list(zip(bins[::2], bins[1::2], strict=True))
    assert {(str(a.metric), str(c.metric), a.group == c.group) for a, c in pairs} == {("accuracy", "confidence", True)}
    assert error == pytest.approx(sum(a.count / 60 * abs(a.value - c.value) for a, c in pairs), rel=1e-4)


def test_a_probability_on_an_edge_belongs_to_the_bin_below():
    assert bin_indices(torch.tensor([1e-9, 0.25, 0.2500001, 0.75, 1.0]), 4).tolist() == [0, 0, 1, 2, 3]


def test_the_interval_of_the_calibration_error_covers_the_truth():
    """Of probes that are calibrated, and of those that are too confident by 0.15, whose error is known to be 0.15."""
    generator = torch.Generator().manual_seed(0)
    for excess in (0.0, 0.15):
        covered = 0
        for _ in range(40):
            stated = 0.5 + 0.5 * torch.rand(400, generator=generator, dtype=torch.float64)
            right = torch.rand(400, generator=generator, dtype=torch.float64) < stated - excess
            value = calibration_error(stated, right)
            low, high = _bounds(value, stated, right, 15, seed=0)
            assert 0 <= low <= value <= high <= 1
            covered += low <= excess <= high
        assert covered >= 34  # of 40; by the plain percentiles it is 0 for a calibrated probe


def test_a_temperature_is_fitted_on_validation_and_never_on_test(parts):
    probe = LinearProbe(1e-5).choose(parts.train, parts.validation).held_out
    logits, labels = parts.validation.vectors.double() @ probe.weight + probe.bias, parts.validation.labels
    heat = temperature_of(lambda: [(slice(None), logits)], labels)
    other = FeatureParts(parts.train, parts.validation, blobs(60, "test", 9))
    for of, refit in ((parts, False), (parts, True), (other, False)):
        found = Calibration(temperature_scaling=True, penalty=1e-5)(*of, refit=refit)
        assert found.headline[0].settings == {"penalty": 1e-5, "temperature": pytest.approx(heat, rel=1e-3)}
    plain, scaled = (Calibration(temperature_scaling=on, penalty=1e-5)(*parts) for on in (False, True))
    assert values(plain) != values(scaled)


def test_what_calibration_and_distances_cannot_use_is_refused(parts):
    empty, nine = replace(parts.train[torch.arange(0)], part="validation"), Given(torch.rand(9, 5))
    learned = Given(parts.train.vectors[:30])
    for make, told in (
        (lambda: Calibration(bins=0), "bins from 1 to 100, got 0"),
        (lambda: Calibration(penalty=-1.0), "penalty above 0"),
        (lambda: Calibration(temperature_scaling=True)(parts.train, empty, parts.test), "needs a validation part"),
        (lambda: OutOfDistribution(nine, k=0), "k of at least 1"),
        (lambda: OutOfDistribution(nine, most=1), "most of at least 2"),
        (lambda: applicable(parts, [OutOfDistribution(Given(torch.rand(9, 6)))]), r"of shape \(5,\), .* are \(6,\)"),
        (lambda: OutOfDistribution(Given(torch.rand(1, 5)))(*parts), "at least 2 outside samples, and there are 1"),
        (lambda: OutOfDistribution(nine)(empty, *parts[1:]), "needs a training part"),
        (lambda: OutOfDistribution(learned)(*parts), "got 30 of 30 from Given that are training samples: name another"),
    ):
        with pytest.raises(ValueError, match=told):
            make()
    assert Calibration(penalty=0.1)(parts.train, empty, parts.test).headline[0].count == 60


@pytest.mark.parametrize("levels", [3, 10_000], ids=str)
def test_auroc_is_scikit_learns_with_ties_too(levels):
    generator = torch.Generator().manual_seed(levels)
    inside = torch.randint(levels, (70,), generator=generator).float()
    outside = torch.randint(levels, (110,), generator=generator).float() + levels // 4
    truth = [0] * 70 + [1] * 110
    assert auroc(inside, outside)[0] == pytest.approx(roc_auc_score(truth, torch.cat([inside, outside]).numpy()))
    assert auroc(outside, inside)[0] == pytest.approx(1 - auroc(inside, outside)[0])


def test_delongs_variance_is_that_of_a_loop_over_pairs():
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(30, generator=generator), 1 + torch.randn(20, generator=generator)
    wins = np.array([[(x < y) + 0.5 * (x == y) for y in outside.tolist()] for x in inside.tolist()])
    area = wins.mean()
    deviation = math.sqrt(np.var(wins.mean(axis=1), ddof=1) / 30 + np.var(wins.mean(axis=0), ddof=1) / 20)
    reach = stats.norm.ppf(0.975) * deviation / (area * (1 - area))
    expected = [1 / (1 + math.exp(-(math.log(area / (1 - area)) + sign * reach))) for sign in (-1, 1)]
    assert auroc(inside, outside) == pytest.approx((area, *expected))
    area, low, high = auroc(torch.arange(40.0), torch.arange(100.0, 150.0))
    assert (area, high, low) == (1, 1, pytest.approx(0.9124, abs=1e-4))  # Wilson's, 40 of 40
    same, low, high = auroc(torch.ones(10), torch.ones(10))
    assert low < same == 0.5 < high


def test_the_false_positive_rate_is_that_of_a_loop():
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(83, generator=generator), 1.5 + torch.randn(57, generator=generator)
    threshold = next(x for x in sorted(inside.tolist()) if np.mean(inside.numpy() <= np.float32(x)) >= 0.95)
    expected = np.mean([y <= threshold for y in outside.tolist()])
    value, low, high = false_positives(inside, outside)
    assert value == pytest.approx(expected)
    assert 0 <= low < value < high <= 1
    assert (value, low, high) == false_positives(inside, outside)  # by the same seed
    assert false_positives(torch.arange(40.0), torch.arange(100.0, 150.0))[2] > 0.05


def test_resamples_are_of_the_right_size():
    blocks = list(bootstrap_indices(3, 100_000, times=100))
    assert sum(len(first) for first, _ in blocks) == 100
    assert {tuple(of.shape[1] for of in block) for block in blocks} == {(3, 100_000)}


@pytest.mark.parametrize("count", [400, 20], ids=["many samples", "fewer than features"])
def test_mahalanobis_distances_are_those_of_a_loop_with_scikit_learns_covariance(count):
    train, test = blobs(count, "train", 1, width=30), blobs(12, "test", 2, width=30)
    vectors, labels = train.vectors.double().numpy(), train.labels.numpy()
    means = np.stack([vectors[labels == c].mean(axis=0) for c in range(3)])
    covariance, _ = ledoit_wolf(vectors - means[labels], assume_centered=True)
    precision = np.linalg.inv(covariance)
    expected = [min(math.sqrt((x - m) @ precision @ (x - m)) for m in means) for x in test.vectors.double().numpy()]
    assert Mahalanobis(train).distances(test.vectors).tolist() == pytest.approx(expected, rel=1e-6)
    same = Features(torch.zeros(6, 3), torch.arange(6) % 2)  # constant features
    assert bool(Mahalanobis(same).distances(torch.ones(2, 3)).isfinite().all())


def test_out_of_distribution_measures_both_distances(parts):
    outside = blobs(40, "outside", 7, spread=4.0).vectors
    found = OutOfDistribution(Given(outside), k=4)(*parts)
    units = [functional.normalize(of.double()) for of in (parts.train.vectors, parts.test.vectors, outside)]
    inside, others = ([sorted(float((x - y).norm()) for y in units[0])[3] for x in of] for of in units[1:])
    truth = [0] * 60 + [1] * 40
    assert found.headline[0].value == pytest.approx(roc_auc_score(truth, inside + others))
    measured = Mahalanobis(parts.train)
    distances = torch.cat([measured.distances(of) for of in (parts.test.vectors, outside)])
    assert found.headline[2].value == pytest.approx(roc_auc_score(truth, distances.numpy()))
    rates = [("AUROC", 100), ("FPR at 95 % TPR", 40)]
    named = [(f"{name}, {of} distance", count) for of in ("kNN", "Mahalanobis") for name, count in rates]
    assert [(score.metric.name, score.count) for score in found.headline] == named
    assert remarks(found.headline[0]) == "k=4; outside samples=40, outside=Given"
    plain = FeatureParts(*(Features(of.vectors, None, part=of.part) for of in parts))
    some = OutOfDistribution(Given(torch.randn(40, 5)), k=1000, most=7)(*plain)
    assert [score.metric.name for score in some.headline] == [name for name, _ in named[:2]]  # without labels
    assert remarks(some.headline[0]) == "k=90; outside samples=7, outside=Given"
    sizes = {(1500, 150): 5, (5000, 10): 50, (7, 7): 1}  # k, where classes are small
    assert all(neighbour_of(Features(torch.rand(n, 2), torch.arange(n) % c)) == k for (n, c), k in sizes.items())
    assert neighbour_of(Features(torch.rand(30, 2), None)) == 50


def test_outside_inputs_are_encoded_where_the_encoder_is_known(parts):
    def encode(inputs):
        return inputs[torch.arange(len(inputs))].flatten(1)[:, :5]

    images = torch.rand(25, 1, 2, 3)
    known = FeatureParts(*(replace(of, origin=Origin(Samples(torch.rand(len(of), 1, 2, 3)), encode)) for of in parts))
    ours, theirs = OutOfDistribution(Given(images))(*known), OutOfDistribution(Given(encode(images)))(*parts)
    assert values(ours) == values(theirs)
    with pytest.raises(ValueError, match=r"needs outside inputs of shape \(1, 2, 3\), and .* \(5,\)"):
        OutOfDistribution(Given(encode(images)))(*known)


def scene(count=6, channels=3, height=24, width=20):
    """Smooth images with an edge, from 0.2 to 0.8."""
    across = torch.linspace(0, 1, width).expand(count, channels, height, width)
    down = torch.linspace(0, 1, height)[:, None]
    edge = (torch.arange(width) >= 3 * width // 7).float()
    return (0.2 + 0.2 * across + 0.2 * down + 0.2 * edge).contiguous()


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(3, 24, 20), (5, 3, 7), (2, 1, 1)], ids=str)
def test_a_corruption_keeps_shape_and_range_and_depends_on_the_row_only(name, shape):
    images = torch.randint(0, 256, (6, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    rows = torch.tensor([40, 3, 7, 8, 1, 2])
    whole = corrupted(images, rows, name, 5)
    assert (whole.shape, whole.dtype) == (images.shape, torch.float32)
    assert 0 <= float(whole.min()) <= float(whole.max()) <= 1
    few = torch.tensor([4, 1])
    torch.testing.assert_close(corrupted(images[few], rows[few], name, 5), whole[few], rtol=0, atol=1e-6)
    torch.testing.assert_close(corrupted(images / 255, rows, name, 5), whole)
    random = {"gaussian noise", "shot noise", "impulse noise"}
    if name in random and shape == (3, 24, 20):
        assert not torch.equal(corrupted(images, rows, name, 5, seed=1), whole)
        assert not torch.equal(*corrupted(images[:1].expand(2, -1, -1, -1), torch.tensor([0, 1]), name, 5))


def test_a_corruption_grows_with_its_severity():
    coarse = torch.rand(6, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    images, rows = functional.interpolate(coarse, (48, 40), mode="bilinear"), torch.arange(6)
    for name in CORRUPTIONS:
        away = [float((corrupted(images, rows, name, severity) - images).abs().mean()) for severity in range(1, 6)]
        assert away == sorted(away), name
        assert 0.001 < away[0] < away[4], name


def test_noise_has_the_mean_and_variance_that_it_says():
    images, rows = torch.full((8, 3, 60, 60), 0.5), torch.arange(8)
    spread = {name: corrupted(images, rows, name, 1) - 0.5 for name in ("gaussian noise", "shot noise")}
    assert all(abs(float(of.mean())) < 0.002 for of in spread.values())
    assert float(spread["gaussian noise"].std()) == pytest.approx(0.04, rel=0.03)
    assert float(spread["shot noise"].std()) == pytest.approx(math.sqrt(0.5 / 160), rel=0.03)
    impulses = corrupted(images, rows, "impulse noise", 5)
    shares = [float((impulses == value).double().mean()) for value in (0, 0.5, 1)]
    assert shares == pytest.approx([0.085, 0.83, 0.085], abs=0.005)


def test_light_and_resolution_change_as_they_say():
    images, rows = scene(), torch.arange(6)
    brighter = corrupted(images, rows, "brightness", 2)
    torch.testing.assert_close(brighter, (images + 0.18).clamp(max=1))
    flat = corrupted(images, rows, "contrast", 3)
    torch.testing.assert_close(flat.mean(dim=(2, 3)), images.mean(dim=(2, 3)))
    torch.testing.assert_close(flat.std(dim=(2, 3)), 0.35 * images.std(dim=(2, 3)))
    coarse = corrupted(images, rows, "pixelate", 3)  # cells of 2 x 2 pixels
    assert all(torch.equal(coarse[..., place::2, :], coarse[..., ::2, :]) for place in (0, 1))


def test_a_blur_is_a_weighted_mean_of_neighbours():
    image = torch.zeros(1, 1, 41, 31)
    image[..., 20, 15] = 1
    blurred = corrupted(image, torch.tensor([0]), "gaussian blur", 5)[0, 0]
    width = 0.055 * 31
    weights = [[math.exp(-((y - 20) ** 2 + (x - 15) ** 2) / (2 * width**2)) for x in range(31)] for y in range(41)]
    expected = torch.tensor(weights) / sum(map(sum, weights))
    torch.testing.assert_close(blurred, expected, rtol=1e-3, atol=1e-5)
    flat = torch.full((1, 2, 9, 9), 0.3)
    torch.testing.assert_close(corrupted(flat, torch.tensor([0]), "gaussian blur", 5), flat)


def test_translation_and_rotation_move_a_spot_as_far_as_they_say():
    places = torch.stack(torch.meshgrid(torch.arange(60.0), torch.arange(40.0), indexing="ij"))

    def spot(row, column):
        return torch.exp(-((places[0] - row) ** 2 + (places[1] - column) ** 2) / 8).expand(5, 1, 60, 40).contiguous()

    def middle(images):
        return torch.stack([(images[:, 0] * axis).sum(dim=(1, 2)) / images[:, 0].sum(dim=(1, 2)) for axis in places])

    moved = middle(corrupted(spot(30, 20), torch.arange(5), "translation", 3)) - torch.tensor([[30.0], [20.0]])
    away = (moved / torch.tensor([[60.0], [40.0]])).norm(dim=0)
    torch.testing.assert_close(away, torch.full((5,), 0.12), rtol=0.02, atol=0)
    assert len(moved.T.round(decimals=1).unique(dim=0)) == 5
    turned = middle(corrupted(spot(29.5, 31.5), torch.arange(5), "rotation", 4)) - 29.5
    turned[1] += 10  # the middle of the columns is at 19.5
    angles = torch.rad2deg(torch.atan2(turned[0], turned[1]))
    torch.testing.assert_close(angles.abs(), torch.full((5,), 26.0), rtol=0.02, atol=0)
    torch.testing.assert_close(turned.norm(dim=0), torch.full((5,), 12.0), rtol=0.02, atol=0)
    assert len(angles.sign().unique()) == 2


def test_corrupted_rows_are_made_when_they_are_read():
    images, numbers = scene(), torch.tensor([9, 8, 7, 6, 5, 4])
    rows = CorruptedRows(images, numbers, "shot noise", 2, seed=3)
    assert (len(rows), rows.shape, rows.dtype) == (6, (6, 3, 24, 20), torch.float32)
    whole = corrupted(images, numbers, "shot noise", 2, seed=3)
    some = torch.tensor([5, 0])
    assert torch.equal(rows[some], whole[some])
    assert torch.equal(rows.take(some)[torch.tensor([1])], whole[:1])
    assert corrupted(images[:0], numbers[:0], "shot noise", 2).shape == (0, 3, 24, 20)


def test_what_cannot_be_corrupted_is_refused():
    images, rows = scene(), torch.arange(6)
    for arguments, words in (
        ((images, rows, "gausian noise", 1), "did you mean gaussian noise"),
        ((images, rows, "rotation", 6), "severity from 1 to 5, got 6"),
        ((images[0], rows, "rotation", 1), "expected images .N, channels"),
        ((images.long(), rows, "rotation", 1), "torch.int64"),
        ((255 * images, rows, "rotation", 1), "from 0 to 1, got values from"),
    ):
        with pytest.raises(ValueError, match=words):
            corrupted(*arguments)


def pixels(images):
    """Encode images by their pixels."""
    read = images[torch.arange(len(images))].flatten(1)
    return read.float() if read.is_floating_point() else read / 255


@pytest.fixture(scope="module")
def digits():
    """Features that are the pixels of digits, rows in no order, and their images."""
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    order = torch.randperm(900, generator=torch.Generator().manual_seed(0)).split([400, 200, 300])
    samples = Samples(inputs, torch.tensor(labels), tuple(map(str, range(10)))).numbered()
    parts = []
    for rows, name in zip(order, ("train", "validation", "test"), strict=True):
        part = samples[rows]
        parts.append(Features.of(part, pixels(part.inputs), name, origin=Origin(part, pixels)))
    return FeatureParts(*parts), inputs


def test_robustness_is_that_of_a_loop(digits):
    parts, inputs = digits
    found = Robustness(["gaussian_noise", "rotation"], [2, 5], seed=3)(*parts)
    probe = LinearProbe().choose(parts.train, parts.validation).probe
    each, rows = {}, parts.test.rows
    for name in ("gaussian noise", "rotation"):
        for severity in (2, 5):
            images = corrupted(inputs[rows], rows, name, severity, 3)
            logits = images.flatten(1).double() @ probe.weight + probe.bias
            each[f"{name} severity {severity}"] = (logits.argmax(dim=1) == parts.test.labels).double()
    subsets = {str(score.group): score.value for score in found.scores if str(score.group) != "all"}
    assert subsets == pytest.approx({name: float(right.mean()) for name, right in each.items()})
    right = torch.stack(list(each.values())).mean(dim=0)
    mean, clean = found.headline
    interval = stats.ttest_1samp(right.numpy(), 0).confidence_interval(0.95)
    assert (mean.value, mean.low, mean.high) == pytest.approx((float(right.mean()), interval.low, interval.high))
    assert clean.value == pytest.approx(values(LinearProbe()(*parts))["accuracy"])
    assert mean.value < clean.value
    outcomes = next(one for one in found.outcomes if one.metric == mean.metric.name)
    assert torch.equal(outcomes.rows, rows)
    torch.testing.assert_close(outcomes.values, right.float())
    assert mean.protocol == {"corruptions": ["gaussian noise", "rotation"], "severities": [2, 5]}


def test_robustness_is_refused_without_images(parts):
    known = FeatureParts(*parts[:2], replace(parts.test, origin=Origin(Samples(torch.rand(60, 5)), pixels)))
    refused = "Robustness does not apply: .*"
    for make, told in (
        (lambda: applicable(parts, [Robustness()]), f"{refused}images and their encoder, and there are only vectors"),
        (lambda: applicable(known, [Robustness()]), rf"{refused}shape \(5,\)"),
        (lambda: Robustness(["gausian_noise"]), "did you mean gaussian noise"),
        (lambda: Robustness([]), "at least one of corruptions, each once, got none"),
        (lambda: Robustness(severities=[1, 1]), "each once, got 1, 1"),
        (lambda: Robustness(severities=[0]), "severities from 1 to 5, got 0"),
    ):
        with pytest.raises(ValueError, match=told):
            make()


def test_features_know_their_origin_and_leave_it_behind(digits):
    parts, inputs = digits
    test = parts.test
    few = torch.tensor([7, 2])
    assert torch.equal(test.origin.inputs(test[few].numbers), inputs[test.rows[few]])
    assert test.fewer(3).origin is test.origin
    sent = pickle.loads(pickle.dumps(test))  # noqa: S301 - our own
    assert (sent.origin, torch.equal(sent.vectors, test.vectors)) == (None, True)
    with pytest.raises(ValueError, match="data without 1 of 2"):
        test.origin.inputs(torch.tensor([int(test.rows[0]), 5000]))


SHORT = ["--trainer.max_epochs", "1", "--encoder.width", "4", "--trainer.accelerator", "cpu"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of one epoch on a few digits, evaluated by kNN and under one severity, and a file of other images."""
    root = tmp_path_factory.mktemp("trained")
    images, labels = load_digits(return_X_y=True)
    np.savez(root / "few.npz", images=images[:200].reshape(-1, 8, 8) / 16, labels=labels[:200])
    other = np.random.default_rng(0).random((50, 8, 8))
    np.savez(root / "other.npz", images=other)
    data = ["--data", "Arrays", "--data.path", str(root / "few.npz"), "--batches.batch_size", "36"]
    some = ["--evaluations", "KNN", "--evaluations+", "Robustness", "--evaluations.severities", "[1]"]
    assert main(["train", *data, *SHORT, *some, "--runs", str(root / "runs")]) == 0
    return next((root / "runs").iterdir()), root / "other.npz"


MORE = [
    *("--evaluations", "Robustness", "--evaluations.severities", "[1,5]", "--evaluations+", "Calibration"),
    *("--evaluations+", "OutOfDistribution", "--evaluations.outside", "Arrays"),
]


def test_a_run_is_evaluated_by_name_from_its_saved_features(trained, tmp_path, capsys):
    folder, other = trained
    run = Run(shutil.copytree(folder, tmp_path / folder.name))
    embeddings = run.embeddings.read_bytes()
    before = {str(score.group): score for score in run.scores if score.group.kind == "corruption"}
    assert len(before) == len(CORRUPTIONS)
    assert main(["evaluate", str(run.folder), *MORE, "--evaluations.outside.path", str(other), "--device", "cpu"]) == 0
    assert run.embeddings.read_bytes() == embeddings
    scores = [score for score in Run(run.folder).scores if score.part == "test" and str(score.group) == "all"]
    kinds = {(score.evaluation, score.features) for score in scores}
    both = {"encoder", "raw inputs"}
    expected = {(name, kind) for name in ("kNN", "calibration", "out of distribution") for kind in both}
    assert kinds == expected | {("robustness", "encoder")}
    found = {(score.metric.name, score.features): score for score in scores}
    assert found["AUROC, kNN distance", "raw inputs"].value > 0.99  # noise is no digit
    after = {str(score.group): score for score in Run(run.folder).scores if score.group.kind == "corruption"}
    assert set(after) == {f"{name} severity {severity}" for name in CORRUPTIONS for severity in (1, 5)}
    assert {subset: after[subset] for subset in before} == before  # from saved features as from those just encoded
    page = run.report.read_text(encoding="utf-8")
    assert all(f"<h2>{name}</h2>" in page for name in ("Robustness", "Calibration", "Scores"))
    assert all(f'id="{name}"' in page for name in ("reliability", "robustness"))
    told = capsys.readouterr().out
    assert "robustness, mean accuracy under corruption: " in told
    assert "gaussian noise severity" not in told  # of these there are too many for a terminal


def test_features_from_anywhere_are_compared_with_vectors_of_their_length(trained, tmp_path, capsys):
    _, other = trained
    np.savez(tmp_path / "outside.npz", vectors=np.random.default_rng(0).normal(size=(30, 6)))
    vectors, labels = np.random.default_rng(1).normal(size=(90, 6)), np.arange(90) % 3
    np.savez(tmp_path / "mine.npz", features=vectors + np.eye(6)[labels], labels=labels)
    words = ["evaluate", str(tmp_path / "mine.npz"), "--runs", str(tmp_path / "runs"), "--evaluations"]
    outside = ["OutOfDistribution", "--evaluations.outside", "Arrays", "--evaluations.outside.path"]
    assert main([*words, *outside, str(tmp_path / "outside.npz")]) == 0
    assert "out of distribution, AUROC, kNN distance: " in capsys.readouterr().out
    np.savez(tmp_path / "vectors.npz", vectors=vectors, labels=labels)
    train = ["train", "--data", "Arrays", "--data.path", str(tmp_path / "vectors.npz"), "--encoder", "MLP"]
    train += ["--runs", str(tmp_path / "new"), "--trainer.accelerator", "cpu", "--batches", "Views"]
    shapes = "needs outside inputs of shape (6,), and those of the source are (1, 8, 8)"
    for refused, told in (
        ([*words, *outside, str(other)], shapes),
        ([*words, *outside, str(tmp_path / "nowhere.npz")], "does not exist"),
        ([*words, "Robustness", "--evaluations.corruptions", "[gausian_noise]"], "did you mean gaussian noise"),
        ([*words, "OutOfDistribution"], "outside"),
        ([*train, "--evaluations", "Robustness"], "inputs are vectors of shape (6,)"),
    ):
        assert main(refused) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert told in line
    assert not (tmp_path / "new").exists()  # refused before training
