"""Sources and their split."""

import numpy as np
import pytest
import torch

from likewise.data import Arrays, Digits, Samples


@pytest.fixture
def saved(tmp_path):
    """Save arrays and return a source that reads them."""

    def save(*, views=2, **arrays):
        path = tmp_path / "arrays.npz"
        np.savez(path, **arrays)
        return Arrays(path, views=views, batch_size=4)

    return save


LABELS = np.arange(12) % 2


def test_digits_split_keeps_every_digit_in_proportion():
    digits = Digits()
    counts = torch.bincount(digits.test_samples.labels) / torch.bincount(digits.train_samples.labels)
    assert (counts - 1 / 3).abs().max() < 0.01


def test_split_shares_no_sample_and_loses_none():
    samples = Samples(torch.arange(40.0).unsqueeze(1), torch.arange(40) % 4, tuple("abcd"))
    train, test = samples.split(0.25, split_seed=3)
    assert sorted(torch.cat([train.inputs, test.inputs]).flatten().tolist()) == list(range(40))


def test_split_depends_on_its_own_seed_alone():
    samples = Samples(torch.arange(40.0).unsqueeze(1), torch.arange(40) % 4, tuple("abcd"))
    held = []
    for everything_else in (0, 1):
        torch.manual_seed(everything_else)
        np.random.seed(everything_else)  # noqa: NPY002 - scikit-learn's default source of randomness
        held.append(samples.split(0.25, split_seed=7)[1].inputs)
    assert torch.equal(*held)
    assert not torch.equal(held[0], samples.split(0.25, split_seed=8)[1].inputs)


def test_integer_images_become_channels_first_between_zero_and_one(saved):
    images = np.zeros((12, 5, 6, 3), dtype=np.uint8)
    images[:, 4, 1, 2] = 255
    source = saved(images=images, labels=LABELS)
    assert source.input_shape == (3, 5, 6)
    assert source.train_samples.inputs[0].nonzero().tolist() == [[2, 4, 1]]
    assert source.train_samples.inputs.max() == 1


def test_a_test_mask_is_the_split(saved):
    mask = np.arange(12) >= 8
    source = saved(vectors=np.arange(12.0).reshape(12, 1), labels=LABELS, test=mask)
    assert source.test_samples.inputs.flatten().tolist() == [8, 9, 10, 11]


def test_labels_of_any_name_become_consecutive_classes(saved):
    source = saved(vectors=np.zeros((12, 2)), labels=np.where(LABELS, 70, -3))
    assert source.train_samples.class_names == ("-3", "70")
    assert source.train_samples.labels.unique().tolist() == [0, 1]


NAN = np.full((12, 3), np.nan)
WRONG = {
    "no labels": ({"vectors": np.zeros((12, 3))}, r"got vectors: save it.*vectors=\.\.\."),
    "no inputs": ({"labels": LABELS, "pictures": LABELS}, "got labels, pictures"),
    "both inputs": (
        {"labels": LABELS, "vectors": np.zeros((12, 3)), "images": np.zeros((12, 2, 2))},
        "got both: keep one",
    ),
    "lengths": ({"vectors": np.zeros((11, 3)), "labels": LABELS}, r"labels of shape \(11,\).*got \(12,\)"),
    "nan": ({"vectors": NAN, "labels": LABELS}, "NaN or infinity in 12 of 12"),
    "one class": ({"vectors": np.zeros((12, 3)), "labels": np.zeros(12, int)}, "at least 2 classes, got 1"),
    "rare class": ({"vectors": np.zeros((12, 3)), "labels": np.arange(12) // 10}, "at least 3 samples.*got 2 of '1'"),
    "real labels": (
        {"vectors": np.zeros((12, 3)), "labels": LABELS / 2},
        r"integers or strings.*float64: .*astype\(int\)",
    ),
    "no sample": ({"vectors": np.zeros((0, 3)), "labels": LABELS[:0]}, r"samples with values, got \(0, 3\)"),
    "no feature": ({"vectors": np.zeros((12, 0)), "labels": LABELS}, r"samples with values, got \(12, 0\)"),
    "no pixel": ({"images": np.zeros((12, 0, 0)), "labels": LABELS}, r"samples with values, got \(12, 0, 0\)"),
    "objects": ({"vectors": np.zeros((12, 3)), "labels": np.array(["a", "b"] * 6, object)}, r"labels\.astype\(str\)"),
    "object inputs": ({"vectors": np.zeros((12, 3), object), "labels": LABELS}, r"vectors\.astype\(float\)"),
    "flat images": ({"images": np.zeros((12, 4)), "labels": LABELS}, r"got \(12, 4\)"),
    "deep vectors": ({"vectors": np.zeros((12, 4, 1)), "labels": LABELS}, r"got \(12, 4, 1\)"),
    "mask kind": ({"vectors": np.zeros((12, 3)), "labels": LABELS, "test": LABELS}, "test of booleans"),
    "mask length": ({"vectors": np.zeros((12, 3)), "labels": LABELS, "test": LABELS[1:] > 0}, "test of shape"),
    "mask empty": ({"vectors": np.zeros((12, 3)), "labels": LABELS, "test": LABELS > 2}, "no test sample"),
    "unseen class": ({"vectors": np.zeros((12, 3)), "labels": LABELS, "test": LABELS > 0}, "no training sample for 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arrays_are_named_with_what_came(saved, case):
    arrays, words = WRONG[case]
    with pytest.raises(ValueError, match=words):
        _ = saved(**arrays).train_samples


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    for name, content in (("text.npz", b"not an archive"), ("empty.npz", b""), ("pickled.npy", None)):
        path = tmp_path / name
        if content is None:
            np.save(path, np.array([{}], dtype=object), allow_pickle=True)
        else:
            path.write_bytes(content)
        with pytest.raises(ValueError, match="which is none"):
            _ = Arrays(path).train_samples


@pytest.mark.parametrize("options", [{"views": 0}, {"batch_size": 1}, {"test_fraction": 0.0}, {"test_fraction": 1.0}])
def test_options_without_meaning_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Digits(**options)


def test_a_batch_carries_inputs_labels_and_the_samples_own_rows():
    digits = Digits(batch_size=32, views=3)
    batch = next(iter(digits.train_dataloader()))
    rows = batch["sample_index"]
    assert torch.equal(batch["inputs"], digits.train_samples.inputs[rows])
    assert torch.equal(batch["labels"], digits.train_samples.labels[rows])
    assert digits.on_after_batch_transfer(batch, 0)["inputs"].shape == (32, 3, 1, 8, 8)
