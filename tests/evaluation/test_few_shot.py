"""Few-shot evaluation: accuracy against a plain loop, intervals by simulation, and the whole way from the command."""

import itertools
import math
import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.linear_model import LogisticRegression

from likewise.cli import main
from likewise.data import Episodes, EpisodeSampler, EpisodeShape, Parts, Samples, Views, parts_of_run
from likewise.evaluation import (
    FeatureParts,
    Features,
    FewShot,
    Retrieval,
    applicable,
    features_of_file,
    load_features,
    paired_difference,
    save_features,
)
from likewise.evaluation.choice import while_training
from likewise.evaluation.intervals import over_classes, over_classes_of_episodes
from likewise.evaluation.logistic_regression import episode_probe
from likewise.runs import Run
from likewise.runs.score_files import read_outcomes, save_outcomes
from likewise.runs.scores import places_of, validation_score

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*", "ignore:.*does not have many workers.*")


def clustered(classes=12, each=20, dim=8, *, spread=1.0, seed=0, part="test", first=0):
    """Classes of unequal difficulty, far from the origin, as features after a ReLU are."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes * each) % classes
    width = spread * (0.5 + torch.rand(classes, generator=generator))
    points = torch.randn(classes, dim, generator=generator)[labels]
    noise = torch.randn(len(labels), dim, generator=generator) * width[labels, None]
    names = tuple(f"class {first + label}" for label in range(classes))
    return Features((points + noise + 3).clamp(min=0), labels, names, part=part)


def three(classes=12, **options):
    """Parts with disjoint classes."""
    seeds = enumerate(("train", "validation", "test"))
    return FeatureParts(*(clustered(classes, seed=n, part=part, first=n * classes, **options) for n, part in seeds))


def rows_of(test, episodes, ways=5):
    """The rows of one-shot episodes with six queries."""
    return drawn(test, EpisodeShape(episodes, ways, 1, 6))


def drawn(test, shape):
    return EpisodeSampler(test.classes, test.names, shape)(torch.Generator().manual_seed(0))


def by_loop(train, test, shape, distance):
    """Return the share of each class's queries that are right in each episode, (E, N), a query at a time."""
    rows = drawn(test, shape)
    vectors = test.vectors.double()
    if distance == "centred cosine":
        vectors = vectors - train.vectors.double().mean(dim=0)
        vectors = vectors / vectors.norm(dim=1, keepdim=True)
    right = np.zeros((shape.episodes, shape.ways))
    for number, episode in enumerate(rows):
        means = [vectors[of[: shape.shots]].mean(dim=0) for of in episode]
        for label, of in enumerate(episode):
            for query in vectors[of[shape.shots :]]:
                if distance == "euclidean":
                    near = [-float((query - mean).norm()) for mean in means]
                else:
                    near = [float(query @ mean / query.norm() / mean.norm()) for mean in means]
                right[number, label] += near.index(max(near)) == label
    return right / shape.queries


@pytest.mark.parametrize("distance", ["cosine", "euclidean", "centred cosine"])
@pytest.mark.parametrize(("ways", "shots"), [(5, 1), (12, 2)])
def test_accuracy_is_that_of_a_plain_loop(ways, shots, distance):
    train, validation, test = three()
    found = FewShot(ways, shots, 6, 40, distance=distance)(train, validation, test)
    expected = by_loop(train, test, EpisodeShape(40, ways, shots, 6), distance).mean(axis=1)
    (outcomes,) = found.outcomes
    assert outcomes.values.tolist() == pytest.approx(expected, abs=1e-6)
    assert outcomes.of_episodes
    (score,) = found.scores
    assert score.metric.name == f"{ways}-way {shots}-shot accuracy"
    assert score.value == pytest.approx(np.mean(expected))
    assert score.low <= score.value <= score.high
    spread = 1.96 * np.std(expected, ddof=1) / np.sqrt(40)
    told = re.search(r"± ([\d.]+) points over 40 episodes", score.notes[0])
    assert float(told[1]) == pytest.approx(100 * spread, rel=0.06)
    assert score.classes == 12


@pytest.mark.parametrize("distance", ["cosine", "euclidean", "centred cosine"])
@pytest.mark.parametrize("apart", [1e-2, 1e-4])
def test_tight_clusters_far_from_the_origin_keep_their_accuracy(apart, distance):
    """Their cosines differ in the last digits of float32, and the plain loop is in float64."""
    wide = clustered(dim=64, spread=2.0)
    tight = replace(wide, vectors=1 + apart * wide.vectors)
    found = FewShot(5, 5, 6, 60, distance=distance)(tight, tight, tight)
    expected = by_loop(tight, tight, EpisodeShape(60, 5, 5, 6), distance).mean(axis=1)
    assert 0.4 < np.mean(expected) < 0.99
    assert np.abs(np.array(found.outcomes[0].values.tolist()) - expected).max() <= 1 / 30 + 1e-6  # one query in a draw
    assert found.scores[0].value == pytest.approx(np.mean(expected), abs=2e-3)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_a_logistic_regression_in_each_episode_is_scikit_learns(distance):
    """Of unit features; or of features around the mean of the episode's support, wherever their origin is."""
    train, validation, test = three()
    shape = EpisodeShape(15, 5, 3, 6)
    few_shot = FewShot(5, 3, 6, 15, distance=distance, classifier="logistic regression", penalty=0.5)
    found, rows = few_shot(train, validation, test), drawn(test, shape)
    unit = (test.vectors / test.vectors.norm(dim=1, keepdim=True)).double().numpy()
    expected = []
    for episode in rows.numpy():
        if distance == "euclidean":
            unit = test.vectors.double().numpy()
            unit = unit - unit[episode[:, :3].ravel()].mean(axis=0)
        truth = np.repeat(np.arange(5), 3)
        probe = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10, max_iter=10_000)
        probe.fit(unit[episode[:, :3].ravel()], truth)
        expected.append((probe.predict(unit[episode[:, 3:].ravel()]) == np.repeat(np.arange(5), 6)).mean())
    assert found.outcomes[0].values.tolist() == pytest.approx(expected, abs=1e-6)
    assert found.scores[0].metric.name == "5-way 3-shot accuracy, logistic regression"


@pytest.mark.parametrize("penalty", [1.0, 1e-4])
def test_weak_penalties_converge_too(penalty):
    """Five classes of five samples, close to one another, at the penalties that a search may try."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(4, 5, 1, 16, generator=generator) + 1.5 * torch.randn(4, 5, 5, 16, generator=generator)
    support = torch.nn.functional.normalize(drawn, dim=3)
    queries = torch.randn(4, 7, 16, generator=generator)
    found, done = episode_probe(support.double(), queries.double(), penalty)
    assert bool(done.all())
    truth = np.repeat(np.arange(5), 5)
    for own, asked, logits in zip(support, queries, found, strict=True):
        probe = LogisticRegression(C=1 / penalty, fit_intercept=False, tol=1e-12, max_iter=100_000)
        expected = probe.fit(own.flatten(0, 1).double().numpy(), truth).decision_function(asked.double().numpy())
        centred = logits.numpy() - logits.numpy().mean(axis=1, keepdims=True)
        np.testing.assert_allclose(centred, expected - expected.mean(axis=1, keepdims=True), rtol=2e-3, atol=2e-3)


def test_a_logistic_regression_that_has_not_converged_says_so(monkeypatch):
    """In the score, which stays."""
    monkeypatch.setattr("likewise.evaluation.logistic_regression.MAX_PASSES", 3)
    _, done = episode_probe(torch.stack([torch.zeros(3, 2, 4), torch.randn(3, 2, 4)]), torch.randn(2, 5, 4), 0.1)
    assert done.tolist() == [True, False]
    options = {"distance": "cosine", "classifier": "logistic regression", "penalty": 0.01}
    note = "40 of 40 classifiers had not converged: raise the penalty, 0.01"
    with pytest.warns(UserWarning, match=note) as told:
        found = FewShot(5, 1, 6, 40, **options)(*three())
    parts = [str(one.message).partition(": ")[0].rpartition(", ")[2] for one in told]
    assert (parts, note in found.scores[0].notes) == (["validation", "test"], True)
    monkeypatch.undo()
    assert "converged" not in str(FewShot(5, 1, 6, 40, **options)(*three()).scores[0].notes)


def test_classes_that_were_trained_on_are_said_to_be():
    train, validation, test = three()
    for names, told in (
        (test.names, "all of its classes are in the training part too"),
        ((*test.names[:4], *train.names[4:]), "4 of its classes are in the training part too"),
        ((*train.names, *test.names), None),  # also of classes without samples
    ):
        score = FewShot(5, 1, 6, 40, distance="cosine")(replace(train, names=names), validation, test).scores[0]
        assert [note for note in score.notes if "training part" in note] == [told] * bool(told)


def test_the_distance_is_the_best_on_validation_and_test_plays_no_part():
    """With as many ways as validation has classes."""
    train, validation, test = three(spread=1.5)
    few = clustered(3, part="validation", first=100)
    for by, ways, asked in ((validation, 5, 5), (few, 3, [4, 5])):
        found = FewShot(asked, [1, 5], 6, 40)(train, by, test)
        assert [one.metric.name for one in found.candidates] == [
            f"{ways}-way {k}-shot accuracy" for k in (1, 1, 1, 5, 5, 5)
        ]
        for one in found.candidates:
            shape = EpisodeShape(40, ways, int(one.metric.name[6]), 6)
            assert one.value == pytest.approx(np.mean(by_loop(train, by, shape, one.settings["distance"])))
            assert one.part == "validation"
        for score in found.scores:
            own = [one for one in found.candidates if one.metric.name[1:] == score.metric.name[1:]]
            assert score.settings == max(own, key=lambda one: one.value).settings
            assert ("distance chosen 3-way, by all validation classes" in score.notes) == (ways == 3)
        other = Features(test.vectors.flip(0), test.labels, test.names)
        assert FewShot(asked, [1, 5], 6, 40)(train, by, other).candidates == found.candidates
        chosen = validation_score(found.candidates)
        assert chosen.metric.name == f"{ways}-way 1-shot accuracy"  # although those with 5 shots score higher
        assert chosen.value == max(one.value for one in found.candidates if one.metric == chosen.metric)
    nothing = FewShot(5, 1, 6, 20)(train, clustered(1, part="validation", first=100), test)
    assert nothing.candidates == ()
    assert nothing.scores[0].notes[-1] == "too little validation to choose the distance by"


def test_without_a_training_part_features_are_not_centred():
    """By the mean of which samples? Not by that of the test part, all of whose classes it would know."""
    _, validation, test = three()
    nothing = Features(torch.zeros(0, 8), torch.zeros(0, dtype=torch.int64), ())
    found = FewShot(5, 1, 6, 20)(nothing, validation, test)
    assert {one.settings["distance"] for one in found.candidates} == {"cosine", "euclidean"}
    reason = FewShot(5, 1, 6, 20, distance="centred cosine").why_not_applicable(FeatureParts(nothing, validation, test))
    assert reason == "the distance centred cosine needs the mean of a training part, and there is none"


def test_episodes_are_told_apart_by_seed_shape_labels_and_rows_and_runs_are_paired_by_them():
    def digest(part, *, ways=5, seed=0):
        (score,) = FewShot(ways, 1, 6, 20, distance="cosine", seed=seed)(part, part, part).scores
        return score.protocol["episodes"]

    train, validation, test = three()
    worse = replace(test, vectors=test.vectors + 2 * torch.randn_like(test.vectors))
    assert digest(test) == digest(worse)
    changed = replace(test, labels=test.labels.roll(1)), replace(test, rows=test.numbers + 1)
    assert len({digest(test), digest(test, seed=1), digest(test, ways=4), *map(digest, changed)}) == 5
    evaluation = FewShot(5, 1, 6, 200, distance="cosine")
    ours, theirs = (evaluation(train, validation, of).outcomes[0] for of in (test, worse))
    difference = paired_difference(ours, theirs)
    assert (difference.count, difference.classes) == (200, 12)
    bounds = over_classes_of_episodes(ours.values - theirs.values, test.labels[rows_of(test, 200)][:, :, 0])
    assert (difference.low, difference.high) == pytest.approx(bounds)
    assert difference.low > 0


def test_the_features_of_a_run_have_its_episodes_also_as_a_file(tmp_path):
    """So that another encoder's file and the run are paired."""
    shuffled = (replace(of, rows=1000 * place + torch.randperm(len(of))) for place, of in enumerate(three()))
    parts = FeatureParts(*shuffled)
    save_features(tmp_path / "embeddings.npz", parts)
    few_shot = FewShot(5, 1, 6, 20, distance="cosine")
    assert few_shot(*features_of_file(tmp_path / "embeddings.npz")).scores == few_shot(*parts).scores


def test_turns_of_a_class_are_one_class_of_the_interval():
    _, _, test = three()
    names = tuple(f"{'ABC'[label % 3]}{f', turned {90 * (label // 3)}°' if label > 2 else ''}" for label in range(12))
    turned = Features(test.vectors, test.labels, names)
    found = FewShot(2, 1, 6, 300, distance="cosine")(turned, turned, turned)
    assert found.scores[0].classes == 3
    groups = turned.labels[rows_of(turned, 300, 2)][:, :, 0] % 3
    assert torch.equal(found.outcomes[0].classes, groups)
    bounds = over_classes_of_episodes(found.outcomes[0].values, groups)
    assert found.scores[0].high == pytest.approx(min(1, bounds[1]))


def test_where_every_episode_has_all_classes_the_interval_is_over_their_accuracies():
    train, validation, test = three()
    found = FewShot(12, 1, 6, 50, distance="cosine")(train, validation, test)
    shares = torch.from_numpy(by_loop(train, test, EpisodeShape(50, 12, 1, 6), "cosine"))
    low, high = over_classes(shares.flatten(), test.labels[rows_of(test, 50, 12)[:, :, 0]].flatten())
    assert found.scores[0].classes == 12
    assert (found.scores[0].low, found.scores[0].high) == pytest.approx((low, min(1, high)))
    assert found.scores[0].high - found.scores[0].low > 0.05


@pytest.mark.parametrize(("ways", "count"), [(2, 6), (3, 7)])
def test_the_interval_over_classes_is_a_plain_jackknife_with_chance_taken_off(ways, count):
    """All choices of classes, twice: each class is left out in turn, and the mean of what remains is taken anew."""
    episodes = 2 * list(itertools.combinations(range(count), ways))
    generator = torch.Generator().manual_seed(0)
    ease = torch.rand(count, generator=generator)
    noise = 0.1 * torch.randn(len(episodes), generator=generator)
    values = [float(ease[list(of)].mean() + by) for of, by in zip(episodes, noise, strict=True)]
    mean, variance = statistics.fmean(values), statistics.variance(values)
    moved, chance = [], []
    for left_out in range(count):
        without = [value for value, of in zip(values, episodes, strict=True) if left_out not in of]
        having = len(values) - len(without)
        moved.append((statistics.fmean(without) - mean) ** 2)
        # what drawing alone moves: the mean of `having` episodes, seen through the weight that leaving them out has
        chance.append(variance * (1 / having - 1 / len(values)) * (having / len(without)) ** 2)
    spread = (count - 1) / count * (sum(moved) - sum(chance)) + variance / len(values)
    half = scipy.stats.t.ppf(0.975, count - 1) * math.sqrt(spread)
    found = over_classes_of_episodes(torch.tensor(values, dtype=torch.float64), torch.tensor(episodes))
    assert found == pytest.approx((mean - half, mean + half), rel=1e-9)


def test_a_difference_where_every_episode_has_all_classes_is_over_their_shares(tmp_path):
    """Without which nothing is said."""
    train, validation, test = three(5)
    noisy = replace(test, vectors=test.vectors + torch.randn_like(test.vectors))
    few_shot = FewShot(5, 1, 6, 50, distance="cosine")
    found, worse = (few_shot(train, validation, of).outcomes[0] for of in (test, noisy))
    assert torch.allclose(found.shares.mean(dim=1), found.values)
    save_outcomes(tmp_path / "outcomes.npz", [found, replace(found, part="validation", shares=None)])
    saved, without = read_outcomes(tmp_path / "outcomes.npz")
    assert torch.equal(saved.shares, found.shares)
    known, unknown = (paired_difference(one, worse) for one in (saved, without))
    apart = (found.shares - worse.shares).double()
    bounds = over_classes(apart.flatten(), test.labels[rows_of(test, 50)[:, :, 0]].flatten())
    assert (known.low, known.high, known.classes) == (pytest.approx(bounds[0]), pytest.approx(bounds[1]), 5)
    assert (unknown.low, unknown.high, unknown.value) == (-1, 1, known.value)


def test_what_has_no_episodes_is_refused_and_not_among_the_usual():
    sets = Features(torch.ones(4, 2), torch.ones(4, 3, dtype=torch.bool))
    for test, options, told in (
        (clustered(3), {"ways": 5}, "it needs at least 5 classes, .* and the test part has 3"),
        (clustered(6, 10), {"shots": 5, "queries": 15}, "15 queries, .* has 10 of 'class 0': lower evaluations.q"),
        (clustered(6, 5), {}, "at least 6 samples of every class, 5 shots and 1 query, and the test part has 5"),
        (sets, {}, "one class .* there are label sets"),
    ):
        parts = FeatureParts(test, test, test)
        with pytest.raises(ValueError, match=f"FewShot does not apply: .*{told}"):
            FewShot(**options)(*parts)
        assert not any(isinstance(one, FewShot) for one in applicable(parts))


def test_parameters_without_a_meaning_are_refused():
    for options, told in (
        ({"ways": 1}, "ways of at least 2"),
        ({"shots": []}, r"shots as a whole number, or as different ones, got \[\]"),
        ({"shots": [1, 1]}, r"shots as a whole number, or as different ones, got \[1, 1\]"),
        ({"shots": True}, "shots as a whole number, or as different ones, got True"),
        ({"ways": 2.5}, "ways as a whole number, or as different ones, got 2.5"),
        ({"distance": "manhattan"}, "distance as one of cosine"),
        ({"classifier": "svm"}, "classifier as one of nearest mean"),
        ({"penalty": 0}, "penalty above 0"),
        ({"episodes": 1}, "at least 2 episodes, got 1"),
    ):
        with pytest.raises(ValueError, match=told):
            FewShot(**options)
    with pytest.raises(ValueError, match=r"lower evaluations.ways; those that apply: Retrieval$"):
        applicable(three(), [FewShot(ways=30)])


@pytest.mark.parametrize(
    ("classes", "each", "shapes", "words"),
    [
        (12, 20, [(5, 1, 15), (5, 5, 15)], ""),
        (3, 20, [(3, 1, 15), (3, 5, 15)], "few-shot is 3-way, as there are 3 classes"),
        (12, 9, [(5, 1, 4), (5, 5, 4)], "few-shot is with 4 queries, as there are 9 samples of 'class 24'"),
        (4, 5, [(4, 1, 4)], "few-shot is 4-way, .* with 4 queries, .* 5 samples of 'class 8'; without 5 shots"),
        (12, 1, [], "few-shot is left out: it needs at least 2 samples of every class, .* has 1 of 'class 24'"),
    ],
)
def test_new_classes_are_evaluated_in_the_episodes_that_there_are_samples_for(classes, each, shapes, words):
    parts = three(classes, each=each)
    evaluations = [one for one in applicable(parts) if isinstance(one, FewShot)]
    assert [shape[1:] for one in evaluations for shape in one.shapes] == shapes
    assert re.fullmatch(words, FewShot.default_for(parts)[1])
    for one in evaluations:
        assert len(one(*parts).scores) == len(shapes)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """A file of 30 classes of images, each a pattern of its own in noise."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(30, 1, 3, 3, generator=generator).round()
    labels = torch.arange(30 * 20) % 30
    images = torch.nn.functional.interpolate(patterns, 16)[labels] * 0.5
    images = images + 0.5 * torch.rand(len(labels), 1, 16, 16, generator=generator)
    file = tmp_path_factory.mktemp("shapes") / "shapes.npz"
    np.savez(file, images=images[:, 0].numpy(), labels=labels.numpy(), names=[f"pattern {n}" for n in range(30)])
    return file


WORDS = [
    *("--split", "ByClass", "--split.train", "16", "--split.validation", "7", "--split.test", "7"),
    *("--encoder", "Conv4", "--encoder.width", "8", "--encoder.pools", "2", "--trainer.accelerator", "cpu"),
    *("--trainer.max_epochs", "2", "--validation_epochs", "1"),
]
NO_MASK = ["--inputs", "EpisodeMaps", "--inputs.mask", "false"]
ASKED = ["--loss", "SupConLoss", "--evaluations", "FewShot"]
WRAPPED = ["--encoder", "Wrapped", "--encoder.module", "torch.nn.Identity"]


def train(shapes, runs, *words):
    return main(["train", "--data", "Arrays", "--data.path", str(shapes), *WORDS, *words, "--runs", str(runs)])


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["PrototypicalLoss", "InfoPatchLoss"])
def test_episodes_train_from_the_command_and_are_shown(loss, shapes, tmp_path, capsys):
    assert train(shapes, tmp_path, "--loss", loss, "--keep", "best", "--batches", "Episodes") == 0
    told = capsys.readouterr()
    (folder,) = tmp_path.iterdir()
    run = Run(folder)
    assert run.metadata["parts"]["batches"]["init_args"]["mix"] == (loss != "PrototypicalLoss")  # as the loss reads it
    scores = {score.metric.name: score for score in run.scores if score.features == "encoder" and score.part == "test"}
    assert {"5-way 1-shot accuracy", "5-way 5-shot accuracy", "precision@1"} <= scores.keys()
    assert scores["5-way 5-shot accuracy"].value > 0.5
    epochs = [score for score in run.scores if score.epoch is not None]
    validated = {("few-shot", "5-way 1-shot accuracy"), ("features", "effective rank")}
    assert {(score.evaluation, score.metric.name) for score in epochs} == validated
    assert {score.epoch for score in epochs} == {0, 1, 2}
    assert "validation after epoch 2: few-shot, 5-way 1-shot accuracy" in told.err
    assert "the best on validation: 5-way 1-shot accuracy" in told.err


@pytest.mark.slow
@pytest.mark.parametrize(("method", "data"), [("supcon", "omniglot-few-shot"), ("infopatch", "cifar-fs-resnet12")])
def test_few_shot_recipes_train(method, data, tmp_path):
    """A few steps on images of their size, of 100 classes, or of 24 with their turns."""
    side, channels, classes = (28, 1, 40) if data.startswith("omniglot") else (32, 3, 45)
    labels = np.arange(classes * 20) % classes
    images = np.random.default_rng(0).integers(0, 256, (len(labels), side, side, channels), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", images=images, labels=labels)
    words = ["--recipe", f"{method}-{data}", "--data", "Arrays", "--data.path", str(tmp_path / "noise.npz")]
    words += ["--split", "ByClass", "--split.train", str(classes - 16), "--split.validation", "8", "--split.test", "8"]
    words += ["--split.rotations", "true"] if data.startswith("omniglot") else ["--split.file", "null"]
    words += ["--encoder.widths", "[4,4,4,4]"] if data.endswith("resnet12") else ["--encoder.width", "8"]
    words += ["--batches.batch_size", "16"] if method == "supcon" else []
    words += ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2", "--trainer.accelerator", "cpu"]
    words += ["--evaluations", "FewShot", "--evaluations.episodes", "20", "--trainer.precision", "32-true"]
    assert main(["train", *words, "--report", "false", "--runs", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert {score.evaluation for score in Run(run).scores if score.epoch is None} == {"few-shot"}


@pytest.mark.slow
def test_evaluation_sees_images_as_they_are_and_any_run_can_be_evaluated_few_shot(shapes, tmp_path, capsys):
    """Of 65 samples new classes are kept whole, three of them."""
    words = ["--loss", "SupConLoss", "--batches.batch_size", "64", "--report", "false", "--evaluation_samples", "65"]
    assert train(shapes, tmp_path, *words, "--trainer.max_epochs", "1") == 0
    told = capsys.readouterr()
    assert "few-shot is 3-way, as there are 3 classes\n" in told.err
    assert "few-shot, 3-way 5-shot accuracy" in told.out
    (folder,) = tmp_path.iterdir()
    command = ["evaluate", str(folder), "--evaluations", "FewShot", "--evaluations.ways", "[2,3]", "--device", "cpu"]
    assert main([*command, "--evaluations.episodes", "100", "--evaluations.distance", "euclidean"]) == 0
    run = Run(folder)
    inputs = parts_of_run(run)[0].test
    kept = load_features(run.embeddings).test
    encoded = run.encoder().encode(inputs.numbered().inputs)[places_of(kept.numbers, inputs.numbered().rows)]
    torch.testing.assert_close(encoded, kept.vectors, rtol=0, atol=1e-5)
    metrics = {score.metric.name for score in run.scores if score.part == "test" and score.evaluation == "few-shot"}
    assert metrics == {f"{ways}-way {shots}-shot accuracy" for ways in (2, 3) for shots in (1, 5)}
    assert "difference" in capsys.readouterr().out


@pytest.mark.slow
def test_what_does_not_fit_is_refused_before_training(shapes, tmp_path, capsys):
    for words, told in (
        (["--loss", "SupConLoss", "--batches", "Episodes", "--batches.mix", "true"], "which takes no cell_labels"),
        (["--loss", "PrototypicalLoss", "--batches.ways", "17"], "at least 17 classes"),
        (["--loss", "InfoPatchLoss", "--encoder.pools", "4"], "or mask none, by --inputs EpisodeMaps --inputs.mask"),
        (["--loss", "InfoPatchLoss", "--encoder.pools", "4", *NO_MASK], "at least 2 cells for mixed queries"),
        (["--loss", "InfoPatchLoss", *WRAPPED], "got Wrapped: give Wrapped its stride and cell_start, define cell_"),
        # of new classes whole ones are kept, so that 45 samples are two classes of 20
        ([*ASKED, "--evaluations.ways", "5", "--evaluation_samples", "45"], "and the test part has 2: lower"),
    ):
        assert train(shapes, tmp_path / "runs", *words) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert told in line
    assert not list(tmp_path.glob("runs/*"))


def test_new_classes_are_validated_in_the_episodes_that_they_are_tested_in():
    """Or else in those trained on, of as many ways as there are classes."""
    train, validation = (
        Samples(torch.zeros(140, 2), torch.arange(140) % 7, tuple(of)) for of in ("ABCDEFG", "abcdefg")
    )
    parts = Parts(train, validation, validation)
    trained_on = Episodes(9, 1, 15)
    for batches, asked, ways in ((Views(), None, 5), (trained_on, None, 5), (trained_on, [Retrieval()], 7)):
        (first, *_), note = while_training(parts, batches, asked)
        assert [shape[:3] for shape in first.shapes] == [(600, ways, 1)]
        assert note == ("validation during training is 7-way, as there are 7 classes" if ways == 7 else "")


def test_losses_of_feature_maps_train_with_a_compiled_encoder(tmp_path, monkeypatch):
    """They call the encoder's maps and never the encoder; the compiler is replaced by one that counts calls."""
    calls = []

    def compiled(function, **_):
        def counted(*arguments, **options):
            calls.append(function.__name__)
            return function(*arguments, **options)

        return counted

    monkeypatch.setattr(torch, "compile", compiled)
    words = ["train", "--data", "Digits", "--split", "ByClass", "--split.train", "5", "--split.validation", "2"]
    words += ["--split.test", "3", "--loss", "InfoPatchLoss", "--loss.global_weight", "0", "--encoder", "Conv4"]
    words += ["--encoder.pools", "1", "--encoder.width", "4", "--batches", "Episodes", "--batches.ways", "3"]
    words += ["--batches.queries", "2", "--batches.mix", "false", "--compile", "true", "--trainer.max_steps", "3"]
    words += ["--trainer.accelerator", "cpu", "--evaluations", "[]", "--report", "false", "--validation_epochs", "0"]
    assert main([*words, "--runs", str(tmp_path)]) == 0
    assert calls.count("maps") == 3
