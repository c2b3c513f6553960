"""Evaluating arrays from anywhere: by scikit-learn, by plain loops, by the command; and what stops at the door."""

import inspect
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import likewise.evaluation
from likewise.cli import main
from likewise.evaluation import (
    KNN,
    CrossModalRetrieval,
    Evaluation,
    FeatureParts,
    Features,
    LinearProbe,
    Metric,
    OutOfDistribution,
    Result,
    Results,
    Retrieval,
    Score,
    Widths,
    evaluate,
)
from likewise.evaluation.intervals import wilson
from likewise.evaluation.nearest import RowFingerprints, places_of_close
from likewise.runs import Run

pytestmark = pytest.mark.slow

RANDOM = np.random.default_rng(0)
Y = RANDOM.permutation(np.arange(300) % 4)
X = (RANDOM.normal(size=(300, 6)) + 1.5 * np.eye(6)[Y]).astype(np.float32)
SETS = (RANDOM.random((300, 5)) < 0.3) | (np.arange(5) == Y[:, None])
PARTS = X[:220], Y[:220], X[220:], Y[220:]
OF_SETS = X[:220], SETS[:220], X[220:], SETS[220:]


def values(results):
    return {(name, score.metric.name): score.value for name, found in results.items() for score in found.headline}


def test_neighbours_and_the_probe_are_those_of_scikit_learn_on_the_whole_training_part():
    """Learned from all that was given, though a tenth was set aside for choices."""
    x, y, x_test, y_test = X[:220], Y[:220] % 2, X[220:], Y[220:] % 2  # of two classes seven votes are never equal
    neighbours = KNeighborsClassifier(7, metric="cosine").fit(x, y)
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (0.003 * len(x)), tol=1e-8, max_iter=1000))
    evaluations = [KNN(7, "uniform"), LinearProbe(0.003, tolerance=1e-9)]
    results = evaluate(x, y, x_test, y_test, evaluations=evaluations)
    assert results["kNN"]["accuracy"].value == pytest.approx(neighbours.score(x_test, y_test))
    assert results["linear probe"]["accuracy"].value == pytest.approx(probe.fit(x, y).score(x_test, y_test))
    assert results["kNN"]["accuracy"].count == len(y_test)
    assert float(results["kNN"]["accuracy"]) == results["kNN"]["accuracy"].value


@pytest.mark.parametrize(
    "taken",
    [
        lambda array: array.tolist(),
        lambda array: torch.from_numpy(array).double().requires_grad_() if array.dtype.kind == "f" else array,
        lambda array: array if array.dtype.kind == "f" else np.array([f"c{of}" for of in array], dtype=object),
    ],
    ids=["lists", "with a gradient", "words as objects"],
)
def test_arrays_of_any_kind_give_the_same(taken):
    assert values(evaluate(*map(taken, PARTS))) == pytest.approx(values(evaluate(*PARTS)))


def test_half_precision_is_taken():
    half = [torch.from_numpy(of).bfloat16() if of.dtype.kind == "f" else of for of in PARTS]
    found, like = (evaluate(*of, evaluations=KNN(5))["kNN"]["accuracy"].value for of in (half, PARTS))
    assert found == pytest.approx(like, abs=0.1)


@pytest.mark.parametrize("given", [PARTS, OF_SETS], ids=["classes", "label sets"])
def test_without_a_refit_the_command_finds_the_same(given, tmp_path):
    names = ("train_features", "train_labels", "test_features", "test_labels")
    np.savez(tmp_path / "mine.npz", **dict(zip(names, given, strict=True)))
    assert main(["evaluate", str(tmp_path / "mine.npz"), "--report", "false", "--runs", str(tmp_path / "runs")]) == 0
    run = Run(next((tmp_path / "runs").iterdir()))
    for found in evaluate(*given, refit=False).values():
        for score in (one for one in found.scores if str(one.group) == "all"):
            (own,) = (one for one in run.scores if one.what == score.what and one.part == "test")
            assert (own.value, own.low, own.high) == (score.value, score.low, score.high)
            assert own.settings == dict(score.settings)


def test_settings_are_chosen_on_a_seeded_part_of_training_and_never_on_test():
    x, y, x_test, y_test = PARTS
    results, other, moved = evaluate(*PARTS), evaluate(x, y, x_test, (y_test + 1) % 4), evaluate(*PARTS, seed=1)
    for name in ("kNN", "linear probe"):
        assert results[name]["accuracy"].settings == other[name]["accuracy"].settings
        assert results[name].candidates == other[name].candidates
        assert {score.count for score in results[name].candidates} == {22}
    assert "220 training and 80 test samples; settings chosen on 22 of the training samples (seed 0)" in str(results)
    assert moved["kNN"].candidates != results["kNN"].candidates
    assert "(seed 1)" in moved.note


def test_fewer_neighbours_than_asked_for_are_told():
    result = evaluate(*PARTS, evaluations=KNN(k=1000))["knn"]
    told = "k=1000 was asked for, of 198 training samples besides those for choices"
    assert all((told in score.notes, score.settings["k"]) == (True, 198) for score in result.scores)


def test_a_validation_part_of_ones_own_chooses():
    x, y, x_test, y_test = PARTS
    results = evaluate(x[:150], y[:150], x_test, y_test, x_validation=x[150:], y_validation=y[150:])
    names = tuple("0123")
    whole = Features(torch.from_numpy(X), torch.from_numpy(Y), names)
    cuts = {"train": range(150), "validation": range(150, 220), "test": range(220, 300)}
    parts = [replace(whole[torch.tensor(rows)], rows=None, part=part) for part, rows in cuts.items()]
    for evaluation in (KNN(), LinearProbe(), Retrieval()):
        assert results[evaluation.name].scores == evaluation(*parts).scores
    assert results.note == "150 training, 70 validation and 80 test samples"


def test_frequencies_are_those_of_the_whole_training_part():
    """A class of 105 samples is one of many, though fewer are left after the cut."""
    y = np.repeat([0, 1], [105, 15])
    results = evaluate(X[:120], y, X[:120] + 0.1, y, evaluations="kNN")
    assert {str(score.group) for score in results["knn"].scores} == {"all", "many", "few", "class 0", "class 1"}


def test_single_samples_of_classes_leave_nothing_to_choose_by():
    results = evaluate(np.eye(4), list("abcd"), np.eye(4) + 0.1, list("abcd"))
    accuracy = results["kNN"]["accuracy"]
    assert (accuracy.value, accuracy.settings) == (1, {"k": 1, "weights": "uniform"})
    assert "no validation part to choose settings by" in results.note


def ranked(queries, gallery):
    """The cosines of each query, in float64, the gallery's places nearest first."""
    queries, gallery = (of.astype(np.float64) for of in (queries, gallery))
    cosines = queries @ gallery.T / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(gallery, axis=1)
    return [sorted(range(len(gallery)), key=lambda row: -own[row]) for own in cosines]


AT_EACH = "precision", "recall", "hit rate", "MRR", "MAP", "nDCG"


def plain(order, right, k, gains=None):
    """What is measured at k of one query, and R-precision and MAP@R, in plain words."""
    hits = [bool(right[row]) for row in order]
    answers = sum(hits)
    if not answers:
        return (0.0, np.nan, 0.0, 0.0, np.nan, np.nan, np.nan, np.nan)
    first = hits.index(True) + 1
    gained = [float(right[row]) if gains is None else gains[row] for row in order]

    def cumulated(gains):
        return sum(gain / math.log2(j + 2) for j, gain in enumerate(gains[:k]))

    def average(most):
        return sum(sum(hits[: j + 1]) / (j + 1) for j in range(most) if hits[j]) / min(most, answers)

    at_each = sum(hits[:k]) / k, sum(hits[:k]) / answers, float(any(hits[:k])), 1 / first if first <= k else 0.0
    share = cumulated(gained) / cumulated(sorted(gained, reverse=True))
    return *at_each, average(k), share, sum(hits[:answers]) / answers, average(answers)


@pytest.mark.parametrize("apart", [True, False], ids=["gallery", "among themselves"])
@pytest.mark.parametrize("several", [False, True], ids=["classes", "label sets"])
def test_depths_are_those_of_a_loop_with_several_right_answers(apart, several, monkeypatch):
    for name, size in {"TILE": 700, "MIN_ROWS": 3, "MAX_TILE": 60}.items():  # several tiles, also of a row
        monkeypatch.setattr(f"likewise.evaluation.nearest.{name}", size)
    monkeypatch.setattr("likewise.evaluation.retrieval.TILE", 700)
    labels = SETS[:60] if several else np.minimum(RANDOM.geometric(0.3, size=60), 6)
    x, wanted = X[:60], labels
    gallery, known = x, labels
    if apart:
        gallery, known = X[100:170], SETS[100:170] if several else RANDOM.permutation(np.arange(70) % 5)
    found = Retrieval(at=[1, 3, 20]).rank(x, wanted, *((gallery, known) if apart else ()))
    expected = {1: [], 3: [], 20: []}
    for row, order in enumerate(ranked(x, gallery)):
        right = (known & wanted[row]).any(axis=1) if several else known == wanted[row]
        others = [place for place in order if apart or place != row]
        if wanted[row].any() if several else any(right[place] for place in others):
            for k, rows in expected.items():
                gains = (known & wanted[row]).sum(axis=1) / (known | wanted[row]).sum(axis=1) if several else None
                rows.append(plain(others, right, k, gains))
    for k, rows in expected.items():
        table = np.array(rows)
        for name, column in zip(AT_EACH, table.T[:6], strict=True):
            score = found[f"{name}@{k}"]
            assert score.value == pytest.approx(np.nanmean(column), abs=1e-6), (name, k)
            assert score.low <= score.value <= score.high
            if name == "hit rate":
                assert (score.low, score.high) == wilson(round(score.count * score.value), score.count)
            (own,) = (one for one in found.outcomes if one.metric == f"{name}@{k}")
            assert own.values.tolist() == pytest.approx(column[~np.isnan(column)].tolist(), abs=1e-6)
        if not several:
            assert found["R-precision"].value == pytest.approx(table[:, 6].mean(), abs=1e-6)
            assert found["MAP@R"].value == pytest.approx(table[:, 7].mean(), abs=1e-6)
    names = [score.metric.name for score in found.scores]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("given", [PARTS, OF_SETS], ids=["classes", "label sets"])
def test_a_gallery_of_arrays_is_all_of_them(given):
    """Also what was set aside for choices, unless it is to stay aside."""
    x, y, x_test, y_test = given
    ranked = Retrieval(at=5).rank(x_test, y_test, x, y)
    whole, most = (
        evaluate(*given, evaluations=Retrieval(at=5, gallery="train"), refit=refit) for refit in (None, False)
    )
    assert values(whole) == values({"retrieval": ranked})
    assert values(most) != values(whole)


def test_a_gallery_has_its_own_classes_and_those_of_queries_alone_are_told():
    found = Retrieval(at=2).rank(X[:6], list("aabbxx"), X[10:14], ["b", "a", "b", "z"])["recall@2"]
    told = ("2 samples left out, of a class that the gallery lacks",)
    assert (found.count, found.notes, found.protocol) == (4, told, {"gallery": "training part"})
    train = Features(torch.from_numpy(X[10:14]), torch.tensor([0, 1, 0, 2]), ("b", "a", "z"), part="train")
    test = Features(torch.from_numpy(X[:6]), torch.tensor([0, 0, 1, 1, 2, 2]), ("a", "b", "x"))
    assert Retrieval(2, "train")(train, test, test)["recall@2"].value == found.value  # classes have other numbers


def test_results_print_as_a_table_and_are_found_by_name():
    results = evaluate(*PARTS)
    head, first, *_, last = str(results).splitlines()
    score = results["kNN"]["accuracy"]
    assert (head.split("  ")[0], last) == ("evaluation", results.note)
    assert f"{100 * score.value:.2f} % [" in first
    assert f"k={score.settings['k']}" in first
    assert results["knn"] is results["KNN"] is results["kNN"] is results.get("knn")
    assert results["LinearProbe"] is results["linear-probe"] is results["linear probe"]
    assert str(score) == f"accuracy {score.value:.4g} [{score.low:.4g}, {score.high:.4g}]"
    assert ("knn" in results, "mlp" in results, results.get("mlp", 3)) == (True, False, 3)
    with pytest.raises(KeyError, match="expected one of kNN, linear probe, retrieval, got 'mlp'"):
        results["mlp"]
    with pytest.raises(KeyError, match="expected one of precision@1, R-precision, MAP@R, got 'recall'"):
        results["retrieval"]["recall"]
    assert pickle.loads(pickle.dumps(results)).note == results.note  # noqa: S301 - our own


def test_a_notebook_shows_names_as_they_are():
    results = Results([("<b>", Result((Score("<b>", Metric("a & b", "plain", "lower"), 0.5, 0.4, 0.6, 9),)))], "1 < 2")
    html = results._repr_html_()
    assert "<td>&lt;b&gt;</td><td>a &amp; b (lower is better)</td><td>0.5000 [0.4000, 0.6000]</td>" in html
    assert html.endswith("<p>1 &lt; 2</p>")


def part(name):
    return Features(torch.from_numpy(X), torch.from_numpy(Y), part=name)


@pytest.mark.filterwarnings("ignore:300 of 300 queries are rows of the gallery")
def test_everything_public_is_written_in_a_line():
    kinds = {one for one in vars(likewise.evaluation).values() if inspect.isclass(one) and issubclass(one, Evaluation)}
    needed = {OutOfDistribution: (likewise.data.Digits(),), Widths: ([2, 4],)}
    made = [kind(*needed.get(kind, ())) for kind in kinds - {Evaluation}]
    parts = FeatureParts(*map(part, ("train", "validation", "test")))
    found = KNN(5)(*parts)
    for line in map(repr, (*made, parts, parts.train, found, found.scores[0], found.outcomes[0])):
        assert not any(of in line for of in ("\n", " at 0x", "tensor("))
    assert repr(KNN(5)) == "KNN(k=5, weights=None, temperature=0.07)"
    assert repr(Retrieval(at=[5, 1])) == "Retrieval(at=(1, 5), gallery='test')"
    assert repr(part("train")) == "Features(train: 300 × 6, 4 classes, encoder)"
    assert repr(found).startswith("Result(kNN, accuracy 0.")


def changed(**arrays):
    """The four arrays, some replaced."""
    return tuple({**dict(zip(("x", "y", "x_test", "y_test"), PARTS, strict=True)), **arrays}.values())


HOLE = PARTS[0].copy()
HOLE[3, 2] = np.nan
UNSEEN = np.where(np.arange(80) == 0, 7, PARTS[3])


def test_what_does_not_fit_is_told_in_a_line_with_a_remedy():
    for given, options, told in (
        (changed(x=HOLE), {}, "finite x, got NaN or infinity in 1 of 220: drop or mend"),
        (changed(x_test=np.full((80, 6), 1e300)), {}, "finite x_test, got NaN or infinity in 80 of 80"),
        (changed(y=PARTS[1][:9]), {}, "a label of each in y, got 220 samples and 9 labels: drop"),
        (changed(x=PARTS[0][:, 0]), {}, r"x \(N, D\), numbers, got \(220,\).*x.reshape\(-1, 1\)"),
        (changed(x=PARTS[0][:, :0]), {}, "D of at least 1"),
        (changed(x=[[1.0, 2.0], [3.0]], y=[0, 1]), {}, "x as one array, got rows of different lengths"),
        (changed(x_test=PARTS[2][:, :5]), {}, r"x_test like x, \(N, 6\), got \(N, 5\): encode both with one encoder"),
        (changed(y_test=SETS[220:]), {}, r"y_test like y, \(N,\), got \(N, 5\): give both labels of one kind"),
        (changed(y_test=PARTS[3].astype(str)), {}, "expected y_test like y, numbers, got words: give both"),
        (changed(y=PARTS[1] * 0, y_test=PARTS[3] * 0), {}, "at least 2 classes, got 1"),
        (changed(y_test=UNSEEN), {}, r"no training sample of 7: drop them .*evaluations=Retrieval\(\)"),
        (changed(y_test=UNSEEN), {"evaluations": "kNN"}, "KNN does not apply.*those that apply: Retrieval"),
        (changed(x=PARTS[0][:0], y=PARTS[1][:0]), {}, "samples in x, .* got 0 samples"),
        (changed(y=PARTS[1].astype(float)), {}, r"classes \(N,\).* give labels.astype\(int\)"),
        (changed(y=PARTS[1][:, None]), {}, r"y \(N,\).* got \(220, 1\): y.ravel\(\)"),
        (PARTS, {"evaluations": "k-means"}, "got 'k-means': name one of CrossModalRetrieval, KNN, LinearProbe"),
        (PARTS, {"evaluations": ["knn", KNN(3)]}, "every evaluation once, got kNN twice"),
        (PARTS, {"evaluations": Retrieval(at=80)}, "it needs 80 samples to rank for precision@80, and there are 79"),
        (PARTS, {"x_validation": PARTS[0]}, "a label of each in y_validation"),
        (PARTS, {"names": ["a", "b"]}, "labels from 0 to 1 for 2 names"),
    ):
        with pytest.raises(ValueError, match=told) as error:
            evaluate(*given, **options)
        assert len(str(error.value).splitlines()) == 1


def test_retrieval_says_what_it_needs():
    none = part("x")[torch.arange(0)]
    for make, told in (
        (lambda: Retrieval(at=0), "at of at least 1, got 0"),
        (lambda: Retrieval(at=[5, 5]), r"different ones, got \[5, 5\]"),
        (lambda: Retrieval(gallery="all"), "gallery as one of test, train, got 'all'"),
        (lambda: Retrieval().rank(X[:4], range(4)), "a class with 2 test samples"),
        (lambda: Retrieval().rank(X[:4], range(4), X[4:8], range(4, 8)), "a right answer in the gallery"),
        (lambda: Retrieval().rank(X, Y, gallery_labels=Y), r"gallery \(N, D\), numbers, got \(\)"),
        (lambda: Retrieval(at=5).rank(X[:4], range(4), X[4:8], range(4)), "5 samples to rank .* there are 4"),
        (lambda: Retrieval(gallery="train")(none, part("y"), part("test")), "there are 300 and 0"),
    ):
        with pytest.raises(ValueError, match=told):
            make()


INCLUDED = {"gallery_includes_queries": True}


def included(labels):
    """40 queries, and a gallery of these and 60 others in another order, of which some are equal to each other."""
    order, rows = np.random.default_rng(3).permutation(100), np.concatenate([X[:95], X[40:42], X[40:43]])
    return X[:40], labels[:40], rows[order], np.concatenate([labels[:95], labels[40:42], labels[40:43]])[order]


@pytest.mark.parametrize("labels", [Y, SETS], ids=["classes", "label sets"])
def test_each_querys_own_row_is_left_out_of_a_gallery_that_includes_it(labels):
    x, y, gallery, known = included(labels)
    with pytest.warns(UserWarning, match="40 of 40 queries are rows of the gallery, too"):
        told = Retrieval(at=3).rank(x, y, gallery, known)
    assert told["precision@1"].value == 1
    found = Retrieval(at=3).rank(x, y, gallery, known, **INCLUDED)
    expected = []
    for row, order in enumerate(ranked(x, gallery)):
        right = (known & y[row]).any(axis=1) if labels is SETS else known == y[row]
        own = next(place for place in order if (gallery[place] == x[row]).all() and (known[place] == y[row]).all())
        if labels is Y or y[row].any():
            expected.append(plain([place for place in order if place != own], right, 3))
    for name, column in zip(("precision@3", "recall@3", "hit rate@3"), np.array(expected).T[:3], strict=True):
        assert found[name].value == pytest.approx(column.mean(), abs=1e-6)
    assert found["precision@3"].value < told["precision@3"].value
    if labels is Y:
        assert found["MAP@R"].value == pytest.approx(np.mean([of[7] for of in expected]), abs=1e-6)


@pytest.mark.parametrize("several", [False, True], ids=["classes", "label sets"])
def test_neighbours_leave_each_samples_own_row_out(several):
    labels = SETS if several else Y
    x, y, train, known = included(labels)
    with pytest.warns(UserWarning, match="40 of 40 queries are rows of the gallery"):
        told = evaluate(train, known, x, y, evaluations=KNN(1, "uniform"))["kNN"]
    found = evaluate(train, known, x, y, evaluations=KNN(1, "uniform", **INCLUDED))["kNN"]
    right = []
    for row, order in enumerate(ranked(x, train)):
        own = next(place for place in order if (train[place] == x[row]).all() and (known[place] == y[row]).all())
        right.append((known[next(place for place in order if place != own)] == y[row]).mean())
    metric, share = ("Hamming loss", 1 - np.mean(right)) if several else ("accuracy", np.mean(right))
    assert (told[metric].value, found[metric].value) == (0 if several else 1, pytest.approx(share, abs=1e-6))


def test_own_rows_are_found_that_another_batch_rounded_otherwise_and_close_ones_are_others():
    """Tight clusters: neighbours lie 1e-3 of a row's length apart, and rounding moves rows by 1e-6 of it."""
    random = np.random.default_rng(5)
    centres = 50 * random.normal(size=(20, 32)).repeat(15, axis=0)
    gallery = (centres + 0.01 * random.normal(size=centres.shape)).astype(np.float32)
    order = random.permutation(300)
    rounded = (gallery[order] * (1 + 3e-7 * random.normal(size=gallery.shape))).astype(np.float32)
    strangers = gallery[:4] + 0.05
    assert (rounded != gallery[order]).any(axis=1).all()
    queries = np.concatenate([rounded, strangers])
    fingerprints = (RowFingerprints.of([torch.from_numpy(of)]) for of in (queries, gallery))
    assert places_of_close(*fingerprints).tolist() == [*order.tolist(), -1, -1, -1, -1]
    some, none = (RowFingerprints.of([torch.from_numpy(gallery[:count])]) for count in (2, 0))
    assert places_of_close(some, none).tolist() == [-1, -1]
    assert places_of_close(none, some).tolist() == []
    labels = np.arange(20).repeat(15)
    with pytest.warns(UserWarning, match="300 of 300 queries are rows of the gallery"):
        Retrieval().rank(rounded, labels[order], gallery, labels)
    alone = Retrieval(at=5).rank(gallery[order], labels[order])
    found = Retrieval(at=5).rank(rounded, labels[order], gallery, labels, **INCLUDED)
    assert [one.value for one in found.scores] == pytest.approx([one.value for one in alone.scores], abs=1e-3)
    with pytest.raises(ValueError, match="got 300 of 300 queries without"):  # labels count
        Retrieval().rank(rounded, (labels[order] + 1) % 20, gallery, labels, **INCLUDED)


def test_the_leave_one_out_of_one_set_is_its_own_retrieval():
    alone = Retrieval(at=5).rank(X[:80], Y[:80])
    with_own = Retrieval(at=5).rank(X[:80], Y[:80], X[:80], Y[:80], **INCLUDED)
    assert [score.value for score in alone.scores] == pytest.approx([score.value for score in with_own.scores])
    numbers = np.arange(20)  # nobody else is of one's class
    with pytest.raises(ValueError, match="a right answer in the gallery, and there is none"):
        Retrieval().rank(X[:20], numbers, X[:20], numbers, **INCLUDED)
    with pytest.raises(ValueError, match="expected each query's own row in the gallery, got 30 of 40 queries without"):
        Retrieval().rank(X[:40], Y[:40], X[30:90], Y[30:90], **INCLUDED)


def test_pairs_within_one_set_are_found_without_their_own_rows():
    pairs = np.stack([np.arange(0, 40), np.arange(0, 40) ^ 1], axis=1)
    x = X[:40] + 0.3 * X[np.arange(40) ^ 1]
    with pytest.warns(UserWarning, match="40 of 40 queries are rows of the gallery"):
        told = CrossModalRetrieval().rank(x, x, pairs)
    found = CrossModalRetrieval().rank(x, x, pairs, **INCLUDED)
    others = [[place for place in order if place != row] for row, order in enumerate(ranked(x, x))]
    ranks = [order.index(row ^ 1) + 1 for row, order in enumerate(others)]
    for direction in ("first to second", "second to first"):
        assert told[f"recall@1, {direction}"].value == 0
        assert found[f"recall@1, {direction}"].value == pytest.approx(np.mean(np.array(ranks) == 1))
        assert found[f"MRR, {direction}"].value == pytest.approx(np.mean(1 / np.array(ranks)), abs=1e-6)
        assert found[f"recall@1, {direction}"].protocol == {"gallery": 39}
    with pytest.raises(ValueError, match="expected pairs of different rows"):
        CrossModalRetrieval().rank(x, x, **INCLUDED)
