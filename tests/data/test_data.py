"""Samples, arrays, subsets, splits and the order of an epoch."""

import json
import warnings
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from likewise.data import (
    Arrays,
    Balanced,
    ByClass,
    Classes,
    Digits,
    Fraction,
    LongTail,
    MinPerClass,
    Samples,
    Shuffled,
    Stratified,
    Subset,
)

pytestmark = pytest.mark.slow

LABELS = np.arange(12) % 2
VECTORS = np.zeros((12, 3))


@pytest.fixture
def saved(tmp_path):
    """Save arrays and return a source that reads them."""

    def save(*, size=None, **arrays):
        path = tmp_path / "arrays.npz"
        np.savez(path, **arrays)
        return Arrays(path, size=size)

    return save


def samples_of(*counts, parts=None, width=1):
    """Return shuffled samples with the given class counts, each identified by its only input."""
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(5))]
    inputs = torch.arange(float(len(labels))).unsqueeze(1).expand(-1, width)
    return Samples(inputs, labels, tuple(f"class {label}" for label in range(len(counts))), parts)


def rows_of(*parts):
    """Return the indices of the samples in each part."""
    return [part.inputs[:, 0].long().tolist() for part in parts]


# Arrays


@pytest.mark.parametrize("layout", ["last", "first"])
def test_uint8_images_stay_uint8_with_channels_first(saved, layout):
    images = np.zeros((12, 5, 6, 3), dtype=np.uint8)
    images[:, 4, 1, 2] = 255
    loaded = saved(images=images if layout == "last" else np.moveaxis(images, -1, 1), labels=LABELS).load()
    assert loaded.inputs.dtype == torch.uint8
    assert loaded.input_shape == (3, 5, 6)
    assert loaded.inputs[0].nonzero().tolist() == [[2, 4, 1]]
    assert loaded.inputs.is_contiguous()


def test_images_of_other_dtypes_keep_their_brightness(saved):
    ink = np.random.default_rng(0).random((12, 4, 4)) > 0.5
    assert saved(images=ink).load().inputs[:, 0].tolist() == (ink * 255).tolist()
    wide = saved(images=ink * np.int64(255)).load().inputs
    assert wide.dtype == torch.uint8
    assert wide[:, 0].tolist() == (ink * 255).tolist()
    grey = np.linspace(0, 1, 12 * 16).reshape(12, 4, 4)
    grey[0, 0, 0] -= 1e-9
    loaded = saved(images=grey).load().inputs
    assert loaded.dtype == torch.float32
    assert loaded.min() == 0
    assert np.allclose(loaded[:, 0].numpy(), grey, atol=1e-7)


def test_a_size_crops_the_central_square_and_resizes_it(saved):
    """Of an image with three vertical stripes, only the middle one is kept; at its edges the filter blends them."""
    images = np.full((2, 8, 24, 3), 50, dtype=np.uint8)
    images[:, :, 8:16] = 200
    loaded = saved(images=images, size=4).load().inputs
    assert loaded.shape == (2, 3, 4, 4)
    assert (loaded[..., 1:-1] == 200).all()
    assert (loaded > 175).all()


def test_labels_of_any_name_become_consecutive_classes(saved):
    for labels, names in ((np.where(LABELS, 70, -3), ("-3", "70")), (np.where(LABELS, b"b", b"a"), ("a", "b"))):
        loaded = saved(vectors=VECTORS, labels=labels).load()
        assert loaded.names == names
        assert loaded.labels.tolist() == LABELS.tolist()
    loaded = saved(vectors=VECTORS, labels=LABELS.astype(np.uint8), names=["crow", "ant"]).load()
    assert (loaded.names, loaded.labels.tolist()) == (("crow", "ant"), LABELS.tolist())


def test_a_test_mask_and_named_parts_are_kept_and_rows_of_0_and_1_are_label_sets(saved):
    mask = np.arange(12) >= 8
    assert saved(vectors=VECTORS, labels=LABELS, test=mask).load().parts.tolist() == (mask * 2).tolist()
    names = np.array(["train"] * 8 + ["validation"] * 2 + ["test"] * 2)
    assert saved(vectors=VECTORS, parts=names).load().parts.tolist() == [0] * 8 + [1] * 2 + [2] * 2

    sets = np.random.default_rng(0).integers(0, 2, (12, 5))
    for kind in (bool, np.uint8):
        loaded = saved(vectors=VECTORS, labels=sets.astype(kind), names=list("abcde")).load()
        assert loaded.label_kind == "label sets"
        assert loaded.names == tuple("abcde")
        assert loaded.labels.tolist() == (sets > 0).tolist()
        assert loaded.counts.tolist() == sets.sum(0).tolist()


NAN = np.full((12, 3), np.nan)
CUBES = np.zeros((12, 3, 8, 3), np.uint8)
WRONG = {
    "mistyped labels": ({"vectors": VECTORS, "label": LABELS}, r"got label, vectors: save it.*vectors=\.\.\."),
    "no inputs": ({"labels": LABELS, "pictures": LABELS}, "got labels, pictures"),
    "both inputs": ({"labels": LABELS, "vectors": VECTORS, "images": np.zeros((12, 2, 2))}, "got both: keep one"),
    "lengths": ({"vectors": VECTORS[:11], "labels": LABELS}, r"labels of shape \(11,\).*got \(12,\)"),
    "nan": ({"vectors": NAN, "labels": LABELS}, "NaN or infinity in 12 of 12"),
    "real labels": ({"vectors": VECTORS, "labels": LABELS / 2}, r"integers or strings.*float64: .*astype\(int\)"),
    "no sample": ({"vectors": np.zeros((0, 3)), "labels": LABELS[:0]}, r"not empty, got \(0, 3\)"),
    "object inputs": ({"vectors": VECTORS.astype(object), "labels": LABELS}, r"save np\.array\(vectors\.tolist\(\)\)"),
    "flat images": ({"images": np.zeros((12, 4)), "labels": LABELS}, r"got \(12, 4\)"),
    "mask kind": ({"vectors": VECTORS, "labels": LABELS, "test": LABELS}, "test of booleans"),
    "mask empty": ({"vectors": VECTORS, "labels": LABELS, "test": LABELS > 2}, "no test sample"),
    "mask and parts": ({"vectors": VECTORS, "test": LABELS > 0, "parts": ["test"] * 12}, "got both"),
    "part": ({"vectors": VECTORS, "parts": ["exam"] * 12}, "'train', 'validation' and 'test', got 'exam'"),
    "counts as sets": ({"vectors": VECTORS, "labels": np.full((12, 2), 2)}, r"0 and 1 as labels, got \(12, 2\)"),
    "names": ({"vectors": VECTORS, "labels": LABELS, "names": ["a"]}, "from 0 to 0 .* got 0 to 1"),
    "two layouts": ({"images": CUBES}, r"got \(12, 3, 8, 3\), which could be either: save grey"),
    "four channels": ({"images": np.zeros((12, 8, 8, 4), np.uint8)}, "neither 1 nor 3"),
    "bright floats": ({"images": np.full((12, 4, 4), 255.0)}, "from 255 to 255: divide"),
    "wide integers": ({"images": np.full((12, 4, 4), 4095)}, "from 4095 to 4095: divide"),
    "faint integers": ({"images": np.ones((12, 4, 4), int)}, r"only 0 and 1: save images.astype\(bool\)"),
    "size of vectors": ({"vectors": VECTORS, "size": 4}, "no size for vectors, got 4"),
    "nearly parts": (
        {"vectors": VECTORS, "labels": LABELS, "part": LABELS},
        "expected 'parts' in .*, got 'part': rename it",
    ),
    "nearly ids": ({"vectors": VECTORS, "labels": LABELS, "id": LABELS}, "expected 'ids' in .*, got 'id': rename it"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arrays_are_refused_by_name_and_value(saved, case):
    arrays, words = WRONG[case]
    with pytest.raises(ValueError, match=words) as raised:
        saved(**arrays).load()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("key", ["vectors", "features", "embeddings"])
def test_vectors_are_read_by_every_name_that_evaluate_knows(saved, key):
    samples = saved(**{key: VECTORS}, labels=np.arange(len(VECTORS)) % 2).load()
    assert torch.equal(samples.inputs, torch.from_numpy(VECTORS).float())
    with pytest.raises(ValueError, match=rf"got .*{key}.*: save it with numpy.savez\(path, {key}=..., labels=...\)"):
        saved(**{key: VECTORS}, label=np.arange(len(VECTORS))).load()
    beside = saved(features=VECTORS + 1, vectors=VECTORS).load()
    assert torch.equal(beside.inputs, samples.inputs)


def test_a_bare_array_is_vectors_without_labels(tmp_path):
    np.save(tmp_path / "x.npy", VECTORS)
    samples = Arrays(tmp_path / "x.npy").load()
    assert samples.labels is None
    assert torch.equal(samples.inputs, torch.from_numpy(VECTORS).float())
    np.save(tmp_path / "images.npy", np.zeros((4, 8, 8)))
    with pytest.raises(ValueError, match=r"expected vectors of shape \(N, F\), .* or save images under 'images'"):
        Arrays(tmp_path / "images.npy").load()


def test_a_file_that_is_not_an_npz_is_refused(tmp_path):
    for name, content in (("text.npz", b"not an archive"), ("empty.npz", b""), ("pickled.npy", None)):
        path = tmp_path / name
        if content is None:
            np.save(path, np.array([{}], dtype=object), allow_pickle=True)
        else:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=r"expected an .npz file of plain arrays"):
            Arrays(path).load()
    with pytest.raises(ValueError, match=r"does not exist: check data\.path"):
        Arrays(tmp_path / "nowhere.npz").load()


# Subsets

CIFAR_100_LT = {100: 10_847, 50: 12_608, 10: 19_573}


@pytest.mark.parametrize(("imbalance", "total"), CIFAR_100_LT.items())
def test_a_long_tail_of_cifar_100_has_the_published_size(imbalance, total):
    samples = samples_of(*[500] * 100)
    rows = LongTail(imbalance)(samples)
    assert len(rows) == len(rows.unique()) == total
    counts = samples[rows].counts
    assert counts.tolist() == sorted(counts.tolist(), reverse=True)
    assert (counts[0], counts[-1]) == (500, 500 // imbalance)


def test_a_long_tail_of_unequal_classes_keeps_its_shape_and_needs_no_more_samples_than_exist():
    samples = samples_of(100, 60, 90)
    counts = samples[LongTail(4)(samples)].counts
    assert counts.tolist() == [100, 50, 25]
    counts = samples_of(100, 30, 90)[LongTail(4)(samples_of(100, 30, 90))].counts
    assert counts.tolist() == [60, 30, 15]
    even = samples_of(*[40] * 5)
    assert even[LongTail(10, "step")(even)].counts.tolist() == [40, 40, 40, 4, 4]


def test_subsets_are_nested_and_depend_on_their_seed():
    samples = samples_of(*[50] * 8)
    for make in (lambda size, seed: LongTail(size, seed=seed), lambda size, seed: Fraction(1 / size, seed=seed)):
        small, large = (set(make(size, 3)(samples).tolist()) for size in (20, 2))
        assert small < large
        assert set(make(20, 3)(samples).tolist()) == small
        assert set(make(20, 4)(samples).tolist()) != small
    unequal = samples_of(100, 40, 3)
    assert unequal[Fraction(0.1)(unequal)].counts.tolist() == [10, 4, 1]
    assert len(Fraction(0.1)(Samples(torch.zeros(50, 1))).unique()) == 5


def test_classes_leave_every_part_and_are_renumbered():
    parts = torch.arange(60) % 3
    samples = samples_of(20, 20, 20, parts=parts)
    cut = Stratified()(samples, Classes(names=["class 2", "class 0"]))
    for part in (cut.train, cut.validation, cut.test):
        assert part.names == ("class 0", "class 2")
    together = torch.cat([cut.train.inputs, cut.validation.inputs, cut.test.inputs]).flatten().long()
    assert sorted(together.tolist()) == (samples.labels != 1).nonzero().flatten().tolist()
    assert Stratified()(samples, Classes(count=2)).test.names == ("class 0", "class 1")


def test_classes_of_few_samples_leave_every_part_and_are_counted():
    labels = samples_of(9, 1, 5, 2).labels
    samples = samples_of(9, 1, 5, 2, parts=torch.where(torch.arange(17) % 3 == 2, 2, 0))
    with pytest.warns(UserWarning, match="left out 2 of 4 classes, with 3 of 17 samples, .* than 3 each: class"):
        kept = MinPerClass(3)(samples)
    assert kept.tolist() == [row for row in range(17) if sum(labels == labels[row]) >= 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(MinPerClass(1)(samples)) == 17
    with pytest.warns(UserWarning, match="left out 2 of 4"):
        cut = Stratified()(samples, MinPerClass(3))
    assert cut.train.names == cut.test.names == ("class 0", "class 2")


# Splits


def test_the_test_part_of_the_digits_does_not_change():
    """The same 449 rows that scikit-learn's stratified split with test size 0.25 and seed 0 holds out."""
    rows = np.arange(1797)
    _, held = train_test_split(rows, test_size=449, stratify=load_digits().target, random_state=0)
    digits = Digits().load()
    assert torch.equal(Stratified()(digits).test.inputs, digits.inputs[np.sort(held)])
    assert digits.inputs.max() == 1


@pytest.mark.parametrize("given", [None, [0, 2], [0, 1], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("subset", [None, Fraction(0.5)], ids=["whole", "half"])
def test_parts_share_no_sample_and_keep_what_the_source_gives(given, subset):
    rng = np.random.default_rng(0)
    parts = None if given is None else torch.from_numpy(rng.choice(given, 200))
    samples = samples_of(80, 60, 60, parts=parts)
    cut = Stratified(seed=3)(samples, subset)
    train, validation, test = rows_of(cut.train, cut.validation, cut.test)
    assert len({*train, *validation, *test}) == len(train) + len(validation) + len(test)
    if given and 2 in given:
        assert test == (parts == 2).nonzero().flatten().tolist()
    if given and 1 in given:
        assert set(validation) <= set((parts == 1).nonzero().flatten().tolist())
    if subset is None:
        assert len(train) + len(validation) + len(test) == 200
        if given and 1 in given:
            assert validation == (parts == 1).nonzero().flatten().tolist()
    else:
        assert test == rows_of(Stratified(seed=3)(samples).test)[0]
        assert abs(len(train) + len(validation) - (200 - len(test)) / 2) <= 3


def test_a_split_depends_only_on_its_own_seed():
    samples = samples_of(20, 20, 20)
    held = []
    for everything_else in (0, 1):
        torch.manual_seed(everything_else)
        np.random.seed(everything_else)  # noqa: NPY002 - scikit-learn's default source of randomness
        held.append(rows_of(*(getattr(Stratified(seed=7)(samples), part) for part in ("validation", "test"))))
    assert held[0] == held[1]
    other = Stratified(seed=8)(samples)
    assert all(one != another for one, another in zip(held[0], rows_of(other.validation, other.test), strict=True))


@pytest.mark.parametrize(
    ("share", "train", "validation"), [(0.1, [450, 54, 6, 1], [50, 6, 1, 0]), (0.95, [1, 1, 1, 1], [0, 1, 2, 7])]
)
def test_validation_is_stratified_and_leaves_every_class_a_training_sample(share, train, validation):
    counts = [seen + held + 1 for seen, held in zip(train, validation, strict=True)]
    samples = samples_of(*counts, parts=torch.zeros(sum(counts), dtype=torch.int64))
    samples.parts[[int((samples.labels == label).nonzero()[0]) for label in range(4)]] = 2
    cut = Stratified(validation=share)(samples)
    assert (cut.train.counts.tolist(), cut.validation.counts.tolist()) == (train, validation)


def test_a_long_tail_is_taken_before_validation_and_never_from_test():
    parts = (torch.arange(6000) % 6 == 0).long() * 2
    labels = torch.arange(6000) // 600
    samples = Samples(torch.arange(6000.0).unsqueeze(1), labels, tuple("abcdefghij"), parts)
    cut = Stratified()(samples, LongTail(100))
    expected = samples_of(*[500] * 10)[LongTail(100)(samples_of(*[500] * 10))].counts
    assert torch.equal(cut.train.counts + cut.validation.counts, expected)
    assert cut.test.counts.tolist() == [100] * 10
    assert cut.train.counts.min() >= 1


def test_a_given_validation_part_loses_classes_without_a_training_sample_after_a_subset():
    class Two(Subset):
        def __call__(self, samples):
            last = (samples.labels == 1) & (samples.parts == 1)
            return torch.cat([(samples.labels == 0).nonzero().flatten(), last.nonzero().flatten()[:1]])

    cut = Stratified()(samples_of(30, 30, parts=torch.arange(60) % 3), Two())
    assert cut.train.counts[1] == 1
    assert cut.validation.counts.tolist()[1:] in ([], [0])


@pytest.mark.parametrize("labels", [None, torch.rand(50, 4) > 0.5], ids=["none", "sets"])
def test_samples_without_classes_are_split_at_random(labels):
    samples = Samples(torch.arange(50.0).unsqueeze(1), labels, () if labels is None else tuple("abcd"))
    cut = Stratified(test=0.2, validation=0.1, seed=1)(samples)
    parts = rows_of(cut.train, cut.validation, cut.test)
    assert [len(part) for part in parts] == [36, 4, 10]
    assert sorted(row for part in parts for row in part) == list(range(50))
    if labels is not None:
        assert torch.equal(cut.test.labels, labels[parts[2]])


def test_refitted_parts_train_on_validation_too():
    cut = Stratified()(samples_of(20, 30))
    refitted = cut.refitted()
    assert rows_of(refitted.train)[0] == [row for part in rows_of(cut.train, cut.validation) for row in part]
    assert torch.equal(refitted.train.labels, torch.cat([cut.train.labels, cut.validation.labels]))
    assert refitted.test is cut.test


# Splits by class


def classes_of(parts):
    return [set(part.names) for part in (parts.train, parts.validation, parts.test)]


@pytest.mark.parametrize("sizes", [{}, {"train": 12, "validation": 0.25, "test": 2}], ids=["fractions", "numbers"])
def test_parts_by_class_are_disjoint_and_keep_all_samples_of_their_classes(sizes):
    samples = samples_of(*range(5, 25), parts=torch.arange(sum(range(5, 25))) % 3)
    cut = ByClass(**sizes, seed=2)(samples)
    names = classes_of(cut)
    assert [len(part) for part in names] == ([12, 5, 2] if sizes else [13, 3, 4])
    assert len(set.union(*names)) == sum(map(len, names))
    for part in (cut.train, cut.validation, cut.test):
        kept = [samples.names[label] for label in samples.labels[rows_of(part)[0]].tolist()]
        assert kept == [part.names[label] for label in part.labels.tolist()]
        assert part.counts.tolist() == [int(name.split()[1]) + 5 for name in part.names]
    assert classes_of(ByClass(**sizes, seed=3)(samples)) != names


def test_fractions_of_all_classes_leave_none_out_and_are_two_or_more():
    for classes in range(6, 40):
        names = classes_of(ByClass()(samples_of(*[3] * classes)))
        assert len(set.union(*names)) == sum(map(len, names)) == classes
        assert min(map(len, names)) >= 2


@pytest.mark.parametrize(("classes", "trained", "own"), [(3, 2, 1), (4, 2, 2), (5, 3, 2)])
@pytest.mark.parametrize("given", [False, True], ids=["fractions", "numbers"])
def test_of_few_classes_some_samples_of_the_training_classes_are_held_out(classes, trained, own, given):
    samples = samples_of(*range(9, 9 + classes))
    sizes = {"train": trained} | ({"test": own} if own > 1 else {}) if given else {}
    with pytest.warns(UserWarning, match=f"^{classes} classes are too few .*: {'test and validation' * (own < 2)}"):
        cut = ByClass(**sizes)(samples)
    train, validation, test = classes_of(cut)
    assert (len(train), len(test - train)) == (trained, own)
    assert validation == train
    assert test & train == (train if own < 2 else set())
    assert sorted(chain(*rows_of(cut.train, cut.validation, cut.test))) == list(range(len(samples)))
    new = [count for name, count in zip(cut.test.names, cut.test.counts.tolist(), strict=True) if name not in train]
    assert new == [9 + int(name.split()[1]) for name in sorted(test - train)]
    assert (cut.train.counts >= 5).all()
    assert cut.refitted().train.names == cut.train.names
    with pytest.warns(UserWarning, match="too few"):
        less = ByClass(**sizes)(samples, Fraction(0.5))
    assert rows_of(less.test) == rows_of(cut.test)


def test_parts_of_a_source_with_disjoint_classes_are_kept():
    labels = samples_of(*[6] * 9).labels
    cut = ByClass(train=5, validation=2, test=2)(samples_of(*[6] * 9, parts=labels // 3))
    assert [sorted(part) for part in classes_of(cut)] == [
        [f"class {3 * part + k}" for k in range(3)] for part in range(3)
    ]


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_file_names_the_classes_of_each_part(tmp_path, form):
    wanted = {"train": ["class 4", "class 0"], "val": ["class 1", "class 5"], "test": ["class 2", "class 3"]}
    file = tmp_path / ("split.json" if form == "json" else "few_train.txt")
    file.write_text(json.dumps(wanted))
    if form == "text":
        for part, names in wanted.items():
            (tmp_path / f"few_{part}.txt").write_text("\n".join(names) + "\n")
    with pytest.warns(UserWarning, match="left out 1 of 7 classes, which are in no part of .*, such as 'class 6'"):
        cut = ByClass(file=file)(samples_of(*[4] * 7))
    ByClass(file=file)(samples_of(*[4] * 6))  # no warning
    assert classes_of(cut) == [set(names) for names in wanted.values()]
    assert cut.train.names == ("class 0", "class 4")


def test_a_subset_of_a_split_by_class_leaves_test_whole():
    samples = samples_of(*[40] * 10)
    whole, half = (ByClass()(samples, subset) for subset in (None, Fraction(0.5)))
    assert rows_of(whole.test) == rows_of(half.test)
    assert (half.train.counts == 20).all()
    assert (half.validation.counts == 20).all()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"train": ["class 0"]}, "got no list for validation, test: write"),
        ({"train": ["clas 0"], "val": [], "test": []}, "did you mean class 0"),
        ({"train": ["unicorn", "class 0"], "val": ["gryphon"], "test": []}, "got unicorn, .*, and 1 others"),
        ({"train": ["class 0", "class 1"], "val": ["class 2", "class 3"], "test": []}, "got 0 of 6 for test"),
        ({"train": ["class 0", "class 1"], "val": ["class 1"], "test": []}, "'class 1' in two"),
        (["class 0"], "got no list for train, validation, test: write"),
        ({"train": [], "val": [], "validation": [], "test": []}, "split.json, got train, val, validation, test$"),
        ('{"train": ["class 0",', r"split.json, got invalid JSON at line 1, column 22: write {\"train\""),
    ],
)
def test_a_wrong_file_of_classes_is_refused(tmp_path, content, words):
    (tmp_path / "split.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=words) as raised:
        ByClass(file=tmp_path / "split.json")(samples_of(*[4] * 6))
    assert "\n" not in str(raised.value)


def cut_error(samples, **options):
    return lambda: Stratified(**options)(samples)


def apart_error(classes, **options):
    return lambda: ByClass(**options)(samples_of(*[4] * classes))


SETS = Samples(torch.zeros(8, 1), torch.zeros(8, 2, dtype=torch.bool), ("a", "b"))
WRONG_CHOICES = {
    "imbalance": (lambda: LongTail(0.5), "imbalance of at least 1, got 0.5"),
    "too long a tail": (lambda: LongTail(100)(samples_of(20, 20)), "none for 'class 1': .*imbalance to at most 20"),
    "tail of sets": (lambda: LongTail()(SETS), "one class each, got label sets: choose Fraction"),
    "fraction": (lambda: Fraction(0.0), "above 0 and at most 1, got 0.0"),
    "no choice": (Classes, "got neither"),
    "two choices": (lambda: Classes(["a"], 1), "got both"),
    "one class": (lambda: Classes(["a"]), "at least 2 classes, got 1"),
    "unknown class": (lambda: Classes(["class 0", "clas 1"])(samples_of(3, 3)), "did you mean class 1"),
    "too many": (lambda: Classes(count=3)(samples_of(3, 3)), "at most 2, .*got 3"),
    "all small": (lambda: MinPerClass(5)(samples_of(9, 4, 3, 1)), "5 samples or more, got 1 of 4: .* to 4 or less"),
    "test": (lambda: Stratified(test=1.0), "test between 0 and 1, got 1.0"),
    "validation": (lambda: Stratified(validation=0.0), "validation between 0 and 1, got 0.0"),
    "one class alone": (cut_error(samples_of(12)), "at least 2 classes, got 1 .'class 0'."),
    "rare class": (cut_error(samples_of(10, 2)), "got 2 of 'class 1'; 1 of 2 .*--min_per_class 3"),
    "small test": (cut_error(samples_of(*[4] * 9), test=0.2), "got 7 of 36 samples, test=0.2: --split.test 0.25 fits"),
    "large test": (cut_error(samples_of(*[4] * 9), test=0.8), "got 29 of 36 samples, test=0.8: --split.test 0.5 fits"),
    "unseen": (cut_error(samples_of(6, 6, parts=samples_of(6, 6).labels * 2)), "no training sample for class 1"),
    "nothing to spare": (
        cut_error(Samples(torch.zeros(4, 1), torch.tensor([0, 1] * 2), ("a", "b"), torch.tensor([0, 0, 2, 2]))),
        "for validation, got 2 samples of 2 classes",
    ),
    "few samples": (cut_error(Samples(torch.zeros(2, 1))), "at least 3 samples, .* got 2: add"),
    "only a test part": (cut_error(samples_of(6, 6, parts=torch.full((12,), 2))), "got 0 samples"),
    "too many in all": (apart_error(10, train=6, validation=2, test=3), "at most 10 classes in all parts together"),
    "single": (apart_error(10, train=6, validation=1, test=2), "2 classes in every part, got 1 of 10 for validation"),
    "nothing new": (apart_error(2), "got 0 of 2 for test: give it more, or choose Stratified"),
    "too many to train": (apart_error(100, train=99), "got 0 of 100 for validation"),
    "half a class": (apart_error(10, train=2.5), "a number of classes, got 2.5"),
    "no train in the name": (apart_error(10, file=__file__), '"train" in the name of a file'),
    "no file": (
        apart_error(10, file="nothere.txt"),
        "got nothere.txt, which does not exist: check the path, or name one of cif",
    ),
    "nearly a split": (
        apart_error(10, file="cifar-sf"),
        "got cifar-sf, which does not exist, did you mean cifar-fs\\?",
    ),
    "few classes of a batch": (lambda: balanced(30, 30), "at most 16.*samples_per_class to 12 or more"),
    "no multiple": (lambda: balanced(30, 30, size=12), "multiple of samples_per_class=8, got 12"),
    "balanced sets": (lambda: Balanced().order(SETS, 8, seed=0, epoch=0), "got label sets: choose Shuffled"),
    "absent class": (
        lambda: balanced(20, 0, 20, size=12, each=4),
        "at most 8, 4 samples of each of 2 classes, got 12: lower batch_size",
    ),
}


def balanced(*counts, size=24, each=8):
    return Balanced(each).order(samples_of(*counts), size, seed=0, epoch=0)


@pytest.mark.parametrize("case", WRONG_CHOICES)
def test_subsets_splits_and_batches_that_cannot_be_are_refused(case):
    make, words = WRONG_CHOICES[case]
    with pytest.raises(ValueError, match=words):
        make()


# Samplers


def test_shuffled_takes_every_sample_at_most_once_per_epoch():
    samples = samples_of(30, 23)
    order = Shuffled().order(samples, 8, seed=1, epoch=4)
    assert order.shape == (6, 8)
    assert len(order.unique()) == 48
    assert Shuffled().order(samples, 100, seed=1, epoch=4).sort().values.tolist() == [list(range(53))]


@pytest.mark.parametrize("sampler", [Shuffled(), Balanced(2)], ids=["shuffled", "balanced"])
def test_an_order_depends_only_on_seed_and_epoch(sampler):
    samples = samples_of(*[30] * 6)
    orders = {}
    for seed in (-1, 0, 1, 2, 1_000_003):
        for epoch in (0, 1, 2, 1_000_003):
            torch.manual_seed(seed + epoch)
            order = sampler.order(samples, 8, seed=seed, epoch=epoch)
            assert torch.equal(order, sampler.order(samples, 8, seed=seed, epoch=epoch))
            orders[seed, epoch] = tuple(order.flatten().tolist())
    assert len(set(orders.values())) == len(orders)


def test_balanced_batches_hold_equally_many_samples_of_each_class():
    samples = samples_of(40, 9, 25, 90, 13)
    order = Balanced(4).order(samples, 12, seed=0, epoch=0)
    assert order.shape == (177 // 12, 12)
    times = Counter()
    for batch in order:
        counts = Counter(samples.labels[batch].tolist())
        assert set(counts.values()) == {4}
        assert len(batch.unique()) == 12
        times.update(counts.keys())
    assert max(times.values()) - min(times.values()) <= 1
    assert balanced(20, 0, 20, size=8, each=4).shape == (5, 8)  # without the class that has no sample


def test_every_sample_of_a_class_comes_once_before_any_repeats():
    samples = samples_of(50, 7, 3)
    taken = {label: [] for label in range(3)}
    for row in Balanced(4).order(samples, 8, seed=3, epoch=1).flatten().tolist():
        taken[int(samples.labels[row])].append(row)
    for rows in taken.values():
        own = len(set(rows)) if len(rows) >= len(set(rows)) else 0
        for start in range(0, len(rows), own):
            assert len(set(rows[start : start + own])) == len(rows[start : start + own])
    assert len(set(taken[1])) == 7
    assert len(set(taken[2])) == 3


# Real data


def test_cifar_fs_is_split_as_published(real_data):
    files = [real_data / "splits" / f"cifar_fs_{part}.txt" for part in ("train", "val", "test")]
    published = [file.read_text().split() for file in files]
    names = tuple(sorted(chain(*published)))
    samples = Samples(torch.zeros(200, 1), torch.arange(200) % 100, names)
    for file in (files[0], "cifar-fs"):
        cut = ByClass(file=file)(samples)
        assert classes_of(cut) == list(map(set, published))
        assert [len(part) for part in (cut.train, cut.validation, cut.test)] == [128, 32, 40]
