"""Runs on label sets: splits that keep each label's share, what is said of unusual labels, and what a run keeps."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import likewise as lw
from likewise.cli import main
from likewise.data import Fraction, Labelled, Samples, Stratified
from likewise.data.split import stratified
from likewise.diagnostics import grouped, push_weights
from likewise.evaluation.predictions import HAMMING, MEAN_PRECISION
from likewise.models import ProjectionHead
from likewise.runs import Run
from likewise.runs.scores import ALL
from likewise.training.assembly import notes
from likewise.training.inputs import KeyQueue

pytestmark = pytest.mark.slow


def tags(samples=900, labels=8, seed=0):
    """Return label sets of a long tail, whose labels depend on each other, and vectors that depend on them."""
    generator = np.random.default_rng(seed)
    hidden = generator.normal(size=(samples, 3))
    direction = generator.normal(size=(3, labels))
    cuts = np.quantile(hidden @ direction, 1 - 0.4 * 0.6 ** np.arange(labels), axis=0).diagonal()
    sets = hidden @ direction > cuts
    vectors = np.concatenate(
        [hidden + generator.normal(size=hidden.shape), generator.normal(size=(samples, 5))], axis=1
    )
    return vectors.astype(np.float32), sets


@pytest.fixture
def file(tmp_path):
    vectors, sets = tags()
    path = tmp_path / "tags.npz"
    np.savez(path, vectors=vectors, labels=sets, names=[f"tag {label}" for label in range(sets.shape[1])])
    return path


def trained(root, file, *words):
    common = ["--data", "Arrays", "--data.path", str(file), "--encoder", "MLP", "--encoder.width", "32"]
    common += ["--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu", "--runs", str(root)]
    assert main(["train", *common, *words]) == 0
    (folder,) = root.iterdir()
    return Run(folder)


# --- splits ----------------------------------------------------------------------------------------------------------


def test_every_label_keeps_its_share_of_samples():
    sets, share = torch.from_numpy(tags()[1]), 0.1
    chosen = stratified(sets, share, seed=0)
    assert len(chosen.unique()) == len(chosen)
    assert len(chosen) == round(share * len(sets))
    counts, own = sets.sum(0), sets[chosen].sum(0)
    assert ((own - share * counts).abs() <= 1 + 0.01 * counts).all()
    at_random = sets[torch.randperm(len(sets), generator=torch.Generator().manual_seed(0))[: len(chosen)]].sum(0)
    assert (own - share * counts).abs().sum() < (at_random - share * counts).abs().sum()
    assert torch.equal(stratified(sets, share, seed=0), chosen)
    assert not torch.equal(stratified(sets, share, seed=1), chosen)


def test_samples_without_labels_and_rare_labels_are_split_too():
    sets = torch.zeros(100, 3, dtype=torch.bool)
    sets[:40, 0] = True
    sets[40:43, 1] = True  # and a label that nobody has
    chosen = stratified(sets, 0.2, seed=0)
    assert len(chosen) == 20
    assert sets[chosen].sum(0).tolist()[0] == 8
    rest = torch.ones(100, dtype=torch.bool)
    rest[chosen] = False
    assert int(sets[rest, 1].sum()) >= 2


def test_a_split_of_label_sets_is_stratified_in_test_and_validation():
    vectors, sets = (torch.from_numpy(of) for of in tags())
    samples = Samples(vectors, sets, tuple(map(str, range(8))))
    parts = Stratified(test=0.25, validation=0.1)(samples)
    for part, share in ((parts.test, 0.25), (parts.validation, 0.075)):
        assert ((part.counts - share * samples.counts).abs() <= 1.5).all()
    rows = torch.cat([part.rows for part in (parts.train, parts.validation, parts.test)])
    assert torch.equal(rows.sort().values, torch.arange(900))
    dropped = Stratified()(samples, Labelled())
    assert dropped.train.labels.any(1).all()
    assert not dropped.test.labels.any(1).all()


# --- what is said ----------------------------------------------------------------------------------------------------


def test_a_subset_that_leaves_too_few_samples_is_named():
    _, sets = tags(120)
    samples = Samples(torch.zeros(120, 2), torch.from_numpy(sets), tuple(map(str, range(8))))
    with pytest.raises(ValueError, match=r"expected a subset that keeps samples .*, got 1"):
        Stratified()(samples, Fraction(0.001))


def test_labels_that_do_not_vary_and_samples_without_labels_are_told():
    labels = torch.zeros(10, 4, dtype=torch.bool)
    labels[:, 0] = True
    labels[:3, 1] = True
    never, always = notes(Samples(torch.zeros(10, 2), labels, ("all", "some", "none", "neither")))
    assert never == "labels at no training sample, of which nothing can be learned: 2 of 4 (none, neither)"
    assert always == "labels at every training sample, of which nothing can be learned: 1 of 4 (all)"
    (told,) = notes(Samples(torch.zeros(10, 2), labels[:, 1:2], ("some",)))
    assert told.startswith("7 of 10 training samples have no label and are kept; ")
    (told,) = notes(Samples(torch.zeros(10, 2)), [KeyQueue(25)])
    assert told.startswith("the queue holds 25 keys of 10 training samples, each about 2.5 times: lower --inputs.size")
    assert not list(notes(Samples(torch.zeros(10, 2)), [KeyQueue(5)]))


def test_label_sets_without_any_label_are_told_before_training(tmp_path, capsys):
    vectors, sets = tags(60)
    np.savez(tmp_path / "none.npz", vectors=vectors, labels=np.zeros_like(sets))
    words = ["train", "--data", "Arrays", "--data.path", str(tmp_path / "none.npz"), "--loss", "BCELoss"]
    assert main([*words, "--runs", str(tmp_path / "runs")]) == 2
    assert "error: expected training samples with a label, got none of" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*"))
    samples = Samples(torch.from_numpy(vectors), torch.from_numpy(sets), tuple(map(str, range(sets.shape[1]))))
    empty = Samples(samples.inputs[:9], torch.zeros_like(samples.labels[:9]), samples.names)
    told = "none of 9 test samples has a label: no prediction of labels can be evaluated"
    assert told in list(notes(samples, test=empty))
    assert told not in list(notes(samples, test=samples))


# --- runs ------------------------------------------------------------------------------------------------------------


def test_the_similarity_that_a_run_keeps_is_that_of_its_whole_training_part(file, tmp_path):
    words = ["--loss", "NWSLoss", "--trainer.max_epochs", "1", "--evaluations", "KNN"]
    run = trained(tmp_path / "runs", file, *words)
    with np.load(run.embeddings) as arrays:
        sets = arrays["train_labels"]
    shares = sets.mean(0)
    for one in range(8):
        for other in range(8):
            both = (sets[:, one] & sets[:, other]).mean()
            expected = 0.0 if both == 0 else (1 + np.log(both / shares[one] / shares[other]) / -np.log(both)) / 2
            found = float(load_file(run.similarity_file)["similarity"][one, other])
            assert found == pytest.approx(1.0 if one == other else expected, abs=1e-5)
    page = run.report.read_text()
    assert "<h2>Similarity of labels</h2>" in page
    assert "<h2>Labels</h2>" in page


def test_a_run_with_a_classifier_reports_it_and_keeps_its_best_epoch(file, tmp_path, capsys):
    words = ["--loss", "BCELoss", "--optimizer.lr", "0.05", "--trainer.max_epochs", "6", "--validation_epochs", "1"]
    words += ["--keep", "best", "--keep_checkpoints", "true", "--evaluations", "OwnClassifier", "--report", "false"]
    run = trained(tmp_path / "runs", file, *words)
    epochs = {of.epoch: of.value for of in run.scores if of.epoch and of.metric == MEAN_PRECISION and of.group == ALL}
    best = max(epochs, key=epochs.get)
    assert len(epochs) == 6
    assert best < 6  # so that keeping the last would be something else
    kept = torch.load(run.best, weights_only=True)
    assert kept["epoch"] == best - 1
    assert [path.name for path in run.folder.glob("*.ckpt")] == ["best.ckpt"]
    state = kept["state_dict"]
    weights = load_file(run.weights)
    assert all(torch.equal(state[f"encoder.{name}"], of) for name, of in weights.items())
    with np.load(run.embeddings) as arrays:
        features, predictions, sets = (arrays[f"test_{of}"] for of in ("features", "logits", "labels"))
    linear = {name.rpartition(".")[2]: of.numpy() for name, of in state.items() if "Classifier" in name}
    np.testing.assert_allclose(predictions, features @ linear["weight"].T + linear["bias"], rtol=1e-4, atol=1e-4)
    assert "own classifier, mAP: " in capsys.readouterr().out
    hamming = next(of.value for of in run.scores if of.epoch is None and of.metric == HAMMING)
    assert hamming == pytest.approx(((predictions > 0) != sets).mean(), abs=1e-9)  # 0.5 is a logit of 0
    again = ["evaluate", str(run.folder), "--evaluations", "OwnClassifier"]
    before = [score.value for score in run.scores if score.epoch is None]
    assert main(again) == 0
    assert [score.value for score in run.scores if score.epoch is None] == before


def test_prototypes_classify_by_the_cosine_to_embeddings(file, tmp_path):
    words = ["--loss", "MSCLoss", "--trainer.max_epochs", "2", "--evaluations", "OwnClassifier"]
    words += ["--keep_checkpoints", "true", "--report", "false"]
    run = trained(tmp_path / "runs", file, *words)
    state = torch.load(run.checkpoint, weights_only=True)["state_dict"]
    prototypes = next(of for name, of in state.items() if "LabelPrototypes" in name)
    head = ProjectionHead(**json.loads((run.folder / "run.json").read_text())["parts"]["head"]["init_args"])
    head.load_state_dict({name.removeprefix("head."): of for name, of in state.items() if name.startswith("head.")})
    with np.load(run.embeddings) as arrays:
        features, predictions = (torch.from_numpy(arrays[f"test_{of}"]) for of in ("features", "predictions"))
    unit = torch.nn.functional.normalize
    torch.testing.assert_close(predictions, unit(head.eval()(features)) @ unit(prototypes).T, rtol=1e-4, atol=1e-5)


def test_what_goes_by_validation_scores_needs_them(file, tmp_path, capsys):
    """It is refused in a line, before the run is there."""
    common = ["train", "--data", "Arrays", "--data.path", str(file), "--encoder", "MLP", "--loss", "BCELoss"]
    for words, said in (
        ("--keep best --validation_epochs 0", "give validation_epochs above 0"),
        ("--patience 2 --evaluations []", "or leave out --patience"),
        ("--patience 2 --split.refit true", "got a refit on it: leave out --patience"),
        ("--keep best --split.refit true", "got a refit on it: leave out --keep"),
        ("--patience 0", "expected patience of 1 validation or more, got 0: 5 is usual"),
    ):
        assert main([*common, "--runs", str(tmp_path / "runs"), *words.split()]) == 2
        told = capsys.readouterr().err
        assert told.startswith("error: expected ")
        assert said in told
        assert told.count("\n") == 1
    assert not (tmp_path / "runs").exists()


# --- diagnostics -----------------------------------------------------------------------------------------------------


def test_push_weights_are_those_of_a_loop():
    sets = torch.from_numpy(tags(60)[1])
    similarity = lw.label_pair_similarity(sets, "npmi")
    for aggregation in ("mean", "max"):
        expected = []
        for one in sets:
            for other in sets:
                if (one & other).any() or not one.any():
                    continue
                pairs = similarity[one][:, other].flatten()
                alike = 0.0 if len(pairs) == 0 else float(pairs.mean() if aggregation == "mean" else pairs.max())
                expected.append(1 - alike)
        found = push_weights(sets, similarity, aggregation)
        np.testing.assert_allclose(found.sort().values.numpy(), np.sort(expected), atol=1e-6)


def test_similar_labels_stand_next_to_each_other():
    similarity = torch.eye(6)
    for pair in ((0, 3), (1, 4), (2, 5)):
        similarity[pair] = similarity[pair[::-1]] = 0.8
    order = grouped(similarity).tolist()
    places = {label: place for place, label in enumerate(order)}
    assert all(abs(places[one] - places[other]) == 1 for one, other in ((0, 3), (1, 4), (2, 5)))
