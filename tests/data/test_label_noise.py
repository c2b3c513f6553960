"""Labels that are wrong on purpose: exactly so many, in training alone, and compared with the right ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import likewise as lw
from likewise.data import Arrays, ByClass, EvalLabels, LabelNoise, Samples, Stratified, parts_of, parts_of_run
from likewise.evaluation import load_features
from likewise.report.run_summary import summary_table
from likewise.workflows import Silent

CLASSES = 5


def _samples(count=500, classes=CLASSES):
    rows = torch.arange(count)
    return Samples(rows.float().reshape(-1, 1), rows % classes, tuple("abcdefghij"[:classes]))


@pytest.mark.parametrize(("share", "form"), [(0, "pair"), (0.1, "symmetric"), (0.45, "symmetric"), (0.4, "pair")])
def test_exactly_the_share_is_changed_and_nothing_else(share, form):
    samples = _samples()
    plain, noisy = (Stratified()(samples, subset) for subset in (None, LabelNoise(share, form)))
    for before, after in ((plain.train, noisy.train), (plain.validation, noisy.validation)):
        assert torch.equal(before.inputs, after.inputs)  # the same samples in the same order
        right = (after.inputs.long().flatten() % CLASSES).tolist()
        wrong = [label != own for label, own in zip(after.labels.tolist(), right, strict=True)]
        assert sum(wrong) == round(share * len(before)) == int(after.changed.sum())
        assert wrong == after.changed.tolist()
        assert after.evaluated.classes.tolist() == right
        if form == "pair":
            moved = [label for label, own in zip(after.labels.tolist(), wrong, strict=True) if own]
            assert moved == [(of + 1) % CLASSES for of, own in zip(right, wrong, strict=True) if own]
    assert torch.equal(plain.test.labels, noisy.test.labels)
    assert noisy.test.evaluated is None


def test_symmetric_noise_is_uniform_over_the_other_classes():
    samples = _samples(20_000, 5)
    noisy = LabelNoise(0.4).relabelled(samples)
    counts = torch.zeros(5, 5)
    for right, label in zip(samples.labels.tolist(), noisy.labels.tolist(), strict=True):
        counts[right, label] += 1
    others = counts[~torch.eye(5, dtype=torch.bool)]
    assert int(others.sum()) == 8000
    expected = 400  # of 4,000 of a class, 40 % over 4 others; four standard deviations of about 19
    assert float((others - expected).abs().max()) < 80


def test_it_is_seeded_and_a_larger_share_contains_a_smaller_one():
    samples = _samples()
    first, again, other = (LabelNoise(0.2, seed=seed).relabelled(samples) for seed in (0, 0, 1))
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.labels, other.labels)
    more = LabelNoise(0.4).relabelled(samples)
    assert torch.equal(first.labels[first.changed], more.labels[first.changed])


def _of(*subsets):
    return {
        "data": {"class_path": "likewise.data.Digits"},
        "split": {"class_path": "likewise.data.Stratified", "init_args": {}},
        "subset": [{"class_path": f"likewise.data.{name}", "init_args": own} for name, own in subsets],
    }


def test_it_comes_after_other_subsets():
    noise, half = ("LabelNoise", {"share": 0.2}), ("Fraction", {"fraction": 0.5})
    parts, other, plain = (parts_of(_of(*of))[0] for of in ((half, noise), (noise, half), (half,)))
    for one in (parts, other):
        assert torch.equal(one.train.labels, parts.train.labels)
        assert torch.equal(one.train.rows, plain.train.rows)
        assert int((one.train.labels != plain.train.labels).sum()) == round(0.2 * len(plain.train))
    few, _ = parts_of(_of(("FewLabels", {"per_class": 10}), noise))
    assert (len(few.train) + len(few.validation), int(few.train.changed.sum())) == (100, round(0.2 * len(few.train)))
    assert len(few.unlabelled) == 1797 - len(few.test) - 100
    assert few.unlabelled.labels is None
    some, _ = parts_of(_of(("Classes", {"count": 4}), noise))
    assert int(some.train.labels.max()) == 3
    assert some.train.evaluated.names == some.test.names


def test_new_classes_stay_in_their_part():
    parts = ByClass()(_samples(400, 10), LabelNoise(0.3))
    for part in (parts.train, parts.validation):
        assert int(part.changed.sum()) == round(0.3 * len(part))
        assert int(part.labels.max()) < len(part.names)
    assert int(parts.test.changed.sum()) == 0


def test_beside_fine_labels_the_coarse_ones_are_changed():
    fine = torch.arange(600) % 6
    samples = Samples(torch.arange(600).float().reshape(-1, 1), fine // 2, ("a", "b", "c"))
    samples = replace(samples, evaluated=EvalLabels.finer(fine, tuple("uvwxyz"), fine // 2, ("a", "b", "c")))
    parts = Stratified()(samples, LabelNoise(0.4))
    rows = parts.train.inputs.long().flatten()
    assert torch.equal(parts.train.evaluated.classes, rows % 6)
    assert parts.train.evaluated.within.numbers.tolist() == [0, 0, 1, 1, 2, 2]
    assert int((parts.train.labels != rows % 6 // 2).sum()) == round(0.4 * len(rows)) == int(parts.train.changed.sum())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"share": 1.0}, "expected share from 0 to below 1, got 1.0"),
        ({"share": -0.1}, "expected share from 0 to below 1, got -0.1"),
        ({"share": 0.2, "form": "flip"}, "expected form as symmetric or pair, got 'flip'"),
    ],
)
def test_noise_that_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        LabelNoise(**options)


def test_one_class_cannot_be_taken_for_another():
    with pytest.raises(ValueError, match="LabelNoise expected 2 classes or more, to take others for, got 1: leave it"):
        LabelNoise(0.2).relabelled(_samples(classes=1))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on well-separated clusters whose labels are wrong in 40 % of the samples."""
    folder = tmp_path_factory.mktemp("noise")
    rng = np.random.default_rng(0)
    classes = np.arange(300) % 3
    np.savez(folder / "x.npz", vectors=rng.normal(size=(300, 4)) + 8 * np.eye(3, 4)[classes], labels=classes)
    options = {"data": str(folder / "x.npz"), "encoder": "MLP", "encoder.width": 16, "epochs": 2, "runs": str(folder)}
    options |= {"subset": "LabelNoise", "subset.share": 0.4, "trainer.enable_progress_bar": False, "report": False}
    return lw.train(options, loss="CrossEntropyLoss", progress=Silent())


def test_scores_are_by_the_right_classes(run):
    """Clusters this far apart are told apart without an error by their right labels alone."""
    source = Arrays(run.options["data"]["init_args"]["path"]).load()
    for part in load_features(run.embeddings):
        assert torch.equal(part.labels, source.labels[part.rows])
    raw = [one for one in run.scores if one.features == "raw inputs" and one.group.name == "" and one.part == "test"]
    assert {one.value for one in raw if one.evaluation in {"kNN", "linear probe"}} == {1.0}
    assert any(one.evaluation == "own classifier" for one in run.scores)


def test_the_run_says_what_was_changed_and_its_data_is_found_again(run):
    table = dict(summary_table(run.metadata))
    train, validation = (run.metadata["samples"][part] for part in ("train", "validation"))
    wrong = f"{round(0.4 * train)} of {train} train, {round(0.4 * validation)} of {validation} validation"
    assert table["wrong labels"].startswith(wrong)
    assert table["subset"].startswith("LabelNoise(share=0.4")
    parts, _ = parts_of_run(run)
    assert int(parts.train.changed.sum()) == round(0.4 * train)
