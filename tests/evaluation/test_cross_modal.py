"""Cross-modal retrieval, against a plain ranking loop, scikit-learn and SciPy, and its refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import StandardScaler
from torch.nn import functional

from likewise.data import Parts, Samples, Texts, Views
from likewise.data.lazy_inputs import Ids
from likewise.evaluation import (
    KNN,
    CrossModalRetrieval,
    FeatureParts,
    Features,
    Retrieval,
    applicable,
    cross_modal,
    features_of_file,
    load_features,
    raw_features,
    save_features,
)
from likewise.evaluation.choice import while_training
from likewise.evaluation.features import joined
from likewise.evaluation.intervals import median, paired_difference
from likewise.runs import Run
from likewise.runs.scores import validation_score
from likewise.training.validation import Validation
from likewise.workflows.scoring import EvaluationOptions, check_applicable

pytestmark = pytest.mark.slow

FORTH, BACK = "first to second", "second to first"

SAME = pytest.mark.filterwarnings("ignore:.*queries are rows of the gallery")  # as these sides are, on purpose


def pairs_of(images=30, captions=3, *, coarse=False, part="test", seed=0, labels=None):
    """Images with captions that are near them, some captions written twice; coarse: few similarities, many ties."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.arange(images * captions) % images  # captions of one image stand apart
    text = torch.arange(images * captions)
    text[1::7] = text[0::7][: len(text[1::7])]  # the caption before it, of another image
    first = torch.randn(images, 4, generator=generator)
    second = first[image] + torch.randn(len(image), 4, generator=generator)
    if coarse:
        first, second = (torch.where(of > 0, 0.5, -0.5) for of in (first, second))
    numbers = 1000 + torch.arange(len(image)).flip(0)
    texts = Features(second[text], None, rows=numbers, part=part, items=text)
    classes = None if labels is None else image % labels
    return Features(first[image], classes, rows=numbers, part=part, items=image, counterparts=texts)


def ranked_plainly(pairs, *, flipped=False):
    """For each query, by the row of its first pair: where right answers stand in the whole gallery, from 1.

    Of equal similarities the order is the random one that retrieval uses, which knows neither right nor wrong.
    """
    sides = [(side.vectors, side.items.tolist()) for side in (pairs, pairs.counterparts)]
    (queries, own), (others, known) = sides[::-1] if flipped else sides
    gallery = sorted(set(known))
    order = torch.randperm(len(gallery), generator=torch.Generator().manual_seed(0)).argsort().tolist()
    units, refs = (functional.normalize(of.double()) for of in (queries, others))
    found = {}
    for row, item in enumerate(own):
        if item in own[:row]:
            continue
        right = {known[other] for other in range(len(own)) if own[other] == item}
        cosines = {of: float((units[row] * refs[known.index(of)]).sum()) for of in gallery}
        near = sorted(gallery, key=lambda of: (-cosines[of], order[gallery.index(of)]))
        found[int(pairs.numbers[row])] = [rank for rank, of in enumerate(near, 1) if of in right]
    return found, len(gallery)


@pytest.mark.parametrize("coarse", [False, True])
@SAME
def test_it_ranks_as_a_plain_loop(coarse, monkeypatch):
    """With several right answers, inputs that occur again, ties, rows in any order; in one tile and in many."""
    pairs = pairs_of(coarse=coarse)
    whole = CrossModalRetrieval()(pairs, pairs, pairs)
    monkeypatch.setitem(cross_modal.CACHE_TILE, "cpu", 3 * 90)  # a few queries at a time
    tiled = CrossModalRetrieval()(pairs, pairs, pairs)
    for direction in (FORTH, BACK):
        places, size = ranked_plainly(pairs, flipped=direction == BACK)
        firsts = [min(of) for of in places.values()]
        cumulated = [
            sum(1 / math.log2(rank + 1) for rank in of if rank <= 10)
            / sum(1 / math.log2(rank + 1) for rank in range(1, min(len(of), 10) + 1))
            for of in places.values()
        ]
        expected = {f"recall@{k}": np.mean([rank <= k for rank in firsts]) for k in (1, 5, 10)}
        expected |= {"MRR": np.mean([1 / rank for rank in firsts]), "nDCG@10": np.mean(cumulated)}
        expected["median rank"] = np.median(firsts)
        assert len(set(firsts)) > 3  # neither trivial nor hopeless
        for found in (whole, tiled):
            own = {score.metric.name: score for score in found.headline if score.metric.name.endswith(direction)}
            assert list(own) == [f"{name}, {direction}" for name in expected]
            assert [score.value for score in own.values()] == pytest.approx([*expected.values()], rel=1e-6)
            assert {(score.count, score.protocol["gallery"]) for score in own.values()} == {(len(places), size)}
            ranks = next(of for of in found.outcomes if of.metric == f"MRR, {direction}")
            told = dict(zip(ranks.rows.tolist(), (1 / ranks.values).tolist(), strict=True))
            assert told == pytest.approx({row: min(of) for row, of in places.items()})


@SAME
def test_a_tie_favours_nobody_and_perfect_scores_of_few_have_an_interval():
    """An encoder that makes the same of everything finds one in a hundred first, and the middle in the middle."""
    same, six = Features(torch.ones(100, 3), None), Features(torch.eye(6), None)
    found = CrossModalRetrieval()(*(3 * [replace(same, counterparts=same)]))
    for direction in (FORTH, BACK):
        assert [found[f"recall@{k}, {direction}"].value for k in (1, 5, 10)] == pytest.approx([0.01, 0.05, 0.1])
        assert found[f"MRR, {direction}"].value == pytest.approx(sum(1 / rank for rank in range(1, 101)) / 100)
        assert found[f"median rank, {direction}"].value == 50.5
    found = CrossModalRetrieval()(*(3 * [replace(six, counterparts=six)]))
    assert found[f"MRR, {FORTH}"].value == 1 > found[f"MRR, {FORTH}"].low
    names = [score.metric.name for score in found.headline if "recall" in score.metric.name]
    assert names == [f"recall@{k}, {direction}" for direction in (FORTH, BACK) for k in (1, 5)]  # of 6 no 10
    assert {score.metric.better for score in found.headline if "rank" in score.metric.name} == {"lower"}
    (selecting,) = CrossModalRetrieval(at=3).rank(torch.eye(6), torch.eye(6)).selecting
    assert selecting.metric.name == f"recall@1, {FORTH}"


@pytest.mark.parametrize("count", [1, 5, 6, 101, 1000])
def test_the_interval_of_a_median_is_between_order_statistics(count):
    """The narrowest symmetric one that the binomial distribution gives at least 95 %."""
    values = torch.randn(count, generator=torch.Generator().manual_seed(count)).abs() + 1
    middle, low, high, counted = median(values, 1, 99)
    assert (middle, counted) == (pytest.approx(float(np.median(values.numpy()))), count)
    ordered = [1.0, *values.double().sort().values.tolist(), 99.0]
    outside = max((j for j in range(count) if stats.binom.cdf(j - 1, count, 0.5) <= 0.025), default=0)
    assert (low, high) == pytest.approx((ordered[outside], ordered[-1 - outside]))


def test_intervals_are_over_queries_that_share_nothing():
    """Captions of an image are found or missed together, and count as no more than they tell."""
    pairs = pairs_of()
    bound = list(range(90))  # the smallest row that each is bound to, by an image or a text, directly or not
    for _ in range(90):
        for side in (pairs.items.tolist(), pairs.counterparts.items.tolist()):
            least = {item: min(of for of, own in zip(bound, side, strict=True) if own == item) for item in set(side)}
            bound = [least[item] for item in side]
    found = CrossModalRetrieval()(pairs, pairs, pairs)
    group_of = dict(zip(pairs.numbers.tolist(), bound, strict=True))
    count = len(set(bound))
    assert 1 < count < 30
    for direction in (FORTH, BACK):
        own = {of.metric: of for of in found.outcomes}
        ranks = 1 / own[f"MRR, {direction}"].values.double().numpy()
        groups = [group_of[row] for row in own[f"MRR, {direction}"].rows.tolist()]
        size, quantile = len(groups), stats.t.ppf(0.975, count - 1)

        def half(values, groups=groups, size=size, quantile=quantile):
            away = values - values.mean()
            sums = [sum(of for of, group in zip(away, groups, strict=True) if group == one) for one in set(groups)]
            return quantile * math.sqrt(count / (count - 1) * sum(of**2 for of in sums)) / size

        mean = found[f"MRR, {direction}"]
        assert (mean.value - mean.low, mean.high - mean.value) == pytest.approx(2 * [half(1 / ranks)], rel=1e-5)
        recall = found[f"recall@5, {direction}"]
        p, ratio = recall.value, stats.t.ppf(0.975, size - 1) / quantile
        told = min(size, (p * (1 - p) / (half(ranks < 5.5) / quantile) ** 2 + 1) * ratio**2)
        z = stats.norm.ppf(0.975)  # the bounds are where the share is z standard errors away
        for bound_of in (recall.low, recall.high):
            assert abs(p - bound_of) == pytest.approx(z * math.sqrt(bound_of * (1 - bound_of) / told))
        assert (recall.over, recall.count) == ((count, "group"), size)
        again = replace(own[f"MRR, {direction}"], values=own[f"MRR, {direction}"].values / 2)
        assert paired_difference(own[f"MRR, {direction}"], again).classes == count


@SAME
def test_arrays_are_ranked_by_their_places():
    """As features of pairs are; what has no partner is ranked, and is no query."""
    pairs = pairs_of()
    queries, others = (side[side.unique_index[0]] for side in (pairs, pairs.counterparts))
    places = torch.stack([pairs.unique_index[1], pairs.counterparts.unique_index[1]], dim=1)
    of_features = CrossModalRetrieval()(pairs, pairs, pairs)
    found = CrossModalRetrieval().rank(queries.vectors.numpy(), others.vectors.tolist(), places.tolist())
    assert [score.value for score in found.headline] == [score.value for score in of_features.headline]
    by_label = Retrieval(at=[1, 5]).rank(queries.vectors, range(30), pairs.counterparts.vectors, pairs.items)
    each = torch.stack([pairs.items, torch.arange(90)], dim=1)
    one_text_each = CrossModalRetrieval().rank(queries.vectors, pairs.counterparts.vectors, each)
    assert one_text_each[f"recall@5, {FORTH}"].value == by_label["hit rate@5"].value
    alone = CrossModalRetrieval().rank(torch.eye(3), torch.eye(3)[[0, 1]], [[0, 0], [1, 1]])
    forth, back = (alone[f"recall@1, {direction}"] for direction in (FORTH, BACK))
    assert forth.notes[0] == "1 sample without a partner left out"
    assert (forth.count, back.protocol) == (2, {"gallery": 3})


def test_bad_arrays_settings_and_parts_are_refused():
    two, rank, alone = torch.eye(2), CrossModalRetrieval().rank, Features(torch.eye(3), None)
    one = replace(alone, counterparts=replace(alone, items=torch.zeros(3, dtype=torch.int64)))
    wrong = "CrossModalRetrieval does not apply: it needs "
    for make, told in (
        (lambda: rank(torch.eye(3), two), "expected first and second of one width, got 3 and 2"),
        (lambda: rank(torch.ones(3, 2), torch.ones(4, 2)), "expected as many in second as in first, 3, got 4"),
        (lambda: rank(two, two, [0, 1]), r"expected pairs as whole numbers \(P, 2\), got \(2,\)"),
        (lambda: rank(two, two, [[0.0, 1.0]]), "expected pairs as whole numbers"),
        (lambda: rank(two, two, [[0, 2]]), "expected pairs of places below 2 and 2, got 0 to 2"),
        (lambda: rank(two[:1], two[:1]), "expected at least 2 vectors in first and in second, got 1 and 1"),
        (lambda: CrossModalRetrieval(0), "expected at"),
        (lambda: CrossModalRetrieval([5, 5]), "expected at"),
        (lambda: CrossModalRetrieval()(*(3 * [alone])), f"{wrong}pairs"),
        (lambda: CrossModalRetrieval()(*(3 * [one])), f"{wrong}2 different inputs on each side of the test pairs"),
        (lambda: replace(alone, counterparts=Features(torch.ones(3, 2), None)), "counterparts of test features like"),
    ):
        with pytest.raises(ValueError, match=told):
            make()


def test_pairs_without_labels_are_evaluated_by_each_other():
    parts = FeatureParts(*(pairs_of(part=part, seed=seed) for seed, part in enumerate(("train", "validation", "test"))))
    (usual,) = applicable(parts)
    result = usual(*parts)
    assert usual.name == "cross-modal retrieval"
    assert validation_score([*result.scores, *result.candidates]) == result.candidates[0]
    with pytest.raises(ValueError, match="those that apply: CrossModalRetrieval"):
        applicable(parts, [KNN()])


@SAME
def test_evaluations_of_classes_take_each_input_once():
    """An image with three captions is one sample, of which kNN must not find two more."""
    parts = FeatureParts(*(pairs_of(part=part, labels=3) for part in ("train", "validation", "test")))
    unique = FeatureParts(*(replace(part[torch.arange(30)], items=None, counterparts=None) for part in parts))
    assert [one.name for one in applicable(parts)] == ["cross-modal retrieval", "kNN", "linear probe", "retrieval"]
    for evaluation in (KNN(), Retrieval()):
        found, plain = evaluation(*parts), evaluation(*unique)
        assert found.scores == plain.scores
        assert torch.equal(found.outcomes[0].rows, plain.outcomes[0].rows)
    single = replace(parts.test, labels=parts.test.items, names=())  # every class has one image, in three pairs
    assert Retrieval().why_not_applicable(Retrieval.select(parts._replace(test=single))) is not None
    assert "retrieval" not in [one.name for one in applicable(FeatureParts(single, single, single))]


def test_pairs_are_validated_while_they_are_trained(tmp_path):
    inputs = Samples(torch.rand(8, 3), counterparts=Samples(torch.rand(8, 3)))
    parts = Parts(inputs, inputs, inputs)
    assert isinstance(while_training(parts, Views())[0][0], CrossModalRetrieval)
    run = Run.create(tmp_path, "run")
    assert Validation(run, parts, keep_best=True).keep_best
    plain = Samples(torch.rand(8, 3))
    with pytest.raises(ValueError, match="expected labels or pairs to keep the best epoch by"):
        Validation(run, Parts(plain, plain, plain), keep_best=True)
    check_applicable(parts, EvaluationOptions([CrossModalRetrieval()]))  # before anything is trained
    with pytest.raises(ValueError, match="it needs pairs"):
        check_applicable(Parts(plain, plain, plain), EvaluationOptions([CrossModalRetrieval()]))


def test_files_and_joined_parts_keep_both_sides(tmp_path):
    parts = FeatureParts(*(pairs_of(part=part, labels=3) for part in ("train", "validation", "test")))
    named = replace(parts.test.counterparts, ids=Ids.of([f"text {row}" for row in range(90)]))
    parts = parts._replace(test=replace(parts.test, counterparts=named))
    parts = parts._replace(validation=replace(parts.validation, items=None))
    save_features(tmp_path / "embeddings.npz", parts)
    loaded = load_features(tmp_path / "embeddings.npz")
    for before, after in zip(parts, loaded, strict=True):
        assert torch.equal(after.counterparts.vectors, before.counterparts.vectors)
        assert torch.equal(after.counterparts.numbers, before.numbers)
        assert (after.part, after.label_kind, after.items is None) == (before.part, "classes", before.items is None)
        assert list(after.counterparts.ids) == list(before.counterparts.ids)
    assert CrossModalRetrieval()(*loaded).scores == CrossModalRetrieval()(*parts).scores
    both = joined(pairs_of(), pairs_of(seed=1))
    assert torch.equal(both.counterparts.vectors, torch.cat([pairs_of(seed=of).counterparts.vectors for of in (0, 1)]))


@pytest.mark.parametrize("form", ["one", "parts", "part"])
def test_a_file_of_pairs_without_labels_is_ranked_as_its_pairs_are(form, tmp_path):
    """What is equal on a side is one input, as told, or by its features; without parts all are tested."""
    parts = FeatureParts(*(pairs_of(part=part, seed=of) for of, part in enumerate(("train", "validation", "test"))))
    test, file = parts.test, tmp_path / "pairs.npz"
    sides = {"features": test.vectors, "counterpart_features": test.counterparts.vectors}
    items = {"items": test.items.numpy().astype(str), "counterpart_items": test.counterparts.items}
    if form == "one":
        np.savez(file, **sides)
    elif form == "part":
        np.savez(file, **{f"test_{name}": array for name, array in (sides | items).items()})
    else:
        save_features(file, parts)
    read = features_of_file(file)
    assert list(map(len, read)) == (list(map(len, parts)) if form == "parts" else [0, 0, len(test)])
    assert [one.name for one in applicable(read)] == ["cross-modal retrieval"]
    expected = CrossModalRetrieval()(*parts).scores
    for found, of in zip(CrossModalRetrieval()(*read).scores, expected, strict=True):
        assert (found.metric, found.group, found.value) == (of.metric, of.group, of.value)


def test_files_of_pairs_that_do_not_fit_are_refused(tmp_path):
    for arrays, told in (
        ({"features": 4, "counterpart_features": 3}, r"like features, \(4, 2\), got \(3, 2\): encode both"),
        ({"features": 4, "counterpart_features": 4, "items": 3}, r"expected items \(4,\), .*, got \(3, 2\)"),
        ({"train_features": 4, "test_features": 4, "test_counterpart_features": 4}, "train_counterpart_.*, got none"),
        ({"test_features": 4, "test_counterpart_features": 2}, r"got \(2, 2\) beside features \(4, 2\)"),
    ):
        np.savez(tmp_path / "pairs.npz", **{name: np.ones((count, 2)) for name, count in arrays.items()})
        with pytest.raises(ValueError, match=told):
            features_of_file(tmp_path / "pairs.npz")


def sides(first, second, **beside):
    """Three parts of pairs, all the same."""
    samples = Samples(first, counterparts=Samples(second, items=torch.arange(len(first)).flip(0)), **beside).numbered()
    return Parts(samples, samples, samples)


def test_raw_texts_of_both_sides_have_one_vocabulary():
    """So that names and numbers, which languages share, find each other."""
    english = ["a dog in Berlin", "two cats of Otto", "three birds 1999", "no word in common"]
    german = ["ein Hund in Berlin", "zwei Katzen von Otto", "drei Vögel 1999", "nichts davon gleich"]
    raw = raw_features(sides(Texts(english), Texts(german)))
    terms = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=2048).fit([*english, *german])
    assert raw.test.vectors.numpy() == pytest.approx(terms.transform(english).toarray())
    assert raw.test.counterparts.vectors.numpy() == pytest.approx(terms.transform(german).toarray())
    assert raw.test.counterparts.items.tolist() == [3, 2, 1, 0]
    assert CrossModalRetrieval()(*raw)[f"recall@1, {FORTH}"].value >= 0.75
    assert raw_features(sides(Texts(["?"] * 4), Texts(["!"] * 4))) is None
    assert raw_features(sides(Texts(["?"] * 4), Texts(german))) is not None


def test_raw_vectors_of_both_sides_are_standardised_each_as_its_own_and_of_two_kinds_are_in_no_common_space():
    first, second = torch.randn(20, 3), 1000 * torch.randn(20, 3) + 5
    raw = raw_features(sides(first, second))
    for vectors, given in ((raw.train.vectors, first), (raw.train.counterparts.vectors, second)):
        assert vectors.numpy() == pytest.approx(StandardScaler().fit_transform(given), rel=1e-4, abs=1e-5)
    for other in (torch.rand(20, 5), torch.rand(20, 1, 3, 1), Texts("ab" * 10)):
        raw = raw_features(sides(first, other))
        assert raw.test.counterparts is None
        assert "it needs pairs" in CrossModalRetrieval().why_not_applicable(raw)
