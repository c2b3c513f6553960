"""Evaluation of much: arrays are mapped, linked, cut before they are read; kNN's choice of k; vectors on a GPU."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from likewise.data import EvalLabels, Samples
from likewise.evaluation import KNN, FeatureParts, Features, FewShot, LinearProbe, Retrieval, arrays, feature_files, knn
from likewise.evaluation.arrays import is_arrays, read_arrays
from likewise.evaluation.feature_files import features_of_file, load_features
from likewise.evaluation.features import capped, with_room
from likewise.models import MLP
from likewise.runs import Run
from likewise.workflows import Silent, evaluate, train
from likewise.workflows.scoring import EvaluationOptions, evaluate_features
from simulated_gpu import simulated_gpu

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(arrays, "MIN_MAPPED_BYTES", 1)
    monkeypatch.setattr(feature_files, "MIN_LINKED_BYTES", 1)


def data(count: int = 120, width: int = 6, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Clusters of unequal size, with some vectors twice."""
    random = np.random.default_rng(0)
    labels = (random.random(count) ** 2 * classes).astype(int)
    vectors = (np.eye(width)[labels] + random.normal(size=(count, width)) / 2).astype(np.float32)
    vectors[count // 2 : count // 2 + 4] = vectors[:4]
    return vectors, labels


def table(path: Path, vectors: np.ndarray, labels: list, **columns: list) -> Path:
    """A file as `likewise embed` writes it."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    parquet.write_table(pa.table({"features": lists, "label": labels, **columns}), path)
    return path


def rows_of(parts: FeatureParts) -> list[list[int]]:
    return [part.numbers.tolist() for part in parts]


@pytest.mark.parametrize("dtype", [np.float16, ">f4"])
def test_arrays_of_an_npz_file_are_mapped_and_are_what_numpy_reads(tmp_path, dtype):
    vectors, labels = data()
    path = tmp_path / "séts of [all].npz"
    np.savez(path, a=np.arange(3), features=vectors.astype(dtype), labels=labels.astype(str))
    found = read_arrays(path)
    assert isinstance(found["features"], np.memmap)
    with np.load(path) as wanted:
        assert sorted(found) == sorted(wanted.files)
        for name in wanted.files:
            np.testing.assert_array_equal(found[name], wanted[name])
    parts = features_of_file(path)
    for part in parts:
        rows = vectors.astype(dtype)[part.numbers.numpy()].astype(np.float32)
        np.testing.assert_array_equal(part.vectors.numpy(), rows)


def test_what_cannot_be_mapped_is_read_and_what_is_mapped_never_changed(tmp_path):
    vectors, labels = data()
    np.savez_compressed(tmp_path / "packed.npz", features=vectors, labels=labels)
    np.savez(tmp_path / "fortran.npz", features=np.asfortranarray(vectors), labels=labels)
    for name in ("packed.npz", "fortran.npz"):
        found = read_arrays(tmp_path / name)
        assert not isinstance(found["features"], np.memmap)
        np.testing.assert_array_equal(found["features"], vectors)
    np.savez(tmp_path / "a.npz", features=vectors, labels=labels)
    before = (tmp_path / "a.npz").read_bytes()
    read_arrays(tmp_path / "a.npz")["features"][:] = 0
    assert (tmp_path / "a.npz").read_bytes() == before


def test_files_folders_and_tables_of_the_same_vectors_have_the_same_parts(tmp_path):
    vectors, labels = data()
    names = np.array(["ash", "elm", "oak", "yew"])[labels]
    np.savez(tmp_path / "one.npz", features=vectors, labels=names)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "features.npy", vectors)
    np.save(tmp_path / "folder" / "labels.npy", names)
    table(tmp_path / "one.parquet", vectors, names.tolist(), id=[f"{row}.jpg" for row in range(len(vectors))])
    (tmp_path / "shards").mkdir()
    for number in range(3):
        own = slice(number * 40, number * 40 + 40)
        table(tmp_path / "shards" / f"{number}.parquet", vectors[own], names[own].tolist())
    wanted = features_of_file(tmp_path / "one.npz")
    for name in ("one.npz", "folder", "one.parquet", "shards"):
        assert is_arrays(tmp_path / name)
        found = features_of_file(tmp_path / name)
        assert rows_of(found) == rows_of(wanted)
        for part, like in zip(found, wanted, strict=True):
            assert torch.equal(part.vectors, like.vectors)
            assert [part.names[label] for label in part.classes] == [like.names[label] for label in like.classes]
    assert next(iter(features_of_file(tmp_path / "one.parquet").test.ids)).endswith(".jpg")


def test_lists_of_labels_in_a_table_are_label_sets(tmp_path):
    vectors, _ = data(60)
    lists = [["red", "round"], ["round"], [], ["blue"]] * 15
    table(tmp_path / "sets.parquet", vectors, lists, part=["train", "train", "test", "validation"] * 15)
    arrays = read_arrays(tmp_path / "sets.parquet")
    assert arrays["names"].tolist() == ["blue", "red", "round"]
    assert [[bool(name in own) for name in ("blue", "red", "round")] for own in lists] == arrays["labels"].tolist()
    assert [len(part) for part in features_of_file(tmp_path / "sets.parquet")] == [30, 15, 15]


def test_what_is_not_there_or_cannot_be_read_is_said_in_a_line(tmp_path):
    vectors, labels = data()
    np.savez(tmp_path / "cut.npz", features=vectors, labels=labels)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:-40])
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    parquet.write_table(pa.table({"x": [1.0], "label": ["a"]}), tmp_path / "x.parquet")
    table(tmp_path / "blank.parquet", vectors, [None, *map(str, labels[1:])])
    wrong = vectors.copy()
    wrong[7] = np.inf
    np.savez(tmp_path / "infinite.npz", features=wrong, labels=labels)
    for name, told in {
        "none.npz": "which does not exist: check the path",
        "cut.npz": r"got .*cut.npz, which can't be read",
        "cut.parquet": r"got .*cut.parquet, which can't be read",
        "x.parquet": r"expected a column 'features' .* columns x, label in x.parquet",
        "blank.parquet": "expected labels without empty cells",
        "infinite.npz": r"expected finite .* features, got NaN or infinity in 1 of",
    }.items():
        with pytest.raises(ValueError, match=told):
            features_of_file(tmp_path / name)
    assert not is_arrays(tmp_path / "nothing")


def test_vectors_are_linked_and_not_copied(tmp_path):
    vectors, labels = data()
    path = tmp_path / "mine.npz"
    np.savez(path, other=np.zeros(5), features=vectors, labels=labels)
    run = evaluate(path, runs=tmp_path / "runs", sections=[], progress=Silent())
    with np.load(run.embeddings, allow_pickle=False) as kept:
        assert not [name for name in kept.files if name.endswith("_features")]
        facts = json.loads(str(kept["linked"]))
    assert (facts["file"], facts["shape"]) == ("vectors.npz", list(vectors.shape))
    (link,) = run.folder.glob("vectors*")
    assert link.stat().st_ino == path.stat().st_ino
    wanted = features_of_file(path)
    path.unlink()
    found = load_features(run.embeddings)
    for part, like in zip(found, wanted, strict=True):
        assert torch.equal(part.vectors, like.vectors)
        assert torch.equal(part.numbers, like.numbers)
    again = evaluate(run, evaluations="KNN", progress=Silent())
    assert any(score.evaluation == "kNN" for score in again.scores)
    link.write_bytes(link.read_bytes() + b"more")
    with pytest.raises(ValueError, match="as it was evaluated, got another: evaluate their file again"):
        load_features(run.embeddings)
    link.unlink()
    with pytest.raises(ValueError, match="which is not there: evaluate their file again"):
        load_features(run.embeddings)


def test_vectors_on_another_disk_are_linked_by_name(tmp_path, monkeypatch):
    vectors, labels = data()
    np.savez(tmp_path / "mine.npz", features=vectors, labels=labels)

    def refuses(_, other):
        raise OSError(18, f"Invalid cross-device link: {other}")

    monkeypatch.setattr(Path, "hardlink_to", refuses)
    monkeypatch.chdir(tmp_path)
    run = evaluate("mine.npz", runs=tmp_path / "runs", sections=[], progress=Silent())
    (link,) = run.folder.glob("vectors*")
    assert link.is_symlink()
    assert link.resolve() == (tmp_path / "mine.npz").resolve()
    assert rows_of(load_features(run.embeddings)) == rows_of(features_of_file(Path("mine.npz")))


def test_samples_are_chosen_before_they_are_read_as_features_were_after(tmp_path):
    vectors, labels = data()
    np.savez(tmp_path / "mine.npz", features=vectors, labels=labels)
    whole, few = features_of_file(tmp_path / "mine.npz"), features_of_file(tmp_path / "mine.npz", most=10)
    assert rows_of(few) == [part.fewer(10).numbers.tolist() for part in whole]
    for all_of_it, some in zip(whole, few, strict=True):
        assert torch.equal(some.vectors, all_of_it.fewer(10).vectors)
        assert torch.equal(some.frequencies, all_of_it.counts)


def test_of_a_second_labelling_whole_fine_classes_are_chosen():
    """Rows stay those of the source, whole classes are the finer ones, by which samples are evaluated."""
    fine = torch.arange(40) % 8
    second = EvalLabels.finer(fine, tuple("abcdefgh"), fine // 2, ("0", "1", "2", "3"), "fine")
    test = Samples(torch.zeros(40, 1), fine // 2, ("0", "1", "2", "3"), evaluated=second)
    train = Samples(torch.zeros(30, 1), torch.arange(30) % 3, ("x", "y", "z"))
    few = capped([train, test, test], 12)[2]  # the classes of test are new
    assert sorted(few.samples.counts.tolist()) == [0] * 6 + [5] * 2
    assert torch.equal(fine[few.samples.rows], few.samples.labels)
    assert few.whole.tolist() == [5] * 8


def common(folder: Path) -> dict[str, object]:
    """What trainings of a file of vectors are told."""
    data = {"data": "Arrays", "data.path": str(folder / "mine.npz"), "encoder": "MLP"}
    return data | {"validation_epochs": 0, "sections": [], "runs": str(folder / "runs")}


def test_only_the_samples_that_are_evaluated_are_encoded_and_more_when_more_are_asked_for(tmp_path, monkeypatch):
    vectors, labels = data(300)
    np.savez(tmp_path / "mine.npz", vectors=vectors, labels=labels)
    seen: list[int] = []
    encode = MLP.encode

    def counted(self, inputs, *given, **named):
        seen.append(len(inputs))
        return encode(self, inputs, *given, **named)

    options = {"evaluations": "KNN", "encoder.width": 4, "trainer.max_epochs": 1, "evaluation_samples": 25}
    with monkeypatch.context() as patch:
        patch.setattr(MLP, "encode", counted)
        run = train(common(tmp_path) | options, progress=Silent())
    assert max(seen) <= 25
    kept = load_features(run.embeddings)
    assert [len(part) for part in kept] == [25, min(25, len(kept.validation)), 25]
    assert kept.train.whole is not None
    assert int(kept.train.whole.sum()) > 150
    assert run.metadata["encoded_samples"] == 25
    again = evaluate(run, progress=Silent())
    assert [len(part) for part in load_features(again.embeddings)] == [len(part) for part in kept]
    more = evaluate(run, evaluation_samples=60, progress=Silent())
    assert len(load_features(more.embeddings).test) == 60
    assert own(more, "kNN").count == 60


@pytest.mark.parametrize(("loss", "sets"), [("CrossEntropyLoss", False), ("NWSLoss", True)], ids=["softmax", "nws"])
def test_what_was_trained_to_classify_scores_the_samples_that_are_encoded_later(tmp_path, loss, sets):
    vectors, labels = data(300)
    if sets:
        labels = np.stack([labels == of for of in range(3)] + [vectors[:, 0] > 0], axis=1)
    np.savez(tmp_path / "mine.npz", vectors=vectors, labels=labels)
    options = {"evaluations": "OwnClassifier", "loss": loss, "encoder.width": 8, "trainer.max_epochs": 2, "seed": 3}
    options |= common(tmp_path)
    few = train({**options, "evaluation_samples": 25, "name": "few"}, progress=Silent())
    whole = train({**options, "name": "whole"}, progress=Silent())  # the same weights
    assert own(few).count < own(whole).count
    more = evaluate(few, evaluation_samples=10_000, progress=Silent())
    found, expected = own(more), own(whole)
    assert found.settings == pytest.approx(expected.settings, abs=1e-6)  # a threshold lies between scores, rounded
    assert replace(found, settings=expected.settings) == expected
    kept, wanted = load_features(more.embeddings), load_features(whole.embeddings)
    for part, of in zip(kept, wanted, strict=True):
        assert torch.equal(part.vectors, of.vectors)
        assert part.logits == of.logits
        torch.testing.assert_close(part.predicted, of.predicted, rtol=0, atol=1e-6)


def own(run: Run, evaluation: str = "own classifier"):
    """The score of an evaluation that is told first."""
    of = [score for score in run.scores if (score.evaluation, score.part, score.epoch) == (evaluation, "test", None)]
    return next(score for score in of if str(score.group) == "all" and score.features == "encoder")


def right(train: Features, validation: Features, k: int) -> int:
    """How many validation samples k neighbours are right about, of equal votes those with the nearer neighbours."""
    unit = torch.nn.functional.normalize
    cosines, near = (unit(validation.vectors.double()) @ unit(train.vectors.double()).T).topk(k)
    votes = torch.zeros(len(validation), 3, dtype=torch.float64)
    votes.scatter_add_(1, train.classes[near], 1 + 1e-6 * cosines)
    return int((votes.argmax(dim=1) == validation.classes).sum())


def test_k_is_doubled_as_long_as_the_largest_is_best_and_no_more(monkeypatch):
    """What one search is made for changes neither what is tried nor what is chosen."""
    monkeypatch.setattr(knn, "KS", (1, 2, 4))
    generator = torch.Generator().manual_seed(0)
    chosen = set()
    for spread in (1.0, 2.0, 4.0, 8.0):
        labels = torch.randint(3, (400,), generator=generator)
        vectors = torch.eye(12)[labels] * 2 + spread * torch.randn(400, 12, generator=generator)
        train = Features(vectors[:300], labels[:300])
        validation = Features(vectors[300:], labels[300:], part="validation")
        found = KNN(weights="uniform")(train, validation, validation)
        tried = {k: right(train, validation, k) for k in (1, 2, 4)}
        while (best := min(k for k in tried if tried[k] == max(tried.values()))) == max(tried) < 300:
            tried[min(2 * best, 300)] = right(train, validation, min(2 * best, 300))
        assert sorted(score.settings["k"] for score in found.candidates) == sorted(tried)
        assert {score.settings["k"] for score in found.scores} == {best}
        chosen.add(best)
    assert len(chosen) > 2


def clusters(count: int, seed: int, labels: int) -> Features:
    """Clusters with a long tail; some vectors twice, one zero, one number constant."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(6, 12, generator=torch.Generator().manual_seed(9))
    of = (torch.rand(count, generator=generator) ** 2 * 6).long()
    vectors = centres[of] + 0.7 * torch.randn(count, 12, generator=generator)
    vectors[count // 2 : count // 2 + 4] = vectors[0]
    vectors[count // 3], vectors[:, 3] = 0, 2.5
    if not labels:
        return Features(vectors, of, tuple("abcdef"), part="test")
    sets = torch.rand(count, labels, generator=generator) < torch.linspace(0.5, 0.02, labels)
    sets[:, 0] |= of > 2
    return Features(vectors, sets, part="test")


def parts(labels: int = 0) -> FeatureParts:
    return FeatureParts(*(clusters(count, seed, labels) for seed, count in enumerate((200, 60, 70))))


@pytest.mark.parametrize("labels", [0, 8])
@pytest.mark.parametrize(
    ("evaluation", "refit"),
    [
        (KNN(), False),
        (KNN(k=7, weights="similarity"), True),
        (LinearProbe(penalties=(1e-2, 1e-3)), True),  # the best of some labels lie beyond
        (Retrieval(at=[1, 5]), False),
        (Retrieval(gallery="train"), True),
    ],
)
def test_on_a_gpu_each_finds_what_it_finds_on_the_cpu(evaluation, refit, labels):
    given = parts(labels)
    found = evaluation(*given, refit=refit)
    with simulated_gpu() as gpu:
        there = evaluation(*given.to(gpu), refit=refit)
    assert there.scores == found.scores
    assert len(found.scores) > 1
    assert there.candidates == found.candidates
    for ours, theirs in zip(there.outcomes, found.outcomes, strict=True):
        assert torch.equal(ours.values.nan_to_num(-1), theirs.values.nan_to_num(-1))
        assert torch.equal(ours.rows, theirs.rows)
    if found.predictor is not None:  # which a run keeps, and whoever loads it may have no GPU
        assert there.predictor is not None
        assert there.predictor.to_bytes() == found.predictor.to_bytes()


@pytest.mark.parametrize("trained", [True, False])
def test_a_run_is_evaluated_on_the_gpu_as_far_as_evaluations_can(tmp_path, monkeypatch, trained):
    given, asked = parts(), [KNN(), LinearProbe(), Retrieval(), FewShot(ways=3, shots=2, episodes=50)]
    run, beside = (Run.create(tmp_path, name, "x") for name in ("cpu", "gpu"))
    options = EvaluationOptions(asked)
    evaluate_features(run, given, None, options, Silent(), refit=False, trained=True)
    monkeypatch.setattr("likewise.evaluation.features.with_room", lambda device, *_: device)
    used: list[tuple[str, str]] = []
    for one in asked:
        plain = type(one).evaluate

        def noted(self, parts, *, plain=plain, **options):
            used.append((self.name, parts.train.vectors.device.type))
            return plain(self, parts, **options)

        monkeypatch.setattr(type(one), "evaluate", noted)
    with simulated_gpu() as gpu:
        evaluate_features(beside, given, None, options, Silent(), refit=False, trained=trained, device=gpu)
    on, off = gpu.type, "cpu"
    assert dict(used) == {"kNN": on, "linear probe": on, "retrieval": on, "few-shot": off}
    assert beside.scores == run.scores
    assert (beside.probe.read_bytes(), len(run.scores) > 9) == (run.probe.read_bytes(), True)


def test_features_stay_on_the_cpu_where_a_gpu_has_no_room(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (24 * 1000 * 64, 1))
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert [with_room(gpu, count, 64) for count in (999, 1000, 2000)] == [gpu, cpu, cpu]
    assert with_room(torch.device("mps"), 1, 64) == with_room(cpu, 1, 64) == cpu
